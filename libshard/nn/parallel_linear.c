/* The parallel linear function: the product of the local shards, and the communication around it. */
#include "nn/nn.h"

#include "comm/function.h"
#include "distributed/distributed.h"
#include "op/op.h"

shard_tensor *shard_parallel_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias)
{
    SHARD_FUNCTION("shard_parallel_linear");
    if (!weight || weight->placement.kind != SHARD_SPLIT || weight->placement.dim == 0)
        return shard_linear(x, weight, bias);
    shard_group *group = weight->placement.group;
    if (!x)
        return shard_leave(group);
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *local = shard_is_split(x, x->shape.ndim - 1) ? x : shard_scatter_to_group(x, -1, group);
    shard_tensor *y = shard_reduce_from_group(shard_linear(local, weight, NULL), group);
    if (bias)
        y = shard_add_bias(y, bias);
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}
