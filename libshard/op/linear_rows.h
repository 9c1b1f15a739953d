/* linear with a weight that is streamed in row blocks (op/rows.h). */
#ifndef SHARD_OP_LINEAR_ROWS_H
#define SHARD_OP_LINEAR_ROWS_H

#include "op/op.h"
#include "op/rows.h"

/* Whether the weight's values are streamed in row blocks. */
static inline bool shard_values_are_streamed(const shard_tensor *weight)
{
    const shard_rows *rows = weight ? shard_leaf_of(weight)->rows : NULL;
    return rows && rows->values;
}

/* Collective over the ranks that partition the weight; called with a NULL result after an error, too. */

/* y = x weight^T + bias, in x's type. weight [out, in] is partitioned; bias is NULL or has x's type. */
shard_status shard_linear_rows(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, shard_tensor *y);

/* to = dy weight, computed in dy's type; to [.., in] has that type or float32. */
shard_status shard_linear_rows_input_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *to);

/* dy^T x, passed block by block to the weight's shard_rows. x has dy's type. */
shard_status shard_linear_rows_weight_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *x);

#endif
