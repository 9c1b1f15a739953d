/*
 * Entries whose operands are repeated to one shape: binary, binary_backward, compare and where,
 * against loops over the result's index.
 */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { OPERANDS = SHARD_EXPANSION_OPERANDS, DIMS = SHARD_EXPANSION_DIMS };

/* The operands' shapes, as long as the result's; 0 ends one. */
typedef struct repeated {
    int ndim;
    int64_t shape[OPERANDS][DIMS];
} repeated;

static const repeated shapes[] = {
    {1, {{1025}, {1025}, {1025}}},
    {1, {{33001}, {1}, {33001}}},
    {1, {{1}, {7}, {1}}},
    {2, {{30, 7}, {1, 7}, {30, 7}}},
    {2, {{300, 7}, {300, 1}, {300, 7}}},
    {2, {{1, 1500}, {3, 1500}, {3, 1}}},
    {2, {{3, 2000}, {3, 1}, {1, 2000}}},
    {2, {{300, 1}, {1, 23}, {1, 1}}},
    {2, {{90, 64}, {1, 64}, {90, 1}}},
    {3, {{5, 1, 33}, {1, 9, 33}, {5, 9, 1}}},
    {3, {{5, 9, 33}, {5, 1, 33}, {1, 9, 1}}},
    {4, {{2, 3, 1, 8}, {2, 3, 17, 1}, {1, 1, 17, 8}}},
    {8, {{2, 1, 3, 1, 2, 1, 3, 16}, {1, 2, 1, 3, 1, 2, 1, 16}, {2, 2, 3, 3, 2, 2, 3, 1}}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The result of the first `operands`: its shape, size, and how they are repeated. */
static int64_t expand(const repeated *r, int operands, int64_t *shape, shard_expansion *over)
{
    int64_t n = 1;
    int ndim[OPERANDS] = {r->ndim, r->ndim, r->ndim};
    const int64_t *own[OPERANDS] = {r->shape[0], r->shape[1], r->shape[2]};
    for (int i = 0; i < r->ndim; i++) {
        shape[i] = 1;
        for (int k = 0; k < operands; k++)
            shape[i] = own[k][i] > shape[i] ? own[k][i] : shape[i];
        n *= shape[i];
    }
    *over = shard_expansion_of(r->ndim, shape, operands, ndim, own);
    ck_assert_int_eq(shard_expansion_count(over), n);
    return n;
}

static int64_t size_of(const repeated *r, int operand)
{
    int64_t n = 1;
    for (int i = 0; i < r->ndim; i++)
        n *= r->shape[operand][i];
    return n;
}

/* Where an operand has the result's element. */
static int64_t locate(const repeated *r, int operand, const int64_t *shape, int64_t index)
{
    int64_t at = 0, step = 1;
    for (int i = r->ndim - 1; i >= 0; i--) {
        int64_t position = index % shape[i];
        index /= shape[i];
        at += (r->shape[operand][i] == 1 ? 0 : position) * step;
        step *= r->shape[operand][i];
    }
    return at;
}

static long double value(shard_binary binary, long double a, long double b)
{
    const long double all[] = {[SHARD_ADD] = a + b,
                               [SHARD_SUB] = a - b,
                               [SHARD_MUL] = a * b,
                               [SHARD_DIV] = a / b,
                               [SHARD_POW] = powl(a, b),
                               [SHARD_MINIMUM] = a < b ? a : b,
                               [SHARD_MAXIMUM] = a > b ? a : b,
                               [SHARD_PRELU] = a > 0 ? a : b * a};
    return all[binary];
}

/* The derivative by an operand. */
static long double slope(shard_binary binary, int operand, long double a, long double b)
{
    if (binary == SHARD_DIV)
        return operand == 0 ? 1 / b : -a / (b * b);
    if (binary == SHARD_POW)
        return operand == 0 ? b * powl(a, b - 1) : powl(a, b) * logl(a);
    if (binary == SHARD_PRELU)
        return operand == 0 ? (a > 0 ? 1 : b) : (a > 0 ? 0 : a);
    if (a == b)
        return 0.5L;
    return (binary == SHARD_MINIMUM) == (operand == 0) ? a < b : a > b;
}

static void check_binary(shard_device *device, const repeated *r, shard_binary binary, shard_dtype dtype)
{
    int64_t shape[DIMS], n, sizes[] = {size_of(r, 0), size_of(r, 1)};
    shard_expansion over;
    n = expand(r, 2, shape, &over);
    double low = binary == SHARD_PRELU ? -3 : 0.5; /* a power's and a quotient's are above 0 */
    void *a = array_noise(sizes[0], dtype, 1, low, 3), *b = array_noise(sizes[1], dtype, 2, 0.5, 3), *y = array_new(n, dtype);
    RUN(device, binary, binary, &over, a, b, y, dtype);
    for (int64_t i = 0; i < n; i++) {
        long double left = array_get(a, locate(r, 0, shape, i), dtype), right = array_get(b, locate(r, 1, shape, i), dtype);
        long double want = value(binary, left, right), error = fabsl(want) * compute_unit(dtype);
        check_close(dtype, array_get(y, i, dtype), want, binary == SHARD_POW ? 20 * error : error, device->name, i);
    }
    for (int operand = 0; operand < 2; operand++) {
        if (sizes[operand] != n)
            continue;
        void *own = operand ? b : a;
        RUN(device, binary, binary, &over, a, b, own, dtype);
        check_same(dtype, n, own, y, "in place");
        void *again = array_noise(n, dtype, 1 + (uint64_t)operand, operand == 0 ? low : 0.5, 3);
        memcpy(own, again, (size_t)n * shard_dtype_size(dtype));
        array_free(again, n, dtype);
    }
    array_free(a, sizes[0], dtype);
    array_free(b, sizes[1], dtype);
    array_free(y, n, dtype);
}

START_TEST(of_two)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (shard_binary kind = SHARD_ADD; kind <= SHARD_PRELU; kind++)
            for (int t = 0; t < 4; t++)
                check_binary(device, &shapes[_i], kind, float_dtypes[t]);
}
END_TEST

static void check_backward(shard_device *device, const repeated *r, shard_binary binary, int operand, shard_dtype dtype)
{
    int64_t shape[DIMS], n, sizes[] = {size_of(r, 0), size_of(r, 1)};
    shard_expansion over;
    n = expand(r, 2, shape, &over);
    /* Multiples of 1/4: some are equal. */
    void *a = array_new(sizes[0], dtype), *b = array_new(sizes[1], dtype);
    for (int64_t i = 0; i < sizes[0]; i++)
        array_put(a, i, dtype, (binary == SHARD_PRELU ? 0 : 2) + (int)(4 * noise(1, i)) / 4.0);
    for (int64_t i = 0; i < sizes[1]; i++)
        array_put(b, i, dtype, 2 + (int)(4 * noise(2, i)) / 4.0);
    void *dy = array_noise(n, dtype, 3, -2, 2), *dx = array_new(n, dtype);
    RUN(device, binary_backward, binary, operand, &over, a, b, dy, dx, dtype);
    for (int64_t i = 0; i < n; i++) {
        long double left = array_get(a, locate(r, 0, shape, i), dtype), right = array_get(b, locate(r, 1, shape, i), dtype);
        long double want = array_get(dy, i, dtype) * slope(binary, operand, left, right);
        check_close(dtype, array_get(dx, i, dtype), want, 20 * fabsl(want) * compute_unit(dtype), device->name, i);
    }
    RUN(device, binary_backward, binary, operand, &over, a, b, dy, dy, dtype);
    check_same(dtype, n, dx, dy, "in place");
    array_free(a, sizes[0], dtype);
    array_free(b, sizes[1], dtype);
    array_free(dy, n, dtype);
    array_free(dx, n, dtype);
}

START_TEST(gradients)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (shard_binary kind = SHARD_DIV; kind <= SHARD_PRELU; kind++)
            for (int operand = kind == SHARD_DIV; operand < 2; operand++)
                for (int t = 0; t < 4; t++)
                    check_backward(device, &shapes[_i], kind, operand, float_dtypes[t]);
}
END_TEST

