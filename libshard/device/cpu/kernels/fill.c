#include "device/cpu/kernels/span.h"

#include <string.h>

shard_status KERNEL(fill)(shard_device *device, int64_t n, double value, void *y, shard_dtype dtype)
{
    unsigned char pattern[SPAN * sizeof(double)];
    size_t size = shard_dtype_size(dtype);
    KERNEL(cast)(device, 1, &value, SHARD_FLOAT64, pattern, dtype);
    for (size_t i = 1; i < SPAN; i++)
        memcpy(pattern + i * size, pattern, size);
    bool stream = streams(n, size);
#pragma omp parallel if (n >= PARALLEL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < n; start += SPAN) {
            void *to = (char *)y + (size_t)start * size;
            size_t bytes = (size_t)shard_min(SPAN, n - start) * size;
            if (stream)
                KERNEL(stream)(to, pattern, bytes);
            else
                memcpy(to, pattern, bytes);
        }
        KERNEL(stream_fence)();
    }
    return SHARD_OK;
}
