/* Functions of one number and their gradients, against long double's. */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>

static long double normal(long double x)
{
    return 0.5L * erfcl(-x * sqrtl(0.5L));
}

/* Of gelu_tanh. */
static long double logistic(long double x)
{
    return 1 / (1 + expl(-2 * sqrtl(2 / acosl(-1)) * (x + 0.044715L * x * x * x)));
}

static long double value(shard_unary unary, const double *scalars, long double x)
{
    switch (unary) {
    case SHARD_RELU:
        return x > 0 ? x : isnan(x) ? x : 0;
    case SHARD_LEAKY_RELU:
        return x > 0 ? x : x * scalars[0];
    case SHARD_GELU:
        return x * normal(x);
    case SHARD_GELU_TANH:
        return x * logistic(x);
    case SHARD_SILU:
        return x / (1 + expl(-x));
    case SHARD_SOFTPLUS:
        return scalars[0] * x > scalars[1] ? x : log1pl(expl(scalars[0] * x)) / scalars[0];
    case SHARD_EXP:
        return expl(x);
    case SHARD_LOG:
        return logl(x);
    case SHARD_LOG1P:
        return log1pl(x);
    case SHARD_SQRT:
        return sqrtl(x);
    case SHARD_RSQRT:
        return 1 / sqrtl(x);
    case SHARD_ABS:
        return fabsl(x);
    case SHARD_TANH:
        return tanhl(x);
    case SHARD_SIGMOID:
        return 1 / (1 + expl(-x));
    case SHARD_SHIFT:
        return x + scalars[0];
    case SHARD_CLAMP:
        return x < scalars[0] ? scalars[0] : x > scalars[1] ? scalars[1] : x;
    case SHARD_POWER:
        return powl(x, scalars[0]);
    }
    return NAN;
}

/* The derivative, of what the gradient is computed from. */
static long double slope(shard_unary unary, const double *scalars, long double x)
{
    long double c = sqrtl(2 / acosl(-1)), l = logistic(x);
    switch (unary) {
    case SHARD_RELU:
        return x > 0;
    case SHARD_LEAKY_RELU:
        return x > 0 ? 1 : scalars[0];
    case SHARD_GELU:
        return normal(x) + x * expl(-x * x / 2) / sqrtl(2 * acosl(-1));
    case SHARD_GELU_TANH:
        return l + x * 2 * c * (1 + 3 * 0.044715L * x * x) * l * (1 - l);
    case SHARD_SILU:
        return (1 + x / (1 + expl(x))) / (1 + expl(-x));
    case SHARD_SOFTPLUS:
        return scalars[0] * x > scalars[1] ? 1 : 1 / (1 + expl(-scalars[0] * x));
    case SHARD_EXP:
        return x;
    case SHARD_LOG:
        return 1 / x;
    case SHARD_LOG1P:
        return 1 / (1 + x);
    case SHARD_SQRT:
        return 1 / (2 * x);
    case SHARD_RSQRT:
        return -x * x * x / 2;
    case SHARD_ABS:
        return x > 0 ? 1 : x < 0 ? -1 : 0;
    case SHARD_TANH:
        return 1 - x * x;
    case SHARD_SIGMOID:
        return x * (1 - x);
    case SHARD_SHIFT:
        return 1;
    case SHARD_CLAMP:
        return x >= scalars[0] && x <= scalars[1];
    case SHARD_POWER:
        return scalars[0] == 0 ? 0 : scalars[0] * powl(x, scalars[0] - 1);
    }
    return NAN;
}

/* Numbers of (low, high) that both the value and, as what the gradient is computed from, the derivative take. */
typedef struct form {
    shard_unary unary;
    double low, high, scalars[2];
} form;

/* All scalars are of 16-bit types, too: clamp's bounds are some of the numbers. */
static const form forms[] = {
    {SHARD_RELU, -9, 9, {0}},           {SHARD_GELU, -9, 9, {0}},         {SHARD_GELU_TANH, -9, 9, {0}},
    {SHARD_EXP, -10, 10, {0}},          {SHARD_LOG, 1e-4, 9, {0}},        {SHARD_LOG1P, -0.99, 9, {0}},
    {SHARD_SQRT, 1e-4, 9, {0}},         {SHARD_RSQRT, 0.01, 9, {0}},      {SHARD_ABS, -9, 9, {0}},
    {SHARD_TANH, -9, 9, {0}},           {SHARD_SIGMOID, -9, 9, {0}},      {SHARD_SHIFT, -9, 9, {1.25}},
    {SHARD_CLAMP, -9, 9, {-0.5, 2}},    {SHARD_POWER, -4, 4, {0}},        {SHARD_POWER, -4, 4, {1}},
    {SHARD_POWER, -4, 4, {2}},          {SHARD_POWER, -4, 4, {3}},        {SHARD_POWER, -4, 4, {4}},
    {SHARD_POWER, 0.25, 4, {-1}},       {SHARD_POWER, 0.25, 4, {0.5}},    {SHARD_POWER, 0.25, 4, {-0.5}},
    {SHARD_POWER, 0.25, 4, {2.75}},     {SHARD_SILU, -9, 9, {0}},         {SHARD_LEAKY_RELU, -9, 9, {0.25}},
    {SHARD_LEAKY_RELU, -9, 9, {-1.5}},  {SHARD_SOFTPLUS, -9, 9, {1, 20}}, {SHARD_SOFTPLUS, -9, 9, {2, 3}},
    {SHARD_SOFTPLUS, -9, 9, {-0.5, 2}},
};
enum { FORMS = sizeof forms / sizeof *forms };
static const int64_t sizes[] = {0, 1, 7, 1000, 1025, 70001};

