/* sum, mean. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/ranks.h"

#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>

static shard_tensor *sum(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_sum(x[0]);
}

static shard_tensor *mean(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mean(x[0]);
}

static const operation operations[] = {
    {"sum", sum, NULL, 1, {SHARD_SHAPE(5, 7)}},
    {"sum of a scalar", sum, NULL, 1, {SHARD_SCALAR}},
    {"sum of nothing", sum, NULL, 1, {SHARD_SHAPE(3, 0)}},
    {"mean", mean, NULL, 1, {SHARD_SHAPE(5, 7)}},
    {"mean of one", mean, NULL, 1, {SHARD_SHAPE(1, 1)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* A float32 or bfloat16 running sum would stop growing. */
START_TEST(adds_many)
{
    int64_t n = (1 << 25) + 3;
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(shard_full(SHARD_SHAPE(n), 1.0))), (float)n);
        ck_assert_double_eq(shard_item(shard_mean(shard_full(SHARD_SHAPE(n), 3.0, .dtype = SHARD_BFLOAT16))), 3);
        /* The sum is beyond float16, the mean is not. */
        ck_assert_double_eq(shard_item(shard_mean(shard_full(SHARD_SHAPE(1000), 1000.0, .dtype = SHARD_FLOAT16))), 1000);
    }
}
END_TEST

START_TEST(empty)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(0), .requires_grad = true);
        ck_assert_double_eq(shard_item(shard_sum(x)), 0);
        shard_tensor *y = shard_mean(x);
        ck_assert(isnan(shard_item(y))); /* as torch's */
        check_ok(shard_backward(y));
    }
}
END_TEST

/* A part's sum and mean are parts of the whole's, which shard_item does not take for the whole. */
static void adds_parts(shard_group *world, void *context)
{
    (void)context;
    shard_range part = shard_split_range(5, shard_group_size(world), shard_group_rank(world));
    double values[15];
    make_up(values, 15, 1);
    double whole = 0;
    for (int i = 0; i < 15; i++)
        whole += values[i];
    SHARD_SCOPE
    {
        shard_tensor *own = shard_from_host(values + 3 * part.start, SHARD_SHAPE(part.size, 3), .dtype = SHARD_FLOAT64);
        shard_tensor *x = shard_as_split(own, 0, world, part.start, 5);
        shard_set_requires_grad(x, true);
        shard_tensor *y = shard_mean(x);
        double total[2] = {value_at(y, 0), value_at(shard_sum(x), 0)};
        shard_placement placement = shard_tensor_placement(y);
        ck_assert_int_eq(placement.kind, shard_group_size(world) > 1 ? SHARD_PARTIAL : SHARD_LOCAL);
        double item = shard_item(y);
        if (shard_group_size(world) > 1)
            check_error(SHARD_ERROR_UNSUPPORTED, "shard_item: the tensor is partial, *");
        ck_assert(shard_group_size(world) > 1 ? isnan(item) : item == total[0]);
        check_ok(shard_backward(y));
        if (part.size)
            ck_assert_double_eq_tol(value_at(shard_grad(x), 0), 1.0 / 15, 1e-16);
        check_ok(shard_group_all_reduce(world, NULL, total, 2, SHARD_FLOAT64, SHARD_SUM));
        ck_assert_double_eq_tol(total[0], whole / 15, 1e-14);
        ck_assert_double_eq_tol(total[1], whole, 1e-13);
    }
}

START_TEST(splits)
{
    run_ranks(rank_counts[_i], adds_parts);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    check_refused(shard_sum(shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE, "shard_sum: *");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce");
    TCase *tcase = test_case(suite, "reduce");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, adds_many);
    tcase_add_test(tcase, empty);
    add_ranks_test(tcase, splits);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
