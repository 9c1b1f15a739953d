/* Binary cross-entropy of a linear layer without logits against the plain layers in float64, whole and split over ranks. */
#include "support/kernels.h"
#include "support/loss.h"

#include "base/error.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/autograd.h>
#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>

enum { HAS_BIAS = 1, WEIGHTED = 2, POSITIVE = 4, ROW_WEIGHTED = 8, GRADIENT_ONLY = 16, FORMS = 32 };

typedef struct problem {
    int64_t rows, in, classes, pairs;
    shard_dtype dtype, weight_dtype;
    int form;
    shard_reduction reduction;
} problem;

/* The operands' values, which both dtypes have, and gradients. */
typedef struct values {
    double *x, *weight, *bias, *class_weight, *positive, *row_weight, loss, *dx, *dweight, *dbias;
    int64_t *pair; /* [2, pairs] */
} values;

static double *noise_of(int64_t count, uint64_t seed, shard_dtype dtype, double scale, double shift)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = round_to(dtype, scale * noise(seed, i) + shift);
    return x;
}

/* Whether the row belongs to the class; row 1 to none, row 2 to all. */
static bool is_one(int64_t row, int64_t class)
{
    return row != 1 && (row == 2 || (row * 31 + class * 7) % 11 == 0);
}

/* Counts the pairs; writes them if `pair` is not NULL, of p->pairs in all. */
static int64_t list_pairs(const problem *p, int64_t *pair)
{
    int64_t count = 0;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t class = 0; class < p->classes; class ++) {
            if (!is_one(row, class))
                continue;
            if (pair) {
                pair[count] = row;
                pair[p->pairs + count] = class;
            }
            count++;
        }
    return count;
}

static values values_make(problem *p)
{
    values v = {.x = noise_of(p->rows * p->in, 1, p->dtype, 1, 0),
                .weight = noise_of(p->classes * p->in, 2, p->dtype, 1, 0),
                .bias = noise_of(p->classes, 3, p->dtype, 1, 0),
                .class_weight = noise_of(p->classes, 4, SHARD_FLOAT32, 0.5, 1),
                .positive = noise_of(p->classes, 5, SHARD_FLOAT32, 1, 2),
                .row_weight = noise_of(p->rows, 6, SHARD_FLOAT32, 0.5, 1),
                .dx = calloc((size_t)(p->rows * p->in) + 1, sizeof(double)),
                .dweight = calloc((size_t)(p->classes * p->in) + 1, sizeof(double)),
                .dbias = calloc((size_t)p->classes + 1, sizeof(double))};
    p->pairs = list_pairs(p, NULL);
    v.pair = calloc(2 * (size_t)p->pairs + 1, sizeof *v.pair);
    list_pairs(p, v.pair);
    return v;
}

