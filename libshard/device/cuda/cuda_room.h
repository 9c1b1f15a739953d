/*
 * Running out of memory. The pool keeps memory that tensors release. That memory cannot
 * serve an allocation of another size, or what CUDA and its libraries allocate outside the pool: handles,
 * workspaces, code that is loaded at its first use. Every call that may take memory is therefore
 * made by SHARD_CUDA_WITH_ROOM; NCCL's, which cannot be made again, come after a trim.
 */
#ifndef SHARD_DEVICE_CUDA_CUDA_ROOM_H
#define SHARD_DEVICE_CUDA_CUDA_ROOM_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The value of `call`, which is made once more if lacks_memory(value) says that it failed for want of memory
 * and there is room then. */
#define SHARD_CUDA_WITH_ROOM(device, lacks_memory, call)                                                                         \
    __extension__({                                                                                                              \
        __typeof__(call) value_ = (call);                                                                                        \
        if (lacks_memory(value_) && shard_cuda_make_room(device))                                                                \
            value_ = (call);                                                                                                     \
        value_;                                                                                                                  \
    })

static inline bool shard_cuda_lacks_memory(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation;
}

/* Waits for the stream and returns the pool's free memory to the driver. False if it cannot: in a capture, which
 * does not allow waiting, and with the error set if the wait fails. Work on the stream that waits for other ranks
 * ends without this one, as all ranks pass the preflight check of a collective before it is put on the stream. */
bool shard_cuda_make_room(shard_device *device);

#ifdef __cplusplus
}
#endif

#endif
