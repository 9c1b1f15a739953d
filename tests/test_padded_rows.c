/*
 * Logits whose rows lie further apart in memory than they are long, on devices that want that (row_pitch): every
 * operation on them gives what it gives on dense ones, before the loss and after it, and so do their gradients.
 * A CPU has no such rows; there both sides are the same.
 */
#include "support/host.h"
#include "support/job.h"

#include "base/dtype.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 12, IN = 16, ODD = 501, FEW = 37 };

/* made_up of any floating type. */
static shard_tensor *made(shard_shape shape, uint64_t seed, shard_dtype dtype)
{
    return shard_detach(shard_cast(made_up(shape, seed, SHARD_FLOAT32), dtype));
}

static shard_tensor *leaf(shard_shape shape, uint64_t seed, shard_dtype dtype)
{
    shard_tensor *x = made(shape, seed, dtype);
    shard_set_requires_grad(x, true);
    return x;
}

typedef struct head {
    shard_tensor *x, *weight, *bias;
} head;

static head make_head(int64_t classes, shard_dtype dtype)
{
    return (head){leaf(SHARD_SHAPE(ROWS, IN), 1, dtype), leaf(SHARD_SHAPE(classes, IN), 2, dtype),
                  leaf(SHARD_SHAPE(classes), 3, dtype)};
}

static bool is_apart(const shard_tensor *x)
{
    return x->storage->padding.pitch > 0;
}

/* Whether the device wants rows of so many elements apart. */
static bool wants_apart(int64_t classes, shard_dtype dtype)
{
    shard_device *device = shard_device_open(NULL);
    return device->ops->row_pitch(device, classes, dtype) > classes;
}

static shard_tensor *labels_of(int64_t rows, int64_t classes)
{
    int64_t labels[ROWS];
    for (int64_t i = 0; i < rows; i++)
        labels[i] = i == 3 ? -100 : i * 719 % classes;
    return shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
}

/* ---- who else uses the logits ---- */

/* A number that depends on the logits in another way for each use; NULL with the error set. */
typedef shard_tensor *use(shard_tensor *logits);