static void values_free(values *v)
{
    double *all[] = {v->x, v->weight, v->bias, v->class_weight, v->positive, v->row_weight, v->dx, v->dweight, v->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(v->pair);
}

static shard_tensor *leaf_of(const double *numbers, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *leaf = tensor_of(numbers, shape, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

static shard_binary_cross_entropy_options options_of(const problem *p, const values *v, shard_dtype dtype)
{
    const shard_binary_cross_entropy_options defaults = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    shard_binary_cross_entropy_options set = defaults;
    set.reduction = p->reduction;
    set.weight = p->form & WEIGHTED ? tensor_of(v->class_weight, SHARD_SHAPE(p->classes), dtype) : NULL;
    set.pos_weight = p->form & POSITIVE ? tensor_of(v->positive, SHARD_SHAPE(p->classes), dtype) : NULL;
    set.row_weight = p->form & ROW_WEIGHTED ? tensor_of(v->row_weight, SHARD_SHAPE(p->rows), SHARD_FLOAT64) : NULL;
    return set;
}

/* Loss and gradients of the classes in range, by the fused function or (fused false) by the plain ones in float64. */
static void compute(const problem *p, values *v, shard_group *group, shard_range range, bool fused)
{
    shard_dtype x_dtype = fused ? p->dtype : SHARD_FLOAT64, w_dtype = fused ? p->weight_dtype : SHARD_FLOAT64;
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(p->rows, p->in), x_dtype), *bias = NULL;
        shard_tensor *weight = leaf_of(v->weight + range.start * p->in, SHARD_SHAPE(range.size, p->in), w_dtype);
        shard_tensor *pairs = shard_from_host(v->pair, SHARD_SHAPE(2, p->pairs), .dtype = SHARD_INT64);
        if (p->form & HAS_BIAS)
            bias = leaf_of(v->bias + range.start, SHARD_SHAPE(range.size), w_dtype);
        shard_tensor *parts[] = {weight, bias};
        for (int i = 0; i < 2 && group; i++)
            if (parts[i])
                parts[i]->placement =
                    (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = p->classes};
        shard_binary_cross_entropy_options set = options_of(p, v, fused ? SHARD_FLOAT32 : SHARD_FLOAT64);
        set.gradient_only = fused && p->form & GRADIENT_ONLY;
        set.stash_share = p->reduction == SHARD_REDUCTION_SUM ? 0 : 1000;
        for (int step = 0; step < 2; step++) { /* gradients add up */
            shard_tensor *loss = fused ? shard_linear_binary_cross_entropy_with(x, weight, bias, pairs, &set)
                                       : shard_binary_cross_entropy_with_logits_with(shard_linear(x, weight, bias), pairs, &set);
            ck_assert_msg(loss, "%s", shard_last_error());
            read_values(loss, &v->loss);
            check_ok(shard_backward(shard_scale(loss, 1.5)));
        }
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(weight), v->dweight);
        if (bias)
            read_values(shard_grad(bias), v->dbias);
    }
}

#define STASH_ERROR 3e-5 /* of gradients: a stash rounds logits */

/* Relative to the largest of the expected numbers, or to that of the summands if these cancel out. */
static void compare(const problem *p, const char *what, const double *found, const double *expected, int64_t count,
                    double tolerance)
{
    double least = p->reduction == SHARD_REDUCTION_MEAN ? 0.3 / (double)p->classes : 0.1;
    check_doubles(found, expected, count, tolerance, least,
                  "%lld rows, %lld features, %lld classes, %s and %s, form %d, reduction %d: %s", (long long)p->rows,
                  (long long)p->in, (long long)p->classes, shard_dtype_name(p->dtype), shard_dtype_name(p->weight_dtype), p->form,
                  (int)p->reduction, what);
}

static const struct {
    shard_dtype x, weight;
    double tolerance;
} dtypes[] = {
    {SHARD_FLOAT64, SHARD_FLOAT64, 1e-12},  {SHARD_FLOAT32, SHARD_FLOAT32, 1e-5},     {SHARD_BFLOAT16, SHARD_FLOAT32, 0x1p-6},
    {SHARD_FLOAT16, SHARD_FLOAT32, 0x1p-9}, {SHARD_BFLOAT16, SHARD_BFLOAT16, 0x1p-6}, {SHARD_FLOAT16, SHARD_FLOAT16, 0x1p-9},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const struct {
    int64_t rows, in, classes, tile;
} shapes[] = {{5, 3, 13, 0},      {4, 16, 3, 2},   {7, 33, 301, 64}, {70, 20, 100, 0},
              {13, 130, 700, 48}, {3, 5, 9001, 0}, {1, 1, 1, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_problem(problem *p, shard_group *group, double tolerance)
{
    const double zero = 0;
    values expected = values_make(p), found = values_make(p);
    shard_range range = shard_split_range(p->classes, shard_group_size(group), shard_group_rank(group));
    compute(p, &expected, NULL, (shard_range){0, p->classes}, false);
    compute(p, &found, group, range, true);
    compare(p, "loss", &found.loss, p->form & GRADIENT_ONLY ? &zero : &expected.loss, 1, tolerance);
    compare(p, "dx", found.dx, expected.dx, p->rows * p->in, tolerance);
    bool stashes = p->reduction != SHARD_REDUCTION_SUM && p->dtype != SHARD_FLOAT64 && shard_default_device()->head;
    double stashed = tolerance + (stashes ? STASH_ERROR : 0);
    compare(p, "dweight", found.dweight, expected.dweight + range.start * p->in, range.size * p->in, stashed);
    compare(p, "dbias", found.dbias, expected.dbias + range.start, p->form & HAS_BIAS ? range.size : 0, stashed);
    values_free(&expected);
    values_free(&found);
}

static void check_shape(int shape, shard_group *group, int step)
{
    static const shard_reduction reductions[] = {SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM, SHARD_REDUCTION_BATCH_MEAN};
    shard_head_tile = shapes[shape].tile;
    for (int form = 0; form < FORMS; form++)
        for (int d = (form + shape) % step; d < DTYPES; d += step) {
            problem p = {.rows = shapes[shape].rows,
                         .in = shapes[shape].in,
                         .classes = shapes[shape].classes,
                         .dtype = dtypes[d].x,
                         .weight_dtype = dtypes[d].weight,
                         .form = form,
                         .reduction = reductions[(form + d + form / 4) % 3]};
            check_problem(&p, group, dtypes[d].tolerance);
        }
    shard_head_tile = 0;
}

START_TEST(test_equals_plain)
{
    check_shape(_i, NULL, 2);
}
END_TEST

/* Composed of the device's entries, as on a device without fused sweeps. */
START_TEST(test_composed_equals_plain)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    device->head = NULL;
    check_shape(_i, NULL, 2);
    device->head = fused;
}
END_TEST

static void equals_plain_on_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < SHAPES; i++)
        check_shape(i, world, 7);
}

