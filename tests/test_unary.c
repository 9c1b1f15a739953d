/* relu, gelu, gelu_tanh. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

static shard_tensor *relu(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_relu(x[0]);
}

static shard_tensor *gelu(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_gelu(x[0]);
}

static shard_tensor *gelu_tanh(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_gelu_tanh(x[0]);
}

static const operation operations[] = {
    {"relu", relu, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"relu of a scalar", relu, NULL, 1, {SHARD_SCALAR}},
    {"relu of nothing", relu, NULL, 1, {SHARD_SHAPE(0, 3)}},
    {"gelu", gelu, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
    {"gelu of nothing", gelu, NULL, 1, {SHARD_SHAPE(2, 0)}, .needs = 1},
    {"gelu_tanh", gelu_tanh, NULL, 1, {SHARD_SHAPE(7, 9)}, .needs = 1},
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
    SHARD_SCOPE {
        shard_tensor *finite = shard_from_host(x + 1, SHARD_SHAPE(5), .dtype = SHARD_FLOAT64);
        check_tensor("relu", shard_relu(finite), (double[]){0, 0, 0, 0.5, 3}, 0);
        check_tensor("gelu", shard_gelu(finite), exact + 1, 1e-15);
        check_tensor("gelu_tanh", shard_gelu_tanh(finite), tanhs + 1, 1e-15);
        shard_tensor *all = shard_from_host(x, SHARD_SHAPE(7), .dtype = SHARD_FLOAT64);
        double *large = read_doubles_of(shard_relu(all));
        ck_assert(large[0] == 0 && large[6] == INFINITY);
        ck_assert(isnan(shard_item(shard_relu(shard_full(SHARD_SCALAR, NAN)))));
        free(large);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        check_refused(shard_relu(NULL), SHARD_ERROR_ARGUMENT, "shard_relu: *");
        check_refused(shard_gelu(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE,
                      "shard_gelu: operand 0 is int64*floating*");
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
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
