/*
 * Operations on operands that are repeated to one shape, as NumPy and PyTorch do: shapes are
 * compared from the last dimension on; sizes are equal, or 1 in one of them, or missing.
 */
#ifndef SHARD_OP_EXPANSION_H
#define SHARD_OP_EXPANSION_H

#include "op/op.h"

/* A tensor for the result: of the shape that the operands, 3 at most, have together, placed as
 * they are. Those that are split are split along the same dimension of the result in the same ranges;
 * the others are whole and repeated along it. `linear`: all may be PARTIAL. NULL with the error set. */
shard_tensor *shard_expansion_result(const char *function, bool linear, int count, shard_tensor *const *operand,
                                     shard_dtype dtype);

/* How the operands are repeated to the result's shape. */
shard_expansion shard_expansion_operands(const shard_shape *result, int count, shard_tensor *const *operand);

/* In backward: memory for the gradient of an input for each element of dy. It is dx itself, or
 * what shard_gradient_summed is to make dx of; dy, to be overwritten, where this is the last
 * gradient that is computed from it and nobody else sees it. */
shard_tensor *shard_gradient_each(shard_node *node, int input, shard_tensor *dy, bool last);
/* dx of an input from that: summed, in float32 or better, over the dimensions that the input
 * was repeated along, also those of other ranks' parts. `each` may be dy. NULL with the error set. */
shard_tensor *shard_gradient_summed(shard_node *node, int input, shard_tensor *each, const shard_tensor *dy);

#endif
