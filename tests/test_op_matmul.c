/* matmul. */
#include "support/gradcheck.h"

static shard_tensor *matmul(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_matmul(x[0], x[1]);
}

static shard_tensor *with_itself(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_matmul(x[0], x[0]);
}

static const operation operations[] = {
    {"matmul", matmul, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 5)}, .needs = 3},
    {"matmul of vectors", matmul, NULL, 2, {SHARD_SHAPE(1, 4), SHARD_SHAPE(4, 1)}, .needs = 3},
    {"batch", matmul, NULL, 2, {SHARD_SHAPE(2, 3, 2, 4), SHARD_SHAPE(2, 3, 4, 3)}, .needs = 3},
    {"batch by one", matmul, NULL, 2, {SHARD_SHAPE(2, 3, 4), SHARD_SHAPE(4, 5)}, .needs = 3},
    {"with itself", with_itself, NULL, 1, {SHARD_SHAPE(2, 3, 3)}, .needs = 1},
    {"no rows", matmul, NULL, 2, {SHARD_SHAPE(0, 4), SHARD_SHAPE(4, 5)}, .needs = 3},
    {"no sum", matmul, NULL, 2, {SHARD_SHAPE(3, 0), SHARD_SHAPE(0, 5)}, .needs = 3},
    {"no columns", matmul, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 0)}, .needs = 3},
    {"no batch", matmul, NULL, 2, {SHARD_SHAPE(0, 3, 4), SHARD_SHAPE(0, 4, 5)}, .needs = 3},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *a = shard_zeros(SHARD_SHAPE(2, 3, 4));
        check_refused(shard_matmul(a, shard_zeros(SHARD_SHAPE(3, 4))), SHARD_ERROR_SHAPE,
                      "shard_matmul: shapes [[]2, 3, 4] and [[]3, 4]; *are needed");
        check_refused(shard_matmul(a, shard_zeros(SHARD_SHAPE(3, 4, 5))), SHARD_ERROR_SHAPE, "shard_matmul: shapes *");
        check_refused(shard_matmul(a, shard_zeros(SHARD_SHAPE(4))), SHARD_ERROR_SHAPE, "shard_matmul: shapes *");
        check_refused(shard_matmul(shard_zeros(SHARD_SHAPE(2, 4)), shard_zeros(SHARD_SHAPE(2, 4, 4))), SHARD_ERROR_SHAPE,
                      "shard_matmul: shapes *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op_matmul");
    TCase *tcase = test_case(suite, "matmul");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
