/* softmax, log_softmax. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

static shard_tensor *softmax(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_softmax(x[0]);
}

static shard_tensor *log_softmax(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_log_softmax(x[0]);
}

static const operation operations[] = {
    {"softmax", softmax, NULL, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"softmax of a vector", softmax, NULL, 1, {SHARD_SHAPE(5)}},
    {"softmax of one", softmax, NULL, 1, {SHARD_SHAPE(3, 1)}, .constant = 1},
    {"softmax of no rows", softmax, NULL, 1, {SHARD_SHAPE(0, 3)}},
    {"softmax of no columns", softmax, NULL, 1, {SHARD_SHAPE(3, 0)}},
    {"log_softmax", log_softmax, NULL, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"log_softmax of no columns", log_softmax, NULL, 1, {SHARD_SHAPE(3, 0)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(does_not_overflow)
{
    static const double values[] = {1000, 1001, -1000, -INFINITY};
    double e = exp(1), expected[] = {1 / (1 + e), e / (1 + e), 0, 0};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(4), .dtype = SHARD_FLOAT64);
        check_tensor("softmax", shard_softmax(x), expected, 1e-15);
        double *logs = values_of(shard_log_softmax(x));
        ck_assert_double_eq_tol(logs[0], -log(1 + e), 1e-12);
        ck_assert_double_eq_tol(logs[2], -2000 - log(1 + e), 1e-12);
        ck_assert(logs[3] == -INFINITY);
        free(logs);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        check_refused(shard_softmax(shard_zeros(SHARD_SCALAR)), SHARD_ERROR_SHAPE, "shard_softmax: x has shape *");
        check_refused(shard_log_softmax(NULL), SHARD_ERROR_ARGUMENT, "shard_log_softmax: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("softmax");
    TCase *tcase = test_case(suite, "softmax");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, does_not_overflow);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
