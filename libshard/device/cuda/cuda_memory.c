/*
 * The CUDA device's memory: the runtime's own stream-ordered pool, which keeps
 * what it has (cuda.c sets its release threshold), with our count of what is in
 * use; pinned memory for staging.
 *
 * Released memory is reused by work that is queued later on the
 * same stream, so that nothing has to wait. Memory of the stream of copies is released on the device's stream like
 * all other.
 */
#include "device/cuda/cuda_room.h"

#include "base/memory.h"

#include <sched.h>
#include <stdlib.h>

static void *allocate_on(shard_device *device, size_t bytes, cudaStream_t stream)
{
    shard_cuda *cuda = shard_cuda_of(device);
    void *memory = NULL;
    cudaError_t error =
        SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory, cudaMallocFromPoolAsync(&memory, bytes, cuda->pool, stream));
    if (shard_cuda_lacks_memory(error)) {
        cudaGetLastError();
        return shard_fail_null(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes; tensors hold %lld", device->name, bytes,
                               (long long)cuda->count->current);
    }
    if (shard_cuda_check(error, "cudaMallocFromPoolAsync") != SHARD_OK)
        return NULL;
    if (cuda->capture && shard_cuda_graph_allocated(cuda->capture, memory, bytes) != SHARD_OK) {
        SHARD_CUDA(cudaFreeAsync(memory, cuda->stream));
        return NULL;
    }
    shard_memory_count_add(cuda->count, (int64_t)bytes);
    return memory;
}

void *shard_cuda_allocate(shard_device *device, size_t bytes)
{
    return allocate_on(device, bytes, shard_cuda_of(device)->stream);
}

void shard_cuda_release(shard_device *device, void *memory, size_t bytes)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (!memory)
        return;
    if (!cuda->graphs || !shard_cuda_graph_takes(cuda, memory, bytes))
        SHARD_CUDA(cudaFreeAsync(memory, cuda->stream));
    shard_memory_count_add(cuda->count, -(int64_t)bytes);
}

void *shard_cuda_scratch(shard_device *device, size_t bytes)
{
    return shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes ? bytes : 1);
}

void shard_cuda_scratch_release(shard_device *device, void *memory, size_t bytes)
{
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, memory, bytes ? bytes : 1);
}

