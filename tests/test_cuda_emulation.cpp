/* The emulation of CUDA finds what it is there to find: each breach, planted, shows. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <emulation.h>

extern "C" {
#include "support/check.h"
}

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned all_lanes = 0xffffffffu;

static void ok(cudaError_t error)
{
    ck_assert_str_eq(cudaGetErrorName(error), "cudaSuccess");
}

static void refused(cudaError_t error, cudaError_t wanted)
{
    ck_assert_str_eq(cudaGetErrorName(error), cudaGetErrorName(wanted));
    ck_assert_int_eq(cudaGetLastError(), wanted);
}

template <class... Parameters, class... Arguments>
static cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

static cudaStream_t new_stream()
{
    cudaStream_t stream;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

template <class T> static T *new_array(size_t count, cudaStream_t stream)
{
    void *memory;
    ok(cudaMallocAsync(&memory, count * sizeof(T), stream));
    return (T *)memory;
}

template <class T> static T *new_pinned(size_t count)
{
    void *memory;
    ok(cudaMallocHost(&memory, count * sizeof(T)));
    return (T *)memory;
}

static __global__ void set(float *y, float value)
{
    y[threadIdx.x] = value;
}

/* ---- threads ---- */

enum { THREADS = 100 };

template <bool WAITS> static __global__ void rotate(int *y)
{
    __shared__ int at[THREADS];
    at[threadIdx.x] = (int)(blockIdx.x * 1000 + threadIdx.x);
    if (WAITS)
        __syncthreads();
    y[blockIdx.x * THREADS + threadIdx.x] = at[(threadIdx.x + THREADS - 1) % THREADS];
    if (WAITS)
        __syncthreads();
}

static int count_wrong(void (*kernel)(int *))
{
    int *y = new_pinned<int>(3 * THREADS), wrong = 0;
    ok(launch(nullptr, 3, THREADS, kernel, y));
    ok(cudaDeviceSynchronize());
    for (int i = 0; i < 3 * THREADS; i++)
        wrong += y[i] != i / THREADS * 1000 + (i + THREADS - 1) % THREADS;
    return wrong;
}

/* Forward, each thread finds what the one before it wrote; in other orders it doesn't. */
START_TEST(missing_barrier_shows)
{
    static const char *const orders[] = {"forward", "reverse", "shuffled"};
    setenv("SHARD_CUDA_EMULATION_ORDER", orders[_i], 1);
    ck_assert_int_eq(count_wrong(rotate<true>), 0);
    int wrong = count_wrong(rotate<false>);
    ck_assert_msg(_i == 0 ? wrong <= 3 : wrong > 50, "%s: %d are wrong", orders[_i], wrong);
}
END_TEST

static __global__ void some_wait(float *y)
{
    if (threadIdx.x < 16)
        __syncthreads();
    y[threadIdx.x] = 1;
}

static __global__ void wait_apart(float *y)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
    y[threadIdx.x] = 1;
}

static __global__ void read_outside_mask(int *y)
{
    if (threadIdx.x < 16)
        y[threadIdx.x] = __shfl_sync(0xffff, (int)threadIdx.x, 16);
}

static __global__ void read_missing_lane(int *y)
{
    y[threadIdx.x] = __shfl_xor_sync(all_lanes, (int)threadIdx.x, 16);
}

static __global__ void write_at(float *y, int64_t i)
{
    y[i] = 1;
}

struct View {
    float *y;
};

static __global__ void write_view(View view)
{
    view.y[0] = 1;
}

/* Each ends the process: which signal, and what the planted mistake is. */
enum Breach {
    SOME_WAIT,
    WAIT_APART,
    READ_OUTSIDE_MASK,
    READ_MISSING_LANE,
    WRITE_BEYOND,
    USE_FREED,
    USE_HOST_MEMORY,
    USE_HOST_MEMORY_IN_STRUCT,
    FREE_TOO_EARLY,
    USE_ON_UNORDERED_STREAM,
    READ_ON_HOST,
    WRITE_ON_HOST,
    BREACHES
};

