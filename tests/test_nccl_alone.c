/*
 * The NCCL plugin on one GPU: a communicator of this rank alone, which groups of one never
 * make, so that a machine with a single GPU runs every call of it. Each collective gives
 * what it was given. Skipped where the plugin or a GPU is missing.
 */
#include "support/check.h"
#include "support/full_pool.h"
#include "support/gpu.h"

#include "comm/comm.h"
#include "comm/nccl/host.h"

#include <pthread.h>
#include <stdlib.h>

enum { SMALL = 1001, SUM_BYTES = 64 << 10, LARGE = 4 * SUM_BYTES / sizeof(uint16_t) + 1001 };

static void check_done(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

static const shard_nccl_plugin *plugin(void)
{
    const shard_nccl_plugin *nccl = shard_nccl_load();
    ck_assert_msg(nccl != NULL, "%s", shard_last_error());
    return nccl;
}

static shard_group *connected(void)
{
    unsigned char id[SHARD_NCCL_ID_BYTES];
    shard_group *group = shard_group_alone(0);
    ck_assert_ptr_nonnull(group);
    group->device_transport = &plugin()->transport;
    check_done(plugin()->make_id(id));
    check_done(plugin()->connect(group, gpu(), id, false));
    return group;
}

/* ---- data ---- */

/* Bytes that are finite positive numbers in every dtype. */
static unsigned char *make_bytes(size_t bytes)
{
    unsigned char *made = malloc(bytes + 1);
    ck_assert_ptr_nonnull(made);
    for (size_t i = 0; i < bytes; i++)
        made[i] = (unsigned char)(1 + i * 7 % 100);
    return made;
}

/* In the GPU's memory, of those or of zeros; its own until the test ends. */
static void *make_array(const unsigned char *from, size_t bytes)
{
    void *array = gpu()->ops->allocate(gpu(), bytes + 1);
    ck_assert_msg(array != NULL, "%s", shard_last_error());
    check_done(from ? gpu()->ops->copy_in(gpu(), array, from, bytes) : gpu()->ops->zero(gpu(), array, bytes));
    return array;
}

static void check_array(const void *array, const unsigned char *want, size_t bytes, const char *what)
{
    unsigned char *got = malloc(bytes + 1);
    ck_assert_ptr_nonnull(got);
    check_done(gpu()->ops->copy_out(gpu(), got, array, bytes));
    size_t i = 0;
    while (i < bytes && got[i] == want[i])
        i++;
    ck_assert_msg(i == bytes, "%s: byte %zu of %zu differs", what, i, bytes);
    free(got);
}

/* ---- tests ---- */

static shard_collective call_of(shard_collective_kind kind, void *array, int64_t count, shard_dtype dtype, shard_reduce_op op)
{
    return (shard_collective){
        .kind = kind, .send = array, .receive = array, .count = count, .dtype = dtype, .op = op, .device = gpu()};
}

/* With the memory that it needs. */
static shard_request *post(shard_group *group, shard_collective call)
{
    shard_request *request = NULL;
    check_done(group->device_transport->prepare(group, &call));
    check_done(group->device_transport->post(group, &call, &request));
    ck_assert_ptr_nonnull(request);
    return request;
}

/* Posted and waited for. */
static void run(shard_group *group, const shard_collective *call)
{
    check_done(group->device_transport->wait(group, post(group, *call)));
}

static void all_reduce(shard_group *group, void *array, int64_t count, shard_dtype dtype, shard_reduce_op op)
{
    const shard_collective call = call_of(SHARD_COLLECTIVE_ALL_REDUCE, array, count, dtype, op);
    run(group, &call);
}

/* Of pieces: from an array to another one. */
static void run_pieces(shard_group *group, shard_collective_kind kind, void *from, void *to, int64_t count, shard_dtype dtype,
                       shard_reduce_op op)
{
    shard_collective call = call_of(kind, from, count, dtype, op);
    call.receive = to;
    call.counts = &count;
    run(group, &call);
}

static void check_collectives(shard_group *group, int64_t count, shard_dtype dtype)
{
    size_t bytes = (size_t)count * shard_dtype_size(dtype);
    unsigned char *data = make_bytes(bytes);
    void *array = make_array(data, bytes), *other = make_array(NULL, bytes);
    for (shard_reduce_op op = SHARD_SUM; op <= SHARD_MIN; op++) {
        const shard_collective call = call_of(SHARD_COLLECTIVE_ALL_REDUCE, array, count, dtype, op);
        run(group, &call);
        check_array(array, data, bytes, "all_reduce");
        run_pieces(group, SHARD_COLLECTIVE_REDUCE_SCATTER, array, array, count, dtype, op);
        check_array(array, data, bytes, "reduce_scatter in place");
        check_done(gpu()->ops->zero(gpu(), other, bytes));
        run_pieces(group, SHARD_COLLECTIVE_REDUCE_SCATTER, array, other, count, dtype, op);
        check_array(other, data, bytes, "reduce_scatter");
    }
    run_pieces(group, SHARD_COLLECTIVE_ALL_GATHER, array, array, count, dtype, SHARD_SUM);
    check_array(array, data, bytes, "all_gather in place");
    check_done(gpu()->ops->zero(gpu(), other, bytes));
    run_pieces(group, SHARD_COLLECTIVE_ALL_GATHER, array, other, count, dtype, SHARD_SUM);
    check_array(other, data, bytes, "all_gather");
    const shard_collective call = call_of(SHARD_COLLECTIVE_BROADCAST, array, count, dtype, SHARD_SUM);
    run(group, &call);
    check_array(array, data, bytes, "broadcast");
    gpu()->ops->release(gpu(), array, bytes + 1);
    gpu()->ops->release(gpu(), other, bytes + 1);
    free(data);
}

START_TEST(runs_collectives)
{
    shard_dtype dtype = (shard_dtype)_i;
    shard_group *group = connected();
    check_collectives(group, SMALL, dtype);
    check_collectives(group, 1, dtype);
    check_collectives(group, 0, dtype);
    shard_group_free(group);
    check_done(shard_last_status());
}
END_TEST

START_TEST(sums_in_pieces)
{
    shard_group *group = connected();
    *plugin()->sum_bytes = SUM_BYTES;
    size_t bytes = LARGE * sizeof(uint16_t);
    unsigned char *data = make_bytes(bytes);
    void *array = make_array(data, bytes);
    all_reduce(group, array, LARGE, SHARD_BFLOAT16, SHARD_SUM);
    check_array(array, data, bytes, "all_reduce");
    free(data);
    shard_group_free(group);
    check_done(shard_last_status());
}
END_TEST

START_TEST(several_groups)
{
    shard_group *first = connected(), *second = connected();
    check_collectives(second, SMALL, SHARD_FLOAT32);
    shard_group *third = connected();
    shard_group_free(second);
    check_collectives(first, SMALL, SHARD_FLOAT32);
    check_collectives(third, SMALL, SHARD_BFLOAT16);
    shard_group_free(third);
    shard_group_free(first);
    check_done(shard_last_status());
}
END_TEST

/* NCCL allocates outside of the pool, which holds all memory when a communicator is made, also after earlier ones. */
START_TEST(finds_memory)
{
    setenv("SHARD_CUDA_EMULATION_MEMORY", "64M", 1);
    void *array = make_array(NULL, SMALL * sizeof(float));
    fill_pool(gpu());
    shard_group *group = connected();
    all_reduce(group, array, SMALL, SHARD_FLOAT32, SHARD_SUM);
    fill_pool(gpu());
    shard_group *other = connected();
    all_reduce(other, array, SMALL, SHARD_FLOAT32, SHARD_SUM);
    check_done(gpu()->ops->synchronize(gpu()));
    ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess); /* nor is it left of asking whether work is done */
    shard_group_free(other);
    shard_group_free(group);
    check_done(shard_last_status());
}
END_TEST

