/* Errors of the runtime. Linked into every plugin that uses it. */
#include "device/cuda/cuda.h"

shard_status shard_cuda_check(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return SHARD_OK;
    cudaGetLastError(); /* errors that the next call would report again */
    shard_status status = error == cudaErrorMemoryAllocation ? SHARD_ERROR_MEMORY : SHARD_ERROR_DEVICE;
    return shard_error(status, "cuda: %.*s: %s (%s)", (int)strcspn(call, "("), call, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}
