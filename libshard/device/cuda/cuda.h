/*
 * The CUDA device: what every file of this folder stands on.
 *
 * Invariants:
 * - Everything goes to one stream of the device, in the order of the calls; only
 *   the entries that device.h names wait for it. What happens on other streams
 *   (collectives, copy_in_async) is joined by events.
 * - Any thread of the host may call any entry.
 * - Sums are taken in an order that depends on the shapes alone: no float atomics.
 * - Indices of elements are 64-bit: a batch times a million classes passes 2^31.
 * - A sequence of entries can be captured in a graph (cuda_graph.c): all but those that wait,
 *   copy_in, copy_in_async, wait_arrival, trim, allocate_host, release_host and the events'. So a whole training step of
 *   one rank can: forward, loss, backward, the optimizer's step; collectives, before each
 *   of which hosts meet, are no entries. What CUDA's libraries make at their first use
 *   (handles, plans) has been made, as a step that was run once before sees to. A replay
 *   takes the memory's content at that time, but the other arguments as they were; what
 *   is another number at each step (shard_step_factors, shard_draw) is read from memory.
 * - Kernels that find something wrong in their data note it in the device's record, the
 *   first one; report makes it the error of the thread that waits or asks next. A
 *   kernel that comes after one that found it must stand such data.
 *
 * Entries are called shard_cuda_<entry>. Kernels stand in .cu files with their
 * launchers below them, forward beside backward; what only calls CUDA's libraries
 * is C.
 */
#ifndef SHARD_DEVICE_CUDA_CUDA_H
#define SHARD_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/error.h"
#include "device/device.h"

/* Between the parts of a call's scratch memory, so that each is aligned for any use. */
#define SHARD_CUDA_ALIGN 256

/* The first thing that kernels found wrong and nobody has been told of. */
typedef struct shard_cuda_fault {
    uint64_t what;     /* shard_cuda_fault_word of what it is; 0: nothing; 1: a thread is reading it */
    int64_t detail[3]; /* for its format */
} shard_cuda_fault;

typedef struct shard_cuda_graph shard_cuda_graph; /* cuda_graph.c */

typedef struct shard_cuda {
    int ordinal;
    int multiprocessors;
    cudaStream_t stream;
    cudaMemPool_t pool;
    shard_memory_count *count;       /* of all; also of who sees the device from another stream */
    shard_cuda_fault *fault;         /* in pinned memory, which kernels write and the host reads */
    /* Asked while the host waits for the stream, if set: an error ends the wait. The
     * first time of a wait it `begins`. For what the stream waits for in turn. */
    shard_status (*watch)(bool begins);
    shard_cuda_graph *capture;       /* that the stream is in; NULL: none */
    shard_cuda_graph *graphs;        /* all that there are */
    struct shard_cuda_blas *blas;    /* cuda_blas.c; made at its first use */
    struct shard_cuda_dnn *dnn;      /* cuda_dnn.c */
    cudaStream_t copies;             /* of copy_in_async, beside `stream` */
} shard_cuda;

/* The device's own, and makes it the calling thread's current device: each thread of
 * the host has one, device 0 to begin with, and kernels can be launched on that alone.
 * Every entry begins with this. If the device cannot be set, the next call says so. */
static inline shard_cuda *shard_cuda_of(const shard_device *device)
{
    shard_cuda *cuda = (shard_cuda *)device->state;
    int now;
    if (cudaGetDevice(&now) != cudaSuccess || now != cuda->ordinal)
        cudaSetDevice(cuda->ordinal);
    return cuda;
}

/* Reports an error of the runtime as the thread's, with the call that gave it;
 * its status, OK for cudaSuccess. */
shard_status shard_cuda_check(cudaError_t error, const char *call);

#define SHARD_CUDA(call) shard_cuda_check(call, #call)
#define SHARD_CUDA_TRY(call) SHARD_TRY(SHARD_CUDA(call))

/* What kernels carry of a fault: its address, turned so that nobody takes it for an argument
 * that they could read. */
static inline uint64_t shard_cuda_fault_word(const shard_fault *fault)
{
    return ~(uint64_t)(uintptr_t)fault;
}

/* Waits until all that is on the stream is done. What waits for it calls this, not the
 * runtime: work of other ranks that it waits for may never come. */
shard_status shard_cuda_wait(shard_device *device);

/* ---- cuda_graph.c ---- */

/* UNSUPPORTED in a capture, in which `what` cannot be. */
shard_status shard_cuda_refuse_in_capture(shard_cuda *cuda, const char *what);
/* In a capture: memory was allocated. */
shard_status shard_cuda_graph_allocated(shard_cuda_graph *graph, void *memory, size_t bytes);
/* Memory is released: whether a graph sees to freeing it. */
bool shard_cuda_graph_takes(shard_cuda *cuda, void *memory, size_t bytes);
/* ARGUMENT for memory that a graph allocates at its first launch, which has not been. */
shard_status shard_cuda_graph_check_read(const shard_cuda *cuda, const void *memory);

/* Scratch memory of the device for one call: taken and given back in the stream's
 * order, so that it may be given back before the work that uses it has run. It
 * counts as workspace. NULL with the error set; release takes NULL. */
void *shard_cuda_scratch(shard_device *device, size_t bytes);
void shard_cuda_scratch_release(shard_device *device, void *memory, size_t bytes);

#define SHARD_CUDA_DECLARE(entry) __typeof__(*((shard_device_ops *)0)->entry) shard_cuda_##entry;
SHARD_DEVICE_ENTRIES(SHARD_CUDA_DECLARE)
#undef SHARD_CUDA_DECLARE

#ifdef __cplusplus
}
#endif

#endif
