/*
 * The errors that kernels/vector_math.h states, over the floats of the range,
 * for every set, seen through kernels that do little else: log softmax's
 * backward with a gradient of 1 in one place is -exp elsewhere, and gelu of a
 * power of two times the distribution is exact but for the latter.
 */
#include "support/check.h"
#include "support/kernels.h"

#include "base/dtype.h"

#include <stdlib.h>

enum { N = 1 << 21 };

/* got's distance from want, in units of want's last place. */
static double units(float got, long double want)
{
    int exponent;
    frexpl(want, &exponent);
    return (double)(fabsl(got - want) / ldexpl(1, exponent - 24));
}

START_TEST(exponential)
{
    float *x = malloc((N + 1) * sizeof *x), *dy = calloc(N + 1, sizeof *dy), *dx = malloc((N + 1) * sizeof *dx);
    uint32_t end = shard_float_bits(86.6f);
    for (uint32_t i = 0; i < N; i++)
        x[i] = -shard_bits_float((uint32_t)((uint64_t)end * i / (N - 1)));
    x[N] = 0;
    dy[N] = 1;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        device->ops->softmax_backward(device, true, 1, N + 1, x, dy, dx, SHARD_FLOAT32);
        double worst = 0;
        for (int64_t i = 0; i < N; i++)
            worst = fmax(worst, units(-dx[i], expl(x[i])));
        ck_assert_msg(worst <= 1.0, "%s: %g units", device->name, worst);
        ck_assert_msg(worst > 0.5, "%s: %g units cannot be measured", device->name, worst);
        float low[] = {-86.7f, -1000, -INFINITY, NAN, 0}, out[5], one[] = {0, 0, 0, 0, 1};
        device->ops->softmax_backward(device, true, 1, 5, low, one, out, SHARD_FLOAT32);
        ck_assert(out[0] == 0 && out[1] == 0 && out[2] == 0 && isnan(out[3]));
    }
    free(x);
    free(dy);
    free(dx);
}
END_TEST

static long double exponential_of(long double x)
{
    return expl(x);
}

/* The functions of unary entries that do nothing else, over floats of both signs below `end`; `low` is the least
 * argument. Results that are below float's normal numbers are not looked at. */
START_TEST(functions)
{
    static const struct {
        const char *name;
        shard_unary unary;
        long double (*exact)(long double);
        float low, end;
        double most;
    } cases[] = {
        {"exp", SHARD_EXP, exponential_of, -INFINITY, 88.7f, 1.0},
        {"log", SHARD_LOG, logl, 0, 3e38f, 1.0},
        {"log1p", SHARD_LOG1P, log1pl, -1, 3e38f, 2.5},
        {"tanh", SHARD_TANH, tanhl, -INFINITY, 30, 3.0},
    };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint32_t end = shard_float_bits(cases[_i].end);
    for (uint32_t i = 0; i < N; i++) {
        float size = shard_bits_float((uint32_t)((uint64_t)end * (i / 2) / (N / 2 - 1)));
        x[i] = i % 2 || -size <= cases[_i].low ? size : -size;
    }
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        device->ops->unary(device, cases[_i].unary, NULL, N, x, y, SHARD_FLOAT32);
        double worst = 0;
        float at = 0;
        for (int64_t i = 0; i < N; i++) {
            long double want = cases[_i].exact(x[i]);
            if (fabsl(want) >= 0x1p-126L && isfinite((float)want) && !(units(y[i], want) <= worst)) {
                worst = units(y[i], want);
                at = x[i];
            }
        }
        ck_assert_msg(worst <= cases[_i].most, "%s of %s: %g units at %a", cases[_i].name, device->name, worst, (double)at);
        ck_assert_msg(worst > 0.5, "%s of %s: %g units cannot be measured", cases[_i].name, device->name, worst);
    }
    free(x);
    free(y);
}
END_TEST

START_TEST(normal_distribution)
{
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint32_t end = shard_float_bits(12.5f);
    for (uint32_t i = 0; i < N; i++) {
        float size = shard_bits_float((uint32_t)((uint64_t)end * (i / 2) / (N / 2 - 1)));
        x[i] = i % 2 ? size : -size;
    }
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        device->ops->unary(device, SHARD_GELU, NULL, N, x, y, SHARD_FLOAT32);
        double worst = 0;
        for (int64_t i = 0; i < N; i++) {
            long double want = x[i] * 0.5L * erfcl(-x[i] * sqrtl(0.5L));
            if (fabsl(want) > 0x1p-110L)
                worst = fmax(worst, units(y[i], want));
        }
        /* 4.3 of the distribution become twice as many where the product falls
         * below a power of two, and half a unit comes with it. */
        ck_assert_msg(worst <= 6.0, "%s: %g units", device->name, worst);
    }
    free(x);
    free(y);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_vector_math");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, exponential);
    tcase_add_loop_test(all, functions, 0, 4);
    tcase_add_test(all, normal_distribution);
    return test_run_on_cpu(suite);
}
