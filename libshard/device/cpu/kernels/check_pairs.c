#include "device/cpu/kernels/kernels.h"

#include "base/error.h"

shard_status KERNEL(check_pairs)(shard_device *device, int64_t pairs, const int64_t *pair, const shard_fault *fault)
{
    (void)device;
    const int64_t *row = pair, *class = pair + pairs;
    for (int64_t i = 1; i < pairs; i++)
        if (row[i] < row[i - 1] || (row[i] == row[i - 1] && class[i] <= class[i - 1]))
            return shard_error(fault->status, fault->format, row[i], class[i], i);
    return SHARD_OK;
}
