/* layer_norm. */
#include "support/gradcheck.h"

#include <math.h>

static shard_tensor *layer_norm(shard_tensor *const *x, const void *eps)
{
    return shard_layer_norm(x[0], NULL, NULL, *(const double *)eps);
}

static shard_tensor *affine(shard_tensor *const *x, const void *eps)
{
    return shard_layer_norm(x[0], x[1], x[2], *(const double *)eps);
}

static const operation operations[] = {
    {"plain", layer_norm, &(double){0}, 1, {SHARD_SHAPE(3, 6)}, .needs = 1},
    {"affine", affine, &(double){0}, 3, {SHARD_SHAPE(3, 6), SHARD_SHAPE(6), SHARD_SHAPE(6)}, .needs = 3, .parameters = 6},
    {"eps", affine, &(double){0.5}, 3, {SHARD_SHAPE(2, 3, 6), SHARD_SHAPE(6), SHARD_SHAPE(6)}, .needs = 3, .parameters = 6},
    {"a vector", affine, &(double){0}, 3, {SHARD_SHAPE(6), SHARD_SHAPE(6), SHARD_SHAPE(6)}, .needs = 3, .parameters = 6},
    {"no rows", affine, &(double){0}, 3, {SHARD_SHAPE(0, 6), SHARD_SHAPE(6), SHARD_SHAPE(6)}, .needs = 3, .parameters = 6},
    {"no columns", affine, &(double){0}, 3, {SHARD_SHAPE(3, 0), SHARD_SHAPE(0), SHARD_SHAPE(0)}, .needs = 3, .parameters = 6},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Far from 0, where one pass of sums would lose the variance. */
START_TEST(normalizes_far_from_zero)
{
    float values[64];
    double expected[64], mean = 0, squares = 0;
    for (int i = 0; i < 64; i++) {
        values[i] = 10000 + (float)(i * i % 37) / 16;
        mean += (double)values[i] / 64;
    }
    for (int i = 0; i < 64; i++)
        squares += ((double)values[i] - mean) * ((double)values[i] - mean) / 64;
    for (int i = 0; i < 64; i++)
        expected[i] = ((double)values[i] - mean) / sqrt(squares + 1e-5);
    SHARD_SCOPE
    check_tensor("y", shard_layer_norm(shard_from_host(values, SHARD_SHAPE(64)), NULL, NULL, 1e-5), expected, 1e-6);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *weight = shard_ones(SHARD_SHAPE(3));
        check_refused(shard_layer_norm(x, weight, NULL, 1e-5), SHARD_ERROR_SHAPE,
                      "shard_layer_norm: weight and bias must both be float32 of shape [[]3], *or both NULL; one is NULL");
        check_refused(shard_layer_norm(x, shard_ones(SHARD_SHAPE(2)), shard_ones(SHARD_SHAPE(2)), 1e-5), SHARD_ERROR_SHAPE,
                      "shard_layer_norm: weight *");
        check_refused(shard_layer_norm(shard_cast(x, SHARD_FLOAT64), weight, weight, 1e-5), SHARD_ERROR_SHAPE,
                      "shard_layer_norm: weight and bias must both be float64 *; one is float32 of shape [[]3] on *");
        check_refused(shard_layer_norm(x, weight, weight, -1), SHARD_ERROR_ARGUMENT, "shard_layer_norm: eps is -1*");
        check_refused(shard_layer_norm(shard_zeros(SHARD_SCALAR), NULL, NULL, 1e-5), SHARD_ERROR_SHAPE,
                      "shard_layer_norm: x has shape *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layer_norm");
    TCase *tcase = test_case(suite, "layer_norm");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, normalizes_far_from_zero);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
