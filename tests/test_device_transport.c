/*
 * What carries collectives of data in GPU memory, on emulated GPUs: which way a group
 * takes and what the log says of it, communicators of meshes, and the order of streams.
 * test_device_transport_sums.c has the sums of 16-bit types.
 */
#include "support/collectives.h"
#include "support/gpu.h"
#include "support/job.h"

#include "base/clock.h"
#include "base/memory.h"
#include "comm/nccl/host.h"
#include "device/cuda/cuda.h"

#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- which way ---- */

/* Of rank 0, where the log is a pattern of fnmatch. */
static void expect_log(shard_group *world, void *context)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    ck_assert(log && kept >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    check_sum_of_ranks(world);
    dup2(kept, STDERR_FILENO);
    char text[2000] = "";
    rewind(log);
    text[fread(text, 1, sizeof text - 1, log)] = '\0';
    fclose(log);
    if (shard_group_rank(world) == 0)
        ck_assert_msg(strstr(text, context) != NULL, "the log is \"%s\" instead of \"... %s ...\"", text, (char *)context);
    else
        ck_assert_msg(strstr(text, "collectives") == NULL, "rank 0 tells it alone, not \"%s\"", text);
}

START_TEST(test_takes_nccl)
{
    set_gpus("3", "1");
    run_job(3, expect_log, "info: collectives of ranks 0, 1 and 2 in GPU memory go through NCCL 2.");
}
END_TEST

START_TEST(test_shares_a_gpu)
{
    set_gpus("2", "1");
    run_job(3, expect_log,
            "info: collectives of ranks 0, 1 and 2 in GPU memory go through host memory: ranks 0 and 2 share a GPU");
}
END_TEST

