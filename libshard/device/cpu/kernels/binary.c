#ifdef real

/* The second operand is an array like the first, or repeats with the period. */
MAP_BODY(add)
{
    const real *a = in[0], *b = in[1] ? in[1] : (const real *)context + s.offset;
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = a[i] + b[i];
}

MAP_BODY(mul)
{
    const real *a = in[0], *b = in[1] ? in[1] : (const real *)context + s.offset;
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = a[i] * b[i];
}

static void R(repeat)(shard_dtype dtype, int64_t cols, const void *b, int64_t period, real *repeated)
{
    for (int64_t start = 0; start < cols; start += SPAN) {
        int64_t count = smaller(SPAN, cols - start);
        const real *loaded = R(load)(dtype, b, start, count, repeated + start);
        if (loaded != repeated + start)
            memcpy(repeated + start, loaded, (size_t)count * sizeof(real));
    }
    for (int64_t i = cols; i < period; i++)
        repeated[i] = repeated[i - cols];
}

#else

#include "device/cpu/kernels/map.h"

#include <string.h>

#define SELF "binary.c"
#include "device/cpu/kernels/real.h"

static void run(shard_binary binary, const map *job)
{
    if (binary == SHARD_ADD)
        MAP(job, add);
    else
        MAP(job, mul);
}

shard_status KERNEL(binary)(shard_device *device, shard_binary binary, int64_t rows, int64_t cols, const void *a, const void *b,
                            void *y, shard_dtype dtype)
{
    map job = {.dtype = dtype, .n = rows * cols, .in = {a}, .out = {y}};
    if (rows <= 1) {
        job.in[1] = b;
        run(binary, &job);
        return SHARD_OK;
    }
    if (cols == 0)
        return SHARD_OK;
    job.period = wide_period(cols);
    size_t bytes = (size_t)job.period * sizeof(double);
    void *repeated = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!repeated)
        return shard_last_status();
    BY_TYPE(dtype, repeat, dtype, cols, b, job.period, repeated);
    job.context = repeated;
    run(binary, &job);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, repeated, bytes);
    return SHARD_OK;
}

#endif
