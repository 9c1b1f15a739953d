/* Row-wise steps: two passes over a row, which stays in a cache between them; of rows of one element, one pass over all. */
#ifdef real

/* in: gradient, value, the rows' numbers (NULL: the first step), exp_avg; out: value, the rows' numbers, exp_avg (NULL: there
 * is none). */
MAP_BODY(by_element)
{
    const rowwise *by = context;
    real scale = R(scalar)(by->grad_scale), decay = (real)by->decay, eps = (real)by->eps,
         root = (real)by->factors.root_correction;
    real beta1 = (real)by->beta1, blend1 = (real)(1 - by->beta1), beta2 = (real)by->beta2, blend2 = (real)by->blend2;
    real keep = (real)by->factors.keep, rate = (real)by->factors.rate;
    const real *gradient = in[0], *old = in[1], *old_square = in[2], *old_average = in[3];
    real *result = out[0], *square = out[1], *average = out[2];
    for (int64_t i = 0; i < s.count; i++) {
        real g = scale * gradient[i] + decay * old[i], direction = g;
        square[i] = (old_square ? beta2 * old_square[i] : 0) + blend2 * g * g;
        if (average)
            direction = average[i] = (old_average ? beta1 * old_average[i] : 0) + blend1 * g;
        result[i] = keep * old[i] + rate * direction / (R(root)(square[i]) * root + eps);
    }
}

/* in: gradient, value, none, exp_avg; out: value, none, exp_avg. */
MAP_BODY(in_row)
{
    const row *r = context;
    const rowwise *by = r->by;
    real scale = R(scalar)(by->grad_scale), decay = (real)by->decay, keep = (real)by->factors.keep, rate = (real)r->rate;
    real beta1 = (real)by->beta1, blend1 = (real)(1 - by->beta1);
    const real *gradient = in[0], *old = in[1], *old_average = in[3];
    real *result = out[0], *average = out[2];
    if (!average) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            result[i] = keep * old[i] + rate * (scale * gradient[i] + decay * old[i]);
        return;
    }
    if (old_average) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            average[i] = beta1 * old_average[i] + blend1 * (scale * gradient[i] + decay * old[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            average[i] = blend1 * (scale * gradient[i] + decay * old[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        result[i] = keep * old[i] + rate * average[i];
}

/* value: NULL, for zeros. */
static double R(sum_squares)(const rowwise *by, int64_t n, const real *gradient, const real *value)
{
    real scale = R(scalar)(by->grad_scale), decay = (real)by->decay;
    double sum = 0;
    if (value) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            double g = (double)(scale * gradient[i] + decay * value[i]);
            sum += g * g;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            double g = (double)(scale * gradient[i]);
            sum += g * g;
        }
    }
    return sum;
}

/* The row's new number from the mean of the squares of its gradient, and the factor of its step. */
static double R(next_number)(const rowwise *by, int64_t index, double mean)
{
    real *number = (real *)by->update->state[0] + index;
    *number = (by->first ? 0 : (real)by->beta2 * *number) + (real)by->blend2 * (real)mean;
    return by->factors.rate / ((double)R(root)(*number) * by->factors.root_correction + by->eps);
}

#else

#include "device/cpu/kernels/update.h"

#include <math.h>

/* One update's numbers. */
typedef struct rowwise {
    const shard_update *update;
    const shard_update_types *types;
    double beta1, beta2, blend2, eps;
    double decay; /* added to the gradient */
    const double *grad_scale;
    shard_step_factors factors;
    bool first, averages;
} rowwise;

typedef struct row {
    const rowwise *by;
    double rate;
} row;

static inline float root_float(float x)
{
    return sqrtf(x);
}
static inline double root_double(double x)
{
    return sqrt(x);
}

#define SELF "rowwise.c"
#include "device/cpu/kernels/real.h"

static map map_of(const rowwise *by, const void *context)
{
    const shard_update *u = by->update;
    void *average = by->averages ? u->state[1] : NULL;
    return (map){.dtype = by->types->value,
                 .n = u->size,
                 .in = {u->gradient, u->value, NULL, by->first ? NULL : average},
                 .out = {u->value, NULL, average},
                 .context = context};
}

static void step_row_float(const rowwise *by, int64_t index)
{
    const shard_update *u = by->update;
    int64_t begin = index * u->columns, end = begin + u->columns;
    float gradients[SPAN], values[SPAN];
    double sum = 0;
    for (int64_t start = begin, count; start < end; start += count) {
        count = shard_min(SPAN, end - start);
        const float *gradient = load_float(by->types->gradient, u->gradient, start, count, gradients);
        const float *value = by->decay == 0 ? NULL : KERNEL(update_value)(u, by->types, start, count, values);
        sum += sum_squares_float(by, count, gradient, value);
    }
    row r = {by, next_number_float(by, index, sum / (double)u->columns)};
    map job = map_of(by, &r);
    for (int64_t start = begin; start < end; start += SPAN)
        KERNEL(update_span)(&job, u, by->types, in_row_float, (span){start, start, shard_min(SPAN, end - start)});
}

static void step_row_double(const rowwise *by, int64_t index)
{
    const shard_update *u = by->update;
    int64_t begin = index * u->columns;
    double *value = (double *)u->value + begin, *average = by->averages ? (double *)u->state[1] + begin : NULL;
    const double *gradient = (const double *)u->gradient + begin;
    double sum = sum_squares_double(by, u->columns, gradient, by->decay == 0 ? NULL : value);
    row r = {by, next_number_double(by, index, sum / (double)u->columns)};
    const double *in[MAP_INPUTS] = {gradient, value, NULL, by->first ? NULL : average};
    double *out[MAP_OUTPUTS] = {value, NULL, average};
    in_row_double(&r, (span){begin, begin, u->columns}, in, out);
}

static void take_step(const void *options, const shard_update *u, const shard_update_types *types)
{
    const shard_rowwise_arguments *o = options;
    rowwise by = {.update = u,
                  .types = types,
                  .beta1 = o->beta1,
                  .beta2 = o->adam ? o->beta2 : 1,
                  .blend2 = o->adam ? 1 - o->beta2 : 1,
                  .eps = o->eps,
                  .decay = o->adam ? 0 : u->weight_decay,
                  .grad_scale = u->grad_scale,
                  .factors = shard_rowwise_factors(u, o),
                  .first = u->step == 1,
                  .averages = o->adam && o->beta1 > 0};
    if (u->columns == 1) {
        map job = map_of(&by, &by);
        job.in[UPDATE_STATES] = by.first ? NULL : u->state[0];
        job.out[UPDATE_NEW_STATES] = u->state[0];
        UPDATE(&job, u, types, by_element);
        return;
    }
    int64_t rows = u->size / u->columns;
    FOR_EACH(i, rows, u->size, BY_TYPE(types->value, step_row, &by, i));
}

shard_status KERNEL(rowwise)(shard_device *device, int64_t count, const shard_update *updates,
                             const shard_rowwise_arguments *options, shard_update_types types)
{
    (void)device;
    KERNEL(each_update)(count, updates, options, types, take_step);
    return SHARD_OK;
}

#endif
