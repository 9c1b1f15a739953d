#include "device/cpu/kernels/kernels.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/majority.h"

shard_status KERNEL(check_index)(shard_device *device, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                 const shard_fault *fault, uint64_t *hash)
{
    (void)device;
    int64_t first = n;
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(min : first) reduction(+ : sum) if (n >= PARALLEL)
    for (int64_t start = 0; start < n; start += SPAN) {
        int64_t end = shard_min(start + SPAN, n), bad = 0;
#pragma omp simd reduction(+ : bad)
        for (int64_t i = start; i < end; i++)
            bad += (index[i] != ignore_index) & ((index[i] < 0) | (index[i] >= limit));
        for (int64_t i = start; bad && i < shard_min(end, first); i++)
            if (index[i] != ignore_index && (index[i] < 0 || index[i] >= limit))
                first = i;
        for (int64_t i = start; hash && i < end; i++)
            sum += shard_hash_element(i, index[i]);
    }
    if (hash)
        *hash = sum;
    return first < n ? shard_error(fault->status, fault->format, index[first], first, limit) : SHARD_OK;
}

shard_status KERNEL(find_labels)(shard_device *device, const shard_cross_entropy_shape *shape, int64_t count, const int64_t *list,
                                 const int64_t *label, int64_t *position, int64_t *row, const shard_fault *fault)
{
    (void)device;
    int64_t first = shape->rows;
    for (int64_t i = 0; i < shape->rows; i++)
        if (!shard_label_find(shape, count, list, label[i], &position[i], &row[i]))
            first = shard_min(first, i);
    return first < shape->rows ? shard_error(fault->status, fault->format, label[first], first, count) : SHARD_OK;
}

shard_status KERNEL(compare_digests)(shard_device *device, int64_t ranks, size_t stride, const shard_label_digest *digest,
                                     const shard_fault *fault)
{
    (void)device;
    if (shard_first_other(digest, sizeof digest->hash, stride, ranks, 0) == ranks)
        return SHARD_OK;
    int64_t usual = shard_first_usual(digest, sizeof digest->hash, stride, ranks);
    int64_t odd = shard_first_other(digest, sizeof digest->hash, stride, ranks, usual);
    const shard_label_digest *other = (const void *)((const char *)digest + (size_t)odd * stride);
    const shard_label_digest *most = (const void *)((const char *)digest + (size_t)usual * stride);
    return shard_error(fault->status, fault->format, other->rank, most->rank, (int64_t)0);
}
