/* The first k logits of each row in the composed sweeps: those of a tile are joined to those so far. */
#include "device/head_sweep.h"

#include "base/error.h"

static shard_status begin(sweep *s, double *stats)
{
    const shard_head *h = s->h;
    (void)stats;
    return s->device->ops->top_k(s->device, h->loss.rows, 0, h->k, 0, NULL, h->x, h->top_value, h->top_index, s->wide);
}

/* Copies [rows, k] to a half of the rows of [rows, 2 k]. */
static shard_status put(sweep *s, int half, size_t size, const void *from, void *to)
{
    size_t width = (size_t)s->h->k * size;
    return s->device->ops->copy_rows(s->device, (char *)to + (size_t)half * width, 2 * width, from, width, width,
                                     (size_t)s->h->loss.rows);
}

static shard_status forward(sweep *s, const tile *t, double *stats, void *sum)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    size_t size = shard_dtype_size(s->wide);
    (void)stats;
    (void)sum;
    SHARD_TRY(ops->top_k(s->device, h->loss.rows, t->count, h->k, h->loss.col0 + t->first, NULL, s->logits, s->top_value,
                         s->top_index, s->wide));
    SHARD_TRY(put(s, 0, size, h->top_value, s->both_values));
    SHARD_TRY(put(s, 1, size, s->top_value, s->both_values));
    SHARD_TRY(put(s, 0, sizeof(int64_t), h->top_index, s->both_indices));
    SHARD_TRY(put(s, 1, sizeof(int64_t), s->top_index, s->both_indices));
    return ops->top_k(s->device, h->loss.rows, 2 * h->k, h->k, 0, s->both_indices, s->both_values, h->top_value, h->top_index,
                      s->wide);
}

const head_loss shard_head_first = {.begin = begin, .forward = forward};
