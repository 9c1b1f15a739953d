/*
 * Indices that are out of range, labels that a list lacks, pairs that are not in order, and whether ranks have the same labels.
 *
 * Blocks record what they find in their range of the array, and one block combines it: the first bad index of all is
 * the least, the hash a sum of integers, which no order changes. Faults go to the device's record of its first
 * fault.
 */
#include "device/cuda/kernel.cuh"

#include "base/hash.h"
#include "base/majority.h"

using namespace shard;

struct Least {
    template <class R> static __device__ inline R join(R a, R b)
    {
        return a < b ? a : b;
    }
};

/* The first of all faults is kept: kernels of the stream come one by one. */
static __device__ inline void note_fault(shard_cuda_fault *fault, uint64_t what, int64_t a, int64_t b, int64_t c)
{
    if (fault->what)
        return;
    fault->detail[0] = a;
    fault->detail[1] = b;
    fault->detail[2] = c;
    __threadfence_system();
    fault->what = what;
}

/* ---- indices ---- */

typedef unsigned long long Hash;

/* The result of a block: the first bad position, n for none. */
struct Finding {
    int64_t first;
    Hash hash;
};

static __global__ void check_range(int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index, Finding *findings)
{
    int64_t first = n, stride = (int64_t)gridDim.x * BLOCK;
    Hash hash = 0;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += stride) {
        int64_t value = index[i];
        if (value != ignore_index && (value < 0 || value >= limit) && first == n)
            first = i;
        hash += shard_hash_element(i, value);
    }
    first = block_reduce<BLOCK, Least>(first);
    hash = block_reduce<BLOCK, Sum>(hash);
    if (threadIdx.x == 0)
        findings[blockIdx.x] = Finding{first, hash};
}

static __global__ void report_first(int64_t n, const int64_t *index, int64_t limit, int64_t blocks, const Finding *findings,
                                    uint64_t what, shard_cuda_fault *fault, uint64_t *hash)
{
    int64_t first = n;
    Hash sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += BLOCK) {
        first = Least::join(first, findings[i].first);
        sum += findings[i].hash;
    }
    first = block_reduce<BLOCK, Least>(first);
    sum = block_reduce<BLOCK, Sum>(sum);
    if (threadIdx.x != 0)
        return;
    if (hash)
        *hash = sum;
    if (first < n)
        note_fault(fault, what, index[first], first, limit);
}

shard_status shard_cuda_check_index(shard_device *device, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                    const shard_fault *fault, uint64_t *hash)
{
    if (n == 0)
        return hash ? shard_cuda_zero(device, hash, sizeof *hash) : SHARD_OK;
    unsigned blocks = blocks_for(device, n, 4 * BLOCK);
    Finding *findings = (Finding *)shard_cuda_scratch(device, blocks * sizeof *findings);
    if (!findings)
        return shard_last_status();
    shard_status status = launch(device, check_range, blocks, BLOCK, n, index, limit, ignore_index, findings);
    if (status == SHARD_OK)
        status = launch(device, report_first, 1, BLOCK, n, index, limit, (int64_t)blocks, findings, shard_cuda_fault_word(fault),
                        shard_cuda_of(device)->fault, hash);
    shard_cuda_scratch_release(device, findings, blocks * sizeof *findings);
    return status;
}

/* ---- labels in a list ---- */

static __global__ void find(shard_cross_entropy_shape shape, int64_t count, const int64_t *list, const int64_t *label,
                            int64_t *position, int64_t *row, Finding *findings)
{
    int64_t first = shape.rows, stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < shape.rows; i += stride)
        if (!shard_label_find(&shape, count, list, label[i], &position[i], &row[i]) && first == shape.rows)
            first = i;
    first = block_reduce<BLOCK, Least>(first);
    if (threadIdx.x == 0)
        findings[blockIdx.x] = Finding{first, 0};
}