START_TEST(test_equals_plain_on_ranks)
{
    run_ranks(rank_counts[_i], equals_plain_on_ranks);
}
END_TEST

/* Logits of any size: the losses of the ones are not differences of large numbers. */
START_TEST(test_extremes)
{
    static const double size[] = {0, 1, 30, 90, 200, 1e4, 1e30};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        SHARD_SCOPE
        {
            const double x[] = {size[i], -size[i]}, one[] = {1, -1};
            const int64_t ones[] = {0, 0, 1, 0, 1, 0};
            double loss, dx[2];
            shard_tensor *rows = leaf_of(x, SHARD_SHAPE(2, 1), SHARD_FLOAT32);
            shard_tensor *weight = leaf_of(one, SHARD_SHAPE(2, 1), SHARD_FLOAT32);
            shard_tensor *pairs = shard_from_host(ones, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64);
            shard_tensor *result = shard_linear_binary_cross_entropy(rows, weight, NULL, pairs, .reduction = SHARD_REDUCTION_SUM);
            ck_assert_msg(result, "%s", shard_last_error());
            read_values(result, &loss);
            check_ok(shard_backward(result));
            read_values(shard_grad(rows), dx);
            /* Row 0: logits s (one) and -s (one); row 1: -s (one) and s. */
            double expected = log1p(exp(-size[i])) + 3 * (log1p(exp(-size[i])) + size[i]), sigmoid = 1 / (1 + exp(-size[i]));
            ck_assert_double_eq_tol(loss, expected, 1e-6 * (1 + expected));
            ck_assert_double_eq_tol(dx[0], (sigmoid - 1) + sigmoid, 1e-6);
            ck_assert_double_eq_tol(dx[1], -2 * sigmoid, 1e-6);
        }
}
END_TEST

