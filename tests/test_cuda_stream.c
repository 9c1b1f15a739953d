/*
 * The caller's CUDA stream (shard_device_use_stream), and tensors in GPU memory that go to other libraries and come
 * from them (DLPack). The emulation runs only the work that is waited for, in the order of streams and events.
 */
#include "support/job.h"

#include <cuda_runtime_api.h>
#include <shard/dlpack.h>
#include <shard/shard.h>

#include <math.h>
#include <string.h>

enum { COUNT = 6 };

static shard_device *gpu(void)
{
    shard_device *device = shard_device_open("cuda");
    ck_assert_msg(device != NULL, "%s", shard_last_error());
    return device;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    gpu();
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static shard_tensor *filled(double value)
{
    return shard_full(SHARD_SHAPE(COUNT), value, .device = gpu());
}

/* The first element, by the caller's copy on that stream alone; the library does not wait. */
static float read_on(cudaStream_t stream, const void *memory)
{
    float value = NAN;
    ck_assert_msg(memory != NULL, "%s", shard_last_error());
    ck_assert_int_eq(cudaMemcpyAsync(&value, memory, sizeof value, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    return value;
}

/* ---- order ---- */

START_TEST(orders_streams)
{
    cudaStream_t stream = make_stream();
    SHARD_SCOPE
    {
        shard_tensor *before = shard_add_scalar(filled(2), 1);
        void *memory = shard_data(before);
        check_ok(shard_device_use_stream(gpu(), stream));
        ck_assert_float_eq(read_on(stream, memory), 3); /* queued on the device's own stream */
        ck_assert_float_eq(read_on(stream, shard_data(shard_add_scalar(before, 4))), 7);
        ck_assert_int_eq(cudaMemsetAsync(memory, 0, COUNT * sizeof(float), stream), cudaSuccess);
        ck_assert_double_eq(shard_item(shard_sum(before)), 0); /* the caller's work comes first */
        ck_assert_int_eq(cudaMemsetAsync(memory, 1, COUNT * sizeof(float), stream), cudaSuccess);
        check_ok(shard_device_use_stream(gpu(), NULL));
        float ones;
        memset(&ones, 1, sizeof ones);
        ck_assert_double_eq(shard_item(shard_narrow(before, 0, COUNT - 1, 1)), (double)ones); /* on the own stream, after it */
    }
    check_ok(shard_synchronize(gpu()));
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
    check_ok(shard_last_status());
}
END_TEST

/* Memory goes from one stream to the other without a wait on the host. */
START_TEST(reuses_memory)
{
    cudaStream_t stream = make_stream();
    for (int round = 0; round < 20; round++)
        SHARD_SCOPE
        {
            check_ok(shard_device_use_stream(gpu(), round % 2 ? stream : NULL));
            shard_tensor *x = filled(round);
            check_ok(shard_device_use_stream(gpu(), round % 2 ? NULL : stream));
            shard_tensor *y = shard_add(x, filled(1));
            if (round % 5 == 0)
                ck_assert_double_eq(shard_item(shard_sum(y)), COUNT * (round + 1));
        }
    check_ok(shard_device_use_stream(gpu(), NULL));
    check_ok(shard_synchronize(gpu()));
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
}
END_TEST

/* ---- what runs on it ---- */

static shard_tensor *images_of(int seed)
{
    float values[2 * 3 * 8 * 8];
    for (int i = 0; i < 2 * 3 * 8 * 8; i++)
        values[i] = (float)((i * 7 + seed) % 13 - 6) / 8;
    return shard_from_host(values, SHARD_SHAPE(2, 8, 8, 3), .device = gpu());
}

/* Convolutions, products, kernels and an optimizer. Returns the loss of the last step, read on `stream` alone if it
 * is not NULL. */
static float train(cudaStream_t stream)
{
    shard_set_default_device(gpu());
    shard_manual_seed(5);
    shard_module *model = shard_nn_sequential(shard_nn_conv2d(3, 4, 3, .padding = 1), shard_nn_relu(), shard_nn_flatten(),
                                              shard_nn_linear(4 * 8 * 8, 5));
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1, .momentum = 0.9);
    const int64_t labels[2] = {3, 1};
    float result = NAN;
    for (int step = 0; step < 3; step++)
        SHARD_SCOPE
        {
            shard_tensor *loss = shard_cross_entropy(shard_forward(model, images_of(step)),
                                                     shard_from_host(labels, SHARD_SHAPE(2), .dtype = SHARD_INT64));
            result = stream ? read_on(stream, shard_data(loss)) : (float)shard_item(loss);
            check_ok(shard_backward(loss));
            check_ok(shard_step(sgd));
        }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    check_ok(shard_last_status());
    return result;
}

/* The handles of CUDA's libraries were made on the device's own stream. */
START_TEST(trains)
{
    cudaStream_t stream = make_stream();
    float own = train(NULL);
    check_ok(shard_device_use_stream(gpu(), stream));
    ck_assert_float_eq(train(stream), own);
    check_ok(shard_device_use_stream(gpu(), NULL));
    ck_assert_float_eq(train(NULL), own);
    ck_assert_float_lt(own, 2);
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
}
END_TEST

START_TEST(waits_for_copies)
{
    cudaStream_t stream = make_stream();
    float *batch = shard_device_allocate_host(gpu(), COUNT * sizeof *batch);
    for (int i = 0; i < COUNT; i++)
        batch[i] = 2;
    shard_event *event = shard_event_create(gpu());
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host_async(batch, SHARD_SHAPE(COUNT), .device = gpu());
        check_ok(shard_device_use_stream(gpu(), stream));
        ck_assert_float_eq(read_on(stream, shard_data(shard_add_scalar(x, 1))), 3);
        float result[COUNT];
        check_ok(shard_copy_to_host_async(shard_add_scalar(x, 2), result, sizeof result));
        check_ok(shard_event_record(event));
        check_ok(shard_device_use_stream(gpu(), NULL));
        check_ok(shard_event_synchronize(event));
        ck_assert_float_eq(result[COUNT - 1], 4);
    }
    shard_event_destroy(event);
    shard_device_free_host(gpu(), batch, COUNT * sizeof *batch);
}
END_TEST

/* A graph is captured of the stream, and replayed on any. */
START_TEST(captures)
{
    cudaStream_t stream = make_stream();
    check_ok(shard_device_use_stream(gpu(), stream));
    SHARD_SCOPE
    {
        shard_tensor *x = filled(1);
        shard_add_scalar(x, 1);
        check_ok(shard_synchronize(gpu()));
        void *pinned = shard_device_allocate_host(gpu(), 64);
        ck_assert_ptr_nonnull(pinned);
        shard_graph *graph = shard_graph_begin(gpu());
        ck_assert_msg(graph != NULL, "%s", shard_last_error());
        shard_tensor *y = shard_add_scalar(x, 1);
        shard_device_free_host(gpu(), pinned, 64); /* the capture goes on */
        check_ok(shard_graph_end(graph));
        check_ok(shard_graph_replay(graph));
        ck_assert_float_eq(read_on(stream, shard_data(y)), 2);
        ck_assert_int_eq(cudaMemsetAsync(shard_data(x), 0, COUNT * sizeof(float), stream), cudaSuccess);
        check_ok(shard_device_use_stream(gpu(), NULL));
        check_ok(shard_graph_replay(graph));
        ck_assert_double_eq(shard_item(shard_sum(y)), COUNT);
        shard_graph_destroy(graph);
    }
}
END_TEST

/* ---- what is refused ---- */

START_TEST(refuses_in_capture)
{
    cudaStream_t stream = make_stream();
    shard_graph *graph = shard_graph_begin(gpu());
    ck_assert_int_eq(shard_device_use_stream(gpu(), stream), SHARD_ERROR_UNSUPPORTED);
    check_error(SHARD_ERROR_UNSUPPORTED, "a change of the device's stream cannot be captured in a graph*");
    ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_end: a call in the capture was refused*");
    shard_graph_destroy(graph);
    cudaGraph_t captured;
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ck_assert_int_eq(shard_device_use_stream(gpu(), stream), SHARD_ERROR_UNSUPPORTED);
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_device_use_stream: stream * is captured in a graph: end that capture first");
    ck_assert_int_eq(cudaStreamEndCapture(stream, &captured), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(captured), cudaSuccess);
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(filled(1))), COUNT); /* the device's own stream stayed */
    }
}
END_TEST

