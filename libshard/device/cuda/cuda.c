/*
 * The CUDA plugin: opens devices and returns their table.
 *
 * A kernel is loaded by its first launch, as is CUDA's default (CUDA_MODULE_LOADING=LAZY) and PyTorch's. To load all
 * of them here would take a list of some 500 kernels, and would leave out cuBLAS's and cuDNN's, all of which EAGER
 * loads. Loading may wait for work that the GPU runs, also a collective. The collective ends without this thread, as
 * all ranks have passed its preflight check before it was put on its stream. In a capture nothing is loaded for the
 * first time if the step has been run before it (cuda.h); a program that captures at once sets EAGER.
 */
#include "device/cuda/cuda.h"

#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/cuda/plugin.h"

#include <stdio.h>
#include <stdlib.h>

static const shard_device_ops operations = {
#define SHARD_MEMORY_ENTRY(result, name, ...) .name = shard_cuda_##name,
#define SHARD_PRODUCT_ENTRY SHARD_MEMORY_ENTRY
#define SHARD_KERNEL_ENTRY SHARD_MEMORY_ENTRY
#include "device/entries.h"
};

enum { MOST_DEVICES = 64 };

typedef struct opened {
    shard_device device;
    shard_cuda cuda;
    shard_memory_count count, memory[SHARD_MEMORY_KINDS];
    char name[24];
} opened;

static opened *devices[MOST_DEVICES];

/* The number of GPUs; 0 with the error set if there is none. */
static int count_devices(void)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        cudaGetLastError();
        shard_error(SHARD_ERROR_UNAVAILABLE, "cuda: no GPU here (%s)",
                    error == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one that is older than this build's CUDA"
                                                         : "the NVIDIA driver sees none");
        return 0;
    }
    return shard_cuda_check(error, "cudaGetDeviceCount") == SHARD_OK ? count : 0;
}

static shard_status check_pools(int ordinal)
{
    int supported = 0;
    SHARD_CUDA_TRY(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, ordinal));
    return supported
               ? SHARD_OK
               : shard_error(SHARD_ERROR_UNSUPPORTED,
                             "cuda: GPU %d has no memory pools (cudaMallocAsync), which tensors are allocated from; a virtual "
                             "GPU may lack them: enable unified memory for it, or use a whole GPU",
                             ordinal);
}

static shard_status start(opened *device, int ordinal)
{
    shard_cuda *cuda = &device->cuda;
    int64_t allow_tf32;
    cuda->ordinal = ordinal;
    cuda->count = &device->count;
    SHARD_TRY(shard_env_integer("SHARD_TF32", 0, 0, 1, &allow_tf32));
    SHARD_CUDA_TRY(cudaSetDevice(ordinal));
    SHARD_CUDA_TRY(cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
    SHARD_CUDA_TRY(cudaDeviceGetAttribute(&cuda->major, cudaDevAttrComputeCapabilityMajor, ordinal));
    int reads_pageable;
    SHARD_CUDA_TRY(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, ordinal));
    cuda->reads_pageable = reads_pageable != 0;
    SHARD_TRY(check_pools(ordinal));
    SHARD_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->own, cudaStreamNonBlocking));
    cuda->stream = cuda->own;
    cuda->attention_workspace = (size_t)256 << 20;
    SHARD_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking));
    SHARD_CUDA_TRY(cudaHostAlloc((void **)&cuda->fault, sizeof *cuda->fault, cudaHostAllocMapped | cudaHostAllocPortable));
    *cuda->fault = (shard_cuda_fault){0};
    SHARD_CUDA_TRY(cudaDeviceGetDefaultMemPool(&cuda->pool, ordinal));
    uint64_t keep = UINT64_MAX; /* memory stays with the process until trim */
    SHARD_CUDA_TRY(cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolAttrReleaseThreshold, &keep));
    int wait = 0; /* a stream does not wait for memory that another stream is still to release: it takes other memory */
    SHARD_CUDA_TRY(cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolReuseAllowInternalDependencies, &wait));
    snprintf(device->name, sizeof device->name, "cuda:%d", ordinal);
    device->device = (shard_device){.ops = &operations,
                                    .head_softmax = &shard_cuda_head_softmax,
                                    .head_binary = &shard_cuda_head_binary,
                                    .steps_product = cuda->major >= 8 ? shard_cuda_steps_product : NULL,
                                    .name = device->name,
                                    .state = cuda,
                                    .memory = device->memory,
                                    .ordinal = ordinal,
                                    .lists_rows = true,
                                    .allow_tf32 = allow_tf32 == 1};
    return SHARD_OK;
}

/* This rank's number on its machine, from shardrun, Open MPI, MPICH or srun. */
static shard_status read_local_rank(int64_t *rank)
{
    static const char *const variables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    *rank = 0;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (shard_env_string(variables[i], NULL))
            return shard_env_integer(variables[i], 0, 0, INT32_MAX, rank);
    return SHARD_OK;
}

shard_device *shard_cuda_plugin_open(const shard_plugin_base *base, int ordinal)
{
    if (!shard_plugin_begin(base))
        return NULL;
    static int own = -1; /* the local rank, if known */
    if (ordinal < 0 && own >= 0)
        return &devices[own]->device;
    int count = count_devices();
    int64_t local_rank;
    if (count == 0 || read_local_rank(&local_rank) != SHARD_OK)
        return NULL;
    bool chosen = ordinal < 0;
    if (chosen)
        ordinal = (int)(local_rank % count);
    if (ordinal >= count || ordinal >= MOST_DEVICES)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "cuda: there is no GPU %d here; GPUs: %d", ordinal, count);
    if (!devices[ordinal]) {
        opened *device = shard_calloc(1, sizeof *device);
        if (!device || start(device, ordinal) != SHARD_OK) {
            free(device);
            return NULL;
        }
        devices[ordinal] = device;
        shard_log_message(SHARD_LOG_INFO, "device %s is open", device->name);
    }
    if (chosen)
        own = ordinal;
    return &devices[ordinal]->device;
}
