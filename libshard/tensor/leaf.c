/* Leaves: gradients and replica groups of parameters. */
#include "tensor/tensor.h"

#include "base/dtype.h"

#include <stdlib.h>

const shard_leaf shard_no_leaf;

shard_leaf *shard_make_leaf(shard_tensor *tensor)
{
    if (!tensor->leaf)
        tensor->leaf = shard_calloc(1, sizeof *tensor->leaf);
    return tensor->leaf;
}

void shard_leaf_release_derived(shard_leaf *leaf)
{
    if (leaf && leaf->derived)
        leaf->derived->release(leaf->derived);
    if (leaf)
        leaf->derived = NULL;
}

void shard_free_leaf(shard_leaf *leaf)
{
    if (!leaf)
        return;
    shard_leaf_release_derived(leaf);
    shard_tensor_unref(leaf->grad);
    shard_tensor_unref(leaf->local_range);
    free(leaf->flat_range);
    free(leaf);
}

shard_status shard_tensor_set_flat_range(shard_tensor *tensor, const shard_flat_range *range)
{
    shard_leaf *leaf = shard_make_leaf(tensor);
    if (leaf && !leaf->flat_range)
        leaf->flat_range = shard_calloc(1, sizeof *range);
    if (!leaf || !leaf->flat_range)
        return shard_last_status();
    *leaf->flat_range = *range;
    return SHARD_OK;
}

bool shard_requires_grad(const shard_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

void shard_set_requires_grad(shard_tensor *leaf, bool requires_grad)
{
    if (!leaf)
        return;
    if (leaf->history)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_set_requires_grad: a tensor of shape %s is the result of an operation, not a leaf: shard_detach it",
                    shard_shape_text(&leaf->shape));
    else if (requires_grad && !shard_dtype_is_float(leaf->dtype))
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: %s has no gradient; a floating dtype is needed (shard_cast)",
                    shard_dtype_name(leaf->dtype));
    else if (!requires_grad)
        leaf->requires_grad = false;
    else if (shard_make_leaf(leaf)) {
        leaf->requires_grad = true;
        shard_storage_become(leaf->storage, SHARD_MEMORY_PARAMETERS);
    }
}

shard_tensor *shard_grad(shard_tensor *leaf)
{
    return leaf && shard_has_grad(leaf) ? leaf->leaf->grad : NULL;
}

shard_group *shard_tensor_replica_group(const shard_tensor *parameter)
{
    return parameter ? shard_leaf_of(parameter)->replicas : NULL;
}

void shard_tensor_set_replica_group(shard_tensor *parameter, shard_group *group)
{
    if (parameter && shard_make_leaf(parameter))
        parameter->leaf->replicas = group;
}