void shard_cuda_memory_stats(const shard_device *device, shard_memory_stats *stats)
{
    const shard_cuda *cuda = shard_cuda_of(device);
    uint64_t reserved = 0, graphs = 0;
    SHARD_CUDA(cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    if (cuda->graphs)
        SHARD_CUDA(cudaDeviceGetGraphMemAttribute(cuda->ordinal, cudaGraphMemAttrReservedMemCurrent, &graphs));
    *stats = (shard_memory_stats){.current = __atomic_load_n(&cuda->count->current, __ATOMIC_RELAXED),
                                  .peak = __atomic_load_n(&cuda->count->peak, __ATOMIC_RELAXED),
                                  .reserved = (int64_t)(reserved + graphs)};
}

void shard_cuda_reset_peak(shard_device *device)
{
    shard_memory_count_reset_peak(shard_cuda_of(device)->count);
}

void *shard_cuda_allocate_host(shard_device *device, size_t bytes)
{
    void *memory = NULL;
    if (shard_cuda_refuse_in_capture(shard_cuda_of(device), "allocating pinned memory") != SHARD_OK)
        return NULL;
    cudaError_t error =
        SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory, cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    return shard_cuda_check(error, "cudaHostAlloc") == SHARD_OK ? memory : NULL;
}

/* ---- waiting ---- */

/* Kernels may run at the same time, and other threads may ask: the record is this thread's until it is empty. */
shard_status shard_cuda_report(shard_device *device)
{
    const uint64_t being_read = 1; /* no fault's word */
    shard_cuda_fault *found = shard_cuda_of(device)->fault;
    uint64_t what = __atomic_load_n(&found->what, __ATOMIC_ACQUIRE);
    if (what == 0 || what == being_read ||
        !__atomic_compare_exchange_n(&found->what, &what, being_read, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return SHARD_OK;
    int64_t detail[3];
    memcpy(detail, found->detail, sizeof detail);
    __atomic_store_n(&found->what, 0, __ATOMIC_RELEASE);
    const shard_fault *fault = (const shard_fault *)(uintptr_t)~what;
    return shard_error(fault->status, fault->format, detail[0], detail[1], detail[2]);
}

/* Asks until it is done. */
static shard_status poll(const shard_cuda *cuda, cudaStream_t stream, cudaEvent_t event)
{
    cudaError_t error;
    for (bool begins = true;; begins = false) {
        error = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (error != cudaSuccess && error != cudaErrorNotReady)
            return shard_cuda_check(error, event ? "cudaEventQuery" : "cudaStreamQuery");
        if (error == cudaErrorNotReady)
            cudaGetLastError(); /* which this is, though nothing is wrong */
        /* Also if it is done: another thread may have aborted what it waited for. */
        SHARD_TRY(cuda->watch(begins));
        if (error == cudaSuccess)
            return SHARD_OK;
        sched_yield();
    }
}

/* Ignores the faults of kernels, which are for the entries whose waiting device.h names. */
static shard_status wait_stream(const shard_cuda *cuda, cudaStream_t stream)
{
    return cuda->watch ? poll(cuda, stream, NULL) : SHARD_CUDA(cudaStreamSynchronize(stream));
}

shard_status shard_cuda_wait_event(const shard_cuda *cuda, cudaEvent_t event)
{
    return cuda->watch ? poll(cuda, NULL, event) : SHARD_CUDA(cudaEventSynchronize(event));
}

/* As wait_stream, and the host has synchronized: only then does the pool count what was released on the stream as free, and
 * gives it back (cudaMemPoolTrimTo). */
static shard_status synchronize_stream(const shard_cuda *cuda, cudaStream_t stream)
{
    SHARD_TRY(wait_stream(cuda, stream));
    return cuda->watch ? SHARD_CUDA(cudaStreamSynchronize(stream)) : SHARD_OK; /* the stream is empty: no wait */
}

/* All streams on which memory of the pool is released. */
static shard_status synchronize_streams(const shard_cuda *cuda)
{
    SHARD_TRY(synchronize_stream(cuda, cuda->stream));
    return cuda->partner ? synchronize_stream(cuda, cuda->partner->stream) : SHARD_OK;
}

shard_status shard_cuda_wait(shard_device *device)
{
    shard_cuda *cuda = shard_cuda_of(device);
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "waiting for the device"));
    SHARD_TRY(wait_stream(cuda, cuda->stream));
    return shard_cuda_report(device);
}

void shard_cuda_release_host(shard_device *device, void *memory, size_t bytes)
{
    const shard_cuda *cuda = shard_cuda_of(device);
    (void)bytes;
    if (!memory)
        return;
    if (cuda->watch && !cuda->capture) { /* CUDA waits for the whole device, unwatched */
        wait_stream(cuda, cuda->stream);
        wait_stream(cuda, cuda->copies);
        if (cuda->collectives)
            wait_stream(cuda, cuda->collectives);
    }
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* no capture of this thread ends by it */
    SHARD_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    SHARD_CUDA(cudaFreeHost(memory));
    SHARD_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
}

bool shard_cuda_make_room(shard_device *device)
{
    const shard_cuda *cuda = shard_cuda_of(device);
    enum cudaStreamCaptureStatus capture;
    cudaGetLastError(); /* the failed call's */
    if (SHARD_CUDA(cudaStreamIsCapturing(cuda->stream, &capture)) != SHARD_OK || capture != cudaStreamCaptureStatusNone)
        return false;
    return synchronize_streams(cuda) == SHARD_OK && SHARD_CUDA(cudaMemPoolTrimTo(cuda->pool, 0)) == SHARD_OK &&
           SHARD_CUDA(cudaDeviceGraphMemTrim(cuda->ordinal)) == SHARD_OK;
}

/* A fault that is found by then is kept for the entries whose waiting device.h names, as ranks trim before a
 * collective whose preflight check all of them have passed. */
void shard_cuda_trim(shard_device *device)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (shard_cuda_refuse_in_capture(cuda, "returning memory to the driver") != SHARD_OK)
        return;
    synchronize_streams(cuda); /* the result is ignored: only memory that is not in use is freed */
    SHARD_CUDA(cudaMemPoolTrimTo(cuda->pool, 0));
    SHARD_CUDA(cudaDeviceGraphMemTrim(cuda->ordinal));
}

