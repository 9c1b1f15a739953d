/*
 * Heads whose classes are not the weight's rows as they lie: rows are taken through a list, or normalized. Some rows at a time
 * are copied to a chunk of workspace, over which the sweeps of head.h go as over a weight of its own. A forward that is not fused
 * copies the rows of each tile instead (head.c). The rows of the labels, for the features' gradient, are an array of their own:
 * margins give them other factors.
 */
#ifndef SHARD_DEVICE_HEAD_PREPARED_H
#define SHARD_DEVICE_HEAD_PREPARED_H

#include "device/head.h"

static inline bool shard_head_prepares(const shard_head *h)
{
    return h->list || h->normalized || h->margin_logit;
}

/* As the functions of head.h, which call these. */
shard_status shard_head_prepared_forward(shard_device *, const shard_head *, double *stats, void *sum);
shard_status shard_head_prepared_input_gradient(shard_device *, const shard_head *, const double *stats, const void *sum,
                                                const shard_loss_rows *, void *dx);
shard_status shard_head_prepared_weight_gradient(shard_device *, const shard_head *, const shard_loss_rows *,
                                                 const shard_head_gradient *);

#endif