/* NCCL's own variable allows it, from 2.30 on; NCCL is asked only where it will not refuse. */
START_TEST(test_shares_by_nccl)
{
    static const struct {
        const char *version, *allowed, *log;
    } cases[] = {
        {"2.30.7", "1", "in GPU memory go through NCCL 2.30.7"},
        {"2.30.7", "0", "go through host memory: ranks 0 and 1 share a GPU"},
        {"2.28.9", "1", "go through host memory: ranks 0 and 1 share a GPU"},
    };
    set_gpus("1", "1");
    setenv("SHARD_CUDA_EMULATION_NCCL", cases[_i].version, 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", cases[_i].allowed, 1);
    run_job(2, expect_log, (void *)(uintptr_t)cases[_i].log);
}
END_TEST

START_TEST(test_is_forbidden)
{
    set_gpus("3", "0");
    run_job(3, expect_log, "go through host memory: rank 0: SHARD_NCCL is 0");
}
END_TEST

static void is_forbidden_on_one(shard_group *world, void *context)
{
    if (shard_group_rank(world) == 1)
        setenv("SHARD_NCCL", "0", 1);
    expect_log(world, context);
}

START_TEST(test_is_forbidden_on_one)
{
    set_gpus("3", "1");
    run_job(3, is_forbidden_on_one, "go through host memory: rank 1: SHARD_NCCL is 0");
}
END_TEST

static bool fails; /* the next allocation of offers */

static void *calloc_but_offers(size_t count, size_t size)
{
    bool now = fails && size == SHARD_OFFER_BYTES;
    fails &= !now;
    return now ? NULL : calloc(count, size);
}

/* One rank has no memory for the choice: none has chosen, and all choose again. */
static void chooses_again(shard_group *world, void *context)
{
    static const shard_memory_calls calls = {calloc_but_offers, realloc};
    float *data = make_filled(1000, 1);
    bool odd = shard_group_rank(world) == 1;
    shard_memory_calls_used = &calls;
    fails = odd;
    ck_assert_int_ne(shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM), SHARD_OK);
    ck_assert(!fails);
    check_error(odd ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 1: no memory for *");
    ck_assert_str_eq(device_transport_of(world), "none yet");
    check_sum_of_ranks(world);
    ck_assert_str_eq(device_transport_of(world), context);
}

START_TEST(test_chooses_again)
{
    set_gpus("2", _i ? "1" : "0");
    run_job(2, chooses_again, _i ? "nccl" : "host memory");
}
END_TEST

static bool is_chosen; /* offers have been allocated: the next allocation is of the communicator's state */

static void *calloc_but_state(size_t count, size_t size)
{
    bool now = is_chosen;
    is_chosen = !now && size == SHARD_OFFER_BYTES;
    return now ? NULL : calloc(count, size);
}

/* One rank fails after the check, when the others wait for it in NCCL: they hear of it, and then all take the other way. */
static void fails_to_connect(shard_group *world, void *context)
{
    (void)context;
    static const shard_memory_calls calls = {calloc_but_state, realloc}, *usual;
    float *data = make_filled(1000, 1);
    bool odd = shard_group_rank(world) == 1;
    ck_assert_ptr_nonnull(shard_nccl_load());
    check_ok(shard_barrier(world));
    double start = shard_seconds();
    usual = shard_memory_calls_used;
    if (odd)
        shard_memory_calls_used = &calls;
    ck_assert_int_ne(shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM), SHARD_OK);
    shard_memory_calls_used = usual;
    check_error(odd ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 1: no memory for *");
    ck_assert_double_lt(shard_seconds() - start, 10);
    check_sum_of_ranks(world);
    ck_assert_str_eq(device_transport_of(world), "host memory");
}

START_TEST(test_fails_to_connect)
{
    set_gpus("2", "1");
    run_job(2, fails_to_connect, NULL);
}
END_TEST

/* ---- meshes ---- */

static void splits(shard_group *world, void *context)
{
    int model = *(int *)context;
    shard_mesh *mesh = shard_mesh_create(.model = model);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *groups[] = {shard_mesh_model_group(mesh), shard_mesh_data_group(mesh)};
    for (int i = 0; i < 2; i++) {
        check_sum_of_ranks(groups[i]);
        if (shard_group_size(groups[i]) > 1)
            ck_assert_str_eq(device_transport_of(groups[i]), "nccl");
        check_sizes(groups[i], 1001, ANY_ORDER);
    }
    check_sum_of_ranks(world);
    shard_mesh_destroy(mesh);
}

START_TEST(test_split)
{
    static const struct {
        int ranks, model;
    } grids[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {6, 2}, {6, 3}};
    set_gpus("8", "1");
    run_job(grids[_i].ranks, splits, (void *)(uintptr_t)&grids[_i].model);
}
END_TEST

/* A communicator is made while a collective of another one is on the stream. */
static void splits_busy(shard_group *world, void *context)
{
    (void)context;
    float *data = make_filled(1000, 1);
    for (int i = 0; i < 3; i++) {
        shard_group *half = shard_group_split(world, shard_group_rank(world) % 2);
        ck_assert_msg(half != NULL, "%s", shard_last_error());
        shard_request *request = start_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_MAX);
        ck_assert_msg(request != NULL, "%s", shard_last_error());
        check_sum_of_ranks(half);
        check_ok(shard_group_wait(world, gpu(), request));
        shard_group_free(half);
    }
    check_filled(data, 1000, 1);
}

START_TEST(test_split_busy)
{
    set_gpus("4", "1");
    run_job(4, splits_busy, NULL);
}
END_TEST

/* Four ranks on two GPUs: those of a model group have different ones, those of a data
 * group and of the world do not. */
static void splits_mixed(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *model = shard_mesh_model_group(mesh), *data = shard_mesh_data_group(mesh);
    for (int i = 0; i < 2; i++) {
        check_sum_of_ranks(model);
        check_sum_of_ranks(data);
        check_sum_of_ranks(world);
    }
    ck_assert_str_eq(device_transport_of(model), "nccl");
    ck_assert_str_eq(device_transport_of(data), "host memory");
    ck_assert_str_eq(device_transport_of(world), "host memory");
    shard_mesh_destroy(mesh);
}

START_TEST(test_split_mixed)
{
    set_gpus("2", "1");
    run_job(4, splits_mixed, NULL);
}
END_TEST

/* ---- more than there is pinned memory ---- */

