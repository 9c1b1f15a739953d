/* mse_loss. */
#include "support/gradcheck.h"

#include <shard/loss.h>

#include <math.h>

static shard_tensor *mse_loss(shard_tensor *const *x, const void *reduction)
{
    return shard_mse_loss(x[0], x[1], .reduction = *(const shard_reduction *)reduction);
}

static const shard_reduction mean = SHARD_REDUCTION_MEAN, sum = SHARD_REDUCTION_SUM, none = SHARD_REDUCTION_NONE;
#define BOTH                                                                                                                     \
    {                                                                                                                            \
        SHARD_SHAPE(4, 5), SHARD_SHAPE(4, 5)                                                                                     \
    }

static const operation operations[] = {
    {"mse_loss, mean", mse_loss, &mean, 2, BOTH, .rounding = 24},
    {"mse_loss, sum", mse_loss, &sum, 2, BOTH, .rounding = 24},
    {"mse_loss, none", mse_loss, &none, 2, BOTH, .rounding = 24},
    {"mse_loss of scalars", mse_loss, &mean, 2, {SHARD_SCALAR, SHARD_SCALAR}, .rounding = 24},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(values)
{
    static const double input[] = {1, 2, 3, 4}, target[] = {1, 1, 5, 0.5};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(input, SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64);
        shard_tensor *y = shard_from_host(target, SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64);
        ck_assert_double_eq(shard_item(shard_mse_loss(x, y)), 17.25 / 4);
        ck_assert_double_eq(shard_item(shard_mse_loss(x, y, .reduction = SHARD_REDUCTION_SUM)), 17.25);
        check_tensor("none", shard_mse_loss(x, y, .reduction = SHARD_REDUCTION_NONE), (double[]){0, 1, 4, 12.25}, 0);
        shard_tensor *nothing = shard_zeros(SHARD_SHAPE(0));
        ck_assert(isnan(shard_item(shard_mse_loss(nothing, nothing))));
        ck_assert_double_eq(shard_item(shard_mse_loss(nothing, nothing, .reduction = SHARD_REDUCTION_SUM)), 0);
    }
}
END_TEST

/* The focal loss of Lin et al., "Focal loss for dense object detection" (2017), written with operations: the mean of
 * (1 - p)^2 times the cross-entropy, where p is the label's probability. */
START_TEST(focal_loss)
{
    static const double logits[] = {0.5, -1, 2, 0, 1.5, -0.5};
    static const int64_t labels[] = {2, 0};
    double want = 0;
    for (int i = 0; i < 2; i++) {
        double all = exp(logits[3 * i]) + exp(logits[3 * i + 1]) + exp(logits[3 * i + 2]),
               p = exp(logits[3 * i + labels[i]]) / all;
        want -= (1 - p) * (1 - p) * log(p) / 2;
    }
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(logits, SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *each = shard_cross_entropy(x, target, .reduction = SHARD_REDUCTION_NONE);
        shard_tensor *rest = shard_add_scalar(shard_neg(shard_exp(shard_neg(each))), 1);
        shard_tensor *loss = shard_mean(shard_mul(shard_pow_scalar(rest, 2), each));
        ck_assert_double_eq_tol(shard_item(loss), want, 1e-15);
        ck_assert_int_eq(shard_backward(loss), SHARD_OK);
        ck_assert_ptr_nonnull(shard_grad(x));
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 1)), *y = shard_zeros(SHARD_SHAPE(2));
        check_refused(shard_mse_loss(x, y), SHARD_ERROR_SHAPE, "shard_mse_loss: *target*");
        check_refused(shard_mse_loss(x, x, .reduction = (shard_reduction)7), SHARD_ERROR_ARGUMENT, "shard_mse_loss: *reduction*");
        check_refused(shard_mse_loss(x, NULL), SHARD_ERROR_ARGUMENT, "shard_mse_loss: *");
        check_refused(shard_mse_loss(NULL, x), SHARD_ERROR_ARGUMENT, "shard_mse_loss: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mse_loss");
    TCase *tcase = test_case(suite, "mse_loss");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, focal_loss);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