static shard_tensor *nothing(shard_tensor *logits)
{
    return shard_zeros(SHARD_SCALAR, .dtype = logits->dtype);
}
static shard_tensor *relu(shard_tensor *logits)
{
    return shard_mean(shard_relu(logits));
}
static shard_tensor *softmax(shard_tensor *logits)
{
    shard_tensor *y = shard_softmax(logits);
    return shard_sum(shard_mul(y, y));
}
static shard_tensor *log_softmax(shard_tensor *logits)
{
    return shard_mean(shard_log_softmax(logits));
}
static shard_tensor *logsumexp(shard_tensor *logits)
{
    return shard_mean(shard_logsumexp(logits, -1, false));
}
static shard_tensor *argmax(shard_tensor *logits)
{
    return shard_mean(shard_cast(shard_argmax(logits, -1, false), logits->dtype));
}
static shard_tensor *largest(shard_tensor *logits)
{
    return shard_mean(shard_top_k(logits, 3, NULL));
}
static shard_tensor *rank(shard_tensor *logits)
{
    shard_tensor *ranks = shard_label_rank(logits, labels_of(ROWS, logits->shape.dim[1]), -100);
    return shard_mean(shard_cast(shard_narrow(ranks, 0, 4, ROWS - 4), logits->dtype));
}
/* Its result has rows as far apart, and the loss's gradient is written over it. */
static shard_tensor *margin(shard_tensor *logits)
{
    shard_tensor *labels = labels_of(ROWS, logits->shape.dim[1]);
    shard_tensor *y = shard_margin_logits(logits, labels, .scale = 2, .m3 = 0.1);
    ck_assert(y && is_apart(y) == is_apart(logits));
    return shard_cast(shard_cross_entropy(y, labels), logits->dtype);
}
static shard_tensor *data(shard_tensor *logits)
{
    double *values = values_of(shard_detach(logits));
    shard_tensor *y = shard_full(SHARD_SCALAR, values[5 * logits->shape.dim[1] + 7], .dtype = logits->dtype);
    free(values);
    return y;
}
static shard_tensor *detached(shard_tensor *logits)
{
    shard_tensor *y = shard_detach(logits);
    return shard_mean(shard_mul(y, logits));
}
static shard_tensor *copy(shard_tensor *logits)
{
    return shard_mean(shard_clone(logits));
}
static shard_tensor *one_row(shard_tensor *logits)
{
    return shard_mean(shard_relu(shard_narrow(logits, 0, 5, 1)));
}
static shard_tensor *some_rows(shard_tensor *logits)
{
    return shard_cross_entropy(shard_narrow(logits, 0, 2, 5), labels_of(5, logits->shape.dim[1]));
}
static shard_tensor *some_columns(shard_tensor *logits)
{
    return shard_mean(shard_narrow(logits, 1, 5, 20));
}
static shard_tensor *batch(shard_tensor *logits)
{
    int64_t classes = logits->shape.dim[1];
    shard_tensor *y = shard_reshape(logits, SHARD_SHAPE(3, ROWS / 3, classes));
    return shard_cross_entropy(shard_reshape(y, SHARD_SHAPE(ROWS, classes)), labels_of(ROWS, classes), .label_smoothing = 0.1);
}
static shard_tensor *flat(shard_tensor *logits)
{
    return shard_mean(shard_relu(shard_flatten(logits, 0, -1)));
}
static shard_tensor *turned(shard_tensor *logits)
{
    return shard_mean(shard_relu(shard_transpose(logits, 0, 1)));
}
static shard_tensor *wide(shard_tensor *logits)
{
    shard_tensor *y = shard_cast(logits, SHARD_FLOAT64);
    return shard_cast(shard_mean(shard_mul(y, y)), logits->dtype);
}
static shard_tensor *wide_loss(shard_tensor *logits)
{
    shard_tensor *y = shard_cast(logits, SHARD_FLOAT32), *labels = labels_of(ROWS, logits->shape.dim[1]);
    return shard_cast(shard_cross_entropy(y, labels), logits->dtype);
}
static shard_tensor *next_layer(shard_tensor *logits)
{
    shard_tensor *weight = made(SHARD_SHAPE(FEW, logits->shape.dim[1]), 7, logits->dtype);
    return shard_mean(shard_linear(logits, weight, NULL));
}
static shard_tensor *own_targets(shard_tensor *logits)
{
    return shard_cross_entropy(logits, shard_softmax(shard_detach(logits)));
}
static shard_tensor *itself(shard_tensor *logits)
{
    return shard_scale(shard_cross_entropy(logits, shard_detach(logits)), 1e-4);
}
static shard_tensor *added(shard_tensor *logits)
{
    return shard_mean(shard_add(logits, logits));
}
static shard_tensor *put_together(shard_tensor *logits)
{
    return shard_mean(shard_relu(shard_concatenate((shard_tensor *[]){logits, logits}, 2, 1)));
}
static shard_tensor *saved(shard_tensor *logits)
{
    char path[60];
    snprintf(path, sizeof path, "/tmp/padded_rows_%d.safetensors", (int)getpid());
    shard_tensors *list = shard_tensors_create(), *other = shard_tensors_create();
    shard_tensor *y = shard_tensor_like(shard_detach(logits));
    check_ok(shard_tensors_add(list, "logits", shard_detach(logits)));
    check_ok(shard_tensors_add(other, "logits", y));
    check_ok(shard_save(list, path, NULL));
    check_ok(shard_load(other, path));
    shard_tensors_destroy(list);
    shard_tensors_destroy(other);
    unlink(path);
    return shard_mean(y);
}

