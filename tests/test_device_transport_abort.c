/*
 * Collectives of GPU memory that cannot come to their end, on emulated GPUs: a rank dies or
 * hangs in the middle, with one communicator or several on the stream, and groups are left
 * with an error. All ranks fail and none waits for good.
 */
#include "support/collectives.h"
#include "support/gpu.h"
#include "support/job.h"

#include "base/clock.h"
#include "device/cuda/cuda.h"

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void die(void *unused)
{
    (void)unused;
    kill(getpid(), SIGKILL);
}

/* On rank 1's GPU comes `task` before its part of the sum. Another rank may learn of it in the call already. Waits for the GPU
 * by the free of pinned memory if there is some. */
static void lose(shard_group *world, cudaHostFn_t task, void *pinned)
{
    check_sum_of_ranks(world);
    float *data = make_filled(1000, 1);
    if (shard_group_rank(world) == 1)
        ck_assert_int_eq(cudaLaunchHostFunc(shard_cuda_of(gpu())->stream, task, NULL), cudaSuccess);
    shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM);
    if (pinned)
        shard_device_free_host(gpu(), pinned, 100);
    else
        shard_synchronize(gpu());
}

static void loses_one(shard_group *world, void *context)
{
    (void)context;
    lose(world, die, NULL);
    check_error(SHARD_ERROR_PEER, "rank 1 died*all_reduce*");
    float *data = make_filled(10, 1); /* the GPU goes on, its collectives do not */
    check_filled(data, 10, 1);
    ck_assert_int_ne(shard_group_all_reduce(world, gpu(), data, 10, SHARD_FLOAT32, SHARD_SUM), SHARD_OK);
    shard_clear_error();
}

START_TEST(test_member_dies)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = loses_one, .may_fail = 1 << 1, .deadline = 30});
}
END_TEST

static void *wait_in_thread(void *unused)
{
    (void)unused;
    ck_assert_int_eq(shard_synchronize(gpu()), SHARD_ERROR_PEER);
    return NULL;
}

/* Another thread finds it, and aborts the collective, which is done then: its result is an error of this thread, too, once. */
static void loses_one_in_thread(shard_group *world, void *context)
{
    pthread_t thread;
    float values[1000];
    (void)context;
    check_sum_of_ranks(world);
    float *data = make_filled(1000, 1);
    if (shard_group_rank(world) == 1)
        ck_assert_int_eq(cudaLaunchHostFunc(shard_cuda_of(gpu())->stream, die, NULL), cudaSuccess);
    if (shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM) == SHARD_OK) {
        ck_assert_int_eq(pthread_create(&thread, NULL, wait_in_thread, NULL), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(gpu()->ops->copy_out(gpu(), values, data, sizeof values), SHARD_ERROR_PEER);
    }
    check_error(SHARD_ERROR_PEER, "rank 1 died*all_reduce*");
    check_filled(make_filled(10, 1), 10, 1);
}

START_TEST(test_member_dies_for_thread)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = loses_one_in_thread, .may_fail = 1 << 1, .deadline = 30});
}
END_TEST

static void sleep_long(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
}

static void waits_in_vain(shard_group *world, void *context)
{
    struct timespec start, end;
    check_sum_of_ranks(world); /* which opens GPUs and connects them */
    void *pinned = context ? shard_device_allocate_host(gpu(), 100) : NULL;
    check_ok(shard_barrier(world));
    shard_process.timeout = 1;
    clock_gettime(CLOCK_MONOTONIC, &start);
    lose(world, sleep_long, pinned);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (shard_group_rank(world) == 1) {
        shard_clear_error();
        return;
    }
    check_error(SHARD_ERROR_TIMEOUT, "nccl: all_reduce*ranks 0, 1 and 2*SHARD_TIMEOUT*");
    ck_assert_double_lt((double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec), 4);
}

START_TEST(test_member_hangs)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = waits_in_vain, .context = _i ? "" : NULL, .may_fail = 1 << 1, .deadline = 30});
}
END_TEST

/* Rank 1 does not join the communicator in time: NCCL's wait takes SHARD_TIMEOUT, the one for what the ranks say of it a second.
 */
