/* The loss of a linear layer without logits against the plain layers in float64, whole and split over ranks. */
#include "support/loss.h"
#include "support/kernels.h"

#include "base/error.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/autograd.h>
#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HAS_BIAS = 1, WEIGHTED = 2, SMOOTHED = 4, IGNORING = 8, FORMS = 16 };

typedef struct problem {
    int64_t rows, in, classes;
    shard_dtype dtype;        /* of x */
    shard_dtype weight_dtype; /* of weight and bias */
    int form;
    shard_reduction reduction;
    int64_t masked; /* the first classes, with a bias of -inf */
    double rise;    /* of the bias from a tile to the next */
} problem;

#define IGNORED INT64_MIN /* also a class's distance from it is no number */

enum { TILE = 4 /* classes of a tile, where there are masked classes or a rise */ };

/* The operands' values, which both dtypes have, and gradients. */
typedef struct values {
    double *x, *weight, *bias, *class_weight, *row_weight, *dy;
    int64_t *labels;
    double *loss, *dx, *dweight, *dbias;
} values;

static double *noise_of(int64_t count, uint64_t seed, shard_dtype dtype, double scale)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = round_to(dtype, scale * noise(seed, i));
    return x;
}

static int64_t results_of(const problem *p)
{
    return p->reduction == SHARD_REDUCTION_NONE ? p->rows : 1;
}

static values values_make(const problem *p)
{
    values v = {.x = noise_of(p->rows * p->in, 1, p->dtype, 1),
                .weight = noise_of(p->classes * p->in, 2, p->dtype, 1),
                .bias = noise_of(p->classes, 3, p->dtype, 1),
                .class_weight = noise_of(p->classes, 4, SHARD_FLOAT32, 0.5),
                .row_weight = noise_of(p->rows, 6, SHARD_FLOAT32, 0.5),
                .dy = noise_of(results_of(p), 5, SHARD_FLOAT32, 1),
                .labels = calloc((size_t)p->rows + 1, sizeof *v.labels),
                .loss = calloc((size_t)p->rows + 1, sizeof(double)),
                .dx = calloc((size_t)(p->rows * p->in) + 1, sizeof(double)),
                .dweight = calloc((size_t)(p->classes * p->in) + 1, sizeof(double)),
                .dbias = calloc((size_t)p->classes + 1, sizeof(double))};
    for (int64_t i = 0; i < p->classes; i++)
        v.class_weight[i] = round_to(SHARD_FLOAT32, v.class_weight[i] + 1);
    for (int64_t i = 0; i < p->rows; i++)
        v.row_weight[i] = round_to(SHARD_FLOAT32, v.row_weight[i] + 1);
    for (int64_t i = 0; i < p->rows; i++)
        v.labels[i] = p->form & IGNORING && i % 3 == 1 ? IGNORED : (i * 7919 + p->classes - 1) % p->classes;
    for (int64_t i = 0; i < p->classes && p->rise != 0; i++)
        v.bias[i] = round_to(p->dtype, v.bias[i] + p->rise * (double)(i / TILE));
    for (int64_t i = 0; i < p->masked; i++)
        v.bias[i] = -INFINITY;
    for (int64_t i = 0; i < p->rows; i++)
        v.labels[i] = v.labels[i] < 0 || v.labels[i] >= p->masked ? v.labels[i] : p->masked + i % (p->classes - p->masked);
    return v;
}

