/*
 * Operations on operands that are expanded to one shape, as in NumPy and PyTorch: shapes are compared from the last
 * dimension on; sizes are equal, or 1 in one of them, or missing.
 */
#ifndef SHARD_OP_EXPANSION_H
#define SHARD_OP_EXPANSION_H

#include "op/op.h"

/* Makes a tensor for the result of at most 3 operands: of their common shape and placement. Split operands must have
 * the same range of the same dimension of the result; the others are local and repeated along it. `linear`: all may
 * be PARTIAL. NULL with the error set. */
shard_tensor *shard_expansion_result(const char *function, bool linear, int count, shard_tensor *const *operand,
                                     shard_dtype dtype);

/* How the operands are repeated to the result's shape. */
shard_expansion shard_expansion_operands(const shard_shape *result, int count, shard_tensor *const *operand);

/* In backward: memory for an input's gradient before the sum over expanded dimensions. It is dx itself, or an
 * operand of shard_gradient_summed. It is dy, to be overwritten, if this is the last gradient that is computed from
 * dy and no other tensor uses its memory. */
shard_tensor *shard_gradient_each(shard_node *node, int input, shard_tensor *dy, bool last);
/* dx of an input from that memory: summed, in float32 or better, over the dimensions along which the input was
 * repeated, also over ranks. `each` may be dy. NULL with the error set. */
shard_tensor *shard_gradient_summed(shard_node *node, int input, shard_tensor *each, const shard_tensor *dy);

#endif