static const struct {
    const char *name;
    use *use;
} uses[] = {{"nothing", nothing},
            {"relu", relu},
            {"softmax", softmax},
            {"log_softmax", log_softmax},
            {"logsumexp", logsumexp},
            {"argmax", argmax},
            {"top_k", largest},
            {"label_rank", rank},
            {"margin_logits", margin},
            {"data", data},
            {"detached", detached},
            {"clone", copy},
            {"a row", one_row},
            {"rows", some_rows},
            {"columns", some_columns},
            {"reshaped", batch},
            {"flattened", flat},
            {"transposed", turned},
            {"float64", wide},
            {"loss of float32", wide_loss},
            {"linear", next_layer},
            {"targets of its own", own_targets},
            {"itself as targets", itself},
            {"added", added},
            {"concatenated", put_together},
            {"saved", saved}};
enum { USES = sizeof uses / sizeof *uses };

/* ---- a step ---- */

enum { RESULTS = 4 /* the loss, and the gradients of x, weight and bias */ };

/* Loss and gradients in a row, so many of each; the caller's. `dense`: the logits are made dense before anything else. */
static double *step(int64_t classes, shard_dtype dtype, bool dense, use *before, use *after, int64_t counts[RESULTS])
{
    double *all = NULL;
    SHARD_SCOPE
    {
        head h = make_head(classes, dtype);
        shard_tensor *labels = labels_of(ROWS, classes), *loss = NULL;
        for (int turn = 0; turn < 2; turn++) { /* gradients are accumulated */
            shard_tensor *logits = shard_linear(shard_scale(h.x, 1 + turn), h.weight, h.bias);
            ck_assert_msg(logits != NULL, "%s", shard_last_error());
            ck_assert_int_eq(is_apart(logits), wants_apart(classes, dtype));
            if (dense)
                shard_data(logits);
            ck_assert(!dense || !is_apart(logits));
            shard_tensor *first = before(logits), *ce = shard_cross_entropy(logits, labels);
            loss = shard_add(shard_add(shard_cast(first, ce->dtype), shard_cast(after(logits), ce->dtype)), ce);
            shard_release(logits);
            check_ok(shard_backward(loss));
        }
        shard_tensor *results[RESULTS] = {loss, shard_grad(h.x), shard_grad(h.weight), shard_grad(h.bias)};
        int64_t count = 0;
        for (int i = 0; i < RESULTS; i++) {
            counts[i] = shard_numel(results[i]);
            double *values = values_of(shard_detach(results[i]));
            all = realloc(all, (size_t)(count + counts[i]) * sizeof *all);
            memcpy(all + count, values, (size_t)counts[i] * sizeof *all);
            count += counts[i];
            free(values);
        }
    }
    return all;
}

static const shard_dtype dtypes[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};

static void compare(const char *name, int64_t classes, shard_dtype dtype, use *before, use *after)
{
    static const char *const results[RESULTS] = {"loss", "gradient of x", "gradient of the weight", "gradient of the bias"};
    int64_t counts[RESULTS], dense_counts[RESULTS], first = 0;
    double *apart = step(classes, dtype, false, before, after, counts);
    double *dense = step(classes, dtype, true, before, after, dense_counts);
    double tolerance = dtype == SHARD_FLOAT64 ? 1e-14 : dtype == SHARD_FLOAT32 ? 1e-6 : dtype == SHARD_FLOAT16 ? 0x1p-10 : 0x1p-7;
    for (int r = 0; r < RESULTS; first += counts[r++]) {
        double most = 0;
        ck_assert_int_eq(counts[r], dense_counts[r]);
        for (int64_t i = first; i < first + counts[r]; i++)
            most = fmax(most, fabs(dense[i]));
        ck_assert(most > 0 && most < 1e6);
        for (int64_t i = first; i < first + counts[r]; i++)
            ck_assert_msg(fabs(apart[i] - dense[i]) <= tolerance * most,
                          "%s, %lld classes of %s: %s, number %lld is %.9g, of dense rows %.9g", name, (long long)classes,
                          shard_dtype_name(dtype), results[r], (long long)(i - first), apart[i], dense[i]);
    }
    free(apart);
    free(dense);
}

