/*
 * What the CUDA device does where memory is short: what its pool keeps and nobody uses is given
 * back, and the call that lacked memory made again, be it the pool's own or one of CUDA's libraries.
 */
#include "support/check.h"
#include "support/full_pool.h"
#include "support/kernels.h"
#include "support/shadow.h"

#include "device/cuda/cuda.h"

#include <shard/shard.h>

#include <inttypes.h>
#include <stdlib.h>

enum { SIZE = 64, TYPES = 2 };
static const shard_dtype types[TYPES] = {SHARD_FLOAT32, SHARD_BFLOAT16};

/* Whose memory and pools are as the tests set them. */
static bool is_emulated(void)
{
    struct cudaDeviceProp properties;
    ck_assert_int_eq(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    return strcmp(properties.name, "Emulated GPU") == 0;
}

static shard_device *gpu(void)
{
    shard_device *device = shard_device_open("cuda");
    ck_assert_msg(device != NULL, "%s", shard_last_error());
    return device;
}

static void check_done(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

/* Without a kernel: of zeros. */
static void *zeros(int64_t n, shard_dtype dtype)
{
    size_t bytes = (size_t)n * shard_dtype_size(dtype);
    void *array = gpu()->ops->allocate(gpu(), bytes);
    ck_assert_msg(array != NULL, "%s", shard_last_error());
    check_done(gpu()->ops->zero(gpu(), array, bytes));
    return array;
}

static void *ones(int64_t n, shard_dtype dtype)
{
    void *array = zeros(n, dtype);
    check_done(gpu()->ops->fill(gpu(), n, 1, array, dtype));
    return array;
}

static double first_of(const void *array, shard_dtype dtype)
{
    double value;
    check_done(gpu()->ops->copy_out(gpu(), &value, array, shard_dtype_size(dtype)));
    return array_get(&value, 0, dtype);
}

/* ---- the pool ---- */

/* Every other piece is free: enough memory, but nowhere enough in a row. */
START_TEST(pieces_are_joined)
{
    shard_device *device = gpu();
    void *live = ones(SIZE, SHARD_FLOAT32);
    full_pool *pool = full_pool_take(device);
    full_pool_release(device, pool, 2, 0);
    size_t bytes = pool->largest * 3;
    void *large = device->ops->allocate(device, bytes);
    ck_assert_msg(large != NULL, "%s", shard_last_error());
    check_done(device->ops->zero(device, large, bytes));
    device->ops->release(device, large, bytes);
    ck_assert_double_eq(first_of(live, SHARD_FLOAT32), 1);
    full_pool_release(device, pool, 2, 1);
}
END_TEST

START_TEST(too_much_is_an_error)
{
    shard_device *device = gpu();
    void *live = ones(SIZE, SHARD_FLOAT32);
    size_t free_bytes, total;
    ck_assert_int_eq(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    ck_assert_ptr_null(device->ops->allocate(device, 2 * total));
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_MEMORY);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "no memory for"));
    shard_clear_error();
    ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
    ck_assert_double_eq(first_of(live, SHARD_FLOAT32), 1);
}
END_TEST

