/*
 * Results of a linear layer that are computed when their values are needed: logits that a fused loss never needs.
 *
 * Such a result has its shape, placement and record from the start. An operation that can do without the values
 * asks for the operands and computes from them; any other use computes the values by the storage's materializer.
 */
#ifndef SHARD_OP_DEFERRED_LINEAR_H
#define SHARD_OP_DEFERRED_LINEAR_H

#include "op/autocast.h"

enum { SHARD_LINEAR_X, SHARD_LINEAR_WEIGHT, SHARD_LINEAR_BIAS, SHARD_LINEAR_OPERANDS };

/* As shard_linear, with a deferred result if a record is made of it. */
shard_tensor *shard_linear_deferred(shard_tensor *x, shard_tensor *weight, shard_tensor *bias);

/* Writes x weight^T + bias to y, with operands of one type. */
typedef shard_status shard_linear_compute(shard_tensor *const *operand, shard_tensor *y);

/* Defers y, which has no memory and will be recorded in a node of this type. input: the tensors that are recorded;
 * operand: those to compute with, cast to y's type; bias may be NULL. */
shard_status shard_defer_linear(shard_tensor *y, const shard_node_type *type, shard_tensor *const *input,
                                shard_tensor *const *operand, shard_linear_compute *compute);

/* Sets input to the recorded tensors of a deferred result, which stay the result's, and *autocast to the mode that it was
 * made in. False for any other tensor, also for views of the result, and if it or a recorded tensor was written to since.
 * The same on all ranks of a program, whether or not a rank has computed the values. */
bool shard_deferred_linear(const shard_tensor *y, shard_tensor **input, shard_dtype *autocast);

#endif
