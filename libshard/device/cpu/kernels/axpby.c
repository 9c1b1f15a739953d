#ifdef real

MAP_BODY(axpby)
{
    const scales *by = context;
    real alpha = (real)by->alpha, beta = (real)by->beta;
    const real *x = in[0], *old = in[1];
    real *y = out[0];
    if (!old) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = alpha * x[i];
    } else if (by->alpha + by->beta == 1) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = old[i] + alpha * (x[i] - old[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = alpha * x[i] + beta * old[i];
    }
}

#else

#include "device/cpu/kernels/map.h"

typedef struct scales {
    double alpha, beta;
} scales;

#define SELF "axpby.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(axpby)(shard_device *device, int64_t n, double alpha, const void *x, double beta, void *y, shard_dtype dtype)
{
    (void)device;
    map job = {
        .dtype = dtype, .n = n, .in = {x, beta == 0 ? NULL : y}, .out = {y}, .context = &(scales){.alpha = alpha, .beta = beta}};
    MAP(&job, axpby);
    return SHARD_OK;
}

#endif
