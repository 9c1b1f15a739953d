/*
 * A GPU whose memory is all the device's pool's, though nobody uses it: what the pool has kept
 * is there for nothing but allocations from it that fit.
 */
#ifndef TESTS_SUPPORT_FULL_POOL_H
#define TESTS_SUPPORT_FULL_POOL_H

#include "device/cuda/cuda.h"

#include <check.h>

enum { FULL_POOL_PIECES = 1 << 16, FULL_POOL_LEAST = 4 << 10 };

typedef struct full_pool {
    int count;
    void *piece[FULL_POOL_PIECES];
    size_t largest; /* bytes of the largest pieces */
} full_pool;

/* Takes all memory in pieces of a 16th of it and less. By CUDA's own calls, which give nothing back for it. What the pool keeps is
 * given back before: the pieces' size is that of what the driver has. */
static inline full_pool *full_pool_take(shard_device *device)
{
    static full_pool taken;
    shard_cuda *cuda = shard_cuda_of(device);
    size_t free_bytes, total;
    device->ops->trim(device);
    ck_assert_int_eq(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    taken = (full_pool){.largest = free_bytes / 16};
    size_t smallest = 0;
    for (size_t bytes = taken.largest; bytes >= FULL_POOL_LEAST; bytes /= 2)
        for (; taken.count < FULL_POOL_PIECES &&
               cudaMallocFromPoolAsync(&taken.piece[taken.count], bytes, cuda->pool, cuda->stream) == cudaSuccess;
             smallest = bytes)
            taken.count++;
    cudaGetLastError();
    ck_assert_msg(taken.count < FULL_POOL_PIECES, "%d pieces of %zu to %zu bytes do not fill %zu bytes", taken.count, taken.largest,
                  smallest, free_bytes);
    return &taken;
}

/* Releases each piece whose number has the remainder, when divided by `each`. */
static inline void full_pool_release(shard_device *device, const full_pool *pool, int each, int remainder)
{
    shard_cuda *cuda = shard_cuda_of(device);
    for (int i = remainder; i < pool->count; i += each)
        ck_assert_int_eq(cudaFreeAsync(pool->piece[i], cuda->stream), cudaSuccess);
}

/* All memory is the pool's, and none is used. */
static inline void fill_pool(shard_device *device)
{
    full_pool_release(device, full_pool_take(device), 1, 0);
}

#endif