static void values_free(values *v)
{
    double *all[] = {v->x, v->weight, v->bias, v->class_weight, v->row_weight, v->dy, v->loss, v->dx, v->dweight, v->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(v->labels);
}

static shard_tensor *leaf_of(const double *numbers, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *leaf = tensor_of(numbers, shape, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

/* Loss and gradients of the classes in range, by the fused function or (fused false) by the plain ones in float64. */
static void compute(const problem *p, values *v, shard_group *group, shard_range range, bool fused)
{
    shard_dtype x_dtype = fused ? p->dtype : SHARD_FLOAT64, w_dtype = fused ? p->weight_dtype : SHARD_FLOAT64;
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(p->rows, p->in), x_dtype), *bias = NULL;
        shard_tensor *weight = leaf_of(v->weight + range.start * p->in, SHARD_SHAPE(range.size, p->in), w_dtype);
        shard_tensor *labels = shard_from_host(v->labels, SHARD_SHAPE(p->rows), .dtype = SHARD_INT64);
        shard_tensor *class_weight =
            p->form & WEIGHTED ? tensor_of(v->class_weight, SHARD_SHAPE(p->classes), fused ? SHARD_FLOAT32 : SHARD_FLOAT64)
                               : NULL;
        if (p->form & HAS_BIAS)
            bias = leaf_of(v->bias + range.start, SHARD_SHAPE(range.size), w_dtype);
        shard_tensor *parts[] = {weight, bias};
        for (int i = 0; i < 2 && group; i++)
            if (parts[i])
                parts[i]->placement =
                    (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = p->classes};
        const shard_cross_entropy_options options = {SHARD_CROSS_ENTROPY_OPTIONS_VALUES};
        shard_cross_entropy_options set = options;
        set.weight = class_weight;
        set.ignore_index = IGNORED;
        set.label_smoothing = p->form & SMOOTHED ? 0.1 : 0;
        set.z_loss = p->form % 3 == 0 ? 0.05 : 0;
        set.row_weight = p->form % 5 < 2 ? tensor_of(v->row_weight, SHARD_SHAPE(p->rows), SHARD_FLOAT64) : NULL;
        set.logit_scale = p->form % 4 == 3 ? 0.5 : 1;
        set.soft_cap = p->form % 5 == 3 ? 2 : 0;
        set.reduction = p->reduction;
        set.stash_share = (const double[]){options.stash_share, 0, 1000}[p->reduction];
        for (int step = 0; step < 2; step++) { /* gradients add up */
            shard_tensor *loss = fused ? shard_linear_cross_entropy_with(x, weight, bias, labels, &set, NULL)
                                       : shard_cross_entropy_with(shard_linear(x, weight, bias), labels, &set, NULL);
            ck_assert_msg(loss, "%s", shard_last_error());
            read_values(loss, v->loss);
            shard_tensor *dy = tensor_of(v->dy, loss->shape, loss->dtype);
            check_ok(shard_backward(shard_sum(shard_mul(loss, dy))));
        }
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(weight), v->dweight);
        if (bias)
            read_values(shard_grad(bias), v->dbias);
    }
}

/* Of gradients: a stash rounds logits, also those next to a soft cap, whose derivatives are small. */
#define STASH_ERROR 3e-5
#define STASH_ERROR_CAPPED 0x1p-13

/* Relative to the largest of the expected numbers. */
static void compare(const problem *p, const char *what, const double *found, const double *expected, int64_t count,
                    double tolerance)
{
    /* Rounding of what cancels is smaller than that of its summands. */
    check_doubles(found, expected, count, tolerance, 0.1,
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
} shapes[] = {{5, 3, 13, 0},      {4, 16, 3, 2}, {7, 33, 301, 64}, {70, 20, 100, 0},
              {13, 130, 700, 48}, {1, 1, 1, 0},  {3, 5, 9001, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_problem(const problem *p, shard_group *group, double tolerance)
{
    values expected = values_make(p), found = values_make(p);
    shard_range range = shard_split_range(p->classes, shard_group_size(group), shard_group_rank(group));
    compute(p, &expected, NULL, (shard_range){0, p->classes}, false);
    compute(p, &found, group, range, true);
    compare(p, "loss", found.loss, expected.loss, results_of(p), tolerance);
    compare(p, "dx", found.dx, expected.dx, p->rows * p->in, tolerance);
    bool stashes = p->reduction != SHARD_REDUCTION_SUM && p->dtype != SHARD_FLOAT64 && shard_default_device()->head;
    double stashed = tolerance + (!stashes ? 0 : p->form % 5 == 3 ? STASH_ERROR_CAPPED : STASH_ERROR);
    compare(p, "dweight", found.dweight, expected.dweight + range.start * p->in, range.size * p->in, stashed);
    compare(p, "dbias", found.dbias, expected.dbias + range.start, p->form & HAS_BIAS ? range.size : 0, stashed);
    values_free(&expected);
    values_free(&found);
}

static void check_shape(int shape, shard_group *group, int step)
{
    shard_head_tile = shapes[shape].tile;
    for (int form = 0; form < FORMS; form++)
        for (int d = (form + shape) % step; d < DTYPES; d += step) {
            problem p = {shapes[shape].rows,
                         shapes[shape].in,
                         shapes[shape].classes,
                         dtypes[d].x,
                         dtypes[d].weight,
                         form,
                         (shard_reduction)((form + d + form / 4) % 3)};
            check_problem(&p, group, dtypes[d].tolerance);
        }
    shard_head_tile = 0;
}

START_TEST(test_equals_plain)
{
    check_shape(_i, NULL, 1);
}
END_TEST

/* Composed of the device's entries, as on a device without fused sweeps. */
START_TEST(test_composed_equals_plain)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    device->head = NULL;
    check_shape(_i, NULL, 1);
    device->head = fused;
}
END_TEST

static void equals_plain_on_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < SHAPES; i++)
        check_shape(i, world, 5);
}

