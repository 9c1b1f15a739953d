/* Leaves: gradients and replica groups of parameters. */
#include "tensor/tensor.h"

#include "base/dtype.h"

bool shard_requires_grad(const shard_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

void shard_set_requires_grad(shard_tensor *leaf, bool requires_grad)
{
    if (!leaf)
        return;
    if (leaf->history)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: the tensor is a result, not a leaf");
    else if (requires_grad && !shard_dtype_is_float(leaf->dtype))
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: %s has no gradient", shard_dtype_name(leaf->dtype));
    else
        leaf->requires_grad = requires_grad;
    if (leaf->requires_grad)
        shard_storage_become(leaf->storage, SHARD_MEMORY_PARAMETERS);
}

shard_tensor *shard_grad(shard_tensor *leaf)
{
    return leaf && leaf->has_grad ? leaf->grad : NULL;
}

shard_group *shard_replica_group(const shard_tensor *parameter)
{
    return parameter ? parameter->replicas : NULL;
}

void shard_set_replica_group(shard_tensor *parameter, shard_group *group)
{
    if (parameter)
        parameter->replicas = group;
}
