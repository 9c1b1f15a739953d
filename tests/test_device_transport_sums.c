/* Sums of 16-bit types by NCCL, on emulated GPUs: of float32 numbers, by pieces, in few calls. */
#include "support/full_pool.h"
#include "support/gpu.h"
#include "support/job.h"

#include "base/dtype.h"
#include "comm/nccl/host.h"
#include "device/cuda/cuda.h"

#include <nccl.h>
#include <stdlib.h>

/* ---- what they are ---- */

/* Of five ranks: 256 + 1 + 1 + 1 + 1 in bfloat16 stays 256 where every sum is rounded. */
typedef struct sum_case {
    const char *gpus, *reduced_precision, *transport;
    uint16_t sum;
} sum_case;

static const sum_case sum_cases[] = {
    {"1", "0", "host memory", 0x4382 /* 260 */},
    {"5", "0", "nccl", 0x4382},
    {"5", "1", "nccl", 0x4380 /* 256 */},
    {"1", "1", "host memory", 0x4382},
};

static void sums_wide(shard_group *world, void *context)
{
    enum { COUNT = 3001 };
    const sum_case *one = context;
    shard_device *device = gpu();
    int64_t counts[8];
    int size = shard_group_size(world), rank = shard_group_rank(world);
    uint16_t *data = device->ops->allocate(device, COUNT * sizeof *data), *mine = data + COUNT / 2, host[COUNT];
    for (int i = 0; i < 2; i++) {
        check_ok(device->ops->fill(device, COUNT, rank == 0 ? 256 : 1, data, SHARD_BFLOAT16));
        for (int member = 0; member < size; member++)
            counts[member] = member == 1 ? COUNT / 2 : 0;
        if (i == 0)
            check_ok(shard_group_all_reduce(world, device, data, COUNT, SHARD_BFLOAT16, SHARD_SUM));
        else
            check_ok(shard_group_reduce_scatter(world, device, data, mine, counts, SHARD_BFLOAT16, SHARD_SUM));
        check_ok(device->ops->copy_out(device, host, data, sizeof host));
        if (i == 0 || rank == 1)
            ck_assert_int_eq(host[i == 0 ? COUNT - 1 : COUNT / 2], one->sum);
    }
    ck_assert_str_eq(device_transport_of(world), one->transport);
}

START_TEST(test_sums_wide)
{
    sum_case one = sum_cases[_i];
    set_gpus(one.gpus, "1");
    setenv("SHARD_NCCL_REDUCED_PRECISION", one.reduced_precision, 1);
    run_job(5, sums_wide, &one);
}
END_TEST

/* The groups of a mesh sum as the world does, which they were split from. */
static void sums_in_mesh(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 3);
    ck_assert_msg(mesh != NULL && world, "%s", shard_last_error());
    uint16_t *data = gpu()->ops->allocate(gpu(), 1000 * sizeof *data), host[1000];
    int rank = shard_group_rank(shard_mesh_model_group(mesh));
    check_ok(gpu()->ops->fill(gpu(), 1000, rank == 0 ? 256 : 1, data, SHARD_BFLOAT16));
    check_ok(shard_group_all_reduce(shard_mesh_model_group(mesh), gpu(), data, 1000, SHARD_BFLOAT16, SHARD_SUM));
    check_ok(gpu()->ops->copy_out(gpu(), host, data, sizeof host));
    ck_assert_int_eq(host[999], 0x4380);
    shard_mesh_destroy(mesh);
}

START_TEST(test_sums_in_mesh)
{
    set_gpus("6", "1");
    setenv("SHARD_NCCL_REDUCED_PRECISION", "1", 1);
    run_job(6, sums_in_mesh, NULL);
}
END_TEST

static void disagrees_on_sums(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        setenv("SHARD_NCCL_REDUCED_PRECISION", "1", 1);
    shard_group_all_reduce(world, gpu(), make_filled(1000, 1), 1000, SHARD_FLOAT32, SHARD_SUM);
    check_error(SHARD_ERROR_MISMATCH, "SHARD_NCCL_REDUCED_PRECISION *rank 1*");
}

START_TEST(test_disagrees_on_sums)
{
    set_gpus("3", "1");
    run_job(3, disagrees_on_sums, NULL);
}
END_TEST

