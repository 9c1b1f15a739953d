/* scale, neg. */
#include "support/gradcheck.h"

static shard_tensor *scale(shard_tensor *const *x, const void *factor)
{
    return shard_scale(x[0], *(const double *)factor);
}

static shard_tensor *neg(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_neg(x[0]);
}

static const operation operations[] = {
    {"scale", scale, &(double){-2.5}, 1, {SHARD_SHAPE(7, 9)}},
    {"scale by 0", scale, &(double){0}, 1, {SHARD_SHAPE(3)}, .constant = 1},
    {"scale a scalar", scale, &(double){3}, 1, {SHARD_SCALAR}},
    {"neg", neg, NULL, 1, {SHARD_SHAPE(7, 9)}},
    {"scale nothing", scale, &(double){3}, 1, {SHARD_SHAPE(0)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
        check_refused(shard_scale(shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_UINT8), 2), SHARD_ERROR_SHAPE,
                      "shard_scale: operand 0 is uint8*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scale");
    TCase *tcase = test_case(suite, "scale");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