static void joins_late(shard_group *world, void *context)
{
    (void)context;
    struct timespec start, end;
    float *data = make_filled(10, 1);
    clock_gettime(CLOCK_MONOTONIC, &start);
    shard_group_all_reduce(world, gpu(), data, 10, SHARD_FLOAT32, SHARD_SUM);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (shard_group_rank(world) != 1) {
        check_error(SHARD_ERROR_TIMEOUT, "rank 1 did not come to agree within 3 s *");
        double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        ck_assert_double_lt(seconds, 5.9); /* 4 of them waiting */
        return;
    }
    ck_assert_int_ne(shard_last_status(), SHARD_OK); /* the others have gone */
    shard_clear_error();
}

START_TEST(test_joins_late)
{
    set_gpus("3", "1");
    setenv("SHARD_CUDA_EMULATION_JOIN_SECONDS", "7", 1);
    run_job_of((ranks_run){.size = 3, .body = joins_late, .timeout = "3", .may_fail = 1 << 1, .deadline = 30});
}
END_TEST

static void sleep_longer(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_sec = 15}, NULL);
    _exit(0);
}

/* Rank 1 hangs in the collective. The others name it, and do not wait for SHARD_TIMEOUT twice. */
static void stops_in_flight(shard_group *world, void *context)
{
    (void)context;
    check_sum_of_ranks(world);
    check_ok(shard_barrier(world));
    double start = shard_seconds();
    lose(world, sleep_longer, NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_TIMEOUT);
    shard_agree(world);
    check_error(SHARD_ERROR_TIMEOUT, "rank 1 did not come to shard_agree within 4 s *");
    ck_assert_double_lt(shard_seconds() - start, 7.9); /* 5 of them waiting */
}

START_TEST(test_stops_in_flight)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = stops_in_flight, .timeout = "4", .may_fail = 1 << 1, .deadline = 30});
}
END_TEST

/* A communicator of the test's own, blocking. */
static ncclComm_t connect_directly(shard_group *world)
{
    ncclUniqueId id = {{0}}, ids[8];
    ncclComm_t comm = NULL;
    if (shard_group_rank(world) == 0)
        ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    check_ok(shard_group_exchange(world, &id, sizeof id, ids));
    ck_assert_int_eq(ncclCommInitRankConfig(&comm, shard_group_size(world), ids[0], shard_group_rank(world), NULL), ncclSuccess);
    return comm;
}

/* A group that is left with an error while its collective waits for what came before on the GPU, rank 1's part
 * of a broadcast of the test's own: once that has come, the GPU and the other groups go on. Where the broadcast comes
 * after the collective on rank 1's GPU they wait for each other, until this rank's collectives are aborted. */
static void leaves_in_flight(shard_group *world, void *context)
{
    bool circle = context != NULL;
    cudaStream_t stream = shard_cuda_of(gpu())->stream;
    ncclComm_t comm = connect_directly(world);
    shard_group *group = shard_group_split(world, 0);
    ck_assert_msg(group != NULL, "%s", shard_last_error());
    check_sum_of_ranks(world); /* the first use of a group makes its communicator */
    check_sum_of_ranks(group);
    float *data = make_filled(1000, 1), *before = make_filled(1000, shard_group_rank(world));
    bool late = shard_group_rank(world) == 1;
    if (!late)
        ck_assert_int_eq(ncclBroadcast(before, before, 1000, ncclFloat32, 1, comm, stream), ncclSuccess);
    shard_request *request = start_all_reduce(group, gpu(), data, 1000, SHARD_FLOAT32, SHARD_MAX);
    ck_assert_msg(request != NULL, "%s", shard_last_error());
    double usual = shard_process.timeout;
    if (circle) {
        shard_process.timeout = 1;
        check_ok(shard_group_wait(group, gpu(), request));
    }
    if (late) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        ck_assert_int_eq(ncclBroadcast(before, before, 1000, ncclFloat32, 1, comm, stream), ncclSuccess);
    }
    shard_error(SHARD_ERROR_IO, "something else");
    shard_group_free(group);
    shard_process.timeout = usual;
    check_error(SHARD_ERROR_IO, "something else");
    check_ok(shard_synchronize(gpu()));
    check_filled(before, 1000, 1);
    if (!circle)
        check_sum_of_ranks(world);
    else
        shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM);
    if (circle)
        check_error(SHARD_ERROR_TIMEOUT, "*nccl: all_reduce (max) of 1000 float32 *, was not done within 1 s (SHARD_TIMEOUT)");
    ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
}

