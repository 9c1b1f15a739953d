/* The deferred gradients of a head's weight and bias (device/head.h, autograd/deferred.h): the rows that they are computed
 * from, of one call or of several that have the same weight, bias, class weights and options, as micro-batches do. */
#ifndef SHARD_OP_HEAD_GRADIENT_H
#define SHARD_OP_HEAD_GRADIENT_H

#include "autograd/deferred.h"
#include "device/head.h"

/* The tensors whose memory a head has apart from its rows; NULL: none. */
enum {
    SHARD_HEAD_WEIGHT,
    SHARD_HEAD_BIAS,
    SHARD_HEAD_CLASS_WEIGHT,
    SHARD_HEAD_POSITIVE,
    SHARD_HEAD_LIST,
    SHARD_HEAD_LIST_ON_HOST,
    SHARD_HEAD_ORIGINS, /* the tensors that those from SHARD_HEAD_BIAS on are copies of, by which calls are compared */
    SHARD_HEAD_BIAS_ORIGIN = SHARD_HEAD_ORIGINS,
    SHARD_HEAD_CLASS_WEIGHT_ORIGIN,
    SHARD_HEAD_POSITIVE_ORIGIN,
    SHARD_HEAD_CORRECTION_ORIGIN, /* of a sample, which was added to the bias */
    SHARD_HEAD_KEPT
};

/* A source without rows; the caller has a reference. Keeps the tensors [SHARD_HEAD_KEPT] for the memory of `head`, whose rows
 * are not read. NULL with the error set. */
shard_gradient_source *shard_head_source_create(const shard_head *head, shard_tensor *const *kept);

/* Whether rows of this call can be added. False for a source of another kind. */
bool shard_head_source_takes(const shard_gradient_source *source, const shard_head *head, shard_tensor *const *kept);

/* Sets the stash of `head` to the tensor's memory; NULL: none. */
void shard_head_set_stash(shard_head *head, shard_tensor *stash);

/* Adds a copy of the rows: x and target or pairs of `head`, and the numbers that belong to them. Keeps the stash of their forward
 * (NULL: none), which is of use until other rows are added. */
shard_status shard_head_source_add(shard_gradient_source *source, const shard_head *head, const shard_loss_rows *rows,
                                   shard_tensor *stash);

#endif
