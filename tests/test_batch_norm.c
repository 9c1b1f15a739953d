/* batch_norm: on one rank; over a group stands in test_sync_batch_norm. */
#include "support/gradcheck.h"

#include <math.h>

typedef struct norm {
    bool training, plain /* no weight and bias */, residual, relu, tracks;
    double eps;
} norm;

/* x, then weight and bias, then the residual. */
static shard_tensor *batch_norm(shard_tensor *const *x, const void *options)
{
    const norm *how = options;
    shard_dtype dtype = shard_tensor_dtype(x[0]) == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
    shard_shape channels = SHARD_SHAPE(shard_tensor_size(x[0], -1));
    shard_tensor *mean = NULL, *variance = NULL;
    if (how->tracks) {
        mean = shard_full(channels, 0.25, .dtype = dtype);
        variance = shard_full(channels, 1.5, .dtype = dtype);
    }
    int next = how->plain ? 1 : 3;
    return shard_batch_norm(x[0], mean, variance, how->plain ? NULL : x[1], how->plain ? NULL : x[2], .training = how->training,
                            .eps = how->eps > 0 ? how->eps : 1e-5, .residual = how->residual ? x[next] : NULL, .relu = how->relu);
}

#define NORM(...)                                                                                                                \
    &(norm)                                                                                                                      \
    {                                                                                                                            \
        __VA_ARGS__                                                                                                              \
    }
#define IMAGES SHARD_SHAPE(2, 3, 2, 3)
#define AFFINE IMAGES, SHARD_SHAPE(3), SHARD_SHAPE(3)

static const operation operations[] = {
    {"training", batch_norm, NORM(.training = true), 3, {AFFINE}, 3, 6},
    {"training, running statistics", batch_norm, NORM(.training = true, .tracks = true), 3, {AFFINE}, 3, 6},
    {"training, plain", batch_norm, NORM(.training = true, .plain = true), 1, {IMAGES}, 1},
    {"training, relu", batch_norm, NORM(.training = true, .relu = true), 3, {AFFINE}, 3, 6},
    {"training, residual", batch_norm, NORM(.training = true, .residual = true), 4, {AFFINE, IMAGES}, 3, 6},
    {"training, residual and relu",
     batch_norm,
     NORM(.training = true, .residual = true, .relu = true),
     4,
     {AFFINE, IMAGES},
     3,
     6},
    {"training, eps", batch_norm, NORM(.training = true, .eps = 0.5), 3, {AFFINE}, 3, 6},
    {"training, rows", batch_norm, NORM(.training = true), 3, {SHARD_SHAPE(5, 3), SHARD_SHAPE(3), SHARD_SHAPE(3)}, 3, 6},
    {"training, no rows",
     batch_norm,
     NORM(.training = true, .tracks = true),
     3,
     {SHARD_SHAPE(0, 3), SHARD_SHAPE(3), SHARD_SHAPE(3)},
     3,
     6},
    {"training, no channels", batch_norm, NORM(.training = true), 3, {SHARD_SHAPE(4, 0), SHARD_SHAPE(0), SHARD_SHAPE(0)}, 3, 6},
    {"evaluation", batch_norm, NORM(.tracks = true), 3, {AFFINE}, 3, 6},
    {"evaluation, plain", batch_norm, NORM(.tracks = true, .plain = true), 1, {IMAGES}, 1},
    {"evaluation, residual and relu",
     batch_norm,
     NORM(.tracks = true, .residual = true, .relu = true),
     4,
     {AFFINE, IMAGES},
     3,
     6,
     .seed = 1}, /* a seed for which no result is near relu's corner */
    {"evaluation, one row", batch_norm, NORM(.tracks = true), 3, {SHARD_SHAPE(1, 3), SHARD_SHAPE(3), SHARD_SHAPE(3)}, 3, 6},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* running = (1 - momentum) running + momentum now, with the unbiased variance; not when
 * evaluating. */
START_TEST(updates_running_statistics)
{
    static const double values[] = {1, 10, 2, 20, 6, 0};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(3, 2), .dtype = SHARD_FLOAT64);
        shard_tensor *mean = shard_full(SHARD_SHAPE(2), 2, .dtype = SHARD_FLOAT64);
        shard_tensor *variance = shard_ones(SHARD_SHAPE(2), .dtype = SHARD_FLOAT64);
        shard_tensor *y = shard_batch_norm(x, mean, variance, NULL, NULL, .training = true);
        ck_assert_msg(y != NULL, "%s", shard_last_error());
        check_tensor("mean", mean, (double[]){0.9 * 2 + 0.1 * 3, 0.9 * 2 + 0.1 * 10}, 1e-15);
        check_tensor("variance", variance, (double[]){0.9 + 0.1 * 7, 0.9 + 0.1 * 100}, 1e-15);
        shard_batch_norm(x, mean, variance, NULL, NULL, .training = true, .momentum = 1);
        check_tensor("mean", mean, (double[]){3, 10}, 1e-15);
        check_tensor("variance", variance, (double[]){7, 100}, 1e-15);
        y = shard_batch_norm(x, mean, variance, NULL, NULL, .eps = 2);
        check_tensor("variance", variance, (double[]){7, 100}, 1e-15);
        double d = sqrt(102);
        check_tensor("y", y, (double[]){-2.0 / 3, 0, -1.0 / 3, 10 / d, 1, -10 / d}, 1e-15);
    }
}
END_TEST

