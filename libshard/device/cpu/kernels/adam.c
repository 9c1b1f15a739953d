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

#include "device/cpu/kernels/map.h"

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

static adam_numbers numbers_of(const shard_adam_options *o)
{
    double step = (double)o->step;
    return (adam_numbers){.beta1 = o->beta1,
                          .beta2 = o->beta2,
                          .eps = o->eps,
                          .decay = o->decoupled ? 0 : o->weight_decay,
                          .root_correction = 1 / sqrt(1 - pow(o->beta2, step)),
                          .keep = o->decoupled ? 1 - o->lr * o->weight_decay : 1,
                          .rate = -o->lr / (1 - pow(o->beta1, step)),
                          .grad_scale = o->grad_scale};
}

shard_status KERNEL(adam)(shard_device *device, int64_t n, const shard_adam_options *options, const void *gradient, void *exp_avg,
                          void *exp_avg_sq, void *max_exp_avg_sq, void *parameter, shard_dtype dtype)
{
    (void)device;
    bool first = options->step == 1;
    adam_numbers numbers = numbers_of(options);
    map job = {.dtype = dtype,
               .n = n,
               .in = {gradient, parameter, first ? NULL : exp_avg, first ? NULL : exp_avg_sq, first ? NULL : max_exp_avg_sq},
               .out = {parameter, exp_avg, exp_avg_sq, max_exp_avg_sq},
               .context = &numbers};
    MAP(&job, step);
    return SHARD_OK;
}

shard_status KERNEL(lamb_update)(shard_device *device, int64_t n, const shard_adam_options *options, void *gradient,
                                 void *exp_avg, void *exp_avg_sq, const void *parameter, shard_dtype dtype)
{
    (void)device;
    bool first = options->step == 1;
    adam_numbers numbers = numbers_of(options);
    numbers.decay = 0;
    numbers.keep = options->weight_decay;
    numbers.rate = 1 / (1 - pow(options->beta1, (double)options->step));
    map job = {.dtype = dtype,
               .n = n,
               .in = {gradient, parameter, first ? NULL : exp_avg, first ? NULL : exp_avg_sq},
               .out = {gradient, exp_avg, exp_avg_sq},
               .context = &numbers};
    MAP(&job, step);
    return SHARD_OK;
}

#endif