/* One use before the loss, and one after it. */
START_TEST(equals_dense_rows)
{
    shard_device *device = shard_device_open(NULL);
    shard_set_allow_tf32(device, true);
    for (int d = device->ops->host_memory ? 3 : 0; d < 4; d++) { /* of a CPU both are the same */
        compare(uses[_i].name, FEW, dtypes[d], uses[_i].use, nothing);
        compare(uses[_i].name, FEW, dtypes[d], nothing, uses[_i].use);
        if (d > 0)
            compare(uses[_i].name, ODD, dtypes[d], uses[_i].use, uses[(_i + 5) % USES].use);
    }
}
END_TEST

/* A device asks for rows apart for its tensor cores alone, and not where rows are aligned or so short that it costs much. */
START_TEST(asks_where_it_pays)
{
    shard_device *device = shard_device_open(NULL);
    bool gpu = !device->ops->host_memory;
    ck_assert_int_eq(wants_apart(ODD, SHARD_BFLOAT16), gpu);
    ck_assert_int_eq(wants_apart(FEW, SHARD_FLOAT16), gpu);
    ck_assert(!wants_apart(ODD, SHARD_FLOAT64) && !wants_apart(ODD, SHARD_FLOAT32));
    shard_set_allow_tf32(device, true);
    ck_assert_int_eq(wants_apart(ODD, SHARD_FLOAT32), gpu);
    ck_assert(!wants_apart(1000, SHARD_BFLOAT16) && !wants_apart(10, SHARD_BFLOAT16) && !wants_apart(1, SHARD_FLOAT16));
    if (gpu) {
        ck_assert_int_eq(device->ops->row_pitch(device, 15625, SHARD_BFLOAT16), 15680); /* whole lines of 128 bytes */
        ck_assert_int_eq(device->ops->row_pitch(device, FEW, SHARD_BFLOAT16), 40);
    }
}
END_TEST

/* ---- split by classes ---- */

static void trains_split(shard_group *world, void *context)
{
    shard_dtype dtype = *(shard_dtype *)context;
    int64_t classes = FEW * shard_group_size(world);
    shard_set_allow_tf32(shard_device_open(NULL), true);
    SHARD_SCOPE
    {
        shard_tensor *logits[2], *grad[2];
        for (int dense = 0; dense < 2; dense++) {
            head h = make_head(classes, dtype);
            shard_range own = shard_split_range(classes, shard_group_size(world), shard_group_rank(world));
            shard_tensor *part =
                shard_as_split(shard_clone(shard_detach(shard_narrow(shard_detach(h.weight), 0, own.start, own.size))), 0, world,
                               own.start, classes);
            shard_set_requires_grad(part, true);
            logits[dense] = shard_linear(shard_detach(h.x), part, NULL);
            ck_assert_msg(logits[dense] != NULL, "%s", shard_last_error());
            ck_assert_int_eq(is_apart(logits[dense]), wants_apart(FEW, dtype));
            if (dense)
                shard_data(logits[dense]);
            shard_tensor *labels = labels_of(ROWS, classes), *rank = shard_label_rank(logits[dense], labels, -100);
            ck_assert_int_eq(is_apart(logits[dense]), !dense && wants_apart(FEW, dtype));
            shard_tensor *loss = shard_cross_entropy(logits[dense], labels);
            check_ok(shard_backward(shard_add(loss, shard_scale(shard_mean(shard_cast(rank, loss->dtype)), 0))));
            grad[dense] = shard_detach(shard_grad(part));
            logits[dense] = shard_gather_from_group(shard_detach(logits[dense]), 1, world); /* makes it dense */
        }
        double tolerance = dtype == SHARD_FLOAT32 ? 1e-6 : 0x1p-7;
        check_close(shard_cast(logits[0], SHARD_FLOAT32), shard_cast(logits[1], SHARD_FLOAT32), 0);
        check_close(shard_cast(grad[0], SHARD_FLOAT32), shard_cast(grad[1], SHARD_FLOAT32), tolerance);
    }
}

START_TEST(split_by_classes)
{
    run_job(2 + _i % 2, trains_split, &(shard_dtype){dtypes[1 + _i / 2]});
}
END_TEST