/* By several pieces. */
static void goes_by_pieces(shard_group *world, void *context)
{
    (void)context;
    check_sizes(world, 1100003, ANY_ORDER);
    ck_assert_str_eq(device_transport_of(world), "host memory");
}

START_TEST(test_pieces)
{
    set_gpus("1", "1");
    run_job(2, goes_by_pieces, NULL);
}
END_TEST

/* ---- errors that leave the communicators ---- */

typedef struct late_broadcast {
    ncclComm_t comm;
    float *data;
} late_broadcast;

static void *broadcast_late(void *context)
{
    const late_broadcast *late = context;
    cudaStream_t stream;
    nanosleep(&(struct timespec){.tv_nsec = 800000000}, NULL);
    ck_assert_int_eq(cudaSetDevice(shard_cuda_of(gpu())->ordinal), cudaSuccess);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ck_assert_int_eq(ncclBroadcast(late->data, late->data, 1000, ncclFloat32, 1, late->comm, stream), ncclSuccess);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    return NULL;
}

/* Rank 1 has begun a collective, and fails and waits in the next one. Rank 0 waits for its GPU meanwhile, which comes to
 * its part of the collective late, after a broadcast of the test's own. */
static void fails_ahead(shard_group *world, void *context)
{
    (void)context;
    ncclUniqueId id = {{0}}, ids[2];
    late_broadcast late = {.data = make_filled(1000, shard_group_rank(world))};
    float *data = make_filled(1000, 1);
    bool odd = shard_group_rank(world) == 1;
    check_sum_of_ranks(world);
    if (!odd)
        ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    check_ok(shard_group_exchange(world, &id, sizeof id, ids));
    ck_assert_int_eq(ncclCommInitRankConfig(&late.comm, 2, ids[0], shard_group_rank(world), NULL), ncclSuccess);
    pthread_t thread;
    if (odd)
        ck_assert_int_eq(pthread_create(&thread, NULL, broadcast_late, &late), 0);
    else
        ck_assert_int_eq(ncclBroadcast(late.data, late.data, 1000, ncclFloat32, 1, late.comm, shard_cuda_of(gpu())->stream),
                         ncclSuccess);
    check_ok(shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM));
    if (odd)
        shard_error(SHARD_ERROR_ARGUMENT, "a wrong label");
    else
        check_ok(shard_synchronize(gpu()));
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    check_error(odd ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: a wrong label");
    if (odd)
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    check_filled(late.data, 1000, 1);
    check_filled(data, 1000, 2);
    check_sum_of_ranks(world);
    ck_assert_int_eq(ncclCommDestroy(late.comm), ncclSuccess);
}

START_TEST(test_fails_ahead)
{
    set_gpus("2", "1");
    run_job(2, fails_ahead, NULL);
}
END_TEST

static float *filled_on(shard_device *device, int64_t count)
{
    float *data = device->ops->allocate(device, (size_t)count * sizeof *data);
    ck_assert_ptr_nonnull(data);
    check_ok(device->ops->fill(device, count, 1, data, SHARD_FLOAT32));
    return data;
}

/* NCCL connects one GPU of each rank. Data on another one is an error of all ranks; in a group that begins with it, it goes
 * through host memory. */
static void uses_two_gpus(shard_group *world, void *context)
{
    (void)context;
    enum { COUNT = 1000 };
    static const int members[] = {0, 1};
    bool odd = shard_group_rank(world) == 1;
    shard_device *second = shard_device_open(odd ? "cuda:3" : "cuda:2");
    ck_assert_msg(second && second != gpu(), "%s", shard_last_error());
    check_sum_of_ranks(world);
    float *data = filled_on(second, COUNT), *usual = make_filled(COUNT, 1), host[COUNT];
    ck_assert_int_ne(shard_group_all_reduce(world, odd ? second : gpu(), odd ? data : usual, COUNT, SHARD_FLOAT32, SHARD_SUM),
                     SHARD_OK);
    check_error(odd ? SHARD_ERROR_UNSUPPORTED : SHARD_ERROR_PEER, "rank 1: nccl: collectives on cuda:3 after some on cuda:1;*");
    check_sum_of_ranks(world);
    shard_group *group = shard_group_make(world, members, 2);
    ck_assert_msg(group != NULL, "%s", shard_last_error());
    check_ok(shard_group_all_reduce(group, second, data, COUNT, SHARD_FLOAT32, SHARD_SUM));
    ck_assert_str_eq(device_transport_of(group), "host memory");
    check_ok(second->ops->copy_out(second, host, data, sizeof host));
    for (int i = 0; i < COUNT; i++)
        ck_assert_float_eq(host[i], 2);
    shard_group_free(group);
}