/* In the tails the rounding of an exponential's argument shows as often as the
 * argument is large, but in float's gelu, which splits it. Below 2^-100 results
 * may be 0. */
static long double forward_error(shard_unary unary, shard_dtype dtype, long double x, long double want)
{
    long double units = 10;
    if (unary == SHARD_RELU || unary == SHARD_ABS || unary == SHARD_CLAMP)
        return 0;
    if (unary == SHARD_GELU_TANH)
        units += 8 * fabsl(x * (1 + 0.044715L * x * x));
    else if (unary == SHARD_GELU && dtype == SHARD_FLOAT64)
        units += 2 * x * x;
    return fabsl(want) * units * compute_unit(dtype) + 0x1p-100L;
}

/* An element of the result, the same for every instruction set. */
typedef struct wanted {
    long double value, error;
} wanted;

START_TEST(forward)
{
    const form *f = &forms[_i];
    shard_device *device;
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            shard_dtype dtype = float_dtypes[t];
            int64_t n = sizes[s];
            wanted *want = malloc((size_t)(n + 1) * sizeof *want);
            void *y = array_new(n, dtype), *x = array_noise(n, dtype, 1, f->low, f->high);
            for (int64_t i = 0; i < n; i++) {
                long double in = array_get(x, i, dtype), out = value(f->unary, f->scalars, in);
                want[i] = (wanted){out, forward_error(f->unary, dtype, in, out)};
            }
            for (int set = 0; (device = kernel_device(set)); set++) {
                void *in_place = array_of(n, dtype, x);
                RUN(device, unary, f->unary, f->scalars, n, x, y, dtype);
                for (int64_t i = 0; i < n; i++)
                    check_close(dtype, array_get(y, i, dtype), want[i].value, want[i].error, device->name, i);
                RUN(device, unary, f->unary, f->scalars, n, in_place, in_place, dtype);
                check_same(dtype, n, in_place, y, "in place");
                array_free(in_place, n, dtype);
            }
            array_free(x, n, dtype);
            array_free(y, n, dtype);
            free(want);
        }
}
END_TEST

START_TEST(backward)
{
    const form *f = &forms[_i];
    bool exact = f->unary == SHARD_RELU || f->unary == SHARD_ABS || f->unary == SHARD_CLAMP || f->unary == SHARD_SHIFT;
    bool gelu = f->unary == SHARD_GELU || f->unary == SHARD_GELU_TANH;
    shard_device *device;
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            shard_dtype dtype = float_dtypes[t];
            int64_t n = sizes[s];
            wanted *want = malloc((size_t)(n + 1) * sizeof *want);
            void *x = array_noise(n, dtype, 1, f->low, f->high), *dy = array_noise(n, dtype, 2, -2, 2);
            void *dx = array_new(n, dtype);
            for (int64_t i = 0; i < n; i++) {
                long double in = array_get(x, i, dtype), gradient = array_get(dy, i, dtype);
                long double d = slope(f->unary, f->scalars, in);
                /* The two terms of gelu cancel near -0.75, those of silu near -1.3, those of tanh and sigmoid near 1; each is
                 * right to some units. */
                long double error = exact ? 0 : fabsl(gradient) * 40 * compute_unit(dtype) * (gelu ? 1 : fmaxl(1, fabsl(d)));
                want[i] = (wanted){gradient * d, error};
            }
            for (int set = 0; (device = kernel_device(set)); set++) {
                void *in_place = array_of(n, dtype, dy);
                RUN(device, unary_backward, f->unary, f->scalars, n, x, dy, dx, dtype);
                for (int64_t i = 0; i < n; i++)
                    check_close(dtype, array_get(dx, i, dtype), want[i].value, want[i].error, device->name, i);
                RUN(device, unary_backward, f->unary, f->scalars, n, x, in_place, in_place, dtype);
                check_same(dtype, n, dx, in_place, "in place");
                array_free(in_place, n, dtype);
            }
            array_free(x, n, dtype);
            array_free(dy, n, dtype);
            array_free(dx, n, dtype);
            free(want);
        }
}
END_TEST