/* More than there is memory for sums: by several pieces, of which one is summed while the next is on its way. */
static void sums_in_turns(shard_group *world, void *context)
{
    (void)context;
    enum { RANGES = 12, LONG = 300, COUNT = RANGES * LONG };
    uint16_t *data = gpu()->ops->allocate(gpu(), COUNT * sizeof *data), host[COUNT];
    uint16_t *rounded = gpu()->ops->allocate(gpu(), COUNT * sizeof *rounded), want[COUNT];
    *shard_nccl_load()->sum_bytes = 1536; /* 128 elements of each member at once */
    for (int i = 0; i < RANGES; i++) {
        int rank = shard_group_rank(world);
        check_ok(gpu()->ops->fill(gpu(), LONG, (i + 1) * (rank + 1), data + i * LONG, SHARD_BFLOAT16));
        check_ok(gpu()->ops->fill(gpu(), LONG, (i + 1) * 6, rounded + i * LONG, SHARD_BFLOAT16));
    }
    check_ok(shard_group_all_reduce(world, gpu(), data, COUNT, SHARD_BFLOAT16, SHARD_SUM));
    check_ok(gpu()->ops->copy_out(gpu(), host, data, sizeof host));
    check_ok(gpu()->ops->copy_out(gpu(), want, rounded, sizeof want));
    for (int i = 0; i < COUNT; i++)
        ck_assert_msg(host[i] == want[i], "element %d is %x instead of %x", i, host[i], want[i]);
    ck_assert_str_eq(device_transport_of(world), "nccl");
}

START_TEST(test_sums_in_turns)
{
    static const char *const first[] = {"late", "others", "eager"}; /* which streams run first */
    set_gpus("3", "1");
    setenv("SHARD_CUDA_EMULATION_QUEUE", first[_i], 1);
    run_job(3, sums_in_turns, NULL);
}
END_TEST

enum { MANY = 1 << 20 };

static void sum_ones(shard_group *world, int64_t count, uint16_t *data)
{
    uint16_t last = 0;
    check_ok(gpu()->ops->fill(gpu(), count, 1, data, SHARD_BFLOAT16));
    check_ok(shard_group_all_reduce(world, gpu(), data, count, SHARD_BFLOAT16, SHARD_SUM));
    check_ok(gpu()->ops->copy_out(gpu(), &last, data + count - 1, sizeof last));
    ck_assert_int_eq(last, 0x4000 /* 2 */);
}

/* One rank has no memory for a sum's buffers: all have the error, none waits for it, and the next sum is right. */
static void lacks_memory(shard_group *world, void *context)
{
    int64_t count = *(int64_t *)context, counts[] = {count - 100, 100};
    int rank = shard_group_rank(world);
    uint16_t *data = gpu()->ops->allocate(gpu(), MANY * sizeof *data);
    sum_ones(world, count, data);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess); /* the pool has what earlier sums have released, too */
        full_pool *pool = rank == 1 ? full_pool_take(gpu()) : NULL;
        shard_status status = i == 0 ? shard_group_all_reduce(world, gpu(), data, count, SHARD_BFLOAT16, SHARD_SUM)
                                     : shard_group_reduce_scatter(world, gpu(), data, rank ? data + counts[0] : data, counts,
                                                                  SHARD_BFLOAT16, SHARD_SUM);
        ck_assert_int_ne(status, SHARD_OK);
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        check_error(rank == 1 ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 1: *no memory for * bytes*");
        if (pool)
            full_pool_release(gpu(), pool, 1, 0);
        sum_ones(world, count, data);
    }
    ck_assert_str_eq(device_transport_of(world), "nccl");
}

START_TEST(test_lacks_memory)
{
    int64_t counts[] = {20000, MANY}; /* gathered whole; by pieces */
    set_gpus("2", "1");
    setenv("SHARD_CUDA_EMULATION_MEMORY", "64M", 1);
    run_job(2, lacks_memory, &counts[_i]);
}
END_TEST

/* ---- how they are called ---- */

static void sum_alike(shard_group *world, int64_t count, shard_dtype dtype, int64_t sum_bytes)
{
    void *data = gpu()->ops->allocate(gpu(), (size_t)count * shard_dtype_size(dtype));
    check_ok(gpu()->ops->fill(gpu(), count, 1, data, dtype));
    *shard_nccl_load()->sum_bytes = sum_bytes;
    check_ok(shard_group_all_reduce(world, gpu(), data, count, dtype, SHARD_SUM));
    gpu()->ops->release(gpu(), data, (size_t)count * shard_dtype_size(dtype));
}

static void gather_unevenly(shard_group *world)
{
    int64_t counts[] = {1000, 0, 500};
    float *data = make_filled(1500, 1), *mine = data + (shard_group_rank(world) == 2 ? 1000 : 0);
    check_ok(shard_group_all_gather(world, gpu(), mine, data, counts, SHARD_FLOAT32));
    check_ok(shard_group_reduce_scatter(world, gpu(), data, mine, counts, SHARD_FLOAT32, SHARD_SUM));
}

