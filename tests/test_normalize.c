/* normalize: against finite differences, as parts of a whole, and where the norm is 0. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include <math.h>
#include <stdlib.h>

static shard_tensor *normalize(shard_tensor *const *x, const void *dim)
{
    return shard_normalize(x[0], *(const int *)dim, 1e-12);
}

static shard_tensor *with_large_eps(shard_tensor *const *x, const void *dim)
{
    return shard_normalize(x[0], *(const int *)dim, 3.5);
}

static const int dims[] = {0, 1, 2};
static const int last = -1;

static const operation operations[] = {
    {"normalize", normalize, &last, 1, {SHARD_SHAPE(4, 5)}, .needs = 1},
    {"normalize along the first", normalize, &dims[0], 1, {SHARD_SHAPE(4, 5)}, .needs = 1},
    {"normalize along the middle", normalize, &dims[1], 1, {SHARD_SHAPE(2, 3, 4)}, .needs = 1},
    {"normalize a vector", normalize, &dims[0], 1, {SHARD_SHAPE(5)}, .needs = 1},
    {"normalize no rows", normalize, &dims[1], 1, {SHARD_SHAPE(0, 3)}, .needs = 1},
    {"normalize no columns", normalize, &dims[1], 1, {SHARD_SHAPE(3, 0)}, .needs = 1},
    {"normalize nothing along the middle", normalize, &dims[1], 1, {SHARD_SHAPE(2, 0, 4)}, .needs = 1},
    /* Some norms are below eps, some above. */
    {"normalize by eps", with_large_eps, &dims[1], 1, {SHARD_SHAPE(5, 4)}, .needs = 1},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* 3, 4 and a row of zeros, whose gradient is dy / eps; numbers whose squares float32 does not have. */
START_TEST(known_values)
{
    static const double values[] = {3, 4, 0, 0, 3e30, -4e30, 3e-30, 0}, expected[] = {0.6, 0.8, 0, 0, 0.6, -0.8, 3e-18, 0};
    for (int wide = 0; wide < 2; wide++)
        SHARD_SCOPE
        {
            shard_tensor *x = shard_from_host(values, SHARD_SHAPE(4, 2), .dtype = SHARD_FLOAT64);
            x = shard_detach(shard_cast(x, wide ? SHARD_FLOAT64 : SHARD_FLOAT32));
            shard_set_requires_grad(x, true);
            shard_tensor *y = shard_normalize(x, -1, 1e-12);
            check_tensor("normalize", y, expected, 1e-6);
            ck_assert_double_eq_tol(value_at(y, 6), 3e-18, 1e-23);
            check_ok(shard_backward_from(y, shard_ones(SHARD_SHAPE(4, 2), .dtype = wide ? SHARD_FLOAT64 : SHARD_FLOAT32)));
            ck_assert_double_eq_tol(value_at(shard_grad(x), 0), (1 - 0.6 * 1.4) / 5, 1e-7);
            ck_assert_double_eq_tol(value_at(shard_grad(x), 2), 1e12, 1e5);
            ck_assert_double_eq_tol(value_at(shard_grad(x), 7), 1e12, 1e5);
        }
}
END_TEST

/* Along the first dimension, and a norm below eps. */
START_TEST(known_values_of_options)
{
    static const double values[] = {3, 0, 4, 2}, columns[] = {0.6, 0, 0.8, 1}, small[] = {1, 2}, by_eps[] = {1 / 3.5, 2 / 3.5};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64);
        check_tensor("along the first", shard_normalize(x, 0, 1e-12), columns, 1e-15);
        x = shard_from_host(small, SHARD_SHAPE(1, 2), .dtype = SHARD_FLOAT64);
        check_tensor("by eps", shard_normalize(x, -1, 3.5), by_eps, 1e-15);
    }
}
END_TEST

static const rule rules[] = {
    {"normalize, rows split", normalize, &dims[1], 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"normalize, the last split", normalize, &dims[1], 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"normalize, the first split", normalize, &dims[0], 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"normalize, the middle split", normalize, &dims[1], 1, {SHARD_SHAPE(2, 9, 3)}, {1}, 1},
    {"normalize beside the split", normalize, &dims[2], 1, {SHARD_SHAPE(2, 9, 3)}, {1}, 1},
    {"normalize a split vector", normalize, &dims[0], 1, {SHARD_SHAPE(9)}, {0}, 0},
    {"normalize, some parts empty", normalize, &dims[1], 1, {SHARD_SHAPE(4, 2)}, {1}, 1},
    {"normalize by eps, split", with_large_eps, &dims[1], 1, {SHARD_SHAPE(9, 4)}, {1}, 1},
};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
}

START_TEST(parts_make_the_whole)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_normalize(x, 2, 1e-12), SHARD_ERROR_ARGUMENT, "shard_normalize: dimension 2 of*");
        check_refused(shard_normalize(x, 1, -1), SHARD_ERROR_ARGUMENT, "shard_normalize: eps is -1*");
        check_refused(shard_normalize(x, 1, NAN), SHARD_ERROR_ARGUMENT, "shard_normalize: eps is *nan*");
        check_refused(shard_normalize(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64), 0, 0), SHARD_ERROR_SHAPE,
                      "shard_normalize: *int64*");
        check_refused(shard_normalize(NULL, 0, 1e-12), SHARD_ERROR_ARGUMENT, "shard_normalize: an operand *");
    }
}
END_TEST

/* One rank's error is all ranks'. */
static void fails_together(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_zeros(SHARD_SHAPE(2, 3)), 1, world, 3 * rank, 6);
        ck_assert_ptr_null(shard_normalize(x, 1, rank == 1 ? -1 : 1e-12));
        check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: shard_normalize: eps *");
    }
}

START_TEST(test_fails_together)
{
    run_ranks(2, fails_together);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normalize");
    TCase *tcase = test_case(suite, "normalize");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, known_values);
    tcase_add_test(tcase, known_values_of_options);
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, test_fails_together);
    return test_run(suite);
}