START_TEST(compare)
{
    const repeated *r = &shapes[_i];
    int64_t shape[DIMS], n, sizes[] = {size_of(r, 0), size_of(r, 1)};
    shard_expansion over;
    shard_device *device;
    n = expand(r, 2, shape, &over);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
            for (shard_comparison kind = SHARD_EQ; kind <= SHARD_GE; kind++) {
                void *a = array_noise(sizes[0], dtype, 1, 0, 5), *b = array_noise(sizes[1], dtype, 2, 0, 5);
                for (int64_t i = 0; i < sizes[0]; i += 2)
                    array_put(a, i, dtype, array_get(b, i % sizes[1], dtype));
                uint8_t *y = array_new(n, SHARD_UINT8);
                RUN(device, compare, kind, &over, a, b, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    double left = array_get(a, locate(r, 0, shape, i), dtype),
                           right = array_get(b, locate(r, 1, shape, i), dtype);
                    const bool all[] = {left == right, left != right, left<right, left <= right, left> right, left >= right};
                    if (y[i] != all[kind])
                        ck_abort_msg("%s, %s: element %d is %d", device->name, shard_dtype_name(dtype), (int)i, y[i]);
                }
                array_free(a, sizes[0], dtype);
                array_free(b, sizes[1], dtype);
                array_free(y, n, SHARD_UINT8);
            }
}
END_TEST

