/* logsumexp, and softmax of logits whose classes are split. */
#include "support/gradcheck.h"
#include "support/job.h"
#include "support/rules.h"

#include <math.h>
#include <stdlib.h>

typedef struct reduction {
    int dim;
    bool keepdim;
} reduction;

static shard_tensor *logsumexp(shard_tensor *const *x, const void *options)
{
    const reduction *r = options;
    return shard_logsumexp(x[0], r->dim, r->keepdim);
}

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

/* A teacher's probabilities and a student's: both of split logits. */
static shard_tensor *distillation(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *teacher = shard_softmax(shard_scale(x[1], 0.5)), *student = shard_log_softmax(shard_scale(x[0], 0.5));
    return shard_sum_dim(shard_mul(teacher, student), -1, false);
}

static const operation operations[] = {
    {"the last dimension", logsumexp, &(reduction){-1, false}, 1, {SHARD_SHAPE(2, 3, 5)}, .needs = 1},
    {"the last dimension, kept", logsumexp, &(reduction){2, true}, 1, {SHARD_SHAPE(2, 3, 5)}, .needs = 1},
    {"the first dimension", logsumexp, &(reduction){0, false}, 1, {SHARD_SHAPE(4, 3, 2)}},
    {"the middle, kept", logsumexp, &(reduction){1, true}, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"a vector", logsumexp, &(reduction){0, false}, 1, {SHARD_SHAPE(5)}, .needs = 1},
    {"no rows", logsumexp, &(reduction){-1, false}, 1, {SHARD_SHAPE(0, 3)}, .needs = 1},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

static const rule rules[] = {
    {"rows", logsumexp, &(reduction){-1, false}, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"rows, of a dimension before the last", logsumexp, &(reduction){1, true}, 1, {SHARD_SHAPE(9, 4, 3)}, {0}, 0},
    {"columns", logsumexp, &(reduction){-1, false}, 1, {SHARD_SHAPE(4, 11)}, {1}, WHOLE},
    {"columns, kept", logsumexp, &(reduction){-1, true}, 1, {SHARD_SHAPE(2, 3, 11)}, {2}, WHOLE},
    {"the first dimension", logsumexp, &(reduction){0, false}, 1, {SHARD_SHAPE(11, 3)}, {0}, WHOLE},
    {"fewer columns than ranks", logsumexp, &(reduction){-1, false}, 1, {SHARD_SHAPE(4, 2)}, {1}, WHOLE},
    {"softmax", softmax, NULL, 1, {SHARD_SHAPE(2, 3, 11)}, {2}, 2},
    {"softmax of a vector", softmax, NULL, 1, {SHARD_SHAPE(11)}, {0}, 0},
    {"softmax, fewer columns than ranks", softmax, NULL, 1, {SHARD_SHAPE(4, 2)}, {1}, 1},
    {"softmax of no rows", softmax, NULL, 1, {SHARD_SHAPE(0, 5)}, {1}, 1},
    {"log_softmax", log_softmax, NULL, 1, {SHARD_SHAPE(4, 11)}, {1}, 1},
    {"log_softmax, fewer columns than ranks", log_softmax, NULL, 1, {SHARD_SHAPE(4, 2)}, {1}, 1},
    {"distillation", distillation, NULL, 2, {SHARD_SHAPE(4, 11), SHARD_SHAPE(4, 11)}, {1, 1}, PARTIAL},
};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
}

START_TEST(placements)
{
    run_job(rank_counts[_i], check_rules, NULL);
}
END_TEST

/* Rows of large numbers, of -inf, and of no elements. */
START_TEST(extremes)
{
    static const double values[] = {1000, 1001, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -1000, -INFINITY, -1000};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(3, 3), .dtype = SHARD_FLOAT64);
        double *of_rows = values_of(shard_logsumexp(x, 1, false));
        ck_assert_double_eq_tol(of_rows[0], 1001 + log1p(exp(-1)), 1e-12);
        ck_assert(of_rows[1] == -INFINITY);
        ck_assert_double_eq_tol(of_rows[2], -1000 + log(2), 1e-12);
        double *of_nothing = values_of(shard_logsumexp(shard_zeros(SHARD_SHAPE(1, 0)), 1, false));
        ck_assert(of_nothing[0] == -INFINITY);
        free(of_rows);
        free(of_nothing);
    }
}
END_TEST

/* Of each type, split as whole: float32 and narrower types have float32's exponentials. */
static void is_whole(shard_group *world, void *context)
{
    shard_dtype dtype = *(shard_dtype *)context;
    shard_range part = shard_split_range(301, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE {
        shard_tensor *whole = shard_cast(made_up(SHARD_SHAPE(5, 301), 1, SHARD_FLOAT64), dtype);
        whole = shard_add_scalar(whole, 4);
        shard_tensor *x = shard_as_split(shard_narrow(whole, 1, part.start, part.size), 1, world, part.start, 301);
        static const double units[SHARD_DTYPES] = {
            [SHARD_FLOAT64] = 0x1p-48, [SHARD_FLOAT32] = 0x1p-21, [SHARD_FLOAT16] = 0x1p-11, [SHARD_BFLOAT16] = 0x1p-8};
        double unit = units[dtype];
        shard_tensor *y = shard_softmax(x), *logs = shard_log_softmax(x);
        ck_assert_int_eq(shard_tensor_dtype(y), dtype);
        /* Times a power of two, so that they are of the size of 1, to which the tolerance is relative. */
        double *probabilities = values_of(shard_scale(shard_softmax(whole), 256)),
               *logarithms = values_of(shard_log_softmax(whole)), *sums = values_of(shard_logsumexp(whole, -1, false));
        check_part(shard_scale(y, 256), probabilities, unit);
        check_part(logs, logarithms, unit);
        check_part(shard_logsumexp(x, -1, false), sums, unit);
        free(probabilities);
        free(logarithms);
        free(sums);
    }
}

START_TEST(types)
{
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        if (shard_dtype_is_float(dtype))
            run_job(rank_counts[_i], is_whole, &dtype);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_logsumexp(x, 2, false), SHARD_ERROR_ARGUMENT, "shard_logsumexp: dimension 2 *");
        check_refused(shard_logsumexp(shard_zeros(SHARD_SCALAR), 0, false), SHARD_ERROR_ARGUMENT,
                      "shard_logsumexp: dimension 0 *");
        check_refused(shard_logsumexp(shard_cast(x, SHARD_INT64), 0, false), SHARD_ERROR_SHAPE, "shard_logsumexp: *int64*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("logsumexp");
    TCase *tcase = test_case(suite, "logsumexp");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    add_ranks_test(tcase, placements);
    tcase_add_test(tcase, extremes);
    add_ranks_test(tcase, types);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