static void commit(Breach breach)
{
    cudaStream_t stream = new_stream(), other = new_stream();
    float *y = new_array<float>(100, stream);
    float on_host[4] = {0};
    ok(cudaMemsetAsync(y, 0, 400, stream));
    switch (breach) {
    case SOME_WAIT:
        ok(launch(stream, 2, 32, some_wait, y));
        break;
    case WAIT_APART:
        ok(launch(stream, 2, 32, wait_apart, y));
        break;
    case READ_OUTSIDE_MASK:
        ok(launch(stream, 1, 32, read_outside_mask, (int *)y));
        break;
    case READ_MISSING_LANE:
        ok(launch(stream, 1, 24, read_missing_lane, (int *)y));
        break;
    case WRITE_BEYOND:
        ok(launch(stream, 1, 1, write_at, y, 100));
        break;
    case USE_FREED:
        ok(cudaFreeAsync(y, stream));
        ok(launch(stream, 1, 1, set, y, 1.0f));
        break;
    case USE_HOST_MEMORY:
        ok(launch(stream, 1, 1, set, on_host, 1.0f));
        break;
    case USE_HOST_MEMORY_IN_STRUCT:
        ok(launch(stream, 1, 1, write_view, View{on_host}));
        break;
    case FREE_TOO_EARLY: /* on another stream, which nothing makes wait for the use */
        ok(launch(stream, 1, 1, set, y, 1.0f));
        ok(cudaFreeAsync(y, other));
        ok(cudaDeviceSynchronize());
        break;
    case USE_ON_UNORDERED_STREAM:
        ok(launch(other, 1, 1, set, y, 1.0f));
        ok(cudaDeviceSynchronize());
        break;
    case READ_ON_HOST:
        ok(cudaStreamSynchronize(stream));
        on_host[0] = *(volatile float *)y;
        break;
    case WRITE_ON_HOST:
        *(volatile float *)y = 1;
        break;
    case BREACHES:
        break;
    }
    cudaStreamSynchronize(stream);
}

START_TEST(breach_ends_the_process)
{
#if !defined(__has_builtin) || !__has_builtin(__builtin_clear_padding)
    if (_i == USE_HOST_MEMORY_IN_STRUCT) /* found where this is, in gcc */
        return;
#endif
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        signal(SIGSEGV, SIG_DFL); /* not AddressSanitizer's report */
        commit((Breach)_i);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "breach %d was not found", _i);
    if (WIFSIGNALED(status))
        ck_assert_int_eq(WTERMSIG(status), _i >= READ_ON_HOST ? SIGSEGV : SIGABRT);
}
END_TEST

static __global__ void exchange(int *y)
{
    int lane = (int)threadIdx.x % 32, *row = y + threadIdx.x * 8;
    row[0] = __shfl_xor_sync(all_lanes, lane, 5);
    row[1] = __shfl_down_sync(all_lanes, lane, 3);
    row[2] = __shfl_up_sync(all_lanes, lane, 3);
    row[3] = __shfl_sync(all_lanes, lane, 2, 8);
    row[4] = (int)__ballot_sync(all_lanes, lane % 3 == 0);
    row[5] = __any_sync(all_lanes, lane == 7) + 2 * __all_sync(all_lanes, lane < 31);
    row[6] = lane < 16 ? __shfl_down_sync(0xffff, lane, 1, 16) : -1;
    row[7] = __syncthreads_count(threadIdx.x % 5 == 0);
}

START_TEST(lanes_exchange)
{
    int *y = new_pinned<int>(64 * 8);
    ok(launch(nullptr, 1, 64, exchange, y));
    ok(cudaDeviceSynchronize());
    for (int i = 0; i < 64; i++) {
        int lane = i % 32, *row = y + i * 8;
        ck_assert_int_eq(row[0], lane ^ 5);
        ck_assert_int_eq(row[1], lane + 3 < 32 ? lane + 3 : lane);
        ck_assert_int_eq(row[2], lane < 3 ? lane : lane - 3);
        ck_assert_int_eq(row[3], lane / 8 * 8 + 2);
        ck_assert_int_eq(row[4], 0x49249249);
        ck_assert_int_eq(row[5], 1);
        ck_assert_int_eq(row[6], lane < 15 ? lane + 1 : lane < 16 ? lane : -1);
        ck_assert_int_eq(row[7], 13);
    }
}
END_TEST