/* Nobody may wait in a capture: the allocation fails, the capture goes on. */
START_TEST(not_in_a_capture)
{
    shard_device *device = gpu();
    shard_cuda *cuda = shard_cuda_of(device);
    void *live = ones(SIZE, SHARD_FLOAT32);
    cudaGraph_t graph;
    full_pool *pool = full_pool_take(device);
    full_pool_release(device, pool, 2, 0);
    check_done(device->ops->synchronize(device));
    ck_assert_int_eq(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    void *large = device->ops->allocate(device, pool->largest * 3);
    ck_assert(large == NULL || !is_emulated()); /* a driver may find it when the graph is launched */
    ck_assert_int_eq(shard_last_status(), large ? SHARD_OK : SHARD_ERROR_MEMORY);
    device->ops->release(device, large, pool->largest * 3);
    shard_clear_error();
    check_done(device->ops->zero(device, live, sizeof(float)));
    ck_assert_int_eq(cudaStreamEndCapture(cuda->stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    ck_assert_double_eq(first_of(live, SHARD_FLOAT32), 1);
    full_pool_release(device, pool, 2, 1);
}
END_TEST

/* What a kernel found wrong is not the allocation's error, though that waits. */
START_TEST(faults_stay)
{
    static const shard_fault outside = {SHARD_ERROR_ARGUMENT, "index %" PRId64 " at %" PRId64 " is outside [0, %" PRId64 ")"};
    shard_device *device = gpu();
    int64_t index = 7, *there = zeros(1, SHARD_INT64);
    check_done(device->ops->copy_in(device, there, &index, sizeof index));
    check_done(device->ops->check_index(device, 1, there, 5, -1, &outside, NULL));
    full_pool *pool = full_pool_take(device);
    full_pool_release(device, pool, 2, 0);
    void *large = device->ops->allocate(device, pool->largest * 3);
    ck_assert_msg(large != NULL, "%s", shard_last_error());
    ck_assert_int_eq(device->ops->synchronize(device), SHARD_ERROR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "index 7 "));
    shard_clear_error();
    device->ops->release(device, large, pool->largest * 3);
    full_pool_release(device, pool, 2, 1);
}
END_TEST

/* ---- CUDA's libraries, at their first use ---- */

START_TEST(kernels_are_loaded)
{
    void *x = zeros(SIZE, SHARD_FLOAT32);
    fill_pool(gpu());
    check_done(gpu()->ops->fill(gpu(), SIZE, 3, x, SHARD_FLOAT32));
    ck_assert_double_eq(first_of(x, SHARD_FLOAT32), 3);
}
END_TEST

/* The first type makes the library's handle, too. With a bias it is another library. */
START_TEST(products)
{
    shard_matmul_shape shape = {.batch = 1, .m = SIZE, .n = SIZE, .k = SIZE};
    for (int i = 0; i < 2 * TYPES; i++) {
        shard_dtype dtype = types[i % TYPES];
        void *a = ones(SIZE * SIZE, dtype), *b = ones(SIZE * SIZE, dtype), *c = zeros(SIZE * SIZE, dtype);
        fill_pool(gpu());
        check_done(i < TYPES ? gpu()->ops->matmul(gpu(), &shape, a, b, c, dtype)
                             : gpu()->ops->linear(gpu(), &(shard_linear_shape){.rows = SIZE, .in = SIZE, .out = SIZE}, a, b, b, c,
                                                  dtype));
        ck_assert_double_eq(first_of(c, dtype), i < TYPES ? SIZE : SIZE + 1);
    }
}
END_TEST

START_TEST(convolutions)
{
    shard_conv_shape shape = {1, 4, 4, 8, 8, 3, 3, 4, 4, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < TYPES; i++) {
        void *x = ones(4 * 4 * 8, types[i]), *weight = ones(8 * 8 * 9, types[i]), *y = zeros(4 * 4 * 8, types[i]);
        fill_pool(gpu());
        check_done(gpu()->ops->conv2d(gpu(), &shape, x, weight, NULL, y, types[i]));
        ck_assert_double_eq(first_of(y, types[i]), 4 * 8);
    }
}
END_TEST

/* ---- the arrays of the devices' tests ---- */

START_TEST(arrays_have_shadows)
{
    setenv("SHARD_DEVICE", "cuda", 1);
    shard_device *device = tested_device();
    const shard_device_ops *ops = device->ops;
    float *x = array_of(3, SHARD_FLOAT32, (const float[]){1, 2, 3}), *y = array_new(3, SHARD_FLOAT32);
    struct cudaPointerAttributes attributes;
    ck_assert_int_eq(cudaPointerGetAttributes(&attributes, shadow_in(x)), cudaSuccess);
    ck_assert_int_eq(attributes.type, cudaMemoryTypeDevice);
    RUN(device, axpby, 3, 2.0, x, 0.0, y, SHARD_FLOAT32);
    check_same(SHARD_FLOAT32, 3, y, (const float[]){2, 4, 6}, "a first call");
    x[1] = 0; /* by the host, between calls */
    y[2] = 10;
    RUN(device, axpby, 2, 2.0, x + 1, 1.0, y + 1, SHARD_FLOAT32);
    check_same(SHARD_FLOAT32, 3, y, (const float[]){2, 4, 16}, "what the host has written");
    check_done(ops->fill(device, 3, 1, y, SHARD_FLOAT32));
    check_done(ops->axpby(device, 3, 1.0, x, 1.0, y, SHARD_FLOAT32)); /* of what is on the device alone as yet */
    check_done(ops->synchronize(device));
    check_same(SHARD_FLOAT32, 3, y, (const float[]){2, 1, 4}, "queued calls");
    array_free(x, 3, SHARD_FLOAT32);
    array_free(y, 3, SHARD_FLOAT32);
}
END_TEST

/* ---- what a GPU must have ---- */

START_TEST(pools_are_needed)
{
    setenv("SHARD_CUDA_EMULATION_POOLS", "0", 1);
    shard_device *device = shard_device_open("cuda");
    ck_assert(device == NULL || !is_emulated());
    if (!device)
        ck_assert_msg(strstr(shard_last_error(), "cuda: GPU 0 has no memory pools (cudaMallocAsync)") != NULL, "%s",
                      shard_last_error());
}
END_TEST

/* The source may be overwritten on return, also where the GPU reads it by itself: of any size, and behind queued work. */
START_TEST(sources_are_read)
{
    enum { MOST = 3 << 20 };
    static const int64_t sizes[] = {1, 1000, 1 << 15, MOST}; /* the last with more bytes than are staged at a time */
    setenv("SHARD_CUDA_EMULATION_PAGEABLE", "1", 1);
    shard_device *device = shard_device_open("cuda");
    float *source = calloc(MOST, sizeof *source), *got = calloc(MOST, sizeof *got);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = (size_t)sizes[i] * sizeof *source;
        float *to = device->ops->allocate(device, bytes);
        check_done(device->ops->fill(device, sizes[i], 7, to, SHARD_FLOAT32));
        for (int64_t j = 0; j < sizes[i]; j++)
            source[j] = (float)j;
        check_done(device->ops->copy_in(device, to, source, bytes));
        memset(source, 255, bytes);
        check_done(device->ops->copy_out(device, got, to, bytes));
        for (int64_t j = 0; j < sizes[i]; j++)
            ck_assert_float_eq(got[j], (float)j);
        device->ops->release(device, to, bytes);
    }
    free(source);
    free(got);
}
END_TEST

int main(void)
{
    setenv("SHARD_CUDA_EMULATION_MEMORY", "32M", 1);
    Suite *suite = suite_create("cuda_memory");
    TCase *tcase = test_case(suite, "cuda_memory");
    tcase_add_test(tcase, pieces_are_joined);
    tcase_add_test(tcase, too_much_is_an_error);
    tcase_add_test(tcase, not_in_a_capture);
    tcase_add_test(tcase, faults_stay);
    tcase_add_test(tcase, kernels_are_loaded);
    tcase_add_test(tcase, products);
    tcase_add_test(tcase, convolutions);
    tcase_add_test(tcase, arrays_have_shadows);
    tcase_add_test(tcase, pools_are_needed);
    tcase_add_test(tcase, sources_are_read);
    return test_run(suite);
}
