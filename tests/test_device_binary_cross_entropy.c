/* Binary cross-entropy over parts of the columns, whole, uneven and empty, in rows that are dense or apart, for targets of
 * both kinds, against the definition in long double; and the order of pairs. */
#include "support/check.h"
#include "support/kernels.h"
#include "support/ranks.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 4 };

/* rows, classes, and where the parts begin and end */
static const struct {
    int64_t rows, classes;
    int parts;
    int64_t bounds[MAX_PARTS + 1];
} shapes[] = {
    {0, 4, 1, {0, 4}},
    {1, 1, 1, {0, 1}},
    {5, 10, 3, {0, 3, 3, 10}},
    {100, 33, 2, {0, 32, 33}},
    {9, 1030, 4, {0, 1, 500, 1030, 1030}},
    {1, 18001, 2, {0, 1000, 18001}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
enum { WEIGHTED = 1, POSITIVE = 2, OF_ROWS = 4, PAIRS = 8, FORMS = 16 };

/* An element's loss, its derivative by x, and the sum of the summands' sizes of both, for their rounding. */
typedef struct element {
    long double loss, slope, loss_size, slope_size;
} element;

/* The whole problem; parts are cut out of it. */
typedef struct problem {
    shard_dtype dtype;
    int64_t rows, classes, pairs;
    void *x, *target, *dy, *weight, *positive; /* weight and positive NULL where the form has none */
    double *row_weight;
    int64_t *pair;    /* [2, pairs] of the ones in target; NULL without */
    element *element; /* [rows, classes] */
} problem;

/* Of a tenth of the elements, and some that are nowhere, in order. */
static void make_pairs(problem *p)
{
    static const int64_t before[][2] = {{INT64_MIN, 3}, {-1, 0}, {0, INT64_MIN}, {0, -1}};
    const int64_t after[][2] = {{p->rows - 1, p->classes}, {p->rows - 1, INT64_MAX}, {p->rows, 0}, {INT64_MAX, 0}};
    int64_t n = p->rows * p->classes, at = 4;
    for (int64_t i = 0; i < n; i++) {
        bool one = fabs(noise(9, i)) < 0.1;
        array_put(p->target, i, p->dtype, one);
        p->pairs += one;
    }
    p->pairs += 8;
    p->pair = array_new(2 * p->pairs, SHARD_INT64);
    for (int64_t i = 0; i < 4; i++)
        for (int64_t k = 0; k < 2; k++) {
            p->pair[k * p->pairs + i] = before[i][k];
            p->pair[(k + 1) * p->pairs - 4 + i] = after[i][k];
        }
    for (int64_t i = 0; i < n; i++)
        if (array_get(p->target, i, p->dtype) != 0) {
            p->pair[at] = i / p->classes;
            p->pair[p->pairs + at++] = i % p->classes;
        }
}

static element element_of(const problem *p, int64_t row, int64_t c)
{
    int64_t i = row * p->classes + c;
    long double x = array_get(p->x, i, p->dtype), y = array_get(p->target, i, p->dtype);
    long double w = (p->row_weight ? p->row_weight[row] : 1) * (p->weight ? (long double)array_get(p->weight, c, p->dtype) : 1);
    long double positive = p->positive ? array_get(p->positive, c, p->dtype) : 1, rest = log1pl(expl(-fabsl(x)));
    long double zero = w * (fmaxl(x, 0) + rest), one = w * positive * (fmaxl(-x, 0) + rest);
    long double up = w / (1 + expl(-x)), down = w * positive / (1 + expl(x));
    return (element){(1 - y) * zero + y * one, (1 - y) * up - y * down, zero + y * one, (1 - y) * up + y * down};
}

static problem problem_new(shard_dtype dtype, int shape, int form)
{
    problem p = {.dtype = dtype, .rows = shapes[shape].rows, .classes = shapes[shape].classes};
    int64_t n = p.rows * p.classes;
    p.x = array_noise(n, dtype, 1, -15, 15);
    p.target = array_noise(n, dtype, 2, 0, 1);
    p.dy = array_noise(n, dtype, 3, -1, 2);
    if (form & WEIGHTED)
        p.weight = array_noise(p.classes, dtype, 4, 0.25, 2);
    if (form & POSITIVE)
        p.positive = array_noise(p.classes, dtype, 5, 0.25, 4);
    if (form & OF_ROWS)
        p.row_weight = array_noise(p.rows, SHARD_FLOAT64, 6, 0.25, 2);
    if (form & PAIRS)
        make_pairs(&p);
    p.element = calloc((size_t)n + 1, sizeof *p.element);
    ck_assert_ptr_nonnull(p.element);
    for (int64_t i = 0; i < n; i++)
        p.element[i] = element_of(&p, i / p.classes, i % p.classes);
    return p;
}

static void problem_free(problem *p)
{
    int64_t n = p->rows * p->classes;
    array_free(p->x, n, p->dtype);
    array_free(p->target, n, p->dtype);
    array_free(p->dy, n, p->dtype);
    array_free(p->weight, p->classes, p->dtype);
    array_free(p->positive, p->classes, p->dtype);
    array_free(p->row_weight, p->rows, SHARD_FLOAT64);
    array_free(p->pair, 2 * p->pairs, SHARD_INT64);
    free(p->element);
}

/* One part of the columns as arrays of its own. */
typedef struct part {
    shard_binary_loss_shape shape;
    int64_t pitch;
    void *x, *target, *dy, *weight, *positive;
} part;

/* NaN between the rows. */
static void *columns(const problem *p, const void *whole, int64_t rows, int64_t first, int64_t cols, int64_t pitch)
{
    if (!whole)
        return NULL;
    size_t size = shard_dtype_size(p->dtype);
    char *cut = array_new(rows * pitch, p->dtype);
    memset(cut, 0xff, (size_t)(rows * pitch) * size);
    for (int64_t i = 0; i < rows; i++)
        memcpy(cut + (size_t)(i * pitch) * size, (const char *)whole + (size_t)(i * p->classes + first) * size,
               (size_t)cols * size);
    return cut;
}

static part part_new(const problem *p, int64_t first, int64_t end, int way)
{
    int64_t cols = end - first, pitches[] = {0, cols + 3, (cols / 64 + 1) * 64}, pitch = pitches[way % 3];
    part a = {.shape = {.rows = p->rows, .cols = cols, .pitch = pitch, .col0 = first, .classes = p->classes, .pairs = p->pairs},
              .pitch = shard_pitch(pitch, cols)};
    a.x = columns(p, p->x, p->rows, first, cols, a.pitch);
    a.target = columns(p, p->pair ? NULL : p->target, p->rows, first, cols, cols);
    a.dy = columns(p, p->dy, p->rows, first, cols, cols);
    a.weight = columns(p, p->weight, 1, first, cols, cols);
    a.positive = columns(p, p->positive, 1, first, cols, cols);
    return a;
}

static void part_free(part *a, shard_dtype dtype)
{
    int64_t n = a->shape.rows * a->shape.cols;
    array_free(a->x, a->shape.rows * a->pitch, dtype);
    array_free(a->target, n, dtype);
    array_free(a->dy, n, dtype);
    array_free(a->weight, a->shape.cols, dtype);
    array_free(a->positive, a->shape.cols, dtype);
}

/* The parts' sums and each element's loss. */
static void check_forward(shard_device *device, const problem *p, const part *a)
{
    int64_t n = p->rows * a->shape.cols;
    void *each = array_new(n, p->dtype), *alone = array_new(n, p->dtype);
    double *sum = array_of(1, SHARD_FLOAT64, &(double){NAN}), first;
    RUN(device, binary_cross_entropy, &a->shape, a->x, a->target, p->pair, a->weight, a->positive, p->row_weight, each, sum,
        p->dtype);
    long double total = 0, size = 0, u = compute_unit(p->dtype);
    for (int64_t i = 0; i < n; i++) {
        element e = p->element[i / a->shape.cols * p->classes + a->shape.col0 + i % a->shape.cols];
        check_close(p->dtype, array_get(each, i, p->dtype), e.loss, 16 * u * e.loss_size, device->name, i);
        total += e.loss;
        size += e.loss_size;
    }
    check_close(SHARD_FLOAT64, *sum, total, size * (16 * u + 1e-14L), "sum", 0);
    first = *sum;
    /* One of the two is computed to the same bits without the other. */
    RUN(device, binary_cross_entropy, &a->shape, a->x, a->target, p->pair, a->weight, a->positive, p->row_weight, alone, NULL,
        p->dtype);
    check_same(p->dtype, n, alone, each, device->name);
    RUN(device, binary_cross_entropy, &a->shape, a->x, a->target, p->pair, a->weight, a->positive, p->row_weight, NULL, sum,
        p->dtype);
    ck_assert(*sum == first);
    array_free(each, n, p->dtype);
    array_free(alone, n, p->dtype);
    array_free(sum, 1, SHARD_FLOAT64);
}

/* With a dy of each element or without, into another array or in place. */
static void check_backward(shard_device *device, const problem *p, const part *a, bool with_dy, bool in_place)
{
    int64_t n = p->rows * a->pitch;
    double *scale = array_of(1, SHARD_FLOAT64, &(double){-0.375});
    void *x = array_of(n, p->dtype, a->x), *dx = in_place ? x : array_of(n, p->dtype, a->x);
    RUN(device, binary_cross_entropy_backward, &a->shape, x, a->target, p->pair, a->weight, a->positive, p->row_weight, scale,
        with_dy ? a->dy : NULL, dx, p->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / a->pitch, column = i % a->pitch;
        if (column >= a->shape.cols) {
            ck_assert(isnan(array_get(dx, i, p->dtype)));
            continue;
        }
        element e = p->element[row * p->classes + a->shape.col0 + column];
        long double factor = *scale * (with_dy ? array_get(a->dy, row * a->shape.cols + column, p->dtype) : 1);
        long double error = fabsl(factor) * e.slope_size * 16 * compute_unit(p->dtype) + 0x1p-120L;
        check_close(p->dtype, array_get(dx, i, p->dtype), factor * e.slope, error, device->name, i);
    }
    array_free(x, n, p->dtype);
    if (!in_place)
        array_free(dx, n, p->dtype);
    array_free(scale, 1, SHARD_FLOAT64);
}

START_TEST(follows_the_definition)
{
    shard_device *device;
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < FORMS; form++) {
            problem p = problem_new(float_dtypes[_i], s, form);
            for (int set = 0; (device = kernel_device(set)); set++)
                for (int k = 0; k < shapes[s].parts; k++) {
                    part a = part_new(&p, shapes[s].bounds[k], shapes[s].bounds[k + 1], s + form + k);
                    check_forward(device, &p, &a);
                    check_backward(device, &p, &a, form % 2, k % 2);
                    check_backward(device, &p, &a, form % 2 == 0, k % 2 == 0);
                    part_free(&a, p.dtype);
                }
            problem_free(&p);
        }
}
END_TEST

/* No pairs at all: every target is 0. */
START_TEST(takes_no_pairs)
{
    shard_dtype dtype = float_dtypes[_i];
    void *x = array_noise(33, dtype, 1, -3, 3);
    double *sum = array_new(1, SHARD_FLOAT64);
    shard_binary_loss_shape shape = {.rows = 3, .cols = 11, .classes = 11};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        long double want = 0;
        RUN(device, binary_cross_entropy, &shape, x, NULL, NULL, NULL, NULL, NULL, NULL, sum, dtype);
        for (int64_t i = 0; i < 33; i++)
            want += log1pl(expl(array_get(x, i, dtype)));
        check_close(SHARD_FLOAT64, *sum, want, want * 16 * compute_unit(dtype), device->name, 0);
    }
}
END_TEST

