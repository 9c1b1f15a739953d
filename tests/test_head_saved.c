/* Forward and backward of a linear head as calls of their own (shard/head.h): the bits of the recorded functions. */
#include "support/kernels.h"
#include "support/loss.h"
#include "support/sampled.h"

#include "base/error.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { ROWS = 7, IN = 19, CLASSES = 301, PAIRS = 5 };

typedef enum head_form {
    PLAIN,
    NO_BIAS,
    EACH_ROW,
    CAPPED,
    RANKED,
    MARGIN,
    SAMPLE,
    SAMPLE_MARGIN,
    BINARY,
    GRADIENT_ONLY,
    FORMS
} head_form;

static const struct {
    shard_dtype x, weight;
} dtypes[] = {{SHARD_FLOAT32, SHARD_FLOAT32},
              {SHARD_BFLOAT16, SHARD_BFLOAT16},
              {SHARD_BFLOAT16, SHARD_FLOAT32},
              {SHARD_FLOAT64, SHARD_FLOAT64}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* A call's operands, in the open scope. */
typedef struct call {
    head_form form;
    shard_tensor *x, *weight, *bias, *target;
    shard_cross_entropy_options softmax;
    shard_margin_logits_options margin;
    shard_binary_cross_entropy_options binary;
} call;

/* What a way of computing gives. */
typedef struct result {
    double loss[ROWS], dx[ROWS * IN], dweight[CLASSES * IN], dbias[CLASSES];
    int64_t rank[ROWS];
} result;

static shard_tensor *noise_like(shard_shape shape, int64_t start, uint64_t seed, shard_dtype dtype, double low, double high)
{
    double value[CLASSES * IN];
    int64_t count = shard_shape_product(&shape, 0, shape.ndim);
    for (int64_t i = 0; i < count; i++)
        value[i] = round_to(dtype, low + (high - low) * (noise(seed, start + i) + 1) / 2);
    return tensor_of(value, shape, dtype);
}

static bool is_binary(head_form form)
{
    return form == BINARY || form == GRADIENT_ONLY;
}

static shard_tensor *target_of(head_form form, int batch)
{
    static const int64_t pair[2 * PAIRS] = {0, 0, 2, 3, 6, 4, 300, 17, 150, 0};
    int64_t label[ROWS];
    for (int64_t i = 0; i < ROWS; i++)
        label[i] = i == 3 ? -100 : ((i + batch) * 7919 + CLASSES - 1) % CLASSES;
    return is_binary(form) ? shard_from_host(pair, SHARD_SHAPE(2, PAIRS), .dtype = SHARD_INT64) : labels_of(label, ROWS);
}

static void set_options(call *c, shard_dtype wide)
{
    const shard_cross_entropy_options softmax = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    const shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    const shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    c->softmax = softmax;
    c->margin = margin;
    c->binary = binary;
    c->margin.scale = 8;
    c->margin.m2 = 0.3;
    if (c->form == PLAIN || c->form == CAPPED)
        c->softmax.label_smoothing = 0.1;
    if (c->form == PLAIN || c->form == SAMPLE)
        c->softmax.weight = noise_like(SHARD_SHAPE(CLASSES), 0, 4, wide, 0.5, 1.5);
    if (c->form == EACH_ROW)
        c->softmax.reduction = SHARD_REDUCTION_NONE;
    if (c->form == CAPPED) {
        c->softmax.soft_cap = 2;
        c->softmax.logit_scale = 1.5;
        c->softmax.z_loss = 0.01;
    }
    c->softmax.normalized = c->form == MARGIN || c->form == SAMPLE_MARGIN;
    c->softmax.margin = c->softmax.normalized ? &c->margin : NULL;
    c->binary.pos_weight = noise_like(SHARD_SHAPE(CLASSES), 0, 5, wide, 0.5, 1.5);
    c->binary.row_weight = noise_like(SHARD_SHAPE(ROWS), 0, 6, wide, 0.5, 1.5);
    c->binary.reduction = SHARD_REDUCTION_BATCH_MEAN;
    c->binary.gradient_only = c->form == GRADIENT_ONLY;
}

static void make(call *c, head_form form, int d, shard_group *group)
{
    shard_range range = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    shard_tensor *weight = noise_like(SHARD_SHAPE(range.size, IN), range.start * IN, 2, dtypes[d].weight, -1, 1);
    shard_tensor *bias = noise_like(SHARD_SHAPE(range.size), range.start, 3, dtypes[d].weight, -1, 1);
    *c = (call){.form = form,
                .x = noise_like(SHARD_SHAPE(ROWS, IN), 0, 1, dtypes[d].x, -1, 1),
                .weight = shard_as_split(weight, 0, group, range.start, CLASSES),
                .bias = form == PLAIN || form == EACH_ROW || form == SAMPLE || form == BINARY
                            ? shard_as_split(bias, 0, group, range.start, CLASSES)
                            : NULL,
                .target = target_of(form, 0)};
    set_options(c, dtypes[d].x == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32);
    if (form == SAMPLE || form == SAMPLE_MARGIN)
        c->softmax.sample = shard_sample_classes(c->target, c->weight, 0.3, 3, 4);
}

static void set_requires(const call *c, bool on)
{
    shard_set_requires_grad(c->x, on);
    shard_set_requires_grad(c->weight, on);
    shard_set_requires_grad(c->bias, on);
}

static void read_rank(shard_tensor *rank, result *r)
{
    if (rank)
        check_ok(shard_copy_to_host(rank, r->rank, sizeof r->rank));
}

static shard_tensor *dy_of(shard_tensor *loss)
{
    ck_assert_msg(loss, "%s", shard_last_error());
    shard_shape shape = loss->shape;
    return noise_like(shape, 0, 7, loss->dtype, 0.5, 2);
}

/* By the record, `batches` times. */
static void record(const call *c, int batches, result *r)
{
    memset(r, 0, sizeof *r);
    set_requires(c, true);
    for (int i = 0; i < batches; i++) {
        shard_tensor *rank = NULL, *target = i ? target_of(c->form, i) : c->target;
        shard_tensor *loss = is_binary(c->form)
                                 ? shard_linear_binary_cross_entropy_with(c->x, c->weight, c->bias, target, &c->binary)
                                 : shard_linear_cross_entropy_with(c->x, c->weight, c->bias, target, &c->softmax,
                                                                   c->form == RANKED ? &rank : NULL);
        check_ok(shard_backward_from(loss, dy_of(loss)));
        read_values(loss, r->loss);
        read_rank(rank, r);
    }
    read_values(shard_grad(c->x), r->dx);
    read_values(shard_grad(c->weight), r->dweight);
    if (c->bias)
        read_values(shard_grad(c->bias), r->dbias);
    shard_tensor *leaf[] = {c->x, c->weight, c->bias};
    for (int i = 0; i < 3; i++)
        shard_zero_grad(leaf[i]);
    set_requires(c, false);
}

static shard_tensor *forward(const call *c, shard_tensor *target, shard_head_saved **saved, result *r)
{
    shard_tensor *rank = NULL, *loss;
    if (is_binary(c->form))
        loss = shard_linear_binary_cross_entropy_forward_with(c->x, c->weight, c->bias, target, &c->binary, saved);
    else
        loss = shard_linear_cross_entropy_forward_with(c->x, c->weight, c->bias, target, &c->softmax, saved,
                                                       c->form == RANKED ? &rank : NULL);
    ck_assert_msg(loss, "%s", shard_last_error());
    ck_assert(!shard_requires_grad(loss));
    read_values(loss, r->loss);
    read_rank(rank, r);
    return loss;
}

static void read_features(shard_tensor *dx, shard_group *group, result *r)
{
    if (shard_group_size(group) > 1) {
        ck_assert_int_eq(dx->placement.kind, SHARD_PARTIAL);
        ck_assert(dx->placement.group == group);
        dx = shard_reduce_from_group(dx, group);
    }
    read_values(dx, r->dx);
}

static void read_parameters(const call *c, shard_tensor *dweight, shard_tensor *dbias, result *r)
{
    ck_assert(shard_placement_equal(&dweight->placement, &c->weight->placement));
    read_values(dweight, r->dweight);
    ck_assert_int_eq(dbias != NULL, c->bias != NULL);
    if (dbias)
        read_values(dbias, r->dbias);
}

static void call_both(const call *c, shard_group *group, const shard_head_backward_options *options, result *r)
{
    shard_head_saved *saved = NULL;
    memset(r, 0, sizeof *r);
    shard_tensor *loss = forward(c, c->target, &saved, r), *dx, *dweight = NULL, *dbias = NULL;
    ck_assert_msg(shard_head_backward_with(saved, dy_of(loss), &dx, &dweight, &dbias, options) == SHARD_OK, "%s",
                  shard_last_error());
    read_features(dx, group, r);
    read_parameters(c, dweight, dbias, r);
    shard_head_saved_destroy(saved);
}

static void check_bits(const char *what, const double *found, const double *expected, int64_t count, head_form form, int d)
{
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(memcmp(&found[i], &expected[i], sizeof *found) == 0, "%s[%lld] is %.17g, not %.17g: form %d, dtypes %d",
                      what, (long long)i, found[i], expected[i], (int)form, d);
}

/* Normalized features of several ranks: the derivative of the norms is taken of each rank's summand. */
static void check_results(const result *found, const result *expected, const call *c, int d, int ranks)
{
    check_bits("loss", found->loss, expected->loss, ROWS, c->form, d);
    check_bits("dweight", found->dweight, expected->dweight, CLASSES * IN, c->form, d);
    check_bits("dbias", found->dbias, expected->dbias, CLASSES, c->form, d);
    ck_assert_mem_eq(found->rank, expected->rank, sizeof found->rank);
    if (ranks == 1 || !c->softmax.normalized) {
        check_bits("dx", found->dx, expected->dx, ROWS * IN, c->form, d);
        return;
    }
    double largest = 0, tolerance = 8 * ranks * unit(dtypes[d].x);
    for (int i = 0; i < ROWS * IN; i++)
        largest = fmax(largest, fabs(expected->dx[i]));
    for (int i = 0; i < ROWS * IN; i++)
        ck_assert_double_le(fabs(found->dx[i] - expected->dx[i]), tolerance * largest);
}

static void same_bits(shard_group *world, void *context)
{
    (void)context;
    static result expected, found;
    for (int form = 0; form < FORMS; form++)
        for (int d = 0; d < DTYPES; d++)
            SHARD_SCOPE
            {
                call c;
                make(&c, (head_form)form, d, world);
                record(&c, 1, &expected);
                call_both(&c, world, NULL, &found);
                check_results(&found, &expected, &c, d, shard_group_size(world));
                ck_assert(form == GRADIENT_ONLY || found.loss[0] != 0);
                ck_assert_double_ne(found.dx[0], 0);
            }
}

START_TEST(test_same_bits)
{
    run_ranks(_i + 1, same_bits);
}
END_TEST

/* ---- rows ---- */

typedef struct taken {
    double sum[CLASSES * IN];
    atomic_int times[CLASSES];
    int64_t columns;
    shard_dtype dtype;
    atomic_int runs, fails_at; /* the run that fails, counted from 1; 0: none */
} taken;

/* Called by several threads at a time. */
static shard_status take(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    taken *t = context;
    ck_assert_ptr_eq(device, shard_default_device());
    if (atomic_fetch_add(&t->runs, 1) + 1 == atomic_load(&t->fails_at))
        return SHARD_ERROR_IO;
    char host[IN * sizeof(double)];
    size_t size = shard_dtype_size(t->dtype);
    for (int64_t i = 0; i < count; i++) {
        atomic_fetch_add(&t->times[first + i], 1);
        const char *row = (char *)gradient + (size_t)(i * t->columns) * size;
        if (device->ops->copy_out(device, host, row, (size_t)t->columns * size) != SHARD_OK)
            return SHARD_ERROR_DEVICE;
        for (int64_t k = 0; k < t->columns; k++)
            t->sum[(first + i) * t->columns + k] =
                size == sizeof(double) ? ((double *)(void *)host)[k] : (double)((float *)(void *)host)[k];
    }
    return SHARD_OK;
}

static void take_all(shard_tensor *gradient, taken *t)
{
    memset(t, 0, sizeof *t);
    t->columns = IN;
    t->dtype = gradient->dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
    check_ok(shard_take_gradient_rows(gradient, take, t));
}

static void check_taken(const taken *t, const result *expected, const call *c, int d, bool deferred)
{
    int64_t rows = c->weight->shape.dim[0], passed = 0;
    double rounded[CLASSES * IN];
    for (int64_t i = 0; i < rows * IN; i++)
        rounded[i] = round_to(dtypes[d].weight, t->sum[i]);
    check_bits("rows", rounded, expected->dweight, rows * IN, c->form, d);
    for (int64_t i = 0; i < rows; i++) {
        ck_assert_int_le(atomic_load(&t->times[i]), 1);
        passed += atomic_load(&t->times[i]);
    }
    ck_assert_int_eq(passed, c->softmax.sample && deferred ? shard_numel(c->softmax.sample) : rows);
}

static void rows_add_up(shard_group *world, void *context)
{
    (void)context;
    static result expected, found;
    static taken t;
    const shard_head_backward_options deferred = {sizeof deferred, false, true};
    for (int form = 0; form < FORMS; form++)
        for (int d = 0; d < DTYPES; d++)
            SHARD_SCOPE
            {
                call c;
                make(&c, (head_form)form, d, world);
                record(&c, 1, &expected);
                call_both(&c, world, &deferred, &found); /* reads the values of deferred gradients */
                check_results(&found, &expected, &c, d, shard_group_size(world));
                shard_head_saved *saved;
                shard_tensor *loss = forward(&c, c.target, &saved, &found), *dweight, *dbias, *whole;
                check_ok(shard_head_backward(saved, dy_of(loss), NULL, &dweight, &dbias, .deferred = true));
                check_ok(shard_head_backward(saved, dy_of(loss), NULL, &whole, NULL));
                shard_head_saved_destroy(saved);
                take_all(dweight, &t);
                check_taken(&t, &expected, &c, d, true);
                if (dbias)
                    read_values(dbias, found.dbias);
                check_bits("dbias", found.dbias, expected.dbias, CLASSES, c.form, d);
                take_all(dweight, &t); /* again: nothing was kept */
                check_taken(&t, &expected, &c, d, true);
                take_all(whole, &t); /* in memory */
                check_taken(&t, &expected, &c, d, false);
            }
}

START_TEST(test_rows_add_up)
{
    run_ranks(_i + 1, rows_add_up);
}
END_TEST

START_TEST(test_gradient_of_record)
{
    static result expected;
    static taken t;
    SHARD_SCOPE
    {
        call c;
        make(&c, PLAIN, 0, NULL);
        record(&c, 1, &expected);
        set_requires(&c, true);
        shard_tensor *loss = shard_linear_cross_entropy_with(c.x, c.weight, c.bias, c.target, &c.softmax, NULL);
        check_ok(shard_backward_from(loss, dy_of(loss)));
        take_all(shard_grad(c.weight), &t);
        check_taken(&t, &expected, &c, 0, false);
    }
}
END_TEST

START_TEST(test_failing_rows)
{
    static taken t;
    for (int deferred = 0; deferred < 2; deferred++)
        SHARD_SCOPE
        {
            call c;
            make(&c, NO_BIAS, 0, NULL);
            shard_head_saved *saved;
            static result r;
            shard_tensor *loss = forward(&c, c.target, &saved, &r), *dweight;
            check_ok(shard_head_backward(saved, dy_of(loss), NULL, &dweight, NULL, .deferred = deferred));
            shard_head_saved_destroy(saved);
            take_all(dweight, &t);
            int runs = atomic_load(&t.runs);
            memset(&t, 0, sizeof t);
            t.columns = IN;
            t.fails_at = runs;
            ck_assert_int_eq(shard_take_gradient_rows(dweight, take, &t), SHARD_ERROR_IO);
            check_error(SHARD_ERROR_IO, "*");
            ck_assert_int_eq(shard_take_gradient_rows(c.target, take, &t), SHARD_ERROR_SHAPE);
            check_error(SHARD_ERROR_SHAPE, "shard_take_gradient_rows: * matrix *");
        }
}
END_TEST

/* ---- several batches ---- */

static void batches_add_up(shard_group *world, void *context)
{
    (void)context;
    static result expected, found;
    static taken t;
    for (int form = 0; form < FORMS; form++)
        for (int d = 0; d < DTYPES; d++)
            for (int deferred = 0; deferred < 2; deferred++)
                SHARD_SCOPE
                {
                    if (form == SAMPLE || form == SAMPLE_MARGIN)
                        continue; /* the second batch has other labels */
                    call c;
                    make(&c, (head_form)form, d, world);
                    shard_make_leaf(c.weight)->defers_grad = deferred;
                    if (c.bias)
                        shard_make_leaf(c.bias)->defers_grad = deferred;
                    record(&c, 2, &expected);
                    shard_tensor *dweight = NULL, *dbias = NULL, *first = NULL;
                    memset(&found, 0, sizeof found);
                    for (int i = 0; i < 2; i++) {
                        shard_head_saved *saved;
                        shard_tensor *loss = forward(&c, i ? target_of(c.form, i) : c.target, &saved, &found);
                        check_ok(shard_head_backward(saved, dy_of(loss), NULL, &dweight, &dbias, .accumulate = true,
                                                     .deferred = deferred));
                        shard_head_saved_destroy(saved);
                        ck_assert(i == 0 || dweight == first);
                        first = dweight;
                    }
                    if (deferred) {
                        ck_assert(!dweight->storage->memory);
                        take_all(dweight, &t);
                        ck_assert(!dweight->storage->memory);
                        check_taken(&t, &expected, &c, d, true);
                    }
                    read_parameters(&c, dweight, dbias, &found);
                    check_bits("dweight", found.dweight, expected.dweight, CLASSES * IN, c.form, d);
                    check_bits("dbias", found.dbias, expected.dbias, CLASSES, c.form, d);
                }
}

START_TEST(test_batches_add_up)
{
    run_ranks(_i + 1, batches_add_up);
}
END_TEST

/* A batch that cannot be deferred, of another weight, is added to the values. */
START_TEST(test_adds_to_other)
{
    static result r;
    SHARD_SCOPE
    {
        call a, b;
        make(&a, NO_BIAS, 0, NULL);
        make(&b, CAPPED, 0, NULL);
        const call *both[] = {&a, &b};
        shard_tensor *sum = NULL, *each[2];
        for (int i = 0; i < 2; i++) {
            shard_head_saved *saved;
            shard_tensor *dy = dy_of(forward(both[i], both[i]->target, &saved, &r));
            check_ok(shard_head_backward(saved, dy, NULL, &each[i], NULL));
            check_ok(shard_head_backward(saved, dy, NULL, &sum, NULL, .accumulate = true, .deferred = true));
            shard_head_saved_destroy(saved);
        }
        ck_assert(sum->storage->memory);
        double found[CLASSES * IN], expected[2][CLASSES * IN];
        read_values(sum, found);
        read_values(each[0], expected[0]);
        read_values(each[1], expected[1]);
        for (int i = 0; i < CLASSES * IN; i++)
            check_number(found[i], expected[0][i] + expected[1][i], 1e-6, "sum", i);
    }
}
END_TEST

/* ---- the state ---- */

START_TEST(test_twice)
{
    static result first, second;
    for (int form = 0; form < FORMS; form++)
        SHARD_SCOPE
        {
            call c;
            make(&c, (head_form)form, 0, NULL);
            shard_head_saved *saved;
            shard_tensor *dy = dy_of(forward(&c, c.target, &saved, &first)), *dx, *dweight, *dbias;
            second = first;
            result *both[] = {&first, &second};
            for (int i = 0; i < 2; i++) {
                check_ok(shard_head_backward(saved, dy, &dx, &dweight, &dbias));
                read_features(dx, NULL, both[i]);
                read_parameters(&c, dweight, dbias, both[i]);
            }
            shard_head_saved_destroy(saved);
            check_results(&second, &first, &c, 0, 1);
        }
}
END_TEST

static int64_t memory_in_use(void)
{
    return shard_get_memory_stats(shard_default_device()).current;
}

/* Operands are released before the backward, and nothing is left after it. */
START_TEST(test_memory)
{
    for (int form = 0; form < FORMS; form++) {
        static result r;
        int64_t before = memory_in_use(), saves, computes;
        shard_head_saved *saved;
        shard_tensor *dy;
        SHARD_SCOPE
        {
            call c;
            make(&c, (head_form)form, 0, NULL);
            set_requires(&c, true); /* and yet nothing is recorded */
            int64_t operands = memory_in_use();
            dy = shard_keep(dy_of(forward(&c, c.target, &saved, &r)));
            saves = memory_in_use() - operands;
            ck_assert_int_gt(saves, (int64_t)sizeof(float) * ROWS * IN);
        }
        SHARD_SCOPE
        {
            shard_tensor *dx, *dweight;
            check_ok(shard_head_backward(saved, dy, &dx, &dweight, NULL));
            computes = memory_in_use();
        }
        ck_assert_int_ge(computes - memory_in_use(), (int64_t)sizeof(float) * (ROWS + CLASSES) * IN);
        shard_head_saved_destroy(saved);
        shard_release(dy);
        ck_assert_int_eq(memory_in_use(), before);
    }
}
END_TEST

/* The loss alone leaves nothing behind. */
START_TEST(test_saves_nothing)
{
    static result r, with;
    SHARD_SCOPE
    {
        for (int form = 0; form < FORMS; form++) {
            call c;
            make(&c, (head_form)form, 0, NULL);
            shard_head_saved *saved;
            shard_release(forward(&c, c.target, &saved, &with));
            shard_head_saved_destroy(saved);
            int64_t before = memory_in_use();
            shard_release(forward(&c, c.target, NULL, &r));
            if (form != RANKED) /* whose ranks are in the scope */
                ck_assert_int_eq(memory_in_use(), before);
            check_bits("loss", r.loss, with.loss, ROWS, c.form, 0);
        }
    }
}
END_TEST

static void write_to(shard_tensor *tensor)
{
    double bytes[CLASSES * IN] = {0};
    check_ok(shard_copy_from_host(tensor, bytes, shard_tensor_bytes(tensor)));
}

START_TEST(test_written)
{
    static result r;
    static taken t;
    for (int which = 0; which < 5; which++)
        SHARD_SCOPE
        {
            call c;
            make(&c, PLAIN, 0, NULL);
            shard_tensor *written[] = {c.x, c.weight, c.bias, c.target, c.softmax.weight};
            shard_head_saved *saved;
            shard_tensor *dy = dy_of(forward(&c, c.target, &saved, &r)), *dx = c.x, *dweight = c.x, *dbias = c.x, *deferred;
            check_ok(shard_head_backward(saved, dy, NULL, &deferred, NULL, .deferred = true));
            write_to(written[which]);
            ck_assert_int_eq(shard_head_backward(saved, dy, &dx, &dweight, &dbias), SHARD_ERROR_ARGUMENT);
            check_error(SHARD_ERROR_ARGUMENT, "backward of shard_linear_cross_entropy: * was written to after the forward");
            ck_assert(!dx && !dweight && !dbias);
            shard_head_saved_destroy(saved);
            if (which == 0 || which == 3) { /* of which the gradient has copies */
                take_all(deferred, &t);
                continue;
            }
            ck_assert_int_eq(shard_take_gradient_rows(deferred, take, &t), SHARD_ERROR_ARGUMENT);
            check_error(SHARD_ERROR_ARGUMENT, "*was written to after*");
        }
}
END_TEST

START_TEST(test_refuses)
{
    static result r;
    SHARD_SCOPE
    {
        call c;
        make(&c, PLAIN, 0, NULL);
        shard_head_saved *saved;
        shard_tensor *dy = dy_of(forward(&c, c.target, &saved, &r)), *dweight = c.bias, *dx = c.x;
        ck_assert_int_eq(shard_head_backward(saved, c.bias, &dx, NULL, NULL), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: dy is float32 of shape [[]301] *");
        ck_assert(!dx);
        ck_assert_int_eq(shard_head_backward(saved, shard_cast(dy, SHARD_FLOAT64), NULL, &dweight, NULL), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: dy is float64 *");
        dweight = c.bias;
        ck_assert_int_eq(shard_head_backward(saved, dy, NULL, &dweight, NULL, .accumulate = true), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: a gradient is added to float32 of shape [[]301] *");
        ck_assert_ptr_eq(dweight, c.bias);
        check_ok(shard_head_backward(saved, dy, &dx, NULL, NULL)); /* what failed left nothing behind */
        shard_head_saved_destroy(saved);

        c.form = BINARY;
        c.binary.reduction = SHARD_REDUCTION_NONE;
        shard_tensor *pairs = target_of(BINARY, 0);
        ck_assert(!shard_linear_binary_cross_entropy_forward_with(c.x, c.weight, c.bias, pairs, &c.binary, &saved));
        check_error(SHARD_ERROR_UNSUPPORTED, "shard_linear_binary_cross_entropy_forward: *SHARD_REDUCTION_NONE has logits*");
        ck_assert(!saved);
        shard_tensor *dense = shard_zeros(SHARD_SHAPE(ROWS, CLASSES));
        ck_assert(!shard_linear_binary_cross_entropy_forward(c.x, c.weight, c.bias, dense, &saved));
        check_error(SHARD_ERROR_UNSUPPORTED, "*a float32 target has logits*");
    }
}
END_TEST

/* An error of the last rank is that of all, in no time. */
static void fails_together(shard_group *world, void *context)
{
    (void)context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    for (int way = 0; way < 3; way++)
        SHARD_SCOPE
        {
            call c;
            make(&c, way == 2 ? BINARY : PLAIN, 0, world);
            shard_head_saved *saved;
            shard_tensor *loss, *target = c.target, *x = c.x;
            if (last && way == 0)
                target = shard_zeros(SHARD_SHAPE(ROWS, CLASSES));
            if (last && way == 1)
                x = shard_zeros(SHARD_SHAPE(ROWS, IN + 1));
            if (last && way == 2)
                target = shard_zeros(SHARD_SHAPE(ROWS, c.weight->shape.dim[0]));
            loss = way == 2 ? shard_linear_binary_cross_entropy_forward_with(x, c.weight, c.bias, target, &c.binary, &saved)
                            : shard_linear_cross_entropy_forward_with(x, c.weight, c.bias, target, &c.softmax, &saved, NULL);
            ck_assert(!loss && !saved);
            check_error(!last      ? SHARD_ERROR_PEER
                        : way == 2 ? SHARD_ERROR_UNSUPPORTED
                                   : SHARD_ERROR_SHAPE,
                        last ? "shard_linear_*_forward: *" : "rank 2: shard_linear_*_forward: *");
            check_ok(shard_barrier(world));
        }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together);
}
END_TEST

/* Rows that are split over ranks, with a whole weight. */
static void splits_rows(shard_group *world, void *context)
{
    (void)context;
    static result expected, found;
    SHARD_SCOPE
    {
        call c;
        make(&c, EACH_ROW, 0, NULL);
        int rank = shard_group_rank(world);
        c.x = shard_as_split(c.x, 0, world, ROWS * rank, ROWS * shard_group_size(world));
        c.target = shard_as_split(c.target, 0, world, ROWS * rank, ROWS * shard_group_size(world));
        record(&c, 1, &expected);
        shard_head_saved *saved;
        memset(&found, 0, sizeof found);
        shard_tensor *loss = forward(&c, c.target, &saved, &found), *dx, *dweight, *dbias;
        check_ok(shard_head_backward(saved, dy_of(loss), &dx, &dweight, &dbias));
        shard_head_saved_destroy(saved);
        ck_assert(shard_placement_equal(&dx->placement, &c.x->placement) && shard_is_local(dweight));
        read_values(dx, found.dx);
        read_parameters(&c, dweight, dbias, &found);
        check_results(&found, &expected, &c, 0, 1);
    }
}

START_TEST(test_splits_rows)
{
    run_ranks(2, splits_rows);
}
END_TEST

/* Under autocast the gradients have the types of the operands. */
START_TEST(test_autocast)
{
    static result expected, found;
    for (int form = 0; form < FORMS; form++)
        SHARD_SCOPE
        {
            call c;
            make(&c, (head_form)form, 0, NULL);
            SHARD_AUTOCAST(SHARD_BFLOAT16)
            {
                record(&c, 1, &expected);
                call_both(&c, NULL, NULL, &found);
                check_results(&found, &expected, &c, 0, 1);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("head_saved");
    TCase *tcase = test_case(suite, "head_saved");
    tcase_add_loop_test(tcase, test_same_bits, 0, 3);
    tcase_add_loop_test(tcase, test_rows_add_up, 0, 3);
    tcase_add_loop_test(tcase, test_batches_add_up, 0, 2);
    tcase_add_test(tcase, test_gradient_of_record);
    tcase_add_test(tcase, test_failing_rows);
    tcase_add_test(tcase, test_adds_to_other);
    tcase_add_test(tcase, test_twice);
    tcase_add_test(tcase, test_memory);
    tcase_add_test(tcase, test_saves_nothing);
    tcase_add_test(tcase, test_written);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_fails_together);
    tcase_add_test(tcase, test_splits_rows);
    tcase_add_test(tcase, test_autocast);
    return test_run(suite);
}
