/*
 * NCCL between two ranks on one GPU, which NCCL 2.30 and later connect if NCCL_MULTI_RANK_GPU_ENABLE is 1: what a
 * machine with a single GPU can run of communicators with more than one rank. Skipped with older ones.
 */
#include "support/collectives.h"
#include "support/gpu.h"
#include "support/job.h"

#include "device/cuda/cuda.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void collects(shard_group *world, void *context)
{
    int64_t count = *(int64_t *)context;
    check_sum_of_ranks(world);
    ck_assert_str_eq(device_transport_of(world), "nccl");
    check_sizes(world, count, ANY_ORDER);
}

START_TEST(test_collects)
{
    int64_t counts[] = {1, 1001, 20011};
    run_job(2, collects, &counts[_i]);
}
END_TEST

/* Communicators of the same ranks beside each other, made and left in several orders. */
static void splits(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *group = shard_group_split(world, 0), *alone = shard_group_split(world, shard_group_rank(world));
    ck_assert_msg(group && alone, "%s", shard_last_error());
    ck_assert_int_eq(shard_group_size(alone), 1);
    for (int i = 0; i < 3; i++) {
        check_sum_of_ranks(shard_mesh_model_group(mesh));
        check_sum_of_ranks(group);
        check_sum_of_ranks(world);
    }
    ck_assert_str_eq(device_transport_of(shard_mesh_model_group(mesh)), "nccl");
    shard_mesh_destroy(mesh);
    check_sum_of_ranks(group);
    shard_group_free(alone);
    shard_group_free(group);
    check_sum_of_ranks(world);
}

START_TEST(test_splits)
{
    run_job(2, splits, NULL);
}
END_TEST

/* ---- a rank is killed during a collective ---- */

static void die_soon(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    kill(getpid(), SIGKILL);
}

/* Two communicators' collectives are on the stream when rank 1 is killed, which has not come to either. */
static void loses_one(shard_group *world, void *context)
{
    bool world_first = context != NULL;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *model = shard_mesh_model_group(mesh), *first = world_first ? world : model,
                *second = world_first ? model : world;
    check_sum_of_ranks(world);
    check_sum_of_ranks(model);
    float *data = make_filled(1000, 1), *other = make_filled(1000, 1);
    if (shard_group_rank(world) == 1)
        ck_assert_int_eq(cudaLaunchHostFunc(shard_cuda_of(gpu())->stream, die_soon, NULL), cudaSuccess);
    check_ok(shard_group_all_reduce(first, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM));
    shard_group_all_reduce(second, gpu(), other, 1000, SHARD_FLOAT32, SHARD_SUM);
    shard_synchronize(gpu());
    check_error(SHARD_ERROR_PEER, "rank 1 died: it did not come to *all_reduce of 1000 float32 in a device's memory");
    check_filled(make_filled(10, 1), 10, 1); /* the GPU goes on, its collectives do not */
    ck_assert_int_ne(shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM), SHARD_OK);
    shard_clear_error();
    shard_mesh_destroy(mesh);
    shard_clear_error();
}

START_TEST(test_loses_one)
{
    run_job_of((ranks_run){.size = 2, .body = loses_one, .context = _i ? "" : NULL, .may_fail = 1 << 1, .deadline = 40});
}
END_TEST

int main(void)
{
    enum { SKIPPED = 77 }; /* as Meson takes it */
    set_gpus("1", "1");
    setenv("CUDA_VISIBLE_DEVICES", "0", 0);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("NCCL_MAX_CTAS", "4", 0); /* the ranks' kernels need to fit beside each other */
    if (nccl_is_missing(2, 30))
        return SKIPPED;
    Suite *suite = suite_create("nccl_two");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, test_collects, 0, 3);
    tcase_add_test(all, test_splits);
    tcase_add_loop_test(all, test_loses_one, 0, 2);
    return test_run(suite);
}
