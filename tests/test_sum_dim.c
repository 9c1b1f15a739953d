/* sum and mean along a dimension: against finite differences, and as parts of a whole. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include <math.h>

typedef struct along {
    int dim;
    bool keepdim;
} along;

static shard_tensor *sum(shard_tensor *const *x, const void *options)
{
    const along *how = options;
    return shard_sum_dim(x[0], how->dim, how->keepdim);
}

static shard_tensor *mean(shard_tensor *const *x, const void *options)
{
    const along *how = options;
    return shard_mean_dim(x[0], how->dim, how->keepdim);
}

static const along first = {0, false}, first_kept = {0, true}, middle = {1, false}, last = {-1, false}, last_kept = {-1, true};

static const operation operations[] = {
    {"sum of a vector", sum, &first, 1, {SHARD_SHAPE(7)}},
    {"sum over rows", sum, &first, 1, {SHARD_SHAPE(3, 5)}},
    {"sum over rows, kept", sum, &first_kept, 1, {SHARD_SHAPE(3, 5)}},
    {"sum over the middle", sum, &middle, 1, {SHARD_SHAPE(2, 3, 4)}},
    {"sum over the last", sum, &last, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"sum over one", sum, &last_kept, 1, {SHARD_SHAPE(3, 1)}},
    {"sum over nothing", sum, &middle, 1, {SHARD_SHAPE(2, 0, 3)}},
    {"sum of no rows", sum, &last, 1, {SHARD_SHAPE(0, 3)}},
    {"mean over the middle", mean, &middle, 1, {SHARD_SHAPE(2, 3, 4)}},
    {"mean over the last, kept", mean, &last_kept, 1, {SHARD_SHAPE(3, 5)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Of 0 elements: 0 and NaN; of many: a 16-bit running sum would stop growing, or overflow. */
START_TEST(known_values)
{
    SHARD_SCOPE
    {
        shard_tensor *none = shard_zeros(SHARD_SHAPE(2, 0));
        ck_assert_double_eq(value_at(shard_sum_dim(none, 1, false), 1), 0);
        ck_assert(isnan(value_at(shard_mean_dim(none, 1, false), 1)));
        shard_tensor *many = shard_full(SHARD_SHAPE(2, 4096), 1.0, .dtype = SHARD_BFLOAT16);
        ck_assert_double_eq(value_at(shard_sum_dim(many, 1, false), 1), 4096);
        shard_tensor *large = shard_full(SHARD_SHAPE(1000, 2), 1000.0, .dtype = SHARD_FLOAT16);
        ck_assert_double_eq(value_at(shard_mean_dim(large, 0, false), 1), 1000);
    }
}
END_TEST

/* PARTIAL sums, summed again. */
static shard_tensor *sum_of_partial(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mean_dim(shard_sum_dim(shard_transpose(x[0], 0, 1), 1, true), 1, false);
}

static const rule rules[] = {
    {"sum beside the split", sum, &last, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"sum before the split", sum, &first, 1, {SHARD_SHAPE(4, 9)}, {1}, 0},
    {"sum before the split, kept", sum, &first_kept, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"sum in the middle of it", sum, &middle, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, 1},
    {"mean in the middle of it", mean, &middle, 1, {SHARD_SHAPE(9, 3, 2)}, {0}, 0},
    {"sum over the split", sum, &middle, 1, {SHARD_SHAPE(2, 9, 3)}, {1}, PARTIAL},
    {"mean over the split", mean, &last_kept, 1, {SHARD_SHAPE(2, 9)}, {1}, PARTIAL},
    {"mean over the split, some parts empty", mean, &first, 1, {SHARD_SHAPE(2, 3)}, {0}, PARTIAL},
    {"mean of partial sums", sum_of_partial, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, PARTIAL},
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
        check_refused(shard_sum_dim(x, 2, false), SHARD_ERROR_ARGUMENT, "shard_sum_dim: dimension 2 of*");
        check_refused(shard_mean_dim(x, -3, false), SHARD_ERROR_ARGUMENT, "shard_mean_dim: dimension -3 of *");
        check_refused(shard_sum_dim(shard_zeros(SHARD_SCALAR), 0, false), SHARD_ERROR_ARGUMENT,
                      "shard_sum_dim: dimension 0 of *");
        check_refused(shard_mean_dim(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64), 0, false), SHARD_ERROR_SHAPE,
                      "shard_mean_dim: *int64*");
        check_refused(shard_sum_dim(NULL, 0, false), SHARD_ERROR_ARGUMENT, "shard_sum_dim: an operand *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sum_dim");
    TCase *tcase = test_case(suite, "sum_dim");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, known_values);
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
