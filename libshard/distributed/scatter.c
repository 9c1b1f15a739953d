/* scatter: forward the local shard, backward an all-gather. */
#include "distributed/distributed.h"

#include "comm/function.h"

#include <stdlib.h>

static shard_status copy_part(shard_tensor *whole, int dim, shard_range range, char *part, bool out)
{
    const shard_shape *shape = &whole->shape;
    size_t rows = (size_t)shard_shape_product(shape, 0, dim);
    size_t element = shard_dtype_size(whole->dtype) * (size_t)shard_shape_product(shape, dim + 1, shape->ndim);
    size_t pitch = (size_t)shape->dim[dim] * element, width = (size_t)range.size * element;
    char *memory = out ? shard_tensor_values(whole) : shard_tensor_memory_to_write(whole);
    if (!memory)
        return shard_last_status();
    char *at = memory + (size_t)range.start * element;
    return out ? SHARD_RUN(whole, copy_rows, part, width, at, pitch, width, rows)
               : SHARD_RUN(whole, copy_rows, at, pitch, part, width, width, rows);
}

shard_status shard_copy_part_out(shard_tensor *whole, int dim, shard_range range, void *part)
{
    return copy_part(whole, dim, range, part, true);
}

shard_status shard_copy_part_in(shard_tensor *whole, int dim, shard_range range, const void *part)
{
    return copy_part(whole, dim, range, (char *)(uintptr_t)part, false);
}

shard_tensor *shard_part_of(shard_tensor *whole, int dim, shard_range range)
{
    shard_shape shape = whole->shape;
    shape.dim[dim] = range.size;
    if (dim == 0)
        return shard_tensor_view(whole, range.start * shard_shape_product(&shape, 1, shape.ndim), shape);
    shard_tensor *part = shard_tensor_make(shape, whole->dtype, shard_device_of(whole));
    void *memory = part ? shard_tensor_memory(part) : NULL;
    return shard_result(part, memory ? shard_copy_part_out(whole, dim, range, memory) : shard_last_status());
}

/* The node's context is the multiple. */
static shard_status scatter_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const int64_t *multiple = node->context;
    const shard_placement *placement = &node->placement; /* of the result */
    shard_shape whole = node->edge[0].shape;
    int size = shard_group_size(placement->group);
    shard_range *ranges = shard_calloc((size_t)size, sizeof *ranges);
    if (!ranges)
        return shard_group_fail(placement->group);
    for (int i = 0; i < size; i++)
        ranges[i] = shard_split_multiple(whole.dim[placement->dim], *multiple, size, i);
    dx[0] = shard_gather_parts(dy, whole, placement->dim, ranges, placement->group);
    free(ranges);
    return dx[0] ? SHARD_OK : shard_last_status();
}

static const shard_node_type scatter_type = {.name = "scatter", .backward = scatter_backward, .places_gradients = true};

shard_tensor *shard_scatter_to_group(shard_tensor *x, int dim, shard_group *group)
{
    return shard_scatter_multiple(x, dim, 1, group);
}

shard_tensor *shard_scatter_multiple(shard_tensor *x, int dim, int64_t multiple, shard_group *group)
{
    SHARD_FUNCTION("shard_scatter_to_group");
    if (!shard_check_operand("shard_scatter_to_group", x) ||
        shard_resolve_dim("shard_scatter_to_group", &x->shape, dim, &dim) != SHARD_OK)
        return NULL;
    if (!shard_is_local(x))
        return shard_refuse_placement("shard_scatter_to_group", x), NULL;
    int size = shard_group_size(group);
    if (size == 1)
        return shard_reshape(x, x->shape);
    shard_range range = shard_split_multiple(x->shape.dim[dim], multiple, size, shard_group_rank(group));
    shard_tensor *y = shard_part_of(x, dim, range);
    if (!y)
        return NULL;
    y->placement = (shard_placement){
        .kind = SHARD_SPLIT, .dim = dim, .group = group, .start = range.start, .whole = x->shape.dim[dim]};
    shard_node *node = shard_record(&scatter_type, y, SHARD_INPUTS(x), sizeof multiple);
    if (node)
        *(int64_t *)node->context = multiple;
    return y;
}
