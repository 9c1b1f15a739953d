/* relu, gelu, exp, log, clamp, powers by a number, ...: functions of one element. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

#define MAKER(name)                                                                                                              \
    static shard_tensor *make_##name(shard_tensor *const *x, const void *options)                                                \
    {                                                                                                                            \
        (void)options;                                                                                                           \
        return shard_##name(x[0]);                                                                                               \
    }
MAKER(relu)
MAKER(gelu)
MAKER(silu)
MAKER(gelu_tanh)
MAKER(abs)
MAKER(tanh)
MAKER(sigmoid)
#undef MAKER

/* Of numbers above 0.2: made up ones are between -2 and 3. */
#define MAKER(name)                                                                                                              \
    static shard_tensor *name##_above_0(shard_tensor *const *x, const void *options)                                             \
    {                                                                                                                            \
        (void)options;                                                                                                           \
        return shard_##name(shard_add_scalar(x[0], 2.2));                                                                        \
    }
MAKER(log)
MAKER(log1p)
MAKER(sqrt)
MAKER(rsqrt)
#undef MAKER

static shard_tensor *exponential(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_exp(x[0]);
}

static shard_tensor *logarithm_of_exponential(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_log(shard_exp(x[0]));
}

static shard_tensor *shift(shard_tensor *const *x, const void *number)
{
    return shard_add_scalar(x[0], *(const double *)number);
}

static shard_tensor *power(shard_tensor *const *x, const void *exponent)
{
    return shard_pow_scalar(x[0], *(const double *)exponent);
}

static shard_tensor *power_above_0(shard_tensor *const *x, const void *exponent)
{
    return shard_pow_scalar(shard_add_scalar(x[0], 3), *(const double *)exponent);
}

static shard_tensor *clamp(shard_tensor *const *x, const void *bounds)
{
    return shard_clamp(x[0], ((const double *)bounds)[0], ((const double *)bounds)[1]);
}

static shard_tensor *leaky_relu(shard_tensor *const *x, const void *slope)
{
    return shard_leaky_relu(x[0], *(const double *)slope);
}

static shard_tensor *softplus(shard_tensor *const *x, const void *numbers)
{
    return shard_softplus(x[0], ((const double *)numbers)[0], ((const double *)numbers)[1]);
}

