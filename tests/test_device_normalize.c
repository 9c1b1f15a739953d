/* Division by the norm and its gradient against long double, at once and in two steps. */
#include "support/axes.h"
#include "support/check.h"
#include "support/kernels.h"

static const double eps = 0.7; /* some norms of the short lines are below it */

static void compare_forward(shard_device *device, const shard_axis *axis, shard_dtype dtype)
{
    int64_t n = axis_count(axis), lines = axis->outer * axis->inner;
    void *x = array_noise(n, dtype, 1, -1, 1), *y = array_new(n, dtype), *square = array_new(lines, SHARD_FLOAT64);
    RUN(device, normalize, axis, eps, true, x, square, y, dtype);
    for (int64_t i = 0; i < lines; i++) {
        long double want = 0;
        for (int64_t k = 0; k < axis->size; k++)
            want += powl(array_get(x, axis_at(axis, i, k), dtype), 2);
        check_close(SHARD_FLOAT64, array_get(square, i, SHARD_FLOAT64), want, want * 0x1p-45L, "square", i);
        long double norm = fmaxl(sqrtl(want), eps);
        for (int64_t k = 0; k < axis->size; k++) {
            int64_t at = axis_at(axis, i, k);
            long double quotient = array_get(x, at, dtype) / norm;
            check_close(dtype, array_get(y, at, dtype), quotient, fabsl(quotient) * (4 * compute_unit(dtype) + 0x1p-46L),
                        device->name, at);
        }
    }
    /* The sums first, then the quotients; then in place. */
    void *other = array_new(n, dtype), *again = array_new(lines, SHARD_FLOAT64);
    RUN(device, normalize, axis, eps, true, x, again, NULL, dtype);
    check_same(SHARD_FLOAT64, lines, square, again, "the sums alone");
    RUN(device, normalize, axis, eps, false, x, again, other, dtype);
    check_same(dtype, n, y, other, "in two steps");
    RUN(device, normalize, axis, eps, true, x, again, x, dtype);
    check_same(dtype, n, y, x, "in place");
    array_free(x, n, dtype);
    array_free(y, n, dtype);
    array_free(other, n, dtype);
    array_free(square, lines, SHARD_FLOAT64);
    array_free(again, lines, SHARD_FLOAT64);
}

static void compare_backward(shard_device *device, const shard_axis *axis, shard_dtype dtype)
{
    int64_t n = axis_count(axis), lines = axis->outer * axis->inner;
    void *x = array_noise(n, dtype, 1, -1, 1), *dy = array_noise(n, dtype, 2, -1, 1), *dx = array_new(n, dtype);
    void *square = array_new(lines, SHARD_FLOAT64), *dot = array_new(lines, SHARD_FLOAT64);
    RUN(device, normalize, axis, eps, true, x, square, NULL, dtype);
    RUN(device, normalize_backward, axis, eps, true, x, square, dy, dot, dx, dtype);
    for (int64_t i = 0; i < lines; i++) {
        long double squares = array_get(square, i, SHARD_FLOAT64), norm = sqrtl(squares), product = 0, size = 0;
        for (int64_t k = 0; k < axis->size; k++) {
            long double term = (long double)array_get(x, axis_at(axis, i, k), dtype) * array_get(dy, axis_at(axis, i, k), dtype);
            product += term;
            size += fabsl(term);
        }
        check_close(SHARD_FLOAT64, array_get(dot, i, SHARD_FLOAT64), product, size * 0x1p-45L, "dot", i);
        for (int64_t k = 0; k < axis->size; k++) {
            int64_t at = axis_at(axis, i, k);
            long double g = array_get(dy, at, dtype), value = array_get(x, at, dtype);
            long double part = norm < eps ? 0 : value * product / squares, want = (g - part) / fmaxl(norm, eps);
            long double of_sum = norm < eps ? 0 : fabsl(value) * size / squares * 0x1p-43L;
            long double error = (fabsl(g) + fabsl(part)) * 8 * compute_unit(dtype) + of_sum;
            check_close(dtype, array_get(dx, at, dtype), want, error / fmaxl(norm, eps), device->name, at);
        }
    }
    void *again = array_new(lines, SHARD_FLOAT64);
    RUN(device, normalize_backward, axis, eps, true, x, square, dy, again, NULL, dtype);
    check_same(SHARD_FLOAT64, lines, dot, again, "sums alone");
    RUN(device, normalize_backward, axis, eps, false, x, square, dy, again, dy, dtype);
    check_same(dtype, n, dx, dy, "in two steps, in place");
    array_free(x, n, dtype);
    array_free(dy, n, dtype);
    array_free(dx, n, dtype);
    array_free(square, lines, SHARD_FLOAT64);
    array_free(dot, lines, SHARD_FLOAT64);
    array_free(again, lines, SHARD_FLOAT64);
}

