/* The common parts of losses of a linear layer without logits (linear_cross_entropy.c): checks, the stash, gradients. */
#ifndef SHARD_OP_LINEAR_HEAD_H
#define SHARD_OP_LINEAR_HEAD_H

#include "op/deferred_linear.h"
#include "op/head_gradient.h"
#include "op/op.h"

/* The tensor that stands for the logits of these operands [SHARD_LINEAR_OPERANDS], of the type that they are summed in: it
 * gets no memory. NULL with the error set if the operands do not fit together. */
shard_tensor *shard_linear_head_logits(const char *function, shard_tensor *const *operand);

/* Sets the stash of `head`, whose tensor is *stash; NULL where it has none, as where the weight has a deferred gradient already,
 * which is extended. It has at most `share` of the bytes of the weight. False with the error set. */
bool shard_linear_head_stash(shard_head *head, shard_tensor *const *operand, double share, shard_tensor **stash);

/* The gradients of the node's inputs. sums: the statistics, then the sums of the forward. node->group: over which classes
 * are split, or NULL. kept [SHARD_HEAD_KEPT]: as for shard_head_source_create. */
shard_status shard_linear_head_backward(shard_node *node, const shard_head *head, const shard_loss_rows *rows,
                                        const double *stats, const void *sum, shard_tensor *const *kept, shard_tensor *stash,
                                        shard_tensor **dx);

#endif