START_TEST(test_uses_two_gpus)
{
    set_gpus("4", "1");
    run_job(2, uses_two_gpus, NULL);
}
END_TEST

/* ---- what a GPU has found wrong ---- */

/* A loss on whole logits, on rank 1 with a label that is no class. The GPU is done with it, but the library
 * has not waited for it. */
static void label_badly(shard_group *world)
{
    int64_t labels[] = {0, 1, shard_group_rank(world) == 1 ? 9 : 3};
    shard_tensor *logits = shard_zeros(SHARD_SHAPE(3, 4));
    ck_assert(shard_cross_entropy(logits, shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64)) != NULL);
    ck_assert_int_eq(cudaStreamSynchronize(shard_cuda_of(gpu())->stream), cudaSuccess);
    check_ok(shard_last_status());
}

/* As those do that go on after an error. */
static void go_on(shard_group *world)
{
    shard_synchronize(gpu());
    shard_clear_error();
    shard_range range = shard_split_range(4, shard_group_size(world), shard_group_rank(world));
    shard_tensor *logits = shard_as_split(shard_zeros(SHARD_SHAPE(3, range.size)), 1, world, range.start, 4);
    int64_t labels[] = {0, 1, 3};
    for (int i = 0; i < 2; i++) {
        double loss = shard_item(shard_cross_entropy(logits, shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64)));
        ck_assert_msg(loss > 1.38 && loss < 1.39, "a loss of %g: %s", loss, shard_last_error());
    }
    check_ok(shard_agree(world));
}

/* Whole logits on each rank, none of which reads its loss: all hear of rank 1's labels by the next
 * collective that all come to. */
static void tells_of_labels(shard_group *world, void *context)
{
    (void)context;
    bool odd = shard_group_rank(world) == 1;
    float *data = make_filled(1000, 1), host[1000] = {0};
    check_sum_of_ranks(world);
    for (int which = 0; which < 4; which++) {
        SHARD_SCOPE
        {
            label_badly(world);
            shard_status status = which == 0   ? shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_MAX)
                                  : which == 1 ? shard_group_all_reduce(world, gpu(), data, 3, SHARD_FLOAT32, SHARD_MAX)
                                  : which == 2 ? shard_group_broadcast(world, NULL, host, 1000, SHARD_FLOAT32, 0)
                                               : shard_agree(world);
            ck_assert_int_eq(status, odd ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER);
            check_error(status, "rank 1: shard_cross_entropy: label 9*");
            go_on(world);
        }
    }
}

START_TEST(test_tells_of_labels)
{
    set_gpus("3", _i ? "1" : "0");
    run_job(3, tells_of_labels, NULL);
}
END_TEST

/* Before the first collective on a GPU's memory. */
static void tells_at_once(shard_group *world, void *context)
{
    (void)context;
    float *data = make_filled(1000, 1);
    SHARD_SCOPE
    {
        label_badly(world);
    }
    shard_group_all_reduce(world, gpu(), data, 1000, SHARD_FLOAT32, SHARD_MAX);
    check_error(shard_group_rank(world) == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: shard_cross_entropy: label 9*");
    check_sum_of_ranks(world);
}

START_TEST(test_tells_at_once)
{
    set_gpus("2", "1");
    run_job(2, tells_at_once, NULL);
}
END_TEST

/* Both GPUs find that labels differ, one rank waits: once all have waited and cleared, none has it any more. */
static void goes_on(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_as_split(shard_zeros(SHARD_SHAPE(3, 2)), 1, world, 2 * rank, 4);
        int64_t labels[] = {0, 1 + rank, 3};
        shard_tensor *loss = shard_cross_entropy(logits, shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64));
        if (rank == 0)
            shard_item(loss);
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        go_on(world);
    }
}

