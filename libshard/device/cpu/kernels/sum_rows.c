#ifdef real

COLUMN_BODY(sum)
{
    const real *x = in[0];
    double *sum = sums[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        sum[i] += (double)x[i];
}

/* y = sums, or sums + y. */
MAP_BODY(finish)
{
    const double *sum = (const double *)context + s.start;
    const real *old = in[0];
    real *y = out[0];
    for (int64_t i = 0; i < s.count; i++)
        y[i] = (real)(old ? sum[i] + (double)old[i] : sum[i]);
}

#else

#include "device/cpu/kernels/map.h"

#define SELF "sum_rows.c"
#include "device/cpu/kernels/real.h"

/* The elements between rows are summed too, and the sums ignored. */
shard_status KERNEL(sum_rows)(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const void *x, shard_dtype from,
                              bool accumulate, void *y, shard_dtype to)
{
    int64_t all = shard_pitch(pitch, cols);
    if (cols == 0)
        return SHARD_OK;
    size_t bytes = (size_t)all * sizeof(double);
    double *sums = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!sums)
        return shard_last_status();
    column_sums job = {.dtype = from, .n = rows * all, .columns = all, .period = wide_period(all), .in = {x}, .count = 1};
    shard_status status = SUM_COLUMNS(device, &job, sum, sums);
    if (status == SHARD_OK) {
        map out = {.dtype = to, .n = cols, .in = {accumulate ? y : NULL}, .out = {y}, .context = sums};
        MAP(&out, finish);
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, sums, bytes);
    return status;
}

#endif