static const operation operations[] = {
    {"relu", make_relu, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"relu of a scalar", make_relu, NULL, 1, {SHARD_SCALAR}},
    {"relu of nothing", make_relu, NULL, 1, {SHARD_SHAPE(0, 3)}},
    {"gelu", make_gelu, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"gelu of nothing", make_gelu, NULL, 1, {SHARD_SHAPE(2, 0)}, .needs = 1},
    {"gelu_tanh", make_gelu_tanh, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"silu", make_silu, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"leaky_relu", leaky_relu, &(double){0.2}, 1, {SHARD_SHAPE(7, 9)}},
    {"leaky_relu of slope 0", leaky_relu, &(double){0}, 1, {SHARD_SHAPE(7, 9)}},
    {"leaky_relu of a negative slope", leaky_relu, &(double){-0.5}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"softplus", softplus, (double[]){1, 20}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"softplus of another beta", softplus, (double[]){-1.5, 20}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"softplus to a threshold", softplus, (double[]){2, 1.3}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"exp", exponential, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"exp of a scalar", exponential, NULL, 1, {SHARD_SCALAR}},
    {"log of exp", logarithm_of_exponential, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"log", log_above_0, NULL, 1, {SHARD_SHAPE(3, 5)}, .tolerance = 1e-7},
    {"log of nothing", log_above_0, NULL, 1, {SHARD_SHAPE(3, 0)}},
    {"log1p", log1p_above_0, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"sqrt", sqrt_above_0, NULL, 1, {SHARD_SHAPE(3, 5)}, .tolerance = 1e-7},
    {"rsqrt", rsqrt_above_0, NULL, 1, {SHARD_SHAPE(3, 5)}, .tolerance = 1e-7, .rounding = 24},
    {"abs", make_abs, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"tanh", make_tanh, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"sigmoid", make_sigmoid, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"sigmoid of eight dimensions", make_sigmoid, NULL, 1, {SHARD_SHAPE(2, 1, 2, 1, 3, 1, 1, 2)}},
    {"add_scalar", shift, &(double){-2.5}, 1, {SHARD_SHAPE(7, 9)}},
    {"pow_scalar 0", power, &(double){0}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1, .constant = 1},
    {"pow_scalar 1", power, &(double){1}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"pow_scalar 2", power, &(double){2}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"pow_scalar 3", power, &(double){3}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"pow_scalar -1", power_above_0, &(double){-1}, 1, {SHARD_SHAPE(7, 9)}, .tolerance = 1e-7},
    {"pow_scalar 0.5", power_above_0, &(double){0.5}, 1, {SHARD_SHAPE(7, 9)}},
    {"pow_scalar -0.5", power_above_0, &(double){-0.5}, 1, {SHARD_SHAPE(7, 9)}},
    {"pow_scalar 2.5", power_above_0, &(double){2.5}, 1, {SHARD_SHAPE(7, 9)}},
    {"clamp", clamp, (double[]){-0.6, 1.1}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"clamp from below", clamp, (double[]){-0.6, INFINITY}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"clamp from above", clamp, (double[]){-INFINITY, 1.1}, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(values)
{
    static const double x[] = {-INFINITY, -3, -0.5, 0, 0.5, 3, INFINITY};
    double exact[7], tanhs[7];
    for (int i = 0; i < 7; i++) {
        exact[i] = x[i] == -INFINITY ? 0 : x[i] * 0.5 * erfc(-x[i] / sqrt(2));
        tanhs[i] = x[i] == -INFINITY ? 0 : x[i] * 0.5 * (1 + tanh(sqrt(2 / acos(-1)) * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
    SHARD_SCOPE
    {
        shard_tensor *finite = shard_from_host(x + 1, SHARD_SHAPE(5), .dtype = SHARD_FLOAT64);
        check_tensor("relu", shard_relu(finite), (double[]){0, 0, 0, 0.5, 3}, 0);
        check_tensor("gelu", shard_gelu(finite), exact + 1, 1e-15);
        check_tensor("gelu_tanh", shard_gelu_tanh(finite), tanhs + 1, 1e-15);
        shard_tensor *all = shard_from_host(x, SHARD_SHAPE(7), .dtype = SHARD_FLOAT64);
        double *large = values_of(shard_relu(all));
        ck_assert(large[0] == 0 && large[6] == INFINITY);
        ck_assert(isnan(shard_item(shard_relu(shard_full(SHARD_SCALAR, NAN)))));
        free(large);
    }
}
END_TEST

/* min above max: all become max. */
START_TEST(clamps_to_max)
{
    static const double x[] = {-3, 1.5, 3};
    SHARD_SCOPE
    check_tensor("clamp", shard_clamp(shard_from_host(x, SHARD_SHAPE(3), .dtype = SHARD_FLOAT64), 2, 1), (double[]){1, 1, 1}, 0);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        check_refused(shard_relu(NULL), SHARD_ERROR_ARGUMENT, "shard_relu: *");
        check_refused(shard_gelu(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE, "shard_gelu: *int64*");
        check_refused(shard_clamp(shard_zeros(SHARD_SHAPE(2)), NAN, 1), SHARD_ERROR_ARGUMENT, "shard_clamp: bounds nan and 1; *");
        check_refused(shard_clamp(NULL, 0, 1), SHARD_ERROR_ARGUMENT, "shard_clamp: *");
        check_refused(shard_leaky_relu(shard_zeros(SHARD_SHAPE(2)), INFINITY), SHARD_ERROR_ARGUMENT,
                      "shard_leaky_relu: negative_slope inf; *");
        check_refused(shard_leaky_relu(NULL, 0.1), SHARD_ERROR_ARGUMENT, "shard_leaky_relu: *");
        check_refused(shard_softplus(shard_zeros(SHARD_SHAPE(2)), 0, 20), SHARD_ERROR_ARGUMENT, "shard_softplus: beta 0 *");
        check_refused(shard_softplus(shard_zeros(SHARD_SHAPE(2)), INFINITY, 20), SHARD_ERROR_ARGUMENT,
                      "shard_softplus: beta inf *");
        check_refused(shard_softplus(shard_zeros(SHARD_SHAPE(2)), 1e-300, 20), SHARD_ERROR_ARGUMENT,
                      "shard_softplus: beta 1e-300 *");
        check_refused(shard_softplus(shard_zeros(SHARD_SHAPE(2)), 1, NAN), SHARD_ERROR_ARGUMENT, "*threshold nan*");
        check_refused(shard_softplus(NULL, 1, 20), SHARD_ERROR_ARGUMENT, "shard_softplus: *");
        check_refused(shard_pow_scalar(NULL, 2), SHARD_ERROR_ARGUMENT, "shard_pow_scalar: *");
        check_refused(shard_exp(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE, "shard_exp: *");
        /* A NULL operand leaves the first error alone. */
        shard_reshape(shard_zeros(SHARD_SHAPE(2)), SHARD_SHAPE(3));
        check_refused(shard_relu(shard_gelu(NULL)), SHARD_ERROR_SHAPE, "shard_reshape: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unary");
    TCase *tcase = test_case(suite, "unary");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, clamps_to_max);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
