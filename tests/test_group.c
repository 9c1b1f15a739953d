/* Every collective over shared memory, for every dtype and operation, uneven
 * pieces, sizes of many chunks; groups in groups, many of them, one after the
 * other. */
#include "support/collectives.h"
#include "support/ranks.h"

#include "comm/comm.h"

#include <stdlib.h>
#include <sys/stat.h>

/* Shared memory adds in rank order; what carries a GPU's data may not. */
static sum_order shm_order(void)
{
    shard_device *device = shard_default_device();
    return device && device->ops->host_memory ? RANK_ORDER : ANY_ORDER;
}

static void all_reduces(shard_group *world, void *context)
{
    (void)context;
    ck_assert_str_eq(shard_group_transport(world), "shm");
    check_all_reduce(world, shm_order());
    check_all_reduce_start(world, shm_order());
}

START_TEST(test_all_reduce)
{
    run_ranks(rank_counts[_i], all_reduces);
}
END_TEST

static void gathers(shard_group *world, void *context)
{
    (void)context;
    check_all_gather(world);
    check_broadcast(world);
    check_exchange(world);
}

START_TEST(test_all_gather)
{
    run_ranks(rank_counts[_i], gathers);
}
END_TEST

static void reduce_scatters(shard_group *world, void *context)
{
    (void)context;
    check_reduce_scatter(world, shm_order());
}

START_TEST(test_reduce_scatter)
{
    run_ranks(rank_counts[_i], reduce_scatters);
}
END_TEST

static void many_chunks(shard_group *world, void *context)
{
    (void)context;
    check_sizes(world, 200003, shm_order());
}

START_TEST(test_many_chunks)
{
    run_ranks(rank_counts[_i], many_chunks);
}
END_TEST

static void grids(shard_group *world, void *context)
{
    (void)context;
    check_grids(world, shm_order());
}

START_TEST(test_grids)
{
    static const int sizes[] = {1, 4, 6, 8};
    run_ranks(sizes[_i], grids);
}
END_TEST

static int64_t segment_bytes(void)
{
    struct stat status;
    ck_assert_int_eq(fstat(atoi(getenv("SHARD_SHM_FD")), &status), 0);
    return status.st_size;
}

/* Groups of four ranks in all orders: rank 0 and 1 twice at once, a group of a group. */
static void makes_groups(shard_group *world)
{
    int rank = shard_group_rank(world);
    shard_group *three = NULL, *pair = NULL, *again = NULL, *inner = NULL;
    if (rank != 2)
        three = shard_group_make(world, (const int[]){0, 1, 3}, 3);
    if (rank < 2) {
        pair = shard_group_make(world, (const int[]){0, 1}, 2);
        again = shard_group_make(world, (const int[]){0, 1}, 2);
        check_ok(shard_barrier(again));
        shard_group_free(pair);
        pair = shard_group_make(world, (const int[]){0, 1}, 2);
        check_ok(shard_barrier(pair));
    }
    if (rank == 0 || rank == 3) {
        inner = shard_group_make(three, (const int[]){0, 2}, 2);
        ck_assert_int_eq(shard_group_world_rank(inner, 1), 3);
        check_broadcast(inner);
    }
    int value = rank == 3 ? 5 : 1;
    if (rank != 2) {
        check_ok(shard_group_all_reduce(three, NULL, &value, 1, SHARD_INT32, SHARD_SUM));
        ck_assert_int_eq(value, 7);
    }
    shard_group_free(inner);
    shard_group_free(again);
    shard_group_free(pair);
    shard_group_free(three);
}

static void many_groups(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < 5; i++)
        makes_groups(world);
    check_ok(shard_barrier(world));
    int64_t bytes = segment_bytes();
    check_ok(shard_barrier(world));
    for (int i = 0; i < 120; i++)
        makes_groups(world);
    check_ok(shard_barrier(world));
    /* At most the groups of two rounds live at once: ranks may be one round apart. */
    ck_assert_int_le(segment_bytes(), 2 * bytes);
}

START_TEST(test_many_groups)
{
    run_ranks(4, many_groups);
}
END_TEST

/* Without a launcher, and for the group NULL, everything is there and does what one
 * rank does. */
