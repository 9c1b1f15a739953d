#ifdef real

/* in: gradient, parameter, momentum buffer (NULL: the first step); out:
 * parameter, momentum buffer (NULL: no momentum). */
MAP_BODY(step)
{
    const shard_sgd_options *options = context;
    real lr = (real)options->lr, decay = (real)options->weight_decay, momentum = (real)options->momentum;
    real blend = (real)(1 - options->dampening);
    real scale = R(scalar)(options->grad_scale), trust = R(scalar)(options->trust_ratio);
    bool nesterov = options->nesterov;
    const real *gradient = in[0], *old = in[1], *old_buffer = in[2];
    real *parameter = out[0], *buffer = out[1];
    if (!buffer) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            parameter[i] = old[i] - lr * (trust * (scale * gradient[i] + decay * old[i]));
        return;
    }
    if (old_buffer) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            buffer[i] = momentum * old_buffer[i] + blend * (trust * (scale * gradient[i] + decay * old[i]));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            buffer[i] = trust * (scale * gradient[i] + decay * old[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real direction = nesterov ? trust * (scale * gradient[i] + decay * old[i]) + momentum * buffer[i] : buffer[i];
        parameter[i] = old[i] - lr * direction;
    }
}

#else

#include "device/cpu/kernels/map.h"

#define SELF "sgd.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(sgd)(shard_device *device, int64_t n, const shard_sgd_options *options, const void *gradient,
                         void *momentum_buffer, void *parameter, shard_dtype dtype)
{
    (void)device;
    map job = {.dtype = dtype,
               .n = n,
               .in = {gradient, parameter, options->first ? NULL : momentum_buffer},
               .out = {parameter, momentum_buffer},
               .context = options};
    MAP(&job, step);
    return SHARD_OK;
}

#endif