START_TEST(test_leaves_in_flight)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = leaves_in_flight, .context = _i ? "" : NULL});
}
END_TEST

/* The emulated NCCL's communicators of this process. */
static int count_communicators(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "/memfd:nccl ") != NULL;
    fclose(maps);
    return count;
}

/* A group is left with an error, and the world has no communicator: the group's is gone after the world's end. */
static void ends_after_error(shard_group *none, void *context)
{
    (void)none, (void)context;
    check_ok(shard_init(NULL, NULL));
    shard_group *group = shard_group_split(shard_world(), 0);
    ck_assert_msg(group != NULL, "%s", shard_last_error());
    check_sum_of_ranks(group);
    shard_error(SHARD_ERROR_IO, "something else");
    shard_group_free(group);
    check_error(SHARD_ERROR_IO, "something else");
    ck_assert_int_eq(count_communicators(), 1);
    ck_assert_int_eq(shard_finalize(), 0);
    ck_assert_int_eq(count_communicators(), 0);
}

START_TEST(test_ends_after_error)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = ends_after_error, .bare = true, .deadline = 20});
}
END_TEST

/* ---- several communicators on the stream ---- */

/* One of the groups below does not come to the end of its collective. */
enum stuck_group { STUCK_WORLD, STUCK_MODEL, STUCK_DATA, STUCK_GROUPS };

typedef struct stuck_case {
    enum stuck_group which;
    const char *version; /* of NCCL */
} stuck_case;

static const char *const nccl_versions[] = {"2.21.5", "2.28.9"};

static stuck_case stuck_case_of(int number)
{
    stuck_case one = {(enum stuck_group)(number % STUCK_GROUPS), nccl_versions[number / STUCK_GROUPS]};
    setenv("SHARD_CUDA_EMULATION_NCCL", one.version, 1);
    set_gpus("4", "1");
    return one;
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The first use of a group makes its communicator. */
static void use_all(shard_group *const groups[STUCK_GROUPS])
{
    for (int i = 0; i < STUCK_GROUPS; i++)
        check_sum_of_ranks(groups[i]);
}

/* Collectives of three groups on one stream, that of the stuck group first. Rank 3 dies before its GPU comes
 * to its part of them: that waits for a broadcast which no other rank enters. */
static void queue_collectives(shard_group *const groups[STUCK_GROUPS], enum stuck_group stuck)
{
    shard_group *world = groups[STUCK_WORLD];
    ncclComm_t comm = connect_directly(world);
    float *data = make_filled(1000, 1);
    if (shard_group_rank(world) == 3)
        ck_assert_int_eq(ncclBroadcast(data, data, 1000, ncclFloat32, 0, comm, shard_cuda_of(gpu())->stream), ncclSuccess);
    for (int i = 0; i < STUCK_GROUPS; i++) {
        shard_group *group = groups[((int)stuck + i) % STUCK_GROUPS];
        check_ok(shard_group_all_reduce(group, gpu(), make_filled(1000, 1), 1000, SHARD_FLOAT32, SHARD_SUM));
    }
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 3)
        die(NULL);
}

/* By waiting for the GPU or by the next collective, and then also of those that wait for other ranks than
 * rank 3. The GPU goes on. */
static void expect_death(shard_group *world)
{
    shard_synchronize(gpu());
    for (int i = 0; i < 2; i++)
        shard_agree(world);
    check_error(SHARD_ERROR_PEER, "*rank 3 died: it did not come to *");
    check_filled(make_filled(10, 1), 10, 1);
}

/* The library's communicators lie in a list: the stuck one is its first, its middle or its last. */
static void sticks(shard_group *world, void *context)
{
    const stuck_case *one = context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *groups[STUCK_GROUPS] = {world, shard_mesh_model_group(mesh), shard_mesh_data_group(mesh)};
    use_all(groups);
    queue_collectives(groups, one->which);
    double start = seconds();
    expect_death(world);
    ck_assert_msg(seconds() - start < 10, "the error came after %g s", seconds() - start);
    ck_assert_int_ne(shard_group_all_reduce(world, gpu(), make_filled(1000, 1), 1000, SHARD_FLOAT32, SHARD_SUM), SHARD_OK);
    shard_clear_error();
    shard_mesh_destroy(mesh);
    shard_clear_error();
}