START_TEST(test_equals_plain_on_ranks)
{
    run_ranks(rank_counts[_i], equals_plain_on_ranks);
}
END_TEST

/* Logits of some hundreds have errors of some 1e-5 in float32. */
static void check_biases(shard_group *group, int64_t masked, double rise)
{
    static const int forms[] = {HAS_BIAS, HAS_BIAS | WEIGHTED, HAS_BIAS | IGNORING, HAS_BIAS | WEIGHTED | IGNORING};
    shard_head_tile = TILE;
    for (int i = 0; i < 4; i++)
        for (int d = group ? i : 0; d < DTYPES; d += group ? 4 : 1) {
            problem p = {5, 3, 23, dtypes[d].x, dtypes[d].weight, forms[i], (shard_reduction)((i + d) % 3), masked, rise};
            check_problem(&p, group, rise != 0 ? 4 * dtypes[d].tolerance : dtypes[d].tolerance);
        }
    shard_head_tile = 0;
}

/* The first tiles of all rows, and with several ranks all classes of the first ranks, have no finite logit. Not with smoothing,
 * which makes the loss infinite. */
static void check_masked(shard_group *group)
{
    check_biases(group, 17, 0);
}

/* Maxima that each tile raises or lowers: by more than an exponential's range, and by less, so that some tiles move the number
 * that exponentials are relative to and some do not. */
static void check_rising(shard_group *group)
{
    static const double rises[] = {50, 30, -50};
    for (int i = 0; i < 3; i++)
        check_biases(group, 0, rises[i]);
}

static void check_composed_too(void (*check)(shard_group *), bool composed)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    device->head = composed ? NULL : fused;
    check(NULL);
    device->head = fused;
}

START_TEST(test_masked_classes)
{
    check_composed_too(check_masked, _i);
}
END_TEST

START_TEST(test_rising_maxima)
{
    check_composed_too(check_rising, _i);
}
END_TEST

static void biases_on_ranks(shard_group *world, void *context)
{
    (void)context;
    check_masked(world);
    check_rising(world);
}

START_TEST(test_biases_on_ranks)
{
    run_ranks(rank_counts[_i], biases_on_ranks);
}
END_TEST

/* ---- the labels' ranks ---- */

enum { NOT_A_NUMBER = 3 /* the row of x that is NaN */ };

static double *integers(int64_t count, uint64_t seed)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = floor(1.5 * noise(seed, i) + 0.5);
    return x;
}

/* Products of small integers are exact in every dtype, and many logits are equal. */
static void check_ranks(int shape, int d, shard_group *group)
{
    int64_t rows = shapes[shape].rows, in = shapes[shape].in, classes = shapes[shape].classes, label[100], found[100],
            expected[100];
    double *x = integers(rows * in, 1), *weight = integers(classes * in, 2), *bias = integers(classes, 3);
    shard_range range = shard_split_range(classes, shard_group_size(group), shard_group_rank(group));
    for (int64_t i = 0; i < rows; i++)
        label[i] = i % 4 == 1 ? IGNORED : (i * 7919 + classes - 1) % classes;
    if (rows > NOT_A_NUMBER)
        x[NOT_A_NUMBER * in] = (double)NAN;
    shard_head_tile = shapes[shape].tile;
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64), *rank = NULL;
        shard_tensor *parts[] = {leaf_of(weight + range.start * in, SHARD_SHAPE(range.size, in), dtypes[d].weight),
                                 leaf_of(bias + range.start, SHARD_SHAPE(range.size), dtypes[d].weight)};
        for (int i = 0; i < 2 && group; i++)
            parts[i]->placement = (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = classes};
        shard_tensor *loss =
            shard_linear_cross_entropy_with_rank(tensor_of(x, SHARD_SHAPE(rows, in), dtypes[d].x), parts[0], parts[1], labels,
                                                 &rank, .ignore_index = IGNORED, .label_smoothing = 0.1);
        ck_assert_msg(loss, "%s", shard_last_error());
        shard_tensor *plain = shard_linear(tensor_of(x, SHARD_SHAPE(rows, in), SHARD_FLOAT64),
                                           tensor_of(weight, SHARD_SHAPE(classes, in), SHARD_FLOAT64),
                                           tensor_of(bias, SHARD_SHAPE(classes), SHARD_FLOAT64));
        check_ok(shard_copy_to_host(rank, found, (size_t)rows * sizeof *found));
        check_ok(shard_copy_to_host(shard_label_rank(plain, labels, IGNORED), expected, (size_t)rows * sizeof *expected));
        for (int64_t i = 0; i < rows; i++)
            ck_assert_msg(found[i] == expected[i], "row %lld of %lld, %lld classes, %s: rank %lld, not %lld", (long long)i,
                          (long long)rows, (long long)classes, shard_dtype_name(dtypes[d].x), (long long)found[i],
                          (long long)expected[i]);
    }
    shard_head_tile = 0;
    free(x);
    free(weight);
    free(bias);
}