/* Real CUDA may crash on a handle that it never made. */
START_TEST(refuses_other_streams)
{
    int no_stream;
    if (!cuda_is_emulated())
        return;
    ck_assert_int_eq(shard_device_use_stream(gpu(), &no_stream), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: * is no stream of cuda:0");
    ck_assert_int_eq(shard_device_use_stream(gpu(), (void *)2), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: stream 2 is CUDA's per-thread default stream*");
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(filled(1))), COUNT);
    }
}
END_TEST

/* ---- DLPack ---- */

START_TEST(dlpack_out)
{
    cudaStream_t consumer = make_stream();
    int64_t before = shard_get_memory_stats(gpu()).current;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_add_scalar(filled(2), 1);
        DLManagedTensorVersioned *managed = shard_to_dlpack(x);
        ck_assert_msg(managed != NULL, "%s", shard_last_error());
        ck_assert_int_eq(managed->dl_tensor.device.device_type, kDLCUDA);
        ck_assert_int_eq(managed->dl_tensor.device.device_id, 0);
        shard_release(x);
        check_ok(shard_device_use_stream(gpu(), consumer));
        check_ok(shard_device_use_stream(gpu(), NULL));
        ck_assert_float_eq(read_on(consumer, managed->dl_tensor.data), 3);
        ck_assert_int_gt(shard_get_memory_stats(gpu()).current, before);
        managed->deleter(managed);
    }
    ck_assert_int_eq(shard_get_memory_stats(gpu()).current, before);
    check_ok(shard_synchronize(gpu()));
}
END_TEST