START_TEST(test_sticks)
{
    stuck_case one = stuck_case_of(_i);
    run_job_of((ranks_run){.size = 4, .body = sticks, .context = &one, .may_fail = 1 << 3, .deadline = 20});
}
END_TEST

/* Groups of ranks 0 and 1 and of ranks 1 and 2. Rank 2 dies in a collective of the second; rank 1 aborts
 * all its collectives, clears the error and lives on in silence, or leaves. Rank 0 waits for rank 1. */
static void loses_neighbour(shard_group *world, void *context)
{
    bool lives_on = context != NULL;
    int rank = shard_group_rank(world);
    shard_group *first = shard_group_split(world, rank == 2), *second = shard_group_split(world, rank == 0);
    ck_assert_msg(first && second, "%s", shard_last_error());
    check_sum_of_ranks(first);
    check_sum_of_ranks(second);
    ncclComm_t comm = connect_directly(world);
    float *data = make_filled(1000, 1);
    if (rank == 2)
        ck_assert_int_eq(ncclBroadcast(data, data, 1000, ncclFloat32, 0, comm, shard_cuda_of(gpu())->stream), ncclSuccess);
    if (rank != 0)
        check_ok(shard_group_all_reduce(second, gpu(), make_filled(1000, 1), 1000, SHARD_FLOAT32, SHARD_SUM));
    if (rank != 2)
        check_ok(shard_group_all_reduce(first, gpu(), make_filled(1000, 1), 1000, SHARD_FLOAT32, SHARD_SUM));
    check_ok(shard_barrier(world));
    if (rank == 2)
        die(NULL);
    double start = seconds();
    shard_synchronize(gpu());
    check_error(SHARD_ERROR_PEER, "rank 2 died: it did not come to *");
    ck_assert_msg(seconds() - start < 3, "the error came after %g s", seconds() - start);
    if (rank == 1 && lives_on)
        nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
    shard_group_free(first);
    shard_group_free(second);
    shard_clear_error();
}

START_TEST(test_neighbour_dies)
{
    set_gpus("3", "1");
    run_job_of((ranks_run){.size = 3, .body = loses_neighbour, .context = _i ? "" : NULL, .may_fail = 1 << 2, .deadline = 20});
}
END_TEST

/* A group is left with an error while another one's collective waits for a rank that has died; then the ranks end,
 * as those do that have failed. */
static void leaves_stuck(shard_group *none, void *context)
{
    const stuck_case *one = context;
    (void)none;
    check_ok(shard_init(NULL, NULL));
    shard_group *world = shard_world(), *extra = shard_group_split(world, 0);
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh && extra, "%s", shard_last_error());
    shard_group *groups[STUCK_GROUPS] = {world, shard_mesh_model_group(mesh), shard_mesh_data_group(mesh)};
    check_sum_of_ranks(extra);
    use_all(groups);
    queue_collectives(groups, one->which);
    shard_error(SHARD_ERROR_IO, "something else");
    shard_group_free(extra);
    ck_assert_str_eq(shard_last_error(), "something else");
    shard_mesh_destroy(mesh);
    shard_finalize();
    check_error(SHARD_ERROR_IO, "something else");
}

START_TEST(test_leaves_stuck)
{
    stuck_case one = stuck_case_of(_i);
    run_job_of((ranks_run){.size = 4, .body = leaves_stuck, .context = &one, .bare = true, .may_fail = 1 << 3, .deadline = 20});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_transport_abort");
    TCase *tcase = test_case(suite, "device_transport_abort");
    tcase_add_test(tcase, test_member_dies);
    tcase_add_test(tcase, test_member_dies_for_thread);
    tcase_add_loop_test(tcase, test_member_hangs, 0, 2);
    tcase_add_test(tcase, test_joins_late);
    tcase_add_test(tcase, test_stops_in_flight);
    tcase_add_loop_test(tcase, test_leaves_in_flight, 0, 2);
    tcase_add_test(tcase, test_ends_after_error);
    tcase_add_loop_test(tcase, test_sticks, 0, STUCK_GROUPS * 2);
    tcase_add_loop_test(tcase, test_neighbour_dies, 0, 2);
    tcase_add_loop_test(tcase, test_leaves_stuck, 0, STUCK_GROUPS * 2);
    return test_run(suite);
}
