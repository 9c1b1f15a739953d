/* How ranks share the cores that they may run on. */
#include "support/check.h"

#include "distributed/threads.h"

#include <limits.h>

static shard_rank_cores rank_cores(uint64_t host, int first, int count)
{
    shard_rank_cores made = {.host = host, .quota = {INT_MAX, 0}};
    for (int i = 0; i < count; i++)
        CPU_SET((size_t)(first + i), &made.cores);
    return made;
}

static void check_threads(const shard_rank_cores *all, int ranks, const int *threads)
{
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_int_eq(shard_fair_threads(all, ranks, rank), threads[rank]);
}

START_TEST(test_not_bound)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 9), rank_cores(1, 0, 9), rank_cores(1, 0, 9), rank_cores(2, 0, 5),
                              rank_cores(2, 0, 5)};
    check_threads(all, 5, (const int[]){3, 3, 3, 2, 2}); /* 2 machines */
}
END_TEST

START_TEST(test_bound)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 4), rank_cores(1, 4, 4), rank_cores(1, 1023, 1)};
    check_threads(all, 3, (const int[]){4, 4, 1});
}
END_TEST

START_TEST(test_overlapping)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 8), rank_cores(1, 4, 4), rank_cores(1, 4, 2)};
    check_threads(all, 3, (const int[]){5, 1, 1}); /* 4 + 2/3 + 1, 2/3 + 1, 2/3 */
}
END_TEST

START_TEST(test_more_ranks_than_cores)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 2), rank_cores(1, 0, 2), rank_cores(1, 0, 2), rank_cores(1, 0, 0)};
    check_threads(all, 4, (const int[]){1, 1, 1, 1});
}
END_TEST

START_TEST(test_quotas)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 64), rank_cores(1, 0, 64), rank_cores(1, 0, 64), rank_cores(2, 0, 64),
                              rank_cores(2, 0, 64)};
    all[0].quota = all[1].quota = (shard_cpu_quota){5, 17};
    all[2].quota = (shard_cpu_quota){5, 18};
    all[3].quota = (shard_cpu_quota){50, 17};
    check_threads(all, 5, (const int[]){2, 2, 5, 32, 32});
}
END_TEST

START_TEST(test_more_ranks_than_quota)
{
    shard_rank_cores all[] = {rank_cores(1, 0, 64), rank_cores(1, 0, 64), rank_cores(1, 0, 64)};
    all[0].quota = all[1].quota = all[2].quota = (shard_cpu_quota){2, 17};
    check_threads(all, 3, (const int[]){1, 1, 1});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("threads");
    TCase *tcase = test_case(suite, "threads");
    tcase_add_test(tcase, test_not_bound);
    tcase_add_test(tcase, test_bound);
    tcase_add_test(tcase, test_overlapping);
    tcase_add_test(tcase, test_more_ranks_than_cores);
    tcase_add_test(tcase, test_quotas);
    tcase_add_test(tcase, test_more_ranks_than_quota);
    return test_run(suite);
}