static __global__ void where(int *y)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    atomicAdd(&y[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

START_TEST(every_thread_runs_once)
{
    int *y = new_pinned<int>(24 * 60);
    ok(cudaMemset(y, 0, 24 * 60 * sizeof *y));
    ok(launch(nullptr, dim3(2, 3, 4), dim3(3, 4, 5), where, y));
    ok(cudaDeviceSynchronize());
    for (int i = 0; i < 24 * 60; i++)
        ck_assert_int_eq(y[i], 1);
}
END_TEST

START_TEST(launches_are_refused)
{
    float *y = new_pinned<float>(1024);
    static const dim3 wrong[][2] = {{1, 0}, {1, 1025},        {1, dim3(32, 33)},   {1, dim3(1, 1, 65)},
                                    {0, 1}, {2147483648u, 1}, {dim3(1, 65536), 1}, {dim3(1, 1, 65536), 1}};
    for (auto &sizes : wrong)
        refused(launch(nullptr, sizes[0], sizes[1], set, y, 1.0f), cudaErrorInvalidConfiguration);
    refused(launch((cudaStream_t)y, 1, 1, set, y, 1.0f), cudaErrorInvalidResourceHandle);
    ok(launch(nullptr, 1, 1024, set, y, 1.0f));
}
END_TEST

/* ---- streams ---- */

START_TEST(work_waits_for_a_wait)
{
    cudaStream_t stream = new_stream();
    float *y = new_array<float>(4, stream), *pinned = new_pinned<float>(4), pageable[4] = {1, 1, 1, 1};
    pinned[0] = 0;
    ok(cudaMemcpyAsync(y, pageable, sizeof pageable, cudaMemcpyHostToDevice, stream));
    pageable[0] = 5; /* taken at the call */
    ok(cudaMemcpyAsync(pinned, y, sizeof pageable, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(pinned[0], 0);
    ok(cudaStreamSynchronize(stream));
    ck_assert_float_eq(pinned[0], 1);

    ok(cudaMemcpyAsync(y, pinned, sizeof pageable, cudaMemcpyHostToDevice, stream));
    pinned[0] = 7; /* read when it runs */
    ok(cudaMemcpyAsync(pageable, y, sizeof pageable, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(pageable[0], 7);
}
END_TEST

/* What one stream writes for another is there only with an event between. */
START_TEST(streams_race)
{
    cudaStream_t writer = new_stream(), reader = new_stream();
    cudaEvent_t event;
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    float *y = new_array<float>(1, writer), *seen = new_pinned<float>(1);
    ok(cudaMemsetAsync(y, 0, sizeof *y, writer));
    ok(cudaStreamSynchronize(writer));
    for (int with_event = 0; with_event < 2; with_event++)
        for (int wait_for_all = 0; wait_for_all < 2; wait_for_all++) {
            ok(launch(writer, 1, 1, set, y, (float)(10 + with_event)));
            if (with_event) {
                ok(cudaEventRecord(event, writer));
                ok(cudaStreamWaitEvent(reader, event));
            }
            ok(cudaMemcpyAsync(seen, y, sizeof *y, cudaMemcpyDeviceToHost, reader));
            ok(wait_for_all ? cudaDeviceSynchronize() : cudaStreamSynchronize(reader));
            ck_assert_msg((*seen == 11) == with_event, "event %d, wait %d: %g", with_event, wait_for_all, (double)*seen);
            ok(cudaDeviceSynchronize());
            ok(cudaMemset(y, 0, sizeof *y));
            ok(cudaDeviceSynchronize());
        }
}
END_TEST

/* Where a wait runs other streams first, what must not come before it is seen too. */
START_TEST(other_streams_may_run_first)
{
    setenv("SHARD_CUDA_EMULATION_QUEUE", _i == 0 ? "late" : _i == 1 ? "others" : "eager", 1);
    cudaStream_t reader = new_stream(), writer = new_stream();
    float *y = new_array<float>(1, reader), *seen = new_pinned<float>(1);
    ok(cudaMemsetAsync(y, 0, sizeof *y, reader));
    ok(cudaStreamSynchronize(reader));
    ok(cudaMemcpyAsync(seen, y, sizeof *y, cudaMemcpyDeviceToHost, reader));
    ok(launch(writer, 1, 1, set, y, 1.0f));
    ok(cudaStreamSynchronize(reader));
    ck_assert_float_eq(*seen, _i == 1);
}
END_TEST

START_TEST(default_stream_orders)
{
    cudaStream_t blocking;
    ok(cudaStreamCreate(&blocking));
    float *y = new_array<float>(1, nullptr), *seen = new_pinned<float>(2);
    ok(launch(nullptr, 1, 1, set, y, 3.0f));
    ok(cudaMemcpyAsync(seen, y, sizeof *y, cudaMemcpyDeviceToHost, blocking));
    ok(launch(blocking, 1, 1, set, y, 4.0f));
    ok(cudaMemcpyAsync(seen + 1, y, sizeof *y, cudaMemcpyDeviceToHost, nullptr));
    ok(cudaStreamSynchronize(nullptr));
    ck_assert_float_eq(seen[0], 3);
    ck_assert_float_eq(seen[1], 4);
}
END_TEST

START_TEST(events_tell)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t start, end;
    float *y = new_array<float>(1, stream), ms = -1;
    ok(cudaEventCreate(&start));
    ok(cudaEventCreate(&end));
    ok(cudaEventQuery(end));
    ok(cudaEventRecord(start, stream));
    ok(launch(stream, 1, 1, set, y, 3.0f));
    ok(cudaEventRecord(end, stream));
    refused(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    refused(cudaEventQuery(end), cudaErrorNotReady);
    ok(cudaEventQuery(end));
    ok(cudaEventElapsedTime(&ms, start, end));
    ck_assert(ms >= 0);
    ok(cudaEventDestroy(start));
    refused(cudaEventRecord(start, stream), cudaErrorInvalidResourceHandle);
}
END_TEST

/* Work that waits for another process goes on though nobody here waits for it. */
START_TEST(polled_work_goes_on)
{
    static volatile bool reached, may_end;
    cudaStream_t stream = new_stream();
    ok(emulation::enqueue_polled(stream, "polled", [] {
        reached = true;
        return (bool)may_end;
    }));
    for (int i = 0; i < 2000 && !reached; i++)
        usleep(1000);
    ck_assert(reached);
    refused(cudaStreamQuery(stream), cudaErrorNotReady);
    may_end = true;
    ok(cudaStreamSynchronize(stream));
}
END_TEST

/* ---- memory ---- */

START_TEST(fresh_memory_is_nan)
{
    cudaStream_t stream = new_stream();
    for (int turn = 0; turn < 2; turn++) { /* the second gets the first one's memory */
        float *y = new_array<float>(1000, stream), *seen = new_pinned<float>(1000);
        ok(cudaMemcpyAsync(seen, y, 4000, cudaMemcpyDeviceToHost, stream));
        ok(launch(stream, 1, 1000, set, y, 1.0f));
        ok(cudaFreeAsync(y, stream));
        ok(cudaStreamSynchronize(stream));
        for (int i = 0; i < 1000; i++)
            ck_assert(isnan(seen[i]));
        ck_assert_uint_eq((uintptr_t)y % 256, 0);
    }
}
END_TEST

START_TEST(copies_are_refused)
{
    cudaStream_t stream = new_stream();
    char *y = new_array<char>(100, stream), here[200] = {0};
    refused(cudaMemcpyAsync(here, here, 100, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    refused(cudaMemcpyAsync(y, here, 100, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
    refused(cudaMemcpyAsync(here, y, 100, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    refused(cudaMemcpyAsync(here, y, 101, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    refused(cudaMemsetAsync(here, 0, 100, stream), cudaErrorInvalidValue);
    refused(cudaMemsetAsync(y + 50, 0, 51, stream), cudaErrorInvalidValue);
    refused(cudaMemcpy2DAsync(here, 9, y, 10, 10, 10, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidPitchValue);
    ok(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyHostToDevice, stream));
    ok(cudaMemcpyAsync(y, here, 100, cudaMemcpyDefault, stream));
    ok(cudaFreeAsync(y, stream));
    refused(cudaFreeAsync(y, stream), cudaErrorInvalidValue);
    refused(cudaFree(here), cudaErrorInvalidValue);
    refused(cudaFreeHost(here), cudaErrorInvalidValue);
}
END_TEST

START_TEST(memory_runs_out)
{
    setenv("SHARD_CUDA_EMULATION_MEMORY", "1M", 1);
    cudaStream_t stream = new_stream();
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX, reserved, used;
    void *memory, *more;
    ok(cudaDeviceGetDefaultMemPool(&pool, 0));
    ok(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    refused(cudaMallocAsync(&memory, 2 << 20, stream), cudaErrorMemoryAllocation);
    ok(cudaMallocAsync(&memory, 600 << 10, stream));
    refused(cudaMallocAsync(&more, 600 << 10, stream), cudaErrorMemoryAllocation);
    refused(cudaMalloc(&more, 600 << 10), cudaErrorMemoryAllocation);
    ok(cudaFreeAsync(memory, stream));
    ok(cudaMallocAsync(&more, 600 << 10, stream)); /* the same, in the stream's order */
    ok(cudaFreeAsync(more, stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    ck_assert_uint_ge(reserved, 600 << 10);
    ck_assert_uint_eq(used, 0);
    ok(cudaMemPoolTrimTo(pool, 0));
    ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    ck_assert_uint_eq(reserved, 0);
    ok(cudaMalloc(&more, 600 << 10));
    ok(cudaFree(more));
}
END_TEST

START_TEST(rounds_to_nearest)
{
    ck_assert_uint_eq(__half_as_ushort(__float2half_rn(1 + 0x1p-11f)), 0x3c00);
    ck_assert_uint_eq(__half_as_ushort(__float2half_rn(1 + 3 * 0x1p-11f)), 0x3c02);
    ck_assert_uint_eq(__half_as_ushort(__float2half_rn(65520.0f)), 0x7c00);
    ck_assert_uint_eq(__bfloat16_as_ushort(__float2bfloat16_rn(1 + 0x1p-8f)), 0x3f80);
    ck_assert_uint_eq(__bfloat16_as_ushort(__float2bfloat16_rn(1 + 3 * 0x1p-8f)), 0x3f82);
    ck_assert(isnan(__bfloat162float(__float2bfloat16_rn(NAN))));
    ck_assert_float_eq(__half2float(__ushort_as_half(1)), 0x1p-24f);
}
END_TEST

/* ---- devices ---- */

START_TEST(devices_are_as_asked)
{
    int count;
    setenv("SHARD_CUDA_EMULATION_DEVICES", _i == 0 ? "-1" : _i == 1 ? "0" : "2", 1);
    if (_i < 2) {
        refused(cudaGetDeviceCount(&count), _i == 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
        return;
    }
    ok(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 2);
    char first[20], second[20];
    ok(cudaDeviceGetPCIBusId(first, sizeof first, 0));
    ok(cudaDeviceGetPCIBusId(second, sizeof second, 1));
    ck_assert_str_ne(first, second);
    refused(cudaSetDevice(2), cudaErrorInvalidDevice);
    cudaStream_t stream = new_stream();
    float *y = new_array<float>(1, stream);
    ok(cudaSetDevice(1));
    refused(launch(stream, 1, 1, set, y, 1.0f), cudaErrorInvalidResourceHandle);
}
END_TEST

/* As with CUDA, a process that has begun can't be forked. */
START_TEST(forked_process_is_refused)
{
    cudaStream_t stream = new_stream();
    pid_t child = fork();
    if (child == 0)
        _exit(cudaStreamSynchronize(stream) != cudaErrorInitializationError);
    int status;
    waitpid(child, &status, 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

/* ---- graphs ---- */

static __global__ void increase(float *y)
{
    y[0] += 1;
}

START_TEST(graphs_repeat)
{
    cudaStream_t stream = new_stream(), side = new_stream();
    cudaEvent_t fork_event, join_event;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamCaptureStatus status;
    ok(cudaEventCreate(&fork_event));
    ok(cudaEventCreate(&join_event));
    float *y = new_array<float>(1, stream), *seen = new_pinned<float>(1);
    ok(cudaMemsetAsync(y, 0, sizeof *y, stream));
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ok(launch(stream, 1, 1, increase, y));
    ok(cudaEventRecord(fork_event, stream));
    ok(cudaStreamWaitEvent(side, fork_event));
    ok(launch(side, 1, 1, increase, y));
    ok(cudaStreamIsCapturing(side, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    float *scratch = new_array<float>(10, side);
    ok(launch(side, 1, 10, set, scratch, 1.0f));
    ok(cudaFreeAsync(scratch, side));
    ok(cudaEventRecord(join_event, side));
    ok(cudaStreamWaitEvent(stream, join_event));
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&executable, graph));
    ok(cudaGraphDestroy(graph));
    for (int turn = 0; turn < 3; turn++)
        ok(cudaGraphLaunch(executable, stream));
    ok(cudaMemcpyAsync(seen, y, sizeof *y, cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    ck_assert_float_eq(*seen, 6);
    ok(cudaGraphExecDestroy(executable));
}
END_TEST

/* Each spoils the capture of a stream. */
START_TEST(captures_are_spoilt)
{
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    float *y = new_array<float>(1, stream), here = 0;
    void *memory;
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaError_t error = _i == 0   ? cudaStreamSynchronize(stream)
                        : _i == 1 ? cudaMalloc(&memory, 10)
                        : _i == 2 ? cudaMemcpyAsync(y, &here, sizeof here, cudaMemcpyHostToDevice, stream)
                                  : cudaDeviceSynchronize();
    refused(error, cudaErrorStreamCaptureUnsupported);
    refused(launch(stream, 1, 1, set, y, 1.0f), cudaErrorStreamCaptureInvalidated);
    refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    ok(launch(stream, 1, 1, set, y, 1.0f));
    ok(cudaStreamSynchronize(stream));
}
END_TEST

START_TEST(captures_join)
{
    cudaStream_t stream = new_stream(), side = new_stream();
    cudaEvent_t event;
    cudaGraph_t graph;
    ok(cudaEventCreate(&event));
    float *y = new_array<float>(1, stream);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ok(cudaEventRecord(event, stream));
    ok(cudaStreamWaitEvent(side, event));
    ok(launch(side, 1, 1, set, y, 1.0f));
    refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
}
END_TEST

/* What a capture allocates is the graph's: one executable at a time, freed in the capture, after a launch, or before the
 * next one where the flag says so. */
START_TEST(graphs_have_memory)
{
    cudaStream_t stream = new_stream();
    cudaMemPool_t pool;
    cudaGraph_t graph;
    cudaGraphExec_t executable, second;
    float *before = new_array<float>(1, stream), *inside, *left, value = 0;
    uint64_t bytes = 0;
    ok(cudaDeviceGetDefaultMemPool(&pool, 0));
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    refused(cudaFreeAsync(before, stream), cudaErrorInvalidValue);
    refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ok(cudaMallocFromPoolAsync((void **)&inside, sizeof *inside, pool, stream));
    ok(cudaMallocFromPoolAsync((void **)&left, sizeof *left, pool, stream));
    ok(launch(stream, 1, 1, set, inside, 2.0f));
    ok(launch(stream, 1, 1, set, left, 3.0f));
    ok(cudaFreeAsync(inside, stream));
    ok(cudaStreamEndCapture(stream, &graph));
    const bool frees = _i;
    ok(cudaGraphInstantiate(&executable, graph, frees ? cudaGraphInstantiateFlagAutoFreeOnLaunch : 0));
    refused(cudaGraphInstantiate(&second, graph, 0), cudaErrorNotSupported);
    refused(cudaFreeAsync(left, stream), cudaErrorInvalidValue); /* not launched yet */
    ok(cudaGraphLaunch(executable, stream));
    ok(cudaMemcpyAsync(&value, left, sizeof value, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(value, 3);
    if (!frees)
        refused(cudaGraphLaunch(executable, stream), cudaErrorInvalidValue);
    if (!frees)
        ok(cudaFreeAsync(left, stream));
    ok(cudaGraphLaunch(executable, stream));
    ok(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
    ck_assert_uint_gt(bytes, 0);
    ok(cudaGraphExecDestroy(executable));
    ok(cudaGraphDestroy(graph));
    ok(cudaMemcpyAsync(&value, left, sizeof value, cudaMemcpyDeviceToHost, stream)); /* stays */
    ck_assert_float_eq(value, 3);
    ok(cudaFreeAsync(left, stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
    ck_assert_uint_eq(bytes, 0);
}
END_TEST

/* Allocations that share a page with what is trimmed keep their values. */
START_TEST(trims_whole_pages)
{
    enum { COUNT = 64 };
    cudaStream_t stream = new_stream();
    cudaMemPool_t pool;
    float *arrays[COUNT], value;
    ok(cudaDeviceGetDefaultMemPool(&pool, 0));
    for (int i = 0; i < COUNT; i++) {
        arrays[i] = new_array<float>(1, stream);
        ok(launch(stream, 1, 1, set, arrays[i], 1.0f));
    }
    for (int i = 0; i < COUNT; i += 2)
        ok(cudaFreeAsync(arrays[i], stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaMemPoolTrimTo(pool, 0));
    for (int i = 1; i < COUNT; i += 2) {
        ok(cudaMemcpyAsync(&value, arrays[i], sizeof value, cudaMemcpyDeviceToHost, stream));
        ck_assert_float_eq(value, 1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_emulation");
    TCase *threads = test_case(suite, "threads");
    tcase_add_loop_test(threads, missing_barrier_shows, 0, 3);
    tcase_add_loop_test(threads, breach_ends_the_process, 0, BREACHES);
    tcase_add_test(threads, lanes_exchange);
    tcase_add_test(threads, every_thread_runs_once);
    tcase_add_test(threads, launches_are_refused);
    TCase *streams = test_case(suite, "streams");
    tcase_add_test(streams, work_waits_for_a_wait);
    tcase_add_test(streams, streams_race);
    tcase_add_loop_test(streams, other_streams_may_run_first, 0, 3);
    tcase_add_test(streams, default_stream_orders);
    tcase_add_test(streams, events_tell);
    tcase_add_test(streams, polled_work_goes_on);
    TCase *memory = test_case(suite, "memory");
    tcase_add_test(memory, fresh_memory_is_nan);
    tcase_add_test(memory, copies_are_refused);
    tcase_add_test(memory, memory_runs_out);
    tcase_add_test(memory, rounds_to_nearest);
    tcase_add_test(memory, trims_whole_pages);
    TCase *devices = test_case(suite, "devices");
    tcase_add_loop_test(devices, devices_are_as_asked, 0, 3);
    tcase_add_test(devices, forked_process_is_refused);
    TCase *graphs = test_case(suite, "graphs");
    tcase_add_test(graphs, graphs_repeat);
    tcase_add_loop_test(graphs, captures_are_spoilt, 0, 4);
    tcase_add_test(graphs, captures_join);
    tcase_add_loop_test(graphs, graphs_have_memory, 0, 2);
    return test_run(suite);
}