shard_status shard_cuda_synchronize(shard_device *device)
{
    const shard_cuda *cuda = shard_cuda_of(device);
    SHARD_TRY(wait_stream(cuda, cuda->copies));
    return shard_cuda_wait(device);
}

/* Marks in both streams. */
typedef struct mark {
    cudaEvent_t computed, copied;
} mark;

void shard_cuda_event_destroy(shard_device *device, void *event)
{
    shard_cuda_of(device);
    mark *both = (mark *)event;
    if (both && both->computed)
        SHARD_CUDA(cudaEventDestroy(both->computed));
    if (both && both->copied)
        SHARD_CUDA(cudaEventDestroy(both->copied));
    free(both);
}

void *shard_cuda_event_create(shard_device *device)
{
    shard_cuda_of(device);
    mark *both = (mark *)shard_calloc(1, sizeof *both);
    if (both && (SHARD_CUDA(cudaEventCreateWithFlags(&both->computed, cudaEventDisableTiming)) != SHARD_OK ||
                 SHARD_CUDA(cudaEventCreateWithFlags(&both->copied, cudaEventDisableTiming)) != SHARD_OK)) {
        shard_cuda_event_destroy(device, both);
        return NULL;
    }
    return both;
}

shard_status shard_cuda_event_record(shard_device *device, void *event)
{
    shard_cuda *cuda = shard_cuda_of(device);
    const mark *both = (const mark *)event;
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "recording an event"));
    SHARD_CUDA_TRY(cudaEventRecord(both->copied, cuda->copies));
    return SHARD_CUDA(cudaEventRecord(both->computed, cuda->stream));
}

shard_status shard_cuda_event_synchronize(shard_device *device, void *event)
{
    shard_cuda *cuda = shard_cuda_of(device);
    const mark *both = (const mark *)event;
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "waiting for an event"));
    SHARD_TRY(shard_cuda_wait_event(cuda, both->copied));
    SHARD_TRY(shard_cuda_wait_event(cuda, both->computed));
    return shard_cuda_report(device);
}

/* ---- copies ---- */

/* Copies of memory that is not pinned, of more bytes, may wait for the stream inside of CUDA ("API synchronization behavior" of
 * the runtime's manual). Where the GPU reads such memory by itself, copies of any size may do so at their turn. */
enum { STAGED_BYTES = 64 << 10 };

static bool is_pinned(const void *memory)
{
    struct cudaPointerAttributes attributes = {.type = cudaMemoryTypeUnregistered};
    return SHARD_CUDA(cudaPointerGetAttributes(&attributes, memory)) == SHARD_OK && attributes.type != cudaMemoryTypeUnregistered;
}

shard_status shard_cuda_copy_in(shard_device *device, void *to, const void *from_host, size_t bytes)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (bytes == 0)
        return SHARD_OK;
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "copying from the host to the device"));
    bool pageable = (bytes > STAGED_BYTES || cuda->reads_pageable) && !is_pinned(from_host);
    if (pageable) {
        bool staged;
        shard_status status = shard_cuda_stage_in(device, to, from_host, bytes, &staged);
        if (staged)
            return status;
        if (cuda->watch) /* else CUDA waits, unwatched */
            SHARD_TRY(wait_stream(cuda, cuda->stream));
    }
    SHARD_CUDA_TRY(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, cuda->stream));
    return pageable && cuda->reads_pageable ? wait_stream(cuda, cuda->stream) : SHARD_OK;
}