static const shard_fault unordered = {SHARD_ERROR_ARGUMENT, "row %" PRId64 ", class %" PRId64 " at %" PRId64};

static void check_order(shard_device *device, int64_t n, const int64_t *pair, const char *text)
{
    shard_status status = device->ops->check_pairs(device, n, pair, &unordered);
    if (on_other_device()) {
        ck_assert_int_eq(status, SHARD_OK);
        status = device->ops->synchronize(device);
    }
    ck_assert_int_eq(status, text ? SHARD_ERROR_ARGUMENT : SHARD_OK);
    if (text)
        check_error(SHARD_ERROR_ARGUMENT, text);
    ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK);
}

/* The first pair that is not larger than the one before it, by row or by class; equal ones are found, too. */
START_TEST(finds_the_first_out_of_order)
{
    static const int64_t sizes[] = {0, 1, 2, 1000, 1025, 200001};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < 6; s++) {
            int64_t n = sizes[s], *pair = array_new(2 * n, SHARD_INT64);
            for (int64_t i = 0; i < n; i++) {
                pair[i] = i / 7;
                pair[n + i] = i % 7 * 3;
            }
            check_order(device, n, pair, NULL);
            for (int64_t at = n - 1; at > 0; at -= n / 17 + 1) { /* from the last on, so that later ones stay bad */
                char text[128];
                pair[at] = pair[at - 1] - at % 2;
                pair[n + at] = pair[n + at - 1] - (at % 3 == 0);
                snprintf(text, sizeof text, "row %" PRId64 ", class %" PRId64 " at %" PRId64, pair[at], pair[n + at], at);
                check_order(device, n, pair, text);
            }
            array_free(pair, 2 * n, SHARD_INT64);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_binary_cross_entropy");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, follows_the_definition, 0, 4);
    tcase_add_loop_test(all, takes_no_pairs, 0, 4);
    tcase_add_test(all, finds_the_first_out_of_order);
    return test_run(suite);
}