/* NaN stays NaN; what overflows inside does not show. */
START_TEST(special_values)
{
    static const shard_unary unaries[] = {SHARD_RELU, SHARD_GELU, SHARD_GELU_TANH, SHARD_SILU};
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
            RUN(device, unary, unaries[_i], NULL, 5, x, y, dtype);
            ck_assert(isnan(array_get(y, 0, dtype)));
            for (int i = 1; i < 5; i++)
                ck_assert_double_eq(array_get(y, i, dtype), in[i] > 0 ? array_get(x, i, dtype) : 0);
            RUN(device, unary_backward, unaries[_i], NULL, 5, x, dy, y, dtype);
            ck_assert_double_eq(array_get(y, 2, dtype), 1);
            ck_assert_double_eq(array_get(y, 3, dtype), 0);
            ck_assert_double_eq(array_get(y, 4, dtype), unaries[_i] == SHARD_RELU ? 0 : 0.5);
        }
}
END_TEST

/* At the ends of the range: torch's values, which are IEEE 754's. The second scalar is 2, clamp's upper bound
 * and softplus's threshold. */
START_TEST(ends)
{
    static const struct {
        shard_unary unary;
        double scalar, x, y;
    } cases[] = {
        {SHARD_LEAKY_RELU, 0.25, -INFINITY, -INFINITY},
        {SHARD_LEAKY_RELU, 0.25, INFINITY, INFINITY},
        {SHARD_LEAKY_RELU, 0.25, -0.0, -0.0},
        {SHARD_LEAKY_RELU, 0.25, NAN, NAN},
        {SHARD_LEAKY_RELU, 0, -INFINITY, NAN},
        {SHARD_SILU, 0, -INFINITY, NAN},
        {SHARD_SILU, 0, NAN, NAN},
        {SHARD_SOFTPLUS, 1, INFINITY, INFINITY},
        {SHARD_SOFTPLUS, 1, -INFINITY, 0},
        {SHARD_SOFTPLUS, 1, -1e4, 0},
        {SHARD_SOFTPLUS, 1, 3, 3},
        {SHARD_SOFTPLUS, -1, INFINITY, -0.0},
        {SHARD_SOFTPLUS, 1, NAN, NAN},
        {SHARD_EXP, 0, -INFINITY, 0},
        {SHARD_EXP, 0, INFINITY, INFINITY},
        {SHARD_EXP, 0, NAN, NAN},
        {SHARD_EXP, 0, 1e4, INFINITY},
        {SHARD_EXP, 0, -1e4, 0},
        {SHARD_LOG, 0, 0, -INFINITY},
        {SHARD_LOG, 0, -0.0, -INFINITY},
        {SHARD_LOG, 0, -1, NAN},
        {SHARD_LOG, 0, INFINITY, INFINITY},
        {SHARD_LOG, 0, 1, 0},
        {SHARD_LOG, 0, NAN, NAN},
        {SHARD_LOG1P, 0, -1, -INFINITY},
        {SHARD_LOG1P, 0, -2, NAN},
        {SHARD_LOG1P, 0, 0, 0},
        {SHARD_LOG1P, 0, INFINITY, INFINITY},
        {SHARD_LOG1P, 0, NAN, NAN},
        {SHARD_SQRT, 0, 0, 0},
        {SHARD_SQRT, 0, -1, NAN},
        {SHARD_SQRT, 0, INFINITY, INFINITY},
        {SHARD_SQRT, 0, NAN, NAN},
        {SHARD_RSQRT, 0, 0, INFINITY},
        {SHARD_RSQRT, 0, INFINITY, 0},
        {SHARD_RSQRT, 0, -1, NAN},
        {SHARD_ABS, 0, -INFINITY, INFINITY},
        {SHARD_ABS, 0, -0.0, 0},
        {SHARD_ABS, 0, NAN, NAN},
        {SHARD_TANH, 0, INFINITY, 1},
        {SHARD_TANH, 0, -INFINITY, -1},
        {SHARD_TANH, 0, 0, 0},
        {SHARD_TANH, 0, NAN, NAN},
        {SHARD_SIGMOID, 0, INFINITY, 1},
        {SHARD_SIGMOID, 0, -INFINITY, 0},
        {SHARD_SIGMOID, 0, 0, 0.5},
        {SHARD_SIGMOID, 0, NAN, NAN},
        {SHARD_SHIFT, 1, INFINITY, INFINITY},
        {SHARD_SHIFT, 1, NAN, NAN},
        {SHARD_CLAMP, -0.5, INFINITY, 2},
        {SHARD_CLAMP, -0.5, -INFINITY, -0.5},
        {SHARD_CLAMP, -0.5, NAN, NAN},
        {SHARD_POWER, 0, NAN, 1},
        {SHARD_POWER, 0, 0, 1},
        {SHARD_POWER, 2, -INFINITY, INFINITY},
        {SHARD_POWER, 3, -INFINITY, -INFINITY},
        {SHARD_POWER, -1, 0, INFINITY},
        {SHARD_POWER, -1, -0.0, -INFINITY},
        {SHARD_POWER, 0.5, -1, NAN},
        {SHARD_POWER, 1.5, -1, NAN},
        {SHARD_POWER, 1.5, 0, 0},
        {SHARD_POWER, -1.5, 0, INFINITY},
        {SHARD_POWER, 5, -2, -32},
        {SHARD_POWER, 2, NAN, NAN},
    };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t e = 0; e < sizeof cases / sizeof *cases; e++)
            for (int t = 0; t < 4; t++) {
                shard_dtype dtype = float_dtypes[t];
                void *x = array_new(1, dtype), *y = array_new(1, dtype);
                array_put(x, 0, dtype, cases[e].x);
                RUN(device, unary, cases[e].unary, ((double[]){cases[e].scalar, 2}), 1, x, y, dtype);
                double got = array_get(y, 0, dtype), want = cases[e].y;
                ck_assert_msg(isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want),
                              "%s: case %d in %s of %g is %g", device->name, (int)e, shard_dtype_name(dtype), cases[e].x, got);
                array_free(x, 1, dtype);
                array_free(y, 1, dtype);
            }
}
END_TEST