static void delete_memory(DLManagedTensorVersioned *managed)
{
    ck_assert_int_eq(cudaFree(managed->manager_ctx), cudaSuccess);
    managed->manager_ctx = NULL;
}

/* Memory of the producer's, which writes it on a stream of its own. */
START_TEST(dlpack_in)
{
    cudaStream_t producer = make_stream();
    static const float values[COUNT] = {1, 2, 3, 4, 5, 6};
    int64_t shape[2] = {2, 2}, before = shard_get_memory_stats(gpu()).current;
    void *memory;
    ck_assert_int_eq(cudaMalloc(&memory, sizeof values), cudaSuccess);
    DLManagedTensorVersioned managed = {
        .version = {1, 0},
        .manager_ctx = memory,
        .deleter = delete_memory,
        .dl_tensor = {memory, {kDLCUDA, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 2 * sizeof(float)},
    };
    ck_assert_int_eq(cudaMemcpyAsync(memory, values, sizeof values, cudaMemcpyHostToDevice, producer), cudaSuccess);
    check_ok(shard_device_use_stream(gpu(), producer));
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_dlpack(&managed);
        ck_assert_msg(x != NULL, "%s", shard_last_error());
        ck_assert_ptr_eq(shard_tensor_device(x), gpu());
        ck_assert_ptr_eq(shard_data(x), (char *)memory + 2 * sizeof(float));
        ck_assert_double_eq(shard_item(shard_sum(shard_matmul(x, x))),
                            3 * 3 + 4 * 5 + 3 * 4 + 4 * 6 + 5 * 3 + 6 * 5 + 5 * 4 + 6 * 6);
        shard_set_requires_grad(x, true);
        check_ok(shard_backward(shard_sum(x)));
        ck_assert_double_eq(shard_item(shard_sum(shard_grad(x))), 4);
        ck_assert_ptr_nonnull(managed.manager_ctx);
    }
    ck_assert_ptr_null(managed.manager_ctx);
    check_ok(shard_device_use_stream(gpu(), NULL));
    ck_assert_int_eq(shard_get_memory_stats(gpu()).current, before);
}
END_TEST

START_TEST(dlpack_refuses)
{
    int64_t shape[1] = {2};
    _Alignas(8) float memory[2];
    DLManagedTensorVersioned managed = {.version = {1, 0},
                                        .dl_tensor = {memory, {kDLCUDA, 99}, 1, {kDLFloat, 32, 1}, shape, NULL, 0}};
    ck_assert_ptr_null(shard_from_dlpack(&managed));
    check_error(SHARD_ERROR_UNAVAILABLE, "cuda: there is no GPU 99 here; GPUs: *");
    managed.dl_tensor.device.device_id = -1;
    ck_assert_ptr_null(shard_from_dlpack(&managed));
    check_error(SHARD_ERROR_UNAVAILABLE, "device \"cuda:-1\": there is no such device*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_stream");
    TCase *streams = test_case(suite, "streams");
    tcase_add_test(streams, orders_streams);
    tcase_add_test(streams, reuses_memory);
    tcase_add_test(streams, trains);
    tcase_add_test(streams, waits_for_copies);
    tcase_add_test(streams, captures);
    tcase_add_test(streams, refuses_in_capture);
    tcase_add_test(streams, refuses_other_streams);
    TCase *dlpack = test_case(suite, "dlpack");
    tcase_add_test(dlpack, dlpack_out);
    tcase_add_test(dlpack, dlpack_in);
    tcase_add_test(dlpack, dlpack_refuses);
    return test_run(suite);
}