/* An infinite logit of a class that the row has costs nothing. */
START_TEST(test_infinite)
{
    SHARD_SCOPE
    {
        static const int64_t ones[] = {0, 1, 0, 0};
        double loss, dx[2];
        shard_tensor *rows = leaf_of((double[]){1, -1}, SHARD_SHAPE(2, 1), SHARD_FLOAT32);
        shard_tensor *weight = leaf_of((double[]){1, -1}, SHARD_SHAPE(2, 1), SHARD_FLOAT32);
        shard_tensor *bias = leaf_of((double[]){INFINITY, 0}, SHARD_SHAPE(2), SHARD_FLOAT32);
        shard_tensor *pairs = shard_from_host(ones, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
        shard_tensor *result = shard_linear_binary_cross_entropy(rows, weight, bias, pairs, .reduction = SHARD_REDUCTION_SUM);
        ck_assert_msg(result, "%s", shard_last_error());
        read_values(result, &loss);
        check_ok(shard_backward(result));
        read_values(shard_grad(rows), dx);
        ck_assert_double_eq_tol(loss, log1p(exp(-1)) + log1p(exp(1)), 1e-6);
        ck_assert_double_eq_tol(dx[0], -1 / (1 + exp(1)), 1e-6);
        ck_assert_double_eq_tol(dx[1], -1 / (1 + exp(-1)), 1e-6);
    }
}
END_TEST

/* Products are of 16 bits, gradients of float32 leaves are float32. */
START_TEST(test_autocast)
{
    problem p = {.rows = 7, .in = 33, .classes = 301, .dtype = SHARD_FLOAT32, .weight_dtype = SHARD_FLOAT32, .form = HAS_BIAS};
    values expected = values_make(&p), found = values_make(&p);
    p.reduction = SHARD_REDUCTION_BATCH_MEAN;
    compute(&p, &expected, NULL, (shard_range){0, p.classes}, false);
    SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        compute(&p, &found, NULL, (shard_range){0, p.classes}, true);
    }
    compare(&p, "loss", &found.loss, &expected.loss, 1, 0x1p-6);
    compare(&p, "dx", found.dx, expected.dx, p.rows * p.in, 0x1p-6);
    compare(&p, "dweight", found.dweight, expected.dweight, p.classes * p.in, 0x1p-6);
    compare(&p, "dbias", found.dbias, expected.dbias, p.classes, 0x1p-6);
    double off = 0, most = 0;
    for (int64_t i = 0; i < p.classes * p.in; i++) {
        off = fmax(off, fabs(found.dweight[i] - expected.dweight[i]));
        most = fmax(most, fabs(expected.dweight[i]));
    }
    ck_assert_msg(off > 1e-4 * most, "the products were of float32");
    values_free(&expected);
    values_free(&found);
}
END_TEST

START_TEST(test_as_large_as_logits)
{
    problem p = {.rows = 7, .in = 5, .classes = 30, .dtype = SHARD_FLOAT32, .weight_dtype = SHARD_FLOAT32, .form = HAS_BIAS};
    values v = values_make(&p);
    double each[7 * 30], expected[7 * 30], dense[7 * 30] = {0}, mean[2];
    for (int64_t i = 0; i < p.pairs; i++)
        dense[v.pair[i] * p.classes + v.pair[p.pairs + i]] = 1;
    SHARD_SCOPE
    {
        shard_tensor *x = tensor_of(v.x, SHARD_SHAPE(7, 5), p.dtype), *weight = tensor_of(v.weight, SHARD_SHAPE(30, 5), p.dtype);
        shard_tensor *bias = tensor_of(v.bias, SHARD_SHAPE(30), p.dtype), *logits = shard_linear(x, weight, bias);
        shard_tensor *pairs = shard_from_host(v.pair, SHARD_SHAPE(2, p.pairs), .dtype = SHARD_INT64);
        read_values(shard_linear_binary_cross_entropy(x, weight, bias, pairs, .reduction = SHARD_REDUCTION_NONE), each);
        read_values(shard_binary_cross_entropy_with_logits(logits, pairs, .reduction = SHARD_REDUCTION_NONE), expected);
        for (int i = 0; i < 7 * 30; i++)
            ck_assert_double_eq(each[i], expected[i]);
        read_values(shard_linear_binary_cross_entropy(x, weight, bias, tensor_of(dense, SHARD_SHAPE(7, 30), p.dtype)), mean);
        read_values(shard_linear_binary_cross_entropy(x, weight, bias, pairs), mean + 1);
        ck_assert_double_eq_tol(mean[0], mean[1], 1e-6);
        ck_assert_ptr_null(
            shard_linear_binary_cross_entropy(x, weight, bias, pairs, .reduction = SHARD_REDUCTION_NONE, .gradient_only = true));
        check_error(SHARD_ERROR_ARGUMENT, "*gradient_only*");
    }
    values_free(&v);
}
END_TEST

