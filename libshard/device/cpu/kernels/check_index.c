#include "device/cpu/kernels/kernels.h"

shard_status KERNEL(check_index)(shard_device *device, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                 int64_t *bad_host)
{
    (void)device;
    int64_t first = n;
#pragma omp parallel for schedule(static) reduction(min : first) if (n >= PARALLEL)
    for (int64_t start = 0; start < n; start += SPAN) {
        int64_t end = smaller(start + SPAN, n), bad = 0;
#pragma omp simd reduction(+ : bad)
        for (int64_t i = start; i < end; i++)
            bad += (index[i] != ignore_index) & ((index[i] < 0) | (index[i] >= limit));
        for (int64_t i = start; bad && i < smaller(end, first); i++)
            if (index[i] != ignore_index && (index[i] < 0 || index[i] >= limit))
                first = i;
    }
    *bad_host = first < n ? first : -1;
    return SHARD_OK;
}