START_TEST(test_alone)
{
    shard_group *groups[] = {shard_world_open(NULL, NULL), NULL};
    for (int i = 0; i < 2; i++) {
        shard_group *group = groups[i];
        ck_assert_str_eq(shard_group_transport(group), "self");
        ck_assert_int_eq(shard_group_rank(group), 0);
        ck_assert_int_eq(shard_group_size(group), 1);
        check_ok(shard_barrier(group));
        check_ok(shard_agree(group));
        check_all_reduce(group, shm_order());
        check_all_reduce_start(group, shm_order());
        check_all_gather(group);
        check_reduce_scatter(group, shm_order());
        check_broadcast(group);
        check_exchange(group);
        shard_error(SHARD_ERROR_SHAPE, "a shape");
        ck_assert_int_eq(shard_agree(group), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "a shape");
    }
    shard_world_close(groups[0]);
}
END_TEST

/* Of one rank, which all hear of; the group can be split afterwards. */
static void splits_badly(shard_group *world, void *context)
{
    (void)context;
    bool bad = shard_group_rank(world) == shard_group_size(world) - 1, alone = shard_group_size(world) == 1;
    ck_assert_ptr_null(shard_group_split(world, bad ? -2 : 0));
    check_error(bad ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER,
                alone ? "shard_group_split: color -2*" : "rank 2: shard_group_split: color -2*");
    shard_group *group = shard_group_split(world, 0);
    ck_assert_int_eq(shard_group_size(group), shard_group_size(world));
    shard_group_free(group);
}

START_TEST(test_bad_color)
{
    run_ranks(_i ? 3 : 1, splits_badly);
}
END_TEST

START_TEST(test_split_range)
{
    for (int64_t size = 0; size < 40; size++)
        for (int members = 1; members < 9; members++) {
            int64_t next = 0;
            for (int member = 0; member < members; member++) {
                shard_range range = shard_split_range(size, members, member);
                ck_assert_int_eq(range.start, next);
                ck_assert_int_eq(range.size, size / members + (member < size % members));
                next += range.size;
            }
            ck_assert_int_eq(next, size);
        }
    static const int64_t wrong[][3] = {{5, 0, 0}, {5, -2, 0}, {5, 2, 2}, {5, 2, -1}, {-5, 2, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        shard_range range = shard_split_range(wrong[i][0], (int)wrong[i][1], (int)wrong[i][2]);
        ck_assert(range.start == 0 && range.size == 0);
        check_error(SHARD_ERROR_ARGUMENT, "shard_split_range: * elements, rank * of *");
    }
}
END_TEST

/* The world that the environment promises must be the one that is there. */
START_TEST(test_environment)
{
    setenv("WORLD_SIZE", "4", 1);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_UNAVAILABLE, "WORLD_SIZE says that 4 ranks were started, but nothing connects them*");
    setenv("SHARD_TRANSPORT", "carrier-pigeon", 1);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "SHARD_TRANSPORT is \"carrier-pigeon\"*");
    setenv("SHARD_TRANSPORT", "self", 1);
    shard_group *world = shard_world_open(NULL, NULL);
    ck_assert_int_eq(shard_group_size(world), 1);
    shard_world_close(world);
    setenv("SHARD_TRANSPORT", "shm", 1);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_UNAVAILABLE, "shm: SHARD_SHM_FD is not set*");
    setenv("SHARD_SHM_FD", "0", 1);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_UNAVAILABLE, "shm: SHARD_SHM_FD is 0, which is no segment*");
    setenv("SHARD_TIMEOUT", "soon", 1);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "environment variable SHARD_TIMEOUT is \"soon\"*");
}
END_TEST

static void two_worlds(shard_group *none, void *context)
{
    (void)none, (void)context;
    shard_group *world = shard_world_open(NULL, NULL);
    ck_assert_ptr_nonnull(world);
    shard_world_close(world);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    shard_clear_error();
}

START_TEST(test_world_is_left_once)
{
    run_ranks(2, two_worlds, .bare = true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *tcase = test_case(suite, "collectives");
    add_ranks_test(tcase, test_all_reduce);
    add_ranks_test(tcase, test_all_gather);
    add_ranks_test(tcase, test_reduce_scatter);
    add_ranks_test(tcase, test_many_chunks);
    tcase = test_case(suite, "groups");
    tcase_add_loop_test(tcase, test_grids, 0, 4);
    tcase_add_test(tcase, test_many_groups);
    tcase_add_loop_test(tcase, test_bad_color, 0, 2);
    tcase = test_case(suite, "world");
    tcase_add_test(tcase, test_alone);
    tcase_add_test(tcase, test_split_range);
    tcase_add_test(tcase, test_environment);
    tcase_add_test(tcase, test_world_is_left_once);
    return test_run(suite);
}