shard_status shard_cuda_copy_out(shard_device *device, void *to_host, const void *from, size_t bytes)
{
    shard_cuda *cuda = shard_cuda_of(device);
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "reading values of the device on the host"));
    if (cuda->watch) /* a copy to memory that is not pinned waits by itself, unwatched */
        SHARD_TRY(shard_cuda_wait(device));
    if (bytes)
        SHARD_CUDA_TRY(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    SHARD_CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    return shard_cuda_report(device);
}

shard_status shard_cuda_copy_out_async(shard_device *device, void *to_host, const void *from, size_t bytes)
{
    shard_cuda *cuda = shard_cuda_of(device);
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "reading values of the device on the host"));
    return bytes ? SHARD_CUDA(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, cuda->stream)) : SHARD_OK;
}

/* The memory is allocated in the order of the stream of copies: its earlier use is over when the copy begins (cuda.c
 * prevents the pool from making that stream wait for it). */
void *shard_cuda_copy_in_async(shard_device *device, const void *from_host, size_t bytes, void **arrival)
{
    shard_cuda *cuda = shard_cuda_of(device);
    cudaEvent_t copied = NULL;
    *arrival = NULL;
    if (shard_cuda_refuse_in_capture(cuda, "copying from the host to the device") != SHARD_OK)
        return NULL;
    if (SHARD_CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming)) != SHARD_OK)
        return NULL;
    void *memory = allocate_on(device, bytes, cuda->copies);
    if (memory && SHARD_CUDA(cudaMemcpyAsync(memory, from_host, bytes, cudaMemcpyHostToDevice, cuda->copies)) == SHARD_OK &&
        SHARD_CUDA(cudaEventRecord(copied, cuda->copies)) == SHARD_OK) {
        *arrival = copied;
        return memory;
    }
    cudaEventDestroy(copied);
    if (memory) {
        cudaFreeAsync(memory, cuda->copies);
        shard_memory_count_add(cuda->count, -(int64_t)bytes);
    }
    return NULL;
}

shard_status shard_cuda_wait_arrival(shard_device *device, void *arrival, bool used)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (!used && shard_cuda_graph_keeps_arrival(cuda, arrival))
        return SHARD_OK;
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "the first use of a copy from the host"));
    SHARD_CUDA_TRY(cudaStreamWaitEvent(cuda->stream, (cudaEvent_t)arrival, cudaEventWaitDefault));
    return SHARD_CUDA(cudaEventDestroy((cudaEvent_t)arrival));
}

shard_status shard_cuda_copy_rows(shard_device *device, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                  size_t width, size_t rows)
{
    cudaStream_t stream = shard_cuda_of(device)->stream;
    if (width == 0 || rows == 0)
        return SHARD_OK;
    if (rows == 1 || (to_pitch == width && from_pitch == width))
        return SHARD_CUDA(cudaMemcpyAsync(to, from, width * rows, cudaMemcpyDeviceToDevice, stream));
    if (to_pitch > INT32_MAX || from_pitch > INT32_MAX) { /* CUDA's largest pitch */
        for (size_t i = 0; i < rows; i++)
            SHARD_CUDA_TRY(cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width,
                                           cudaMemcpyDeviceToDevice, stream));
        return SHARD_OK;
    }
    return SHARD_CUDA(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDeviceToDevice, stream));
}

shard_status shard_cuda_zero(shard_device *device, void *to, size_t bytes)
{
    return bytes ? SHARD_CUDA(cudaMemsetAsync(to, 0, bytes, shard_cuda_of(device)->stream)) : SHARD_OK;
}