/* What the plugin takes for the sums of 16-bit types counts as the GPU's memory in use. */
START_TEST(counts_memory)
{
    shard_group *group = connected();
    size_t bytes = SMALL * sizeof(uint16_t);
    void *array = make_array(NULL, bytes);
    shard_memory_stats before, after;
    gpu()->ops->reset_peak(gpu());
    gpu()->ops->memory_stats(gpu(), &before);
    all_reduce(group, array, SMALL, SHARD_FLOAT16, SHARD_SUM);
    gpu()->ops->memory_stats(gpu(), &after);
    ck_assert_int_eq(after.current, before.current);
    ck_assert_int_ge(after.peak, before.current + (int64_t)bytes);
    shard_group_free(group);
    check_done(shard_last_status());
}
END_TEST

static void *wait_often(void *status)
{
    shard_device *device = gpu();
    for (int i = 0; i < 5000 && *(shard_status *)status == SHARD_OK; i++)
        *(shard_status *)status = device->ops->synchronize(device);
    return NULL;
}

/* Other threads wait for the GPU while this one runs collectives. */
START_TEST(any_thread)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    shard_status status[THREADS] = {SHARD_OK};
    shard_group *group = connected();
    void *array = make_array(NULL, SMALL * sizeof(float));
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_often, &status[i]), 0);
    for (int i = 0; i < 2000; i++)
        all_reduce(group, array, SMALL, SHARD_FLOAT32, SHARD_SUM);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(status[i], SHARD_OK);
    }
    shard_group_free(group);
    check_done(shard_last_status());
}
END_TEST

/* A group that is left with an error in the middle of a collective: the GPU goes on, and
 * so does what connects later. */
START_TEST(aborts)
{
    size_t bytes = SMALL * sizeof(float);
    unsigned char *data = make_bytes(bytes);
    void *array = make_array(data, bytes);
    for (int i = 0; i < 2; i++) {
        shard_group *group = connected();
        all_reduce(group, array, SMALL, SHARD_FLOAT32, SHARD_MAX);
        shard_error(SHARD_ERROR_IO, "something else");
        shard_group_free(group);
        ck_assert_str_eq(shard_last_error(), "something else");
        shard_clear_error();
        check_done(gpu()->ops->synchronize(gpu()));
    }
    shard_group *group = connected();
    check_collectives(group, SMALL, SHARD_FLOAT32);
    shard_group_free(group);
    check_done(shard_last_status());
    free(data);
}
END_TEST

int main(void)
{
    enum { SKIPPED = 77 }; /* as Meson takes it */
    setenv("SHARD_DEVICE", "cuda", 1);
    if (nccl_is_missing(2, 18))
        return SKIPPED;
    Suite *suite = suite_create("nccl_alone");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, runs_collectives, 0, SHARD_DTYPES);
    tcase_add_test(all, sums_in_pieces);
    tcase_add_test(all, counts_memory);
    tcase_add_test(all, finds_memory);
    tcase_add_test(all, several_groups);
    tcase_add_test(all, any_thread);
    tcase_add_test(all, aborts);
    return test_run(suite);
}
