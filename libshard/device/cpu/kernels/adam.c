#ifdef real

/* in: gradient, parameter, exp_avg, exp_avg_sq (NULL: the first step), max_exp_avg_sq;
 * out: parameter or update, exp_avg, exp_avg_sq, max_exp_avg_sq (NULL: not amsgrad). */
MAP_BODY(step)
{
    const adam_numbers *by = context;
    real scale = R(scalar)(by->grad_scale), decay = (real)by->decay;
    real beta1 = (real)by->beta1, blend1 = (real)(1 - by->beta1), beta2 = (real)by->beta2, blend2 = (real)(1 - by->beta2);
    real root_correction = (real)by->root_correction, eps = (real)by->eps, keep = (real)by->keep, rate = (real)by->rate;
    const real *gradient = in[0], *old = in[1], *old_average = in[2], *old_square = in[3], *old_highest = in[4];
    real *result = out[0], *average = out[1], *square = out[2], *highest = out[3];
    if (old_average) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real g = scale * gradient[i] + decay * old[i];
            average[i] = beta1 * old_average[i] + blend1 * g;
            square[i] = beta2 * old_square[i] + blend2 * g * g;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real g = scale * gradient[i] + decay * old[i];
            average[i] = blend1 * g;
            square[i] = blend2 * g * g;
        }
    }
    const real *under = highest ? highest : square;
    for (int64_t i = 0; highest && i < s.count; i++)
        highest[i] = old_highest && !(square[i] > old_highest[i]) && square[i] == square[i] ? old_highest[i] : square[i];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        result[i] = keep * old[i] + rate * (average[i] / (R(root)(under[i]) * root_correction + eps));
}

#else

#include "device/cpu/kernels/update.h"

#include <math.h>

/* result = keep * parameter + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps) */
typedef struct adam_numbers {
    double beta1, beta2, eps;
    double decay; /* added to the gradient */
    double root_correction, keep, rate;
    const double *grad_scale;
} adam_numbers;

static inline float root_float(float x)
{
    return sqrtf(x);
}
static inline double root_double(double x)
{
    return sqrt(x);
}

#define SELF "adam.c"
#include "device/cpu/kernels/real.h"

static void run(const adam_numbers *numbers, const shard_update *u, void *highest, void *result, const shard_update_types *types)
{
    bool first = u->step == 1;
    map job = {.dtype = types->value,
               .n = u->size,
               .in = {u->gradient, u->value, first ? NULL : u->state[0], first ? NULL : u->state[1], first ? NULL : highest},
               .out = {result, u->state[0], u->state[1], highest},
               .context = numbers};
    UPDATE(&job, u, types, step);
}

/* The parts that Adam and LAMB have in common. */
static adam_numbers numbers_of(const shard_adam_arguments *o, const shard_update *u)
{
    return (adam_numbers){.beta1 = o->beta1,
                          .beta2 = o->beta2,
                          .eps = o->eps,
                          .root_correction = 1 / sqrt(1 - pow(o->beta2, (double)u->step)),
                          .grad_scale = u->grad_scale};
}

static void adam_step(const void *options, const shard_update *u, const shard_update_types *types)
{
    const shard_adam_arguments *o = options;
    adam_numbers numbers = numbers_of(o, u);
    numbers.decay = o->decoupled ? 0 : u->weight_decay;
    numbers.keep = o->decoupled ? 1 - u->lr * u->weight_decay : 1;
    numbers.rate = -u->lr / (1 - pow(o->beta1, (double)u->step));
    run(&numbers, u, o->amsgrad ? u->state[2] : NULL, u->value, types);
}

static void lamb_step(const void *options, const shard_update *u, const shard_update_types *types)
{
    const shard_adam_arguments *o = options;
    adam_numbers numbers = numbers_of(o, u);
    numbers.keep = u->weight_decay;
    numbers.rate = 1 / (1 - pow(o->beta1, (double)u->step));
    run(&numbers, u, NULL, u->gradient, types);
}

shard_status KERNEL(adam)(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *options,
                          shard_update_types types)
{
    (void)device;
    KERNEL(each_update)(count, updates, options, types, adam_step);
    return SHARD_OK;
}

shard_status KERNEL(lamb_update)(shard_device *device, int64_t count, const shard_update *updates,
                                 const shard_adam_arguments *options, shard_update_types types)
{
    (void)device;
    KERNEL(each_update)(count, updates, options, types, lamb_step);
    return SHARD_OK;
}

#endif
