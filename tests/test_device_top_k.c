/* The first of elements, one along a dimension or k of a row, against sorting: ties, NaN,
 * infinities, indices that are given. */
#include "support/axes.h"
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>

typedef struct element {
    double value;
    int64_t index;
} element;

static bool up; /* the smallest first */

static int compare_elements(const void *a, const void *b)
{
    const element *x = a, *y = b;
    if (isnan(x->value) != isnan(y->value))
        return isnan(x->value) ? -1 : 1;
    if (!isnan(x->value) && (x->value < y->value || x->value > y->value))
        return (x->value < y->value) == up ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Few different values, so that many are equal; `kind` adds NaNs, or makes all -infinity. */
static void *make_values(int64_t n, shard_dtype dtype, int kind)
{
    void *x = array_noise(n, dtype, (uint64_t)kind, -1, 1);
    for (int64_t i = 0; i < n; i++) {
        double value = kind % 2 ? round(8 * array_get(x, i, dtype)) : array_get(x, i, dtype);
        value = kind == 2 && i % 7 == 3 ? NAN : kind == 3 ? -INFINITY : kind == 4 && i % 5 == 0 ? INFINITY : value;
        array_put(x, i, dtype, value);
    }
    return x;
}
enum { KINDS = 5, START = 11 };

/* Falling numbers, different ones in a line. */
static int64_t *make_indices(const shard_axis *axis)
{
    int64_t n = axis_count(axis), *index = array_new(n, SHARD_INT64);
    for (int64_t i = 0; i < n; i++)
        index[i] = 3 * (axis->size - i / axis->inner % axis->size);
    return index;
}

/* Line i, the largest first; freed by free. */
static element *sort_line(const shard_axis *axis, int64_t i, const void *x, const int64_t *index_of, shard_dtype dtype)
{
    element *line = calloc((size_t)axis->size + 1, sizeof *line);
    ck_assert_ptr_nonnull(line);
    for (int64_t k = 0; k < axis->size; k++)
        line[k] = (element){array_get(x, axis_at(axis, i, k), dtype), index_of ? index_of[axis_at(axis, i, k)] : START + k};
    up = false;
    qsort(line, (size_t)axis->size, sizeof *line, compare_elements);
    line[axis->size] = (element){-INFINITY, INT64_MAX};
    return line;
}

/* The first of line i, or what is there for none. */
static element first_of_line(const shard_axis *axis, int64_t i, const void *x, const int64_t *index_of, bool largest,
                             shard_dtype dtype)
{
    element first = {largest ? -INFINITY : INFINITY, INT64_MAX};
    up = !largest;
    for (int64_t k = 0; k < axis->size; k++) {
        element e = {array_get(x, axis_at(axis, i, k), dtype), index_of ? index_of[axis_at(axis, i, k)] : START + k};
        if (compare_elements(&e, &first) < 0)
            first = e;
    }
    return first;
}

static void check_element(const char *name, element want, const void *y, const int64_t *index, int64_t at, shard_dtype dtype)
{
    double value = array_get(y, at, dtype);
    if (index[at] != want.index || !(value == want.value || (isnan(value) && isnan(want.value))))
        ck_abort_msg("%s, %s: element %lld is %g of index %lld, wanted %g of %lld", name, shard_dtype_name(dtype), (long long)at,
                     value, (long long)index[at], want.value, (long long)want.index);
}

static void compare_extremes(shard_device *device, const shard_axis *axis, shard_dtype dtype, int kind)
{
    int64_t n = axis_count(axis), lines = axis->outer * axis->inner;
    void *x = make_values(n, dtype, kind), *y = array_new(lines, dtype), *same = array_new(lines, dtype);
    int64_t *given = make_indices(axis), *index = array_new(lines, SHARD_INT64), *alone = array_new(lines, SHARD_INT64);
    for (int form = 0; form < 4; form++) {
        bool largest = form % 2;
        const int64_t *index_of = form / 2 ? given : NULL;
        RUN(device, extreme_dim, axis, largest, START, index_of, x, y, index, dtype);
        for (int64_t i = 0; i < lines; i++)
            check_element(device->name, first_of_line(axis, i, x, index_of, largest, dtype), y, index, i, dtype);
        RUN(device, extreme_dim, axis, largest, START, index_of, x, NULL, alone, dtype);
        check_same(SHARD_INT64, lines, index, alone, "indices alone");
        RUN(device, extreme_dim, axis, largest, START, index_of, x, same, NULL, dtype);
        check_same(dtype, lines, y, same, "values alone");
    }
    array_free(x, n, dtype);
    array_free(y, lines, dtype);
    array_free(same, lines, dtype);
    array_free(given, n, SHARD_INT64);
    array_free(index, lines, SHARD_INT64);
    array_free(alone, lines, SHARD_INT64);
}

START_TEST(extremes)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int a = 0; a < TESTED_AXES; a++)
            compare_extremes(device, &tested_axes[a], float_dtypes[_i % 4], _i / 4);
}
END_TEST

