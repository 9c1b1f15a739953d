/* relu and both forms of gelu, forward and backward, against long double's. */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>

static long double normal(long double x)
{
    return 0.5L * erfcl(-x * sqrtl(0.5L));
}

static long double value(shard_unary unary, long double x)
{
    long double u = sqrtl(2 / acosl(-1)) * (x + 0.044715L * x * x * x);
    switch (unary) {
    case SHARD_RELU:
        return x > 0 ? x : isnan(x) ? x : 0;
    case SHARD_GELU:
        return x * normal(x);
    case SHARD_GELU_TANH:
        return x / (1 + expl(-2 * u));
    }
    return NAN;
}

static long double slope(shard_unary unary, long double x)
{
    long double c = sqrtl(2 / acosl(-1)), u = c * (x + 0.044715L * x * x * x), s = 1 / (1 + expl(-2 * u));
    switch (unary) {
    case SHARD_RELU:
        return x > 0;
    case SHARD_GELU:
        return normal(x) + x * expl(-x * x / 2) / sqrtl(2 * acosl(-1));
    case SHARD_GELU_TANH:
        return s + x * 2 * c * (1 + 3 * 0.044715L * x * x) * s * (1 - s);
    }
    return NAN;
}

static const shard_unary unaries[] = {SHARD_RELU, SHARD_GELU, SHARD_GELU_TANH};
static const int64_t sizes[] = {0, 1, 7, 1000, 1025, 70001};

/* In the tails the rounding of an exponential's argument shows as often as the
 * argument is large, but in float's gelu, which splits it. Below 2^-100 results
 * may be 0. */
static long double forward_error(shard_unary unary, shard_dtype dtype, long double x, long double want)
{
    long double units = 10;
    if (unary == SHARD_RELU)
        return 0;
    if (unary == SHARD_GELU_TANH)
        units += 8 * fabsl(x * (1 + 0.044715L * x * x));
    else if (dtype == SHARD_FLOAT64)
        units += 2 * x * x;
    return fabsl(want) * units * compute_unit(dtype) + 0x1p-100L;
}

START_TEST(forward)
{
    shard_unary unary = unaries[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int t = 0; t < 4; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                shard_dtype dtype = float_dtypes[t];
                int64_t n = sizes[s];
                void *x = array_noise(n, dtype, 1, -9, 9), *y = array_new(n, dtype);
                RUN(device, unary, unary, n, x, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    long double in = array_get(x, i, dtype), want = value(unary, in);
                    check_close(dtype, array_get(y, i, dtype), want, forward_error(unary, dtype, in, want), device->name, i);
                }
                RUN(device, unary, unary, n, x, x, dtype);
                check_same(dtype, n, x, y, "in place");
                array_free(x, n, dtype);
                array_free(y, n, dtype);
            }
}
END_TEST

START_TEST(backward)
{
    shard_unary unary = unaries[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int t = 0; t < 4; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                shard_dtype dtype = float_dtypes[t];
                int64_t n = sizes[s];
                void *x = array_noise(n, dtype, 1, -9, 9), *dy = array_noise(n, dtype, 2, -2, 2), *dx = array_new(n, dtype);
                RUN(device, unary_backward, unary, n, x, dy, dx, dtype);
                for (int64_t i = 0; i < n; i++) {
                    long double in = array_get(x, i, dtype), gradient = array_get(dy, i, dtype);
                    /* The two terms cancel near -0.75; each is right to some units. */
                    long double error = unary == SHARD_RELU ? 0 : fabsl(gradient) * 40 * compute_unit(dtype);
                    check_close(dtype, array_get(dx, i, dtype), gradient * slope(unary, in), error, device->name, i);
                }
                RUN(device, unary_backward, unary, n, x, dy, dy, dtype);
                check_same(dtype, n, dx, dy, "in place");
                array_free(x, n, dtype);
                array_free(dy, n, dtype);
                array_free(dx, n, dtype);
            }
}
END_TEST

/* NaN stays NaN; what overflows inside does not show. */
START_TEST(special_values)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int t = 0; t < 4; t++) {
            shard_dtype dtype = float_dtypes[t];
            double in[] = {NAN, INFINITY, 3e4, -3e4, 0.0};
            void *x = array_new(5, dtype), *dy = array_new(5, dtype), *y = array_new(5, dtype);
            for (int i = 0; i < 5; i++) {
                array_put(x, i, dtype, in[i]);
                array_put(dy, i, dtype, 1);
            }
            RUN(device, unary, unaries[_i], 5, x, y, dtype);
            ck_assert(isnan(array_get(y, 0, dtype)));
            for (int i = 1; i < 5; i++)
                ck_assert_double_eq(array_get(y, i, dtype), in[i] > 0 ? array_get(x, i, dtype) : 0);
            RUN(device, unary_backward, unaries[_i], 5, x, dy, y, dtype);
            ck_assert_double_eq(array_get(y, 2, dtype), 1);
            ck_assert_double_eq(array_get(y, 3, dtype), 0);
            ck_assert_double_eq(array_get(y, 4, dtype), unaries[_i] == SHARD_RELU ? 0 : 0.5);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_unary");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, 3);
    tcase_add_loop_test(all, backward, 0, 3);
    tcase_add_loop_test(all, special_values, 0, 3);
    return test_run(suite);
}