/* Sums about the first row lose nothing where sums about 0 would, wherever the running mean is. */
START_TEST(normalizes_far_from_zero)
{
    static const double running[] = {1e6, 0, 1e12, INFINITY, NAN};
    double values[50], expected[50], mean = 0, squares = 0;
    for (int i = 0; i < 50; i++)
        values[i] = 1e6 + (double)(i * i % 37) / 64;
    for (int i = 0; i < 50; i++)
        mean += (values[i] - 1e6) / 50;
    for (int i = 0; i < 50; i++)
        squares += (values[i] - 1e6 - mean) * (values[i] - 1e6 - mean) / 50;
    for (int i = 0; i < 50; i++)
        expected[i] = (values[i] - 1e6 - mean) / sqrt(squares + 1e-5);
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(50, 1), .dtype = SHARD_FLOAT64);
        shard_tensor *running_mean = shard_full(SHARD_SHAPE(1), running[_i], .dtype = SHARD_FLOAT64);
        shard_tensor *running_var = shard_ones(SHARD_SHAPE(1), .dtype = SHARD_FLOAT64);
        check_tensor("y", shard_batch_norm(x, running_mean, running_var, NULL, NULL, .training = true), expected, 1e-9);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_ones(SHARD_SHAPE(4, 3)), *c = shard_ones(SHARD_SHAPE(3)), *d = shard_ones(SHARD_SHAPE(2));
        check_refused(shard_batch_norm(shard_ones(SHARD_SHAPE(1, 1, 1, 3)), c, c, NULL, NULL, .training = true),
                      SHARD_ERROR_SHAPE, "shard_batch_norm: *more than 1 value*");
        check_refused(shard_batch_norm(x, NULL, NULL, c, c), SHARD_ERROR_ARGUMENT, "shard_batch_norm: *running_var*");
        check_refused(shard_batch_norm(x, c, c, c, NULL), SHARD_ERROR_SHAPE, "shard_batch_norm: weight and bias must both *");
        check_refused(shard_batch_norm(x, c, NULL, c, c), SHARD_ERROR_SHAPE,
                      "shard_batch_norm: running_mean and running_var must both *");
        check_refused(shard_batch_norm(x, d, d, c, c), SHARD_ERROR_SHAPE, "shard_batch_norm: running_mean *of shape [[]3]*");
        check_refused(shard_batch_norm(x, c, c, c, c, .residual = c), SHARD_ERROR_SHAPE, "shard_batch_norm: *residual*");
        check_refused(shard_batch_norm(x, c, c, c, c, .residual = shard_cast(x, SHARD_FLOAT16)), SHARD_ERROR_SHAPE,
                      "shard_batch_norm: operand 1 is float16*");
        check_refused(shard_batch_norm(x, c, c, c, c, .momentum = 1.5), SHARD_ERROR_ARGUMENT, "shard_batch_norm: momentum 1.5*");
        check_refused(shard_batch_norm(x, c, c, c, c, .eps = -1), SHARD_ERROR_ARGUMENT, "shard_batch_norm: *eps -1;*");
        check_refused(shard_batch_norm(shard_ones(SHARD_SCALAR), c, c, c, c), SHARD_ERROR_SHAPE, "shard_batch_norm: x has shape *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch_norm");
    TCase *tcase = test_case(suite, "batch_norm");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, updates_running_statistics);
    tcase_add_loop_test(tcase, normalizes_far_from_zero, 0, 5);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
