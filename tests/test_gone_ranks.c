/* Ranks that die, hang or leave: the others get the same text, in time. */
#include "support/ranks.h"

#include "comm/comm.h"
#include "comm/shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static float data[1000];

static void killed(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 2)
        raise(SIGKILL);
    double start = now();
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, data, 1000, SHARD_FLOAT32, SHARD_SUM), SHARD_ERROR_PEER);
    ck_assert_double_lt(now() - start, 5);
    check_error(SHARD_ERROR_PEER, "rank 2 died*all_reduce*");
    /* There is no more working together, at once and with the same text. */
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_PEER);
    check_error(SHARD_ERROR_PEER, "this group cannot be used any more, *: rank 2 died*all_reduce*");
}

START_TEST(test_killed)
{
    run_ranks(rank_counts[_i + 2], killed, .may_fail = 1 << 2);
}
END_TEST

/* Anywhere inside a large collective. */
static void killed_inside(shard_group *world, void *context)
{
    (void)context;
    int64_t count = 1000000;
    float *large = calloc((size_t)count, sizeof *large);
    struct itimerval soon = {.it_value.tv_usec = 30000};
    if (shard_group_rank(world) == 1)
        setitimer(ITIMER_REAL, &soon, NULL);
    double start = now();
    while (shard_group_all_reduce(world, NULL, large, count, SHARD_FLOAT32, SHARD_SUM) == SHARD_OK)
        ck_assert_double_lt(now() - start, 20);
    check_error(SHARD_ERROR_PEER, "rank 1 died*all_reduce*");
    free(large);
}

START_TEST(test_killed_inside)
{
    run_ranks(4, killed_inside, .may_fail = 1 << 1);
}
END_TEST

static void late(shard_group *world, void *context)
{
    _Atomic int *told = context;
    bool is_late = shard_group_rank(world) % 2 != 0;
    if (is_late)
        ck_assert(await_count(told, 2));
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_TIMEOUT);
    check_error(SHARD_ERROR_TIMEOUT, "ranks 1 and 3 did not come to shard_barrier *");
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_TIMEOUT);
    check_error(SHARD_ERROR_TIMEOUT, "this group cannot be used any more, *: ranks 1 and 3 did not come to shard_barrier *");
    if (!is_late)
        ++*told;
}

START_TEST(test_deadline)
{
    run_ranks(4, late, .context = (void *)shared_count(), .timeout = "2");
}
END_TEST

/* Rank 3 hangs. Rank 0 waits for rank 1, which waits for it: all name the one that hangs, and
 * wait for it once, in whatever group. No rank leaves before all have the error. */
static void hangs(shard_group *world, void *context)
{
    _Atomic int *told = context;
    static const int row[4][2] = {{0, 1}, {0, 1}, {2, 3}, {2, 3}}, column[4][2] = {{0, 2}, {1, 3}, {0, 2}, {1, 3}};
    int rank = shard_group_rank(world);
    shard_group *rows = shard_group_make(world, row[rank], 2), *columns = shard_group_make(world, column[rank], 2);
    if (rank == 3)
        ck_assert(await_count(told, 3));
    double start = now();
    ck_assert_int_eq(shard_barrier(rank == 1 || rank == 3 ? columns : rows), SHARD_ERROR_TIMEOUT);
    check_error(SHARD_ERROR_TIMEOUT, "rank 3 did not come to shard_barrier *");
    double first = now() - start;
    ck_assert_double_lt(first, 3.8); /* once: less than two deadlines; the second time, less than one */
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_TIMEOUT);
    ck_assert_double_lt(now() - start - first, 1.8);
    check_error(SHARD_ERROR_TIMEOUT, "rank 3 did not come to shard_barrier *");
    ++*told;
    ck_assert(await_count(told, 3));
    shard_group_free(rows);
    shard_group_free(columns);
}

START_TEST(test_hangs)
{
    run_ranks(4, hangs, .context = (void *)shared_count(), .timeout = "2");
}
END_TEST

/* Two groups of the same members: who waits for whom is a circle. */
static void crosses(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_group *same = shard_group_make(world, (const int[]){0, 1, 2}, 3);
    ck_assert_int_eq(shard_barrier(rank == 1 ? world : same), SHARD_ERROR_TIMEOUT);
    check_error(SHARD_ERROR_TIMEOUT, "rank 1 did not come to shard_barrier *waited in shard_barrier");
    shard_group_free(same);
}

START_TEST(test_crosses)
{
    run_ranks(3, crosses, .timeout = "2");
}
END_TEST

/* The lock of the segment's list of groups, as a rank has it that is stopped in the wrong moment. */
static void holds_the_list(shard_group *world, void *context)
{
    _Atomic int *told = context;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%s", getenv("SHARD_SHM_FD"));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHARD_SEGMENT_RANKS, .l_len = 1};
    int file = open(path, O_RDWR);
    if (shard_group_rank(world) == 1)
        ck_assert_int_eq(fcntl(file, F_OFD_SETLK, &lock), 0);
    check_ok(shard_barrier(world));
    double start = now();
    if (shard_group_rank(world) == 0) {
        ck_assert_ptr_null(shard_group_make(world, (const int[]){0, 1}, 2));
        check_error(SHARD_ERROR_TIMEOUT, "*making of a group*");
        ck_assert_double_lt(now() - start, 8 * deadline_multiplier());
        ++*told;
    } else
        ck_assert(await_count(told, 1));
    close(file);
}

