/* linear by a weight whose rows pass by in blocks (tensor/tensor.h, shard_rows). */
#ifndef SHARD_OP_LINEAR_ROWS_H
#define SHARD_OP_LINEAR_ROWS_H

#include "op/op.h"

/* Whether the weight's values are not to be asked for at once. */
static inline bool shard_values_pass_by(const shard_tensor *weight)
{
    return weight && weight->rows && weight->rows->values;
}

/* These are entered by all who share the weight out, with a NULL result after an error, too. */

/* y = x weight^T + bias, in x's type. weight [out, in] as it is kept; bias NULL or in x's type. */
shard_status shard_linear_rows(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, shard_tensor *y);

/* to = dy weight, in dy's type; to [.., in] of it or float32. */
shard_status shard_linear_rows_input_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *to);

/* dy^T x, handed on to who takes it block by block. x in dy's type. */
shard_status shard_linear_rows_weight_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *x);

#endif