START_TEST(test_goes_on)
{
    set_gpus("2", "1");
    run_job(2, goes_on, NULL);
}
END_TEST

/* ---- streams ---- */

/* What is computed before a collective goes into it, what comes after it gets its result,
 * and what happens in between touches neither. */
static void overlaps(shard_group *world, void *context)
{
    (void)context;
    const shard_device_ops *ops = gpu()->ops;
    enum { COUNT = 5000, ROUNDS = 100 };
    int size = shard_group_size(world);
    float *data = make_filled(COUNT, 1), *other = make_filled(COUNT, 7), expected = 1;
    for (int i = 0; i < ROUNDS; i++) {
        check_ok(ops->axpby(gpu(), COUNT, 1.0 / size, data, 0, data, SHARD_FLOAT32));
        shard_request *request = start_all_reduce(world, gpu(), data, COUNT, SHARD_FLOAT32, SHARD_SUM);
        check_ok(ops->axpby(gpu(), COUNT, 1, other, 0, other, SHARD_FLOAT32));
        check_ok(shard_group_wait(world, gpu(), request));
        check_ok(ops->axpby(gpu(), COUNT, 2, data, 0, data, SHARD_FLOAT32));
        expected *= 2;
        if (i % 20 == 19) {
            check_filled(data, COUNT, expected);
            check_ok(ops->fill(gpu(), COUNT, 1, data, SHARD_FLOAT32));
            expected = 1;
        }
    }
    check_filled(other, COUNT, 7);
}

START_TEST(test_overlap)
{
    static const char *const first[] = {"late", "late", "others"}; /* which streams run first */
    set_gpus(_i ? "4" : "1", "1");
    setenv("SHARD_CUDA_EMULATION_QUEUE", first[_i], 1);
    run_job(_i ? 4 : 2, overlaps, NULL);
}
END_TEST

/* The host's and a device's memory in one collective: nobody can know which way. */
static void disagrees(shard_group *world, void *context)
{
    (void)context;
    float host[1000] = {0}, *data = make_filled(1000, 1);
    bool odd = shard_group_rank(world) == 1;
    for (int i = 0; i < 2; i++) { /* before and after the way is chosen */
        shard_group_all_reduce(world, odd ? NULL : gpu(), odd ? host : data, 1000, SHARD_FLOAT32, SHARD_SUM);
        check_error(SHARD_ERROR_MISMATCH, "rank 1 calls *while ranks 0 and 2 call *device's memory");
        check_sum_of_ranks(world);
    }
}

START_TEST(test_disagrees)
{
    set_gpus("3", _i ? "1" : "0");
    run_job(3, disagrees, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device transport");
    TCase *tcase = test_case(suite, "device transport");
    tcase_add_test(tcase, test_takes_nccl);
    tcase_add_test(tcase, test_shares_a_gpu);
    tcase_add_loop_test(tcase, test_shares_by_nccl, 0, 3);
    tcase_add_test(tcase, test_is_forbidden);
    tcase_add_test(tcase, test_is_forbidden_on_one);
    tcase_add_loop_test(tcase, test_chooses_again, 0, 2);
    tcase_add_test(tcase, test_fails_to_connect);
    tcase_add_loop_test(tcase, test_split, 0, 6);
    tcase_add_test(tcase, test_split_busy);
    tcase_add_test(tcase, test_split_mixed);
    tcase_add_test(tcase, test_pieces);
    tcase_add_test(tcase, test_fails_ahead);
    tcase_add_test(tcase, test_uses_two_gpus);
    tcase_add_loop_test(tcase, test_tells_of_labels, 0, 2);
    tcase_add_test(tcase, test_tells_at_once);
    tcase_add_test(tcase, test_goes_on);
    tcase_add_loop_test(tcase, test_overlap, 0, 3);
    tcase_add_loop_test(tcase, test_disagrees, 0, 2);
    return test_run(suite);
}
