/*
 * Copies of pageable memory to the device by way of pinned memory: CUDA's own copy of more than 64 KiB waits for the stream
 * before it begins. The pinned memory is a ring of blocks, each free again when the copy from it is done.
 */
#include "device/cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

enum { BLOCKS = 32, BLOCK_BYTES = SHARD_CUDA_STAGED / BLOCKS };

struct shard_cuda_staging {
    pthread_mutex_t lock;
    char *memory;               /* BLOCKS of BLOCK_BYTES */
    cudaEvent_t copied[BLOCKS]; /* in the stream that the block was copied in last */
    uint64_t used;              /* blocks since the beginning: the oldest one is the next */
};

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static void destroy(struct shard_cuda_staging *ring)
{
    for (int i = 0; i < BLOCKS; i++)
        if (ring->copied[i])
            cudaEventDestroy(ring->copied[i]);
    if (ring->memory)
        cudaFreeHost(ring->memory);
    free(ring);
}

/* The device's ring, which stays until the process ends; NULL without an error if there is no pinned memory for it. */
static struct shard_cuda_staging *ring_of(shard_cuda *cuda)
{
    if (cuda->staging)
        return cuda->staging;
    struct shard_cuda_staging *ring = calloc(1, sizeof *ring);
    bool made = ring && cudaHostAlloc((void **)&ring->memory, SHARD_CUDA_STAGED, cudaHostAllocPortable) == cudaSuccess;
    for (int i = 0; i < BLOCKS && made; i++)
        made = cudaEventCreateWithFlags(&ring->copied[i], cudaEventDisableTiming) == cudaSuccess;
    if (made && pthread_mutex_init(&ring->lock, NULL) == 0)
        return cuda->staging = ring;
    cudaGetLastError();
    if (ring)
        destroy(ring);
    return NULL;
}

static shard_status copy(const shard_cuda *cuda, struct shard_cuda_staging *ring, char *to, const char *from, size_t bytes)
{
    for (size_t at = 0, some; at < bytes; at += some) {
        uint64_t block = ring->used % BLOCKS;
        char *staged = ring->memory + block * BLOCK_BYTES;
        some = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        SHARD_TRY(shard_cuda_wait_event(cuda, ring->copied[block]));
        memcpy(staged, from + at, some);
        SHARD_CUDA_TRY(cudaMemcpyAsync(to + at, staged, some, cudaMemcpyHostToDevice, cuda->stream));
        shard_status status = SHARD_CUDA(cudaEventRecord(ring->copied[block], cuda->stream));
        if (status != SHARD_OK) { /* the block is free when the stream is done */
            cudaStreamSynchronize(cuda->stream);
            return status;
        }
        ring->used++;
    }
    return SHARD_OK;
}

shard_status shard_cuda_stage_in(shard_device *device, void *to, const void *from_host, size_t bytes, bool *staged)
{
    shard_cuda *cuda = shard_cuda_of(device);
    *staged = false;
    if (bytes > SHARD_CUDA_STAGED)
        return SHARD_OK;
    pthread_mutex_lock(&making);
    struct shard_cuda_staging *ring = ring_of(cuda);
    pthread_mutex_unlock(&making);
    *staged = ring != NULL;
    if (!ring)
        return SHARD_OK;
    pthread_mutex_lock(&ring->lock);
    shard_status status = copy(cuda, ring, to, from_host, bytes);
    pthread_mutex_unlock(&ring->lock);
    return status;
}