/* Gradients of float32 leaves are not rounded to the 16 bits of the features, as those of shard_linear are not. */
static void check_dense_gradient(const values *v, bool casts)
{
    double dense[7 * 30] = {0}, dweight[2][30 * 5], dbias[2][30];
    bool rounded = true;
    dense[3] = dense[40] = 1;
    for (int plain = 0; plain < 2; plain++) {
        shard_tensor *x = tensor_of(v->x, SHARD_SHAPE(7, 5), SHARD_BFLOAT16);
        shard_tensor *weight = tensor_of(v->weight, SHARD_SHAPE(30, 5), SHARD_FLOAT32);
        shard_tensor *bias = tensor_of(v->bias, SHARD_SHAPE(30), SHARD_FLOAT32), *target, *loss = NULL;
        target = tensor_of(dense, SHARD_SHAPE(7, 30), casts || plain ? SHARD_FLOAT32 : SHARD_BFLOAT16);
        shard_set_requires_grad(weight, true);
        shard_set_requires_grad(bias, true);
        SHARD_AUTOCAST(casts || plain ? SHARD_BFLOAT16 : SHARD_FLOAT32)
        {
            if (plain)
                loss = shard_binary_cross_entropy_with_logits(shard_linear(x, weight, bias), target);
            else
                loss = shard_linear_binary_cross_entropy(x, weight, bias, target);
        }
        check_ok(shard_backward(loss));
        read_values(shard_grad(weight), dweight[plain]);
        read_values(shard_grad(bias), dbias[plain]);
    }
    for (int i = 0; i < 30 * 5; i++) {
        ck_assert_double_eq(dweight[0][i], dweight[1][i]);
        rounded = rounded && dweight[0][i] == round_to(SHARD_BFLOAT16, dweight[0][i]);
    }
    for (int i = 0; i < 30; i++)
        ck_assert_double_eq(dbias[0][i], dbias[1][i]);
    ck_assert(!rounded);
}

START_TEST(test_mixed_as_large_as_logits)
{
    problem p = {.rows = 7, .in = 5, .classes = 30, .dtype = SHARD_BFLOAT16, .weight_dtype = SHARD_FLOAT32, .form = HAS_BIAS};
    values v = values_make(&p);
    SHARD_SCOPE
    {
        check_dense_gradient(&v, _i);
    }
    values_free(&v);
}
END_TEST

/* A batch without rows: the sum is 0, and gradients are zeros. */
START_TEST(test_no_rows)
{
    shard_head_tile = _i ? 7 : 0;
    double none[1] = {0}, gradient[30 * 5], loss;
    values v = values_make(&(problem){.rows = 1, .in = 5, .classes = 30, .dtype = SHARD_FLOAT32, .weight_dtype = SHARD_FLOAT32});
    SHARD_SCOPE
    {
        shard_tensor *x = tensor_of(none, SHARD_SHAPE(0, 5), SHARD_FLOAT32);
        shard_tensor *weight = leaf_of(v.weight, SHARD_SHAPE(30, 5), SHARD_FLOAT32);
        shard_tensor *pairs = shard_from_host((int64_t[]){0}, SHARD_SHAPE(2, 0), .dtype = SHARD_INT64);
        shard_tensor *result = shard_linear_binary_cross_entropy(x, weight, NULL, pairs, .reduction = SHARD_REDUCTION_SUM);
        read_values(result, &loss);
        check_ok(shard_backward(result));
        read_values(shard_grad(weight), gradient);
    }
    ck_assert_double_eq(loss, 0);
    for (int i = 0; i < 30 * 5; i++)
        ck_assert_double_eq(gradient[i], 0);
    values_free(&v);
    shard_head_tile = 0;
}
END_TEST

