#ifdef real

/* in: gradient, parameter, momentum buffer (NULL: the first step); out:
 * parameter, momentum buffer (NULL: no momentum). */
MAP_BODY(step)
{
    const sgd_step *job = context;
    const shard_sgd_arguments *options = job->options;
    const shard_update *update = job->update;
    real lr = (real)update->lr, decay = (real)update->weight_decay, momentum = (real)options->momentum;
    real blend = (real)(1 - options->dampening);
    real scale = R(scalar)(update->grad_scale), trust = R(scalar)(update->trust_ratio);
    bool nesterov = options->nesterov;
    const real *gradient = in[0], *old = in[1], *old_buffer = in[2];
    real *parameter = out[0], *buffer = out[1];
    if (!buffer) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            parameter[i] = old[i] - lr * (trust * (scale * gradient[i] + decay * old[i]));
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real slope = trust * (scale * gradient[i] + decay * old[i]);
        real moved = old_buffer ? momentum * old_buffer[i] + blend * slope : slope;
        buffer[i] = moved;
        parameter[i] = old[i] - lr * (nesterov ? slope + momentum * moved : moved);
    }
}

#else

#include "device/cpu/kernels/update.h"

typedef struct sgd_step {
    const shard_update *update;
    const shard_sgd_arguments *options;
} sgd_step;

#define SELF "sgd.c"
#include "device/cpu/kernels/real.h"

static void take_step(const void *options, const shard_update *u, const shard_update_types *types)
{
    sgd_step context = {u, options};
    void *buffer = context.options->momentum == 0 ? NULL : u->state[0];
    map job = {.dtype = types->value,
               .n = u->size,
               .in = {u->gradient, u->value, u->step == 1 ? NULL : buffer},
               .out = {u->value, buffer},
               .context = &context};
    UPDATE(&job, u, types, step);
}

shard_status KERNEL(sgd)(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                         shard_update_types types)
{
    (void)device;
    KERNEL(each_update)(count, updates, options, types, take_step);
    return SHARD_OK;
}

#endif