START_TEST(test_counts_ranks)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    for (int d = 0; d < DTYPES; d++)
        for (int composed = 0; composed < 2; composed++) {
            device->head = composed ? NULL : fused;
            check_ranks(_i, d, NULL);
        }
    device->head = fused;
}
END_TEST

static void counts_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < SHAPES; i++)
        check_ranks(i, i % DTYPES, world);
}

START_TEST(test_counts_ranks_on_ranks)
{
    run_ranks(rank_counts[_i], counts_ranks);
}
END_TEST

/* ---- ranks that differ ---- */

/* The last rank has x or the weight in another type, by autocast or as given: an error on all ranks. */
static void refuses_types(shard_group *world, void *context)
{
    (void)context;
    const struct {
        shard_dtype autocast, x, weight;
    } ways[] = {{SHARD_BFLOAT16, SHARD_FLOAT32, SHARD_FLOAT32},
                {SHARD_FLOAT32, SHARD_FLOAT16, SHARD_FLOAT32},
                {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_BFLOAT16}};
    enum { IN = 5 };
    int rank = shard_group_rank(world), members = shard_group_size(world);
    const double *numbers = (const double[4 * IN]){0};
    for (int way = 0; way < 3; way++)
        SHARD_SCOPE
        {
            bool other = rank == members - 1;
            shard_dtype plain = way == 2 ? SHARD_BFLOAT16 : SHARD_FLOAT32;
            shard_range range = shard_split_range(3, members, rank);
            shard_tensor *x = leaf_of(numbers, SHARD_SHAPE(4, IN), other ? ways[way].x : plain);
            shard_tensor *weight = leaf_of(numbers, SHARD_SHAPE(range.size, IN), other ? ways[way].weight : SHARD_FLOAT32);
            weight->placement = (shard_placement){.kind = SHARD_SPLIT, .group = world, .start = range.start, .whole = 3};
            shard_tensor *label = shard_zeros(SHARD_SHAPE(4), .dtype = SHARD_INT64), *loss = NULL;
            SHARD_AUTOCAST(other ? ways[way].autocast : SHARD_FLOAT32) loss = shard_linear_cross_entropy(x, weight, NULL, label);
            ck_assert((loss == NULL) == (members > 1));
            if (members > 1)
                check_error(SHARD_ERROR_MISMATCH, way == 2 ? "*options*differ*" : "*has x of *float16, rank* of float32*");
        }
}

START_TEST(test_refuses_types)
{
    run_ranks(rank_counts[_i], refuses_types);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear cross-entropy");
    TCase *tcase = test_case(suite, "linear cross-entropy");
    tcase_add_loop_test(tcase, test_equals_plain, 0, SHAPES);
    tcase_add_loop_test(tcase, test_composed_equals_plain, 0, SHAPES);
    add_ranks_test(tcase, test_equals_plain_on_ranks);
    tcase_add_loop_test(tcase, test_masked_classes, 0, 2);
    tcase_add_loop_test(tcase, test_rising_maxima, 0, 2);
    add_ranks_test(tcase, test_biases_on_ranks);
    tcase_add_loop_test(tcase, test_counts_ranks, 0, SHAPES);
    add_ranks_test(tcase, test_counts_ranks_on_ranks);
    add_ranks_test(tcase, test_refuses_types);
    return test_run(suite);
}