static void compare_top(shard_device *device, int64_t rows, int64_t cols, int64_t k, shard_dtype dtype, int kind)
{
    shard_axis axis = {rows, cols, 1};
    void *x = make_values(rows * cols, dtype, kind), *y = array_new(rows * k, dtype);
    int64_t *given = make_indices(&axis), *index = array_new(rows * k, SHARD_INT64);
    for (int form = 0; form < 2; form++) {
        const int64_t *index_of = form ? given : NULL;
        RUN(device, top_k, rows, cols, k, START, index_of, x, y, index, dtype);
        for (int64_t i = 0; i < rows; i++) {
            element *line = sort_line(&axis, i, x, index_of, dtype);
            for (int64_t j = 0; j < k; j++)
                check_element(device->name, line[j < cols ? j : cols], y, index, i * k + j, dtype);
            free(line);
        }
    }
    array_free(x, rows * cols, dtype);
    array_free(y, rows * k, dtype);
    array_free(given, rows * cols, SHARD_INT64);
    array_free(index, rows * k, SHARD_INT64);
}

START_TEST(tops)
{
    static const int64_t shapes[][3] = {{0, 4, 2},    {3, 0, 2},     {1, 1, 1},     {5, 4, 6},      {7, 33, 5},
                                        {2, 1100, 1}, {3, 300, 300}, {1, 20000, 7}, {2, 9000, 1100}};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            compare_top(device, shapes[s][0], shapes[s][1], shapes[s][2], float_dtypes[_i % 4], _i / 4);
}
END_TEST

/* The first ones are all of one thread of a GPU's block, or rise from element to element. */
START_TEST(unlucky_rows)
{
    enum { COLS = 6000, K = 20 };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int form = 0; form < 3; form++) {
            float *x = array_new(COLS, SHARD_FLOAT32), *y = array_new(K, SHARD_FLOAT32);
            int64_t *index = array_new(K, SHARD_INT64);
            for (int i = 0; i < COLS; i++)
                x[i] = form == 0 ? (float)i : form == 1 ? (float)-i : i % 256 == 5 ? (float)(100 + i) : 0;
            RUN(device, top_k, 1, COLS, K, 0, NULL, x, y, index, SHARD_FLOAT32);
            for (int j = 0; j < K; j++)
                ck_assert_int_eq(index[j], form == 0 ? COLS - 1 - j : form == 1 ? j : 5 + 256 * ((COLS - 6) / 256 - j));
            array_free(x, COLS, SHARD_FLOAT32);
            array_free(y, K, SHARD_FLOAT32);
            array_free(index, K, SHARD_INT64);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_top_k");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, extremes, 0, 4 * KINDS);
    tcase_add_loop_test(all, tops, 0, 4 * KINDS);
    tcase_add_test(all, unlucky_rows);
    return test_run(suite);
}
