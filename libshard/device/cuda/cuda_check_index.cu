/*
 * The first index that is out of range. Each thread takes the least of its own, the
 * grid the least of all by an atomic minimum, which no order changes.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

typedef unsigned long long Position;

static __global__ void check_index(int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index, Position *first)
{
    int64_t stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += stride)
        if (index[i] != ignore_index && (index[i] < 0 || index[i] >= limit)) {
            atomicMin(first, (Position)i);
            return; /* those that follow are not the first */
        }
}

shard_status shard_cuda_check_index(shard_device *device, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                    int64_t *bad_host)
{
    *bad_host = -1;
    if (n == 0)
        return SHARD_OK;
    Position *first = (Position *)shard_cuda_scratch(device, sizeof *first), found;
    if (!first)
        return shard_last_status();
    /* All bits set: the largest of all, and -1 where nothing is found. */
    shard_status status = SHARD_CUDA(cudaMemsetAsync(first, 0xff, sizeof *first, shard_cuda_of(device)->stream));
    if (status == SHARD_OK)
        status = launch(device, check_index, blocks_for(device, n, BLOCK), BLOCK, n, index, limit, ignore_index, first);
    if (status == SHARD_OK)
        status = shard_cuda_copy_out(device, &found, first, sizeof found);
    shard_cuda_scratch_release(device, first, sizeof *first);
    if (status == SHARD_OK)
        *bad_host = (int64_t)found;
    return status;
}