/* Of logits in memory, too, the loss is 0 and the gradient that of the loss. */
START_TEST(test_gradient_only)
{
    problem p = {.rows = 7, .in = 5, .classes = 30, .dtype = SHARD_FLOAT32};
    values v = values_make(&p);
    double gradient[2][7 * 30], loss[2];
    for (int only = 0; only < 2; only++)
        SHARD_SCOPE
        {
            double *z = noise_of(7 * 30, 8, SHARD_FLOAT32, 3, 0);
            shard_tensor *logits = leaf_of(z, SHARD_SHAPE(7, 30), SHARD_FLOAT32);
            shard_tensor *pairs = shard_from_host(v.pair, SHARD_SHAPE(2, p.pairs), .dtype = SHARD_INT64);
            shard_tensor *result = shard_binary_cross_entropy_with_logits(logits, pairs, .gradient_only = only);
            read_values(result, &loss[only]);
            check_ok(shard_backward(result));
            read_values(shard_grad(logits), gradient[only]);
            free(z);
        }
    ck_assert_double_gt(loss[0], 0.1);
    ck_assert_double_eq(loss[1], 0);
    SHARD_SCOPE /* the mean over no element */
    {
        shard_tensor *none = shard_zeros(SHARD_SHAPE(0, 30)), *pairs = shard_zeros(SHARD_SHAPE(2, 0), .dtype = SHARD_INT64);
        ck_assert_double_eq(shard_item(shard_binary_cross_entropy_with_logits(none, pairs, .gradient_only = true)), 0);
    }
    for (int i = 0; i < 7 * 30; i++)
        ck_assert_double_eq(gradient[0][i], gradient[1][i]);
    values_free(&v);
}
END_TEST

/* One rank has another pair, features of another length, also of a dense target, or of another type: an error on all. */
static void refuses_on_ranks(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), members = shard_group_size(world);
    for (int way = 0; way < 4; way++)
        SHARD_SCOPE
        {
            const int64_t ones[] = {0, way == 0 && rank == members - 1 && rank > 0 ? 1 : 0};
            bool long_x = rank == 0 && (way == 1 || way == 2), typed = rank == 0 && way == 3;
            double zero[8] = {0};
            shard_range range = shard_split_range(4, members, rank);
            shard_tensor *weight = tensor_of(zero, SHARD_SHAPE(range.size, 2), SHARD_FLOAT32);
            weight->placement = (shard_placement){.kind = SHARD_SPLIT, .group = world, .start = range.start, .whole = 4};
            shard_tensor *x = tensor_of(zero, SHARD_SHAPE(1, long_x ? 3 : 2), typed ? SHARD_BFLOAT16 : SHARD_FLOAT32);
            shard_tensor *pairs = shard_from_host(ones, SHARD_SHAPE(2, 1), .dtype = SHARD_INT64);
            shard_tensor *dense = tensor_of(zero, SHARD_SHAPE(1, range.size), SHARD_FLOAT32);
            dense->placement = (shard_placement){.kind = SHARD_SPLIT, .dim = 1, .group = world, .start = range.start, .whole = 4};
            shard_tensor *loss = shard_linear_binary_cross_entropy(x, weight, NULL, way == 2 ? dense : pairs);
            bool fails = way == 1 || way == 2 || members > 1, late = way == 0 && !shard_device_open(NULL)->ops->host_memory;
            ck_assert(late || (loss == NULL) == fails);
            if (late) /* the device queues: the error is that of the next call that waits for it */
                shard_synchronize(shard_device_open(NULL));
            if (fails)
                check_error(way % 3 == 0 ? SHARD_ERROR_MISMATCH
                            : rank > 0   ? SHARD_ERROR_PEER
                                         : SHARD_ERROR_SHAPE,
                            way == 2 ? "*shard_linear: *" : "*shard_linear_binary_cross_entropy: *");
        }
}

START_TEST(test_refuses)
{
    run_ranks(rank_counts[_i], refuses_on_ranks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear binary cross-entropy");
    TCase *tcase = test_case(suite, "linear binary cross-entropy");
    tcase_add_loop_test(tcase, test_equals_plain, 0, SHAPES);
    tcase_add_loop_test(tcase, test_composed_equals_plain, 0, SHAPES);
    add_ranks_test(tcase, test_equals_plain_on_ranks);
    tcase_add_test(tcase, test_extremes);
    tcase_add_test(tcase, test_infinite);
    tcase_add_test(tcase, test_autocast);
    tcase_add_loop_test(tcase, test_mixed_as_large_as_logits, 0, 2);
    tcase_add_test(tcase, test_as_large_as_logits);
    tcase_add_test(tcase, test_gradient_only);
    tcase_add_loop_test(tcase, test_no_rows, 0, 2);
    add_ranks_test(tcase, test_refuses);
    return test_run(suite);
}
