#include "support/ranks.h"

#include "comm/comm.h"

static void adds(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    float value = (float)rank;
    check_ok(shard_group_all_reduce(world, &value, 1, SHARD_FLOAT32, SHARD_SUM));
    ck_assert_float_eq(value, (float)(size * (size - 1) / 2));
}

START_TEST(test_all_reduce)
{
    run_ranks(rank_counts[_i], adds);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *tcase = test_case(suite, "collectives");
    add_ranks_test(tcase, test_all_reduce);
    return test_run(suite);
}