/* The same of gradients, of dy = 1: torch's values. */
START_TEST(gradients_at_ends)
{
    static const struct {
        shard_unary unary;
        double scalar, from, dx;
    } cases[] = {
        {SHARD_LEAKY_RELU, 0.25, 0, 0.25},
        {SHARD_LEAKY_RELU, 0.25, NAN, 0.25},
        {SHARD_SILU, 0, NAN, NAN},
        {SHARD_SOFTPLUS, 1, INFINITY, 1},
        {SHARD_SOFTPLUS, 1, -INFINITY, 0},
        {SHARD_SOFTPLUS, 1, 2.5, 1},
        {SHARD_SOFTPLUS, 1, NAN, NAN},
        {SHARD_EXP, 0, INFINITY, INFINITY},
        {SHARD_LOG, 0, 0, INFINITY},
        {SHARD_LOG1P, 0, -1, INFINITY},
        {SHARD_SQRT, 0, 0, INFINITY},
        {SHARD_SQRT, 0, NAN, NAN},
        {SHARD_RSQRT, 0, INFINITY, -INFINITY},
        {SHARD_ABS, 0, 0, 0},
        {SHARD_ABS, 0, NAN, NAN},
        {SHARD_ABS, 0, -INFINITY, -1},
        {SHARD_TANH, 0, -1, 0},
        {SHARD_SIGMOID, 0, 1, 0},
        {SHARD_CLAMP, -0.5, -0.5, 1},
        {SHARD_CLAMP, -0.5, 2, 1},
        {SHARD_CLAMP, -0.5, 2.5, 0},
        {SHARD_CLAMP, -0.5, NAN, 0},
        {SHARD_POWER, 0, 0, 0},
        {SHARD_POWER, 0, NAN, 0},
        {SHARD_POWER, 1, 0, 1},
        {SHARD_POWER, 2, 0, 0},
        {SHARD_POWER, 0.5, 0, INFINITY},
        {SHARD_POWER, 1.5, 0, 0},
        {SHARD_POWER, -1, 0, -INFINITY},
        {SHARD_POWER, 1.5, -1, NAN},
    };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t e = 0; e < sizeof cases / sizeof *cases; e++)
            for (int t = 0; t < 4; t++) {
                shard_dtype dtype = float_dtypes[t];
                void *x = array_new(1, dtype), *dy = array_new(1, dtype);
                array_put(x, 0, dtype, cases[e].from);
                array_put(dy, 0, dtype, 1);
                RUN(device, unary_backward, cases[e].unary, ((double[]){cases[e].scalar, 2}), 1, x, dy, dy, dtype);
                double got = array_get(dy, 0, dtype), want = cases[e].dx;
                ck_assert_msg(isnan(want) ? isnan(got) : got == want, "%s: case %d in %s of %g is %g", device->name, (int)e,
                              shard_dtype_name(dtype), cases[e].from, got);
                array_free(x, 1, dtype);
                array_free(dy, 1, dtype);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_unary");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, FORMS);
    tcase_add_loop_test(all, backward, 0, FORMS);
    tcase_add_loop_test(all, special_values, 0, 4);
    tcase_add_test(all, ends);
    tcase_add_test(all, gradients_at_ends);
    return test_run(suite);
}