/* Every group of calls costs a thread of NCCL's, made and joined. */
static void counts_threads(shard_group *world, void *context)
{
    enum { SOME = 300000, MIB = 1 << 20 };
    unsigned long each = context ? 1 : 0, start;
    check_sum_of_ranks(world);
    start = ncclEmulatedThreads();
    check_sum_of_ranks(world);
    ck_assert_uint_eq(ncclEmulatedThreads() - start, each);
    start = ncclEmulatedThreads();
    sum_alike(world, 1000, SHARD_BFLOAT16, 64 * MIB); /* gathered whole */
    ck_assert_uint_eq(ncclEmulatedThreads() - start, each);
    start = ncclEmulatedThreads();
    sum_alike(world, SOME, SHARD_BFLOAT16, 64 * MIB); /* pieces exchanged, sums gathered */
    ck_assert_uint_eq(ncclEmulatedThreads() - start, 2 * each);
    start = ncclEmulatedThreads();
    sum_alike(world, SOME, SHARD_BFLOAT16, MIB); /* in two turns */
    ck_assert_uint_eq(ncclEmulatedThreads() - start, 3 * each);
    start = ncclEmulatedThreads();
    gather_unevenly(world);
    ck_assert_uint_eq(ncclEmulatedThreads() - start, 2 * each);
}

/* Of neighbours and of pieces it differs; the sums of bits of six ranks times it have no rounding. */
static int factor_of(int64_t element)
{
    return 1 + (int)((element * 7 / 5 + element / 128) % 4);
}

/* Sums of a number of elements that pieces of equal length do not have: these are gathered at once, and the rest of the last
 * one by a call more, however many ranks there are. */
static void gathers_sums(shard_group *world, void *context)
{
    (void)context;
    enum { SIZE = 6, COUNT = 48001, LEAST = 41 };
    static const int64_t counts[] = {COUNT, COUNT + 46, LEAST};
    *shard_nccl_load()->sum_bytes = 1 << 10;
    check_sum_of_ranks(world);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint16_t *data = gpu()->ops->allocate(gpu(), COUNT * 2 * sizeof *data), *host = malloc(COUNT * 2 * sizeof *host);
        ck_assert(data && host);
        for (int64_t element = 0; element < counts[i]; element++)
            host[element] = shard_float_to_bfloat16((float)(factor_of(element) << shard_group_rank(world)));
        check_ok(gpu()->ops->copy_in(gpu(), data, host, (size_t)counts[i] * sizeof *host));
        check_ok(shard_group_all_reduce(world, gpu(), data, counts[i], SHARD_BFLOAT16, SHARD_SUM));
        check_ok(gpu()->ops->copy_out(gpu(), host, data, (size_t)counts[i] * sizeof *host));
        for (int64_t element = 0; element < counts[i]; element++)
            ck_assert_int_eq(host[element], shard_float_to_bfloat16((float)(factor_of(element) * 63)));
        free(host);
    }
    *shard_nccl_load()->sum_bytes = 64 << 20;
    uint16_t *data = gpu()->ops->allocate(gpu(), 4 * 1000003 * sizeof *data);
    check_ok(gpu()->ops->fill(gpu(), 1000003, 1, data, SHARD_BFLOAT16));
    unsigned long start = ncclEmulatedCalls();
    check_ok(shard_group_all_reduce(world, gpu(), data, 1000003, SHARD_BFLOAT16, SHARD_SUM));
    ck_assert_uint_eq(ncclEmulatedCalls() - start, 2 * (SIZE - 1) + 2);
}

START_TEST(test_gathers_sums)
{
    set_gpus("6", "1");
    run_job(6, gathers_sums, NULL);
}
END_TEST

START_TEST(test_counts_threads)
{
    set_gpus("3", "1");
    setenv("SHARD_CUDA_EMULATION_NCCL", _i ? "2.23.4" : "2.22.3", 1);
    run_job(3, counts_threads, _i ? "" : NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device transport's sums");
    TCase *sums = test_case(suite, "sums");
    tcase_add_loop_test(sums, test_sums_wide, 0, sizeof sum_cases / sizeof *sum_cases);
    tcase_add_test(sums, test_sums_in_mesh);
    tcase_add_test(sums, test_disagrees_on_sums);
    tcase_add_loop_test(sums, test_sums_in_turns, 0, 3);
    tcase_add_test(sums, test_gathers_sums);
    tcase_add_loop_test(sums, test_counts_threads, 0, 2);
    tcase_add_loop_test(sums, test_lacks_memory, 0, 2);
    return test_run(suite);
}