START_TEST(is_the_quotient)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int a = 0; a < TESTED_AXES; a++) {
            compare_forward(device, &tested_axes[a], float_dtypes[_i]);
            compare_backward(device, &tested_axes[a], float_dtypes[_i]);
        }
}
END_TEST

/* ---- rows of a matrix, from one type to another ---- */

enum { TAKEN = 23, ROWS = 40 };

static shard_dtype wide_of(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

/* Against long double; `row` are the rows, [TAKEN]. */
static void compare_unit_rows(shard_device *device, int64_t in, const int64_t *list, shard_dtype from, shard_dtype to)
{
    void *rows = array_noise(ROWS * in, from, 1, -1, 1), *unit = array_new(TAKEN * in, to);
    void *square = array_new(TAKEN, SHARD_FLOAT64);
    RUN(device, unit_rows, TAKEN, in, list, rows, from, eps, square, unit, to);
    for (int64_t i = 0; i < TAKEN; i++) {
        int64_t first = (list ? list[i] : i) * in;
        long double squares = 0;
        for (int64_t k = 0; k < in; k++)
            squares += powl(array_get(rows, first + k, from), 2);
        check_close(SHARD_FLOAT64, array_get(square, i, SHARD_FLOAT64), squares, squares * 0x1p-45L, "square", i);
        for (int64_t k = 0; k < in; k++) {
            long double want = array_get(rows, first + k, from) / fmaxl(sqrtl(squares), eps);
            check_close(to, array_get(unit, i * in + k, to), want, fabsl(want) * (4 * compute_unit(to) + 0x1p-46L), device->name,
                        k);
        }
    }
    array_free(unit, TAKEN * in, to);
    array_free(rows, ROWS * in, from);
    array_free(square, TAKEN, SHARD_FLOAT64);
}

/* The gradient is that of normalize for the same rows, up to the order of sums. */
static void compare_unit_rows_backward(shard_device *device, int64_t in, const int64_t *list, shard_dtype from)
{
    shard_dtype wide = wide_of(from);
    const shard_axis axis = {.outer = TAKEN, .size = in, .inner = 1};
    void *rows = array_noise(ROWS * in, from, 1, -1, 1), *same = array_new(TAKEN * in, wide);
    void *gradient = array_noise(TAKEN * in, wide, 2, -1, 1), *want = array_noise(TAKEN * in, wide, 2, -1, 1);
    void *square = array_new(TAKEN, SHARD_FLOAT64), *dot = array_new(TAKEN, SHARD_FLOAT64);
    for (int64_t i = 0; i < TAKEN; i++)
        for (int64_t k = 0; k < in; k++)
            array_put(same, i * in + k, wide, array_get(rows, (list ? list[i] : i) * in + k, from));
    RUN(device, normalize, &axis, eps, true, same, square, NULL, wide);
    RUN(device, normalize_backward, &axis, eps, true, same, square, want, dot, want, wide);
    RUN(device, unit_rows_backward, TAKEN, in, list, rows, from, eps, square, gradient);
    for (int64_t i = 0; i < TAKEN * in; i++)
        check_close(wide, array_get(gradient, i, wide), array_get(want, i, wide),
                    (wide == SHARD_FLOAT64 ? 0x1p-48L : 0x1p-20L) / eps, device->name, i);
    array_free(rows, ROWS * in, from);
    array_free(same, TAKEN * in, wide);
    array_free(gradient, TAKEN * in, wide);
    array_free(want, TAKEN * in, wide);
    array_free(square, TAKEN, SHARD_FLOAT64);
    array_free(dot, TAKEN, SHARD_FLOAT64);
}

/* Of rows that packs divide and others; the first ones, and those of a list. */
START_TEST(rows_of_a_matrix)
{
    static const int64_t sizes[] = {1, 5, 24, 256, 1027};
    shard_dtype from = float_dtypes[_i];
    int64_t listed[TAKEN];
    for (int64_t i = 0; i < TAKEN; i++)
        listed[i] = i + i / 4 * 3;
    const int64_t *list = array_of(TAKEN, SHARD_INT64, listed);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int way = 0; way < 2; way++) {
                for (int t = 0; t < 4; t++)
                    if (wide_of(float_dtypes[t]) == wide_of(from))
                        compare_unit_rows(device, sizes[s], way ? list : NULL, from, float_dtypes[t]);
                compare_unit_rows_backward(device, sizes[s], way ? list : NULL, from);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_normalize");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, is_the_quotient, 0, 4);
    tcase_add_loop_test(all, rows_of_a_matrix, 0, 4);
    return test_run(suite);
}
