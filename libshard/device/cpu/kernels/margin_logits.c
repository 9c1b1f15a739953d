/* Scaled logits with a margin at the labels' columns. */
#ifdef real

MAP_BODY(margin)
{
    const margin_call *call = context;
    int64_t row = s.start / call->shape->cols, target = own_target(call, row) - s.offset;
    bool own = target >= 0 && target < s.count;
    real scale = (real)call->margin->scale;
    double at_target = 0;
    if (own && call->given) {
        at_target = call->margin->scale * call->given[row] * (double)in[0][target];
    } else if (own) {
        double m2 = call->row_m2 ? call->row_m2[row] : call->margin->m2, m3 = call->row_m3 ? call->row_m3[row] : call->margin->m3;
        at_target = call->margin->scale *
                    shard_margin_cosine((double)in[0][target], call->margin->m1, m2, m3, call->margin->rule, &call->slope[row]);
    }
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        out[0][i] = scale * in[0][i];
    if (own)
        out[0][target] = (real)at_target;
}

#else

#include "device/cpu/kernels/map.h"

/* Forward: slope is written; backward: `given` is not NULL. */
typedef struct margin_call {
    const shard_cross_entropy_shape *shape;
    const shard_margin *margin;
    const int64_t *target;
    const double *row_m2, *row_m3, *given;
    double *slope;
} margin_call;

/* The target's local column, less than 0 if it has none. */
static int64_t own_target(const margin_call *call, int64_t row)
{
    int64_t label = call->target[row];
    return shard_label_ignored(call->shape, label) ? INT64_MIN / 2 : label - call->shape->col0;
}

#define SELF "margin_logits.c"
#include "device/cpu/kernels/real.h"

/* Padded rows one by one. */
static void run(const margin_call *call, const char *x, char *y, shard_dtype dtype)
{
    const shard_cross_entropy_shape *shape = call->shape;
    int64_t pitch = shard_pitch(shape->pitch, shape->cols), size = (int64_t)shard_dtype_size(dtype);
    int64_t at_once = pitch == shape->cols ? shape->rows : 1;
    for (int64_t first = 0; first < shape->rows && shape->cols > 0; first += at_once) {
        margin_call part = *call;
        part.target += first;
        part.row_m2 = call->row_m2 ? call->row_m2 + first : NULL;
        part.row_m3 = call->row_m3 ? call->row_m3 + first : NULL;
        part.given = call->given ? call->given + first : NULL;
        part.slope = call->slope ? call->slope + first : NULL;
        map job = {.dtype = dtype,
                   .n = at_once * shape->cols,
                   .period = shape->cols,
                   .in = {x + first * pitch * size},
                   .out = {y + first * pitch * size},
                   .context = &part};
        MAP(&job, margin);
    }
}

shard_status KERNEL(margin_logits)(shard_device *device, const shard_cross_entropy_shape *shape, const shard_margin *margin,
                                   const void *x, const int64_t *target, const double *row_m2, const double *row_m3, void *y,
                                   double *slope, shard_dtype dtype)
{
    (void)device;
    for (int64_t row = 0; row < shape->rows; row++)
        slope[row] = 1;
    run(&(margin_call){.shape = shape, .margin = margin, .target = target, .row_m2 = row_m2, .row_m3 = row_m3, .slope = slope}, x,
        y, dtype);
    return SHARD_OK;
}

shard_status KERNEL(margin_logits_backward)(shard_device *device, const shard_cross_entropy_shape *shape,
                                            const shard_margin *margin, const int64_t *target, const double *slope,
                                            const void *dy, void *dx, shard_dtype dtype)
{
    (void)device;
    run(&(margin_call){.shape = shape, .margin = margin, .target = target, .given = slope}, dy, dx, dtype);
    return SHARD_OK;
}

#endif
