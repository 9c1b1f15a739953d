/* Binary cross-entropy in the composed sweeps. */
#include "device/head_sweep.h"

#include "base/error.h"

static shard_binary_loss_shape shape_of(const sweep *s, const tile *t)
{
    const shard_head *h = s->h;
    return (shard_binary_loss_shape){
        .rows = h->loss.rows, .cols = t->count, .col0 = h->loss.col0 + t->first, .classes = h->loss.classes, .pairs = h->pairs};
}

/* The positive weights of the tile's classes. */
static const void *positive_of(const sweep *s, const tile *t)
{
    const char *positive = s->h->positive;
    return positive ? positive + (size_t)t->first * shard_dtype_size(s->wide) : NULL;
}

static shard_status begin(sweep *s, double *stats)
{
    return s->device->ops->fill(s->device, 1, 0, stats, SHARD_FLOAT64);
}

static shard_status differentiate(sweep *s, const tile *t, const double *scale)
{
    const shard_binary_loss_shape shape = shape_of(s, t);
    SHARD_TRY(s->device->ops->binary_cross_entropy_backward(s->device, &shape, s->logits, NULL, s->h->pair, t->class_weight,
                                                            positive_of(s, t), scale, s->one, NULL, s->logits, s->wide));
    return shard_head_narrow(s, t);
}

static shard_status forward(sweep *s, const tile *t, double *stats, void *sum)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    const shard_binary_loss_shape shape = shape_of(s, t);
    if (!h->gradient_only) {
        SHARD_TRY(ops->binary_cross_entropy(s->device, &shape, s->logits, NULL, h->pair, t->class_weight, positive_of(s, t),
                                            h->row_weight, NULL, s->stats, s->wide));
        SHARD_TRY(ops->axpby(s->device, 1, 1, s->stats, 1, stats, SHARD_FLOAT64));
    }
    return sum ? differentiate(s, t, NULL) : SHARD_OK;
}

static shard_status gradient(sweep *s, const tile *t, const shard_loss_rows *rows)
{
    return differentiate(s, t, rows->scale);
}

const head_loss shard_head_binary = {.begin = begin, .forward = forward, .gradient = gradient};
