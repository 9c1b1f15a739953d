#ifdef real

MAP_BODY(clip)
{
    real high = (real) * (const double *)context, low = -high;
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real value = x[i] > high ? high : x[i];
        y[i] = value < low ? low : value;
    }
}

#else

#include "device/cpu/kernels/map.h"

#include <math.h>

#define SELF "clip.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(clip_scale)(shard_device *device, double power, double max_norm, const double *sum, double *norm,
                                double *scale)
{
    (void)device;
    *norm = *scale * (power == INFINITY ? *sum : power == 2 ? sqrt(*sum) : pow(*sum, 1 / power));
    double coefficient = max_norm / (*norm + 1e-6);
    *scale *= coefficient > 1 || max_norm == INFINITY ? 1 : coefficient;
    return SHARD_OK;
}

shard_status KERNEL(clip_value)(shard_device *device, int64_t n, double bound, const double *scale, void *x, shard_dtype dtype)
{
    (void)device;
    double high = bound / scalar_double(scale);
    map job = {.dtype = dtype, .n = n, .in = {x}, .out = {x}, .context = &high};
    MAP(&job, clip);
    return SHARD_OK;
}

#endif