START_TEST(where)
{
    const repeated *r = &shapes[_i];
    int64_t shape[DIMS], n, sizes[] = {size_of(r, 0), size_of(r, 1), size_of(r, 2)};
    shard_expansion over;
    shard_device *device;
    n = expand(r, 3, shape, &over);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++) {
            uint8_t *condition = array_noise(sizes[0], SHARD_UINT8, 1, 0, 3);
            void *a = array_noise(sizes[1], dtype, 2, 0, 90), *b = array_noise(sizes[2], dtype, 3, 100, 200);
            void *y = array_new(n, dtype);
            RUN(device, where, &over, condition, a, b, y, dtype);
            for (int64_t i = 0; i < n; i++) {
                bool first = condition[locate(r, 0, shape, i)];
                double want = first ? array_get(a, locate(r, 1, shape, i), dtype) : array_get(b, locate(r, 2, shape, i), dtype);
                if (array_get(y, i, dtype) != want)
                    ck_abort_msg("%s, %s: element %d", device->name, shard_dtype_name(dtype), (int)i);
            }
            if (sizes[1] == n) {
                RUN(device, where, &over, condition, a, b, a, dtype);
                check_same(dtype, n, a, y, "in place");
            }
            array_free(condition, sizes[0], SHARD_UINT8);
            array_free(a, sizes[1], dtype);
            array_free(b, sizes[2], dtype);
            array_free(y, n, dtype);
        }
}
END_TEST

/* What NaN is the larger, the smaller and the equal of. */
START_TEST(not_a_number)
{
    const shard_expansion over = shard_expansion_rows(1, 3);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int t = 0; t < 4; t++) {
            shard_dtype dtype = float_dtypes[t];
            void *a = array_new(3, dtype), *b = array_new(3, dtype), *y = array_new(3, dtype);
            uint8_t *holds = array_new(3, SHARD_UINT8);
            for (int i = 0; i < 3; i++) {
                array_put(a, i, dtype, i == 1 ? 1 : NAN);
                array_put(b, i, dtype, i == 0 ? 1 : NAN);
            }
            for (shard_binary kind = SHARD_MINIMUM; kind <= SHARD_MAXIMUM; kind++) {
                RUN(device, binary, kind, &over, a, b, y, dtype);
                for (int i = 0; i < 3; i++)
                    ck_assert(isnan(array_get(y, i, dtype)));
            }
            for (shard_comparison kind = SHARD_EQ; kind <= SHARD_GE; kind++) {
                RUN(device, compare, kind, &over, a, b, holds, dtype);
                for (int i = 0; i < 3; i++)
                    ck_assert_int_eq(holds[i], kind == SHARD_NE);
            }
        }
}
END_TEST

START_TEST(nothing)
{
    const shard_expansion over = shard_expansion_rows(3, 0);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        void *x = array_new(0, SHARD_FLOAT32);
        RUN(device, binary, SHARD_DIV, &over, x, x, x, SHARD_FLOAT32);
        RUN(device, binary_backward, SHARD_DIV, 1, &over, x, x, x, x, SHARD_FLOAT32);
        RUN(device, compare, SHARD_EQ, &over, x, x, x, SHARD_FLOAT32);
        RUN(device, where, &over, x, x, x, x, SHARD_FLOAT32);
        array_free(x, 0, SHARD_FLOAT32);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_expansion");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, of_two, 0, SHAPES);
    tcase_add_loop_test(all, gradients, 0, SHAPES);
    tcase_add_loop_test(all, compare, 0, SHAPES);
    tcase_add_loop_test(all, where, 0, SHAPES);
    tcase_add_test(all, not_a_number);
    tcase_add_test(all, nothing);
    return test_run(suite);
}