START_TEST(test_holds_the_list)
{
    run_ranks(2, holds_the_list, .context = (void *)shared_count(), .timeout = "1");
}
END_TEST

/* A child that is forked after the start is no rank: what it does is nothing to the others. */
static void forks(shard_group *world, void *context)
{
    (void)context;
    shard_group *pair = shard_group_make(world, (const int[]){0, 1}, 2);
    pid_t child = shard_group_rank(world) == 1 ? fork() : -1;
    if (child == 0) {
        bool refused = shard_barrier(world) == SHARD_ERROR_UNAVAILABLE;
        shard_clear_error();
        refused &= shard_group_make(world, (const int[]){0, 1}, 2) == NULL;
        shard_group_free(pair);
        shard_world_close(world);
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    if (child > 0)
        ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    usleep(200 * 1000); /* the other rank waits and looks around */
    check_ok(shard_barrier(world));
    check_ok(shard_barrier(pair));
    shard_group_free(pair);
}

START_TEST(test_forks)
{
    run_ranks(2, forks);
}
END_TEST

/* A rank lives as long as its process, whatever descriptors that closes; a child that outlives it
 * does not keep it alive. */
static void closes_descriptors(shard_group *world, void *context)
{
    _Atomic int *told = context;
    if (shard_group_rank(world) == 1) {
        close(dup(atoi(getenv("SHARD_SHM_FD"))));
        usleep(300 * 1000);
    }
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 1) {
        if (fork() == 0) {
            await_count(told, 1);
            _exit(0);
        }
        raise(SIGKILL);
    }
    double start = now();
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_PEER);
    check_error(SHARD_ERROR_PEER, "rank 1 died*shard_barrier");
    ck_assert_double_lt(now() - start, 10 * deadline_multiplier());
    ++*told;
}

START_TEST(test_closes_descriptors)
{
    run_ranks(2, closes_descriptors, .context = (void *)shared_count(), .may_fail = 1 << 1);
}
END_TEST

static void leaves(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        return;
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, data, 10, SHARD_FLOAT64, SHARD_MAX), SHARD_ERROR_PEER);
    check_error(SHARD_ERROR_PEER, "rank 1 has left*all_reduce*");
}

START_TEST(test_leaves)
{
    run_ranks(3, leaves);
}
END_TEST

/* The rank that fails does not come to a collective any more, but closes its world:
 * those that wait for it, in any group, get its text. */
static void leaves_with_an_error(shard_group *none, void *context)
{
    (void)none, (void)context;
    shard_group *world = shard_world_open(NULL, NULL);
    int rank = shard_group_rank(world);
    shard_group *pair = rank == 1 ? NULL : shard_group_make(world, (const int[]){0, 2}, 2);
    if (rank == 0) {
        shard_error(SHARD_ERROR_IO, "model.safetensors: no space left on device");
        shard_world_close(world);
        shard_group_free(pair);
        exit(1);
    }
    ck_assert_int_eq(shard_barrier(rank == 1 ? world : pair), SHARD_ERROR_PEER);
    check_error(SHARD_ERROR_PEER, "rank 0: model.safetensors: no space left on device");
    shard_group_free(pair);
    shard_world_close(world);
}

START_TEST(test_leaves_with_an_error)
{
    run_ranks(3, leaves_with_an_error, .bare = true, .may_fail = 1 << 0);
}
END_TEST

static void never_joins(shard_group *none, void *context)
{
    (void)none, (void)context;
    if (atoi(getenv("RANK")) == 1)
        exit(0);
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(SHARD_ERROR_PEER, "rank 1 ended*joined*");
}

START_TEST(test_never_joins)
{
    run_ranks(3, never_joins, .bare = true);
}
END_TEST

/* A rank that has an error from before the job begins joins, so that the others learn of it. */
static void failed_before(shard_group *none, void *context)
{
    (void)none, (void)context;
    bool odd = atoi(getenv("RANK")) == 1;
    if (odd)
        shard_error(SHARD_ERROR_IO, "settings.txt: no such file");
    ck_assert_ptr_null(shard_world_open(NULL, NULL));
    check_error(odd ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: settings.txt: no such file");
}

START_TEST(test_failed_before)
{
    run_ranks(3, failed_before, .bare = true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gone ranks");
    TCase *tcase = test_case(suite, "going");
    tcase_add_loop_test(tcase, test_killed, 0, 3);
    tcase_add_test(tcase, test_killed_inside);
    tcase_add_test(tcase, test_deadline);
    tcase_add_test(tcase, test_hangs);
    tcase_add_test(tcase, test_crosses);
    tcase_add_test(tcase, test_holds_the_list);
    tcase_add_test(tcase, test_forks);
    tcase_add_test(tcase, test_closes_descriptors);
    tcase_add_test(tcase, test_leaves);
    tcase_add_test(tcase, test_leaves_with_an_error);
    tcase_add_test(tcase, test_never_joins);
    tcase_add_test(tcase, test_failed_before);
    return test_run(suite);
}
