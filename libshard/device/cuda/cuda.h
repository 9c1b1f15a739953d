/*
 * The CUDA device: declarations for every file of this folder.
 *
 * Invariants:
 * - Everything goes to one stream of the device, its own or a caller's, in the order of the calls; only the entries that device.h
 * names wait for it. Events join the work of other streams (collectives, copy_in_async).
 * - Any thread of the host may call any entry.
 * - Sums are taken in an order that depends on the shapes alone: no float atomics.
 * - Indices of elements are 64-bit: a batch times a million classes passes 2^31.
 * - A sequence of entries can be captured in a graph (cuda_graph.c): all but those that wait, copy_in,
 *   copy_in_async, copy_out_async, wait_arrival, trim, use_stream, allocate_host, release_host and the events'. So a whole
 *   training step of one rank can: forward, loss, backward, the optimizer's step. Collectives are not entries, and hosts do preflight
 *   checks before them. A step that was run before has made what CUDA's libraries make at their first use (handles,
 *   plans). A replay reads memory as it is then, but has the capture's other arguments. Values that change at each
 *   step (shard_step_factors, shard_draw) are therefore in memory.
 * - Kernels record the first fault that they find in their data in the device's record; report makes it the error
 *   of the thread that waits or asks next. Later kernels must tolerate such data.
 *
 * Entries are called shard_cuda_<entry>. Kernels are in .cu files with their launchers below them, forward next to
 * backward; files that only call CUDA's libraries are C.
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

/* Alignment of the ranges of a call's scratch memory. */
#define SHARD_CUDA_ALIGN 256

/* The first fault that kernels found and that was not reported yet. */
typedef struct shard_cuda_fault {
    uint64_t what;     /* shard_cuda_fault_word of the fault; 0: none; 1: a thread is reading it */
    int64_t detail[3]; /* for its format */
} shard_cuda_fault;

typedef struct shard_cuda_graph shard_cuda_graph; /* cuda_graph.c */

typedef struct shard_cuda {
    int ordinal;
    int multiprocessors;
    cudaStream_t stream;             /* `own`, or the caller's */
    cudaMemPool_t pool;
    shard_memory_count *count;       /* of all memory; also for readers on another stream */
    shard_cuda_fault *fault;         /* in pinned memory, which kernels write and the host reads */
    /* Called while the host waits for the stream, and when it has waited, if set; an error ends the wait. `begins` is true in
     * the first call of a wait. For work of other ranks that the stream waits for. */
    shard_status (*watch)(bool begins);
    /* The same device as seen from another stream, on which memory of the pool is released, too. NULL: there is none. */
    const struct shard_cuda *partner;
    cudaStream_t collectives;        /* another one that `watch` is for; NULL: there is none */
    bool reads_pageable;             /* the GPU reads the host's memory by itself, as of a GH200: copies of it are not staged */
    shard_cuda_graph *capture;       /* the capture that the stream is in; NULL: none */
    shard_cuda_graph *graphs;        /* the list of all graphs */
    struct shard_cuda_blas *blas;    /* cuda_blas.c; made at its first use */
    struct shard_cuda_dnn *dnn;      /* cuda_dnn.c */
    size_t attention_workspace;      /* cuda_dnn_attention.c: the most bytes of gradients of scores at a time */
    int major;                       /* of the compute capability */
    struct shard_cuda_staging *staging; /* cuda_staging.c */
    cudaStream_t copies;             /* of copy_in_async, next to `stream` */
    cudaStream_t own;                /* the stream without a caller's (cuda_stream.c) */
} shard_cuda;

/* The device's state; makes the device the calling thread's current one. Each thread of the host has a current
 * device, device 0 at first, and kernels can be launched on that alone. Every entry begins with this. If the device
 * cannot be set, the next call reports it. */
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

/* The kernels' argument for a fault: its address, encoded so that the emulation does not take it for a readable
 * pointer. */
static inline uint64_t shard_cuda_fault_word(const shard_fault *fault)
{
    return ~(uint64_t)(uintptr_t)fault;
}

/* Waits until all work on the stream is done. Functions that wait for the stream call this instead of the runtime,
 * as the work of other ranks that it waits for may never come. */
shard_status shard_cuda_wait(shard_device *device);
/* The same for an event. A fault of kernels stays for the entries whose waiting device.h names. */
shard_status shard_cuda_wait_event(const shard_cuda *cuda, cudaEvent_t event);

/* ---- cuda_staging.c ---- */

/* Copies pageable memory, which may be overwritten on return, if it has at most SHARD_CUDA_STAGED bytes and there is pinned memory for
 * it; *staged: whether it did. Waits for an earlier copy's end where all of the pinned memory is in use. */
enum { SHARD_CUDA_STAGED = 8 << 20 };
shard_status shard_cuda_stage_in(shard_device *device, void *to, const void *from_host, size_t bytes, bool *staged);

/* ---- cuda_graph.c ---- */

/* UNSUPPORTED in a capture, with `what` as the reason. */
shard_status shard_cuda_refuse_in_capture(shard_cuda *cuda, const char *what);
/* Called in a capture: memory was allocated. */
shard_status shard_cuda_graph_allocated(shard_cuda_graph *graph, void *memory, size_t bytes);
/* Called when memory is released: whether a graph frees it. */
bool shard_cuda_graph_takes(shard_cuda *cuda, void *memory, size_t bytes);
/* Called for memory that is released next, to which a copy may be running: whether a capture keeps both. */
bool shard_cuda_graph_keeps_arrival(shard_cuda *cuda, void *arrival);

/* Scratch memory of the device for one call: allocated and released in the stream's order, so that it may be
 * released before the work that uses it has run. It counts as workspace. NULL with the error set; release takes
 * NULL. */
void *shard_cuda_scratch(shard_device *device, size_t bytes);
void shard_cuda_scratch_release(shard_device *device, void *memory, size_t bytes);

/* cuda_head_softmax.cu, cuda_head_binary.cu */
extern const struct shard_head_loss shard_cuda_head_softmax, shard_cuda_head_binary;
bool shard_cuda_steps_product(const shard_update_product *); /* shard_device.steps_product, of GPUs from sm_80 on (product.cuh) */

#define SHARD_MEMORY_ENTRY(result, name, ...) result shard_cuda_##name(__VA_ARGS__);
#define SHARD_PRODUCT_ENTRY SHARD_MEMORY_ENTRY
#define SHARD_KERNEL_ENTRY SHARD_MEMORY_ENTRY
#include "device/entries.h"

#ifdef __cplusplus
}
#endif

#endif