shard_status shard_cuda_find_labels(shard_device *device, const shard_cross_entropy_shape *shape, int64_t count,
                                    const int64_t *list, const int64_t *label, int64_t *position, int64_t *row,
                                    const shard_fault *fault)
{
    if (shape->rows == 0)
        return SHARD_OK;
    unsigned blocks = blocks_for(device, shape->rows, BLOCK);
    Finding *findings = (Finding *)shard_cuda_scratch(device, blocks * sizeof *findings);
    if (!findings)
        return shard_last_status();
    shard_status status = launch(device, find, blocks, BLOCK, *shape, count, list, label, position, row, findings);
    if (status == SHARD_OK)
        status = launch(device, report_first, 1, BLOCK, shape->rows, label, count, (int64_t)blocks, findings,
                        shard_cuda_fault_word(fault), shard_cuda_of(device)->fault, (uint64_t *)NULL);
    shard_cuda_scratch_release(device, findings, blocks * sizeof *findings);
    return status;
}

/* ---- pairs ---- */

/* The first pair of a block's that is not larger than the one before it, `pairs` for none. */
static __global__ void check_order(int64_t pairs, const int64_t *pair, int64_t *findings)
{
    const int64_t *row = pair, *column = pair + pairs;
    int64_t first = pairs, stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < pairs; i += stride) {
        bool unordered = i > 0 && (row[i] < row[i - 1] || (row[i] == row[i - 1] && column[i] <= column[i - 1]));
        if (unordered && first == pairs)
            first = i;
    }
    first = block_reduce<BLOCK, Least>(first);
    if (threadIdx.x == 0)
        findings[blockIdx.x] = first;
}

static __global__ void report_order(int64_t pairs, const int64_t *pair, int64_t blocks, const int64_t *findings, uint64_t what,
                                    shard_cuda_fault *fault)
{
    int64_t first = pairs;
    for (int64_t i = threadIdx.x; i < blocks; i += BLOCK)
        first = Least::join(first, findings[i]);
    first = block_reduce<BLOCK, Least>(first);
    if (threadIdx.x == 0 && first < pairs)
        note_fault(fault, what, pair[first], pair[pairs + first], first);
}

shard_status shard_cuda_check_pairs(shard_device *device, int64_t pairs, const int64_t *pair, const shard_fault *fault)
{
    if (pairs < 2)
        return SHARD_OK;
    unsigned blocks = blocks_for(device, pairs, 4 * BLOCK);
    int64_t *findings = (int64_t *)shard_cuda_scratch(device, blocks * sizeof *findings);
    if (!findings)
        return shard_last_status();
    shard_status status = launch(device, check_order, blocks, BLOCK, pairs, pair, findings);
    if (status == SHARD_OK)
        status = launch(device, report_order, 1, BLOCK, pairs, pair, (int64_t)blocks, findings, shard_cuda_fault_word(fault),
                        shard_cuda_of(device)->fault);
    shard_cuda_scratch_release(device, findings, blocks * sizeof *findings);
    return status;
}

/* ---- ranks ---- */

static __global__ void compare(int64_t ranks, int64_t stride, const shard_label_digest *digest, uint64_t what,
                               shard_cuda_fault *fault)
{
    const size_t bytes = sizeof digest->hash, step = (size_t)stride;
    if (shard_first_other(digest, bytes, step, ranks, 0) == ranks)
        return;
    int64_t usual = shard_first_usual(digest, bytes, step, ranks);
    int64_t odd = shard_first_other(digest, bytes, step, ranks, usual);
    const shard_label_digest *other = (const shard_label_digest *)((const char *)digest + odd * stride);
    const shard_label_digest *most = (const shard_label_digest *)((const char *)digest + usual * stride);
    note_fault(fault, what, other->rank, most->rank, 0);
}

shard_status shard_cuda_compare_digests(shard_device *device, int64_t ranks, size_t stride, const shard_label_digest *digest,
                                        const shard_fault *fault)
{
    return launch(device, compare, 1, 1, ranks, (int64_t)stride, digest, shard_cuda_fault_word(fault),
                  shard_cuda_of(device)->fault);
}
