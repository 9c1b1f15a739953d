/* Softmax cross-entropy in the composed sweeps. */
#include "device/head_sweep.h"

#include "base/error.h"

static shard_status begin(sweep *s, double *stats)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    shard_cross_entropy_shape none = h->loss;
    none.cols = none.pitch = 0;
    if (h->ahead) {
        SHARD_TRY(ops->fill(s->device, none.rows, 0, s->aheads[1], SHARD_FLOAT64));
        SHARD_TRY(ops->fill(s->device, none.rows, 0, h->ahead, SHARD_INT64));
    }
    return ops->cross_entropy_stats(s->device, &none, h->x, h->target, NULL, NULL, stats, NULL, NULL, SHARD_FLOAT32);
}

/* Adds the tile's numbers of logits before the labels', which float64 has exactly. */
static shard_status add_ahead(sweep *s)
{
    const shard_device_ops *ops = s->device->ops;
    int64_t rows = s->h->loss.rows;
    SHARD_TRY(ops->cast(s->device, rows, s->ahead, SHARD_INT64, s->aheads[0], SHARD_FLOAT64));
    SHARD_TRY(ops->axpby(s->device, rows, 1, s->aheads[0], 1, s->aheads[1], SHARD_FLOAT64));
    return ops->cast(s->device, rows, s->aheads[1], SHARD_FLOAT64, s->h->ahead, SHARD_INT64);
}

/* Adds the margins to the labels' logits. */
static shard_status shift_labels(const sweep *s, const tile *t)
{
    const shard_head *h = s->h;
    const shard_axis axis = {.outer = h->loss.rows, .size = t->count, .inner = 1};
    if (!h->margin_shift)
        return SHARD_OK;
    return s->device->ops->add_at(s->device, &axis, 1, h->loss.col0 + t->first, h->loss.ignore_index, h->target, 1,
                                  h->margin_shift, s->logits, s->wide);
}

/* Derivatives of a loss of this shape to t->narrow, in one pass where the wide ones are not needed. */
static shard_status differentiate(sweep *s, const tile *t, const shard_cross_entropy_shape *shape, const int64_t *target,
                                  const void *class_weight, const shard_loss_rows *rows)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    const shard_margin slopes = {.scale = 1};
    const double *target_slope = target ? h->margin_slope : NULL;
    if (t->narrow != s->logits && !s->wide_derivatives)
        return ops->cross_entropy_backward_narrow(s->device, shape, s->logits, target, class_weight, rows, target_slope,
                                                  t->narrow, h->dtype);
    SHARD_TRY(ops->cross_entropy_backward(s->device, shape, s->logits, target, NULL, class_weight, rows, s->logits, s->wide));
    if (target_slope)
        SHARD_TRY(ops->margin_logits_backward(s->device, shape, &slopes, target, target_slope, s->logits, s->logits, s->wide));
    return shard_head_narrow(s, t);
}

static shard_status forward(sweep *s, const tile *t, double *stats, void *sum)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    shard_cross_entropy_shape shape = head_tile_shape(s, t);
    SHARD_TRY(shift_labels(s, t));
    SHARD_TRY(ops->cross_entropy_stats(s->device, &shape, s->logits, h->target, NULL, t->class_weight, s->stats, h->label_logit,
                                       s->ahead, s->wide));
    if (h->ahead)
        SHARD_TRY(add_ahead(s));
    SHARD_TRY(ops->head_merge(s->device, shape.rows, h->in, s->stats, stats, s->center, sum, s->wide));
    if (!sum)
        return SHARD_OK;
    shape.smoothing = 0; /* without a target and smoothing this is exp(z - center) */
    return differentiate(s, t, &shape, NULL, NULL, &(shard_loss_rows){.lse = s->center, .slope = s->one, .scale = s->one});
}

static shard_status gradient(sweep *s, const tile *t, const shard_loss_rows *rows)
{
    const shard_cross_entropy_shape shape = head_tile_shape(s, t);
    SHARD_TRY(shift_labels(s, t));
    return differentiate(s, t, &shape, s->h->target, t->class_weight, rows);
}

const head_loss shard_head_softmax = {.begin = begin, .forward = forward, .gradient = gradient};