/* ---- memory ---- */

static int64_t peak_of_step(shard_dtype dtype, use *before, int64_t rows, int64_t classes)
{
    shard_device *device = shard_device_open(NULL);
    int64_t peak = 0;
    SHARD_SCOPE
    {
        shard_tensor *x = leaf(SHARD_SHAPE(rows, IN), 1, dtype), *weight = leaf(SHARD_SHAPE(classes, IN), 2, dtype);
        shard_tensor *labels = shard_zeros(SHARD_SHAPE(rows), .dtype = SHARD_INT64);
        for (int turn = 0; turn < 2; turn++) { /* in the first one libraries take their own */
            check_ok(device->ops->synchronize(device));
            int64_t start = shard_get_memory_stats(device).current;
            shard_reset_peak_memory(device);
            shard_tensor *logits = shard_linear(x, weight, NULL), *loss = NULL;
            SHARD_NO_GRAD
            before(logits);
            loss = shard_cross_entropy(logits, labels);
            shard_release(logits);
            check_ok(shard_backward(loss));
            peak = shard_get_memory_stats(device).peak - start;
        }
    }
    return peak;
}

/* No more than what is between the rows; where they are moved together, and what they go through on their way. */
START_TEST(takes_little_memory)
{
    enum { MANY = 300 };
    shard_device *device = shard_device_open(NULL);
    use *others[] = {nothing, argmax, copy};
    int64_t dense[3], passing = MANY * ODD * 4;
    for (int i = 0; i < 3; i++)
        dense[i] = peak_of_step(SHARD_FLOAT32, others[i], MANY, ODD);
    shard_set_allow_tf32(device, true);
    int64_t more = (device->ops->row_pitch(device, ODD, SHARD_FLOAT32) - ODD) * MANY * 4;
    ck_assert_int_eq(more > 0, !device->ops->host_memory);
    for (int i = 0; i < 3; i++)
        ck_assert_int_le(peak_of_step(SHARD_FLOAT32, others[i], MANY, ODD), dense[i] + more + (i > 0 && more > 0 ? passing : 0));
}
END_TEST

/* More rows than are moved at once, to where they are dense or to where a search sees them so. */
START_TEST(moves_many_rows)
{
    enum { MANY = 7, LONG = 1500007 };
    SHARD_SCOPE SHARD_NO_GRAD
    {
        shard_tensor *x = made(SHARD_SHAPE(MANY, 2), 1, SHARD_BFLOAT16), *weight = made(SHARD_SHAPE(LONG, 2), 2, SHARD_BFLOAT16);
        shard_tensor *y = shard_linear(x, weight, NULL);
        shard_tensor *first = shard_argmax(y, -1, false);
        ck_assert_int_eq(is_apart(y), wants_apart(LONG, SHARD_BFLOAT16));
        uint16_t *values = host_copy(y), *a = host_copy(x), *b = host_copy(weight);
        ck_assert(!is_apart(y));
        check_close(first, shard_argmax(y, -1, false), 0);
        for (int64_t i = 0; i < (int64_t)MANY * LONG; i += 4099) {
            const uint16_t *left = a + i / LONG * 2, *right = b + i % LONG * 2;
            float sum = shard_bfloat16_to_float(left[0]) * shard_bfloat16_to_float(right[0]) +
                        shard_bfloat16_to_float(left[1]) * shard_bfloat16_to_float(right[1]);
            ck_assert_float_eq_tol(shard_bfloat16_to_float(values[i]), sum, 0.02f);
        }
        free(values);
        free(a);
        free(b);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("padded_rows");
    TCase *tcase = test_case(suite, "rows");
    tcase_add_loop_test(tcase, equals_dense_rows, 0, USES);
    tcase_add_test(tcase, asks_where_it_pays);
    tcase_add_loop_test(tcase, split_by_classes, 0, 6);
    tcase_add_test(tcase, takes_little_memory);
    tcase_add_test(tcase, moves_many_rows);
    return test_run(suite);
}
