/*
 * gather: forward the ranks' shards one after the other. Backward this rank's range of the
 * gradient, or of the sum of the ranks' gradients if they are PARTIAL over the group. The range of
 * a gradient that is PARTIAL over another group stays PARTIAL.
 */
#include "distributed/distributed.h"

#include "comm/function.h"

#include <stdlib.h>

/* ---- shards to one tensor ---- */

static int64_t *part_counts(const shard_shape *whole, int dim, const shard_range *ranges, int size)
{
    int64_t rows = shard_shape_product(whole, 0, dim), width = shard_shape_product(whole, dim + 1, whole->ndim);
    int64_t *counts = shard_calloc((size_t)size, sizeof *counts);
    for (int i = 0; counts && i < size; i++)
        counts[i] = rows * ranges[i].size * width;
    return counts;
}

shard_tensor *shard_gather_parts(shard_tensor *part, shard_shape whole, int dim, const shard_range *ranges, shard_group *group)
{
    int size = shard_group_size(group);
    int64_t *counts = part_counts(&whole, dim, ranges, size);
    shard_tensor *y = counts ? shard_tensor_make(whole, part->dtype, shard_device_of(part)) : NULL;
    bool in_order = shard_shape_product(&whole, 0, dim) == 1;
    shard_tensor *parts = in_order ? y : y ? shard_workspace(y, shard_numel(y), y->dtype) : NULL;
    void *memory[2] = {NULL};
    shard_status status = SHARD_OK;
    if (!parts || !shard_load(SHARD_INPUTS(part, parts), memory))
        status = shard_group_fail(group);
    else
        status = shard_group_all_gather(group, shard_device_of(part), memory[0], memory[1], counts, part->dtype);
    for (int i = 0; i < size && !in_order && status == SHARD_OK; i++)
        status = shard_copy_part_in(y, dim, ranges[i],
                                    (char *)memory[1] + (size_t)shard_count_before(counts, i) * shard_dtype_size(y->dtype));
    if (!in_order)
        shard_release(parts);
    free(counts);
    return shard_result(y, status);
}

/* ---- the adjoint ---- */

typedef struct gather_context {
    int dim;
    shard_range ranges[]; /* [group size] along dim */
} gather_context;

/* This rank's range of the sum of the ranks' gradients: half the bytes of an all-reduce. */
static shard_tensor *local_range_of_sum(shard_tensor *dy, const gather_context *context, shard_group *group)
{
    int size = shard_group_size(group);
    int64_t *counts = part_counts(&dy->shape, context->dim, context->ranges, size);
    shard_shape shape = dy->shape;
    shape.dim[context->dim] = context->ranges[shard_group_rank(group)].size;
    shard_tensor *part = counts ? shard_tensor_make(shape, dy->dtype, shard_device_of(dy)) : NULL;
    /* The collective may overwrite its input, and other references to dy may exist. */
    shard_tensor *parts = part ? shard_workspace(dy, shard_numel(dy), dy->dtype) : NULL;
    void *memory[2] = {NULL};
    shard_status status = SHARD_OK;
    if (!parts || !shard_load(SHARD_INPUTS(parts, part), memory)) {
        status = shard_group_fail(group);
    } else {
        for (int i = 0; i < size && status == SHARD_OK; i++)
            status = shard_copy_part_out(dy, context->dim, context->ranges[i],
                                         (char *)memory[0] + (size_t)shard_count_before(counts, i) * shard_dtype_size(dy->dtype));
        status = shard_group_reduce_scatter(group, shard_device_of(dy), memory[0], memory[1], counts, dy->dtype, SHARD_SUM);
    }
    free(counts);
    return shard_result(part, status);
}

static shard_status gather_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const gather_context *context = node->context;
    bool sums = dy->placement.kind == SHARD_PARTIAL && shard_group_same(dy->placement.group, node->group);
    dx[0] = sums ? local_range_of_sum(dy, context, node->group)
                 : shard_part_of(dy, context->dim, context->ranges[shard_group_rank(node->group)]);
    if (!dx[0])
        return shard_last_status();
    if (node->edge[0].placement.kind == SHARD_SPLIT)
        return SHARD_OK;
    if (!sums)
        shard_place_partial(dx[0], dy);
    return shard_pending_sums_add(&dx[0]->pending, node->group);
}

static const shard_node_type gather_type = {.name = "gather", .backward = gather_backward, .takes_partial = true};

/* ---- forward ---- */

/* Shards that can be joined differ in their sizes along dim alone. */
static void require_fitting_shards(const shard_tensor *x, int dim)
{
    shard_shape shape = x->shape;
    shape.dim[dim] = -1;
    shard_require_identical("shards %s %s along %d", shard_dtype_name(x->dtype), shard_shape_text(&shape), dim);
}

static bool may_gather(shard_tensor *x, int dim, const shard_group *group)
{
    if (shard_is_local(x) || (shard_is_split(x, dim) && shard_group_same(x->placement.group, group)))
        return true;
    return shard_refuse_group("shard_gather_from_group", x, shard_is_split(x, dim));
}

/* The range of each shard along dim, by their sizes, and the whole shape; the result is identical on all ranks. */
static shard_status add_up(const int64_t *sizes, int size, int dim, shard_range *ranges, shard_shape *whole)
{
    whole->dim[dim] = 0;
    for (int i = 0; i < size; i++) {
        ranges[i] = (shard_range){.start = whole->dim[dim], .size = sizes[i]};
        if (__builtin_add_overflow(whole->dim[dim], ranges[i].size, &whole->dim[dim]))
            return shard_error(SHARD_ERROR_MEMORY, "shard_gather_from_group: the ranks' sizes along dimension %d overflow", dim);
    }
    return SHARD_OK;
}

static shard_tensor *gather_sizes(shard_tensor *x, int dim, const int64_t *sizes, shard_group *group)
{
    int size = shard_group_size(group);
    gather_context *context = shard_calloc(1, sizeof *context + (size_t)size * sizeof context->ranges[0]);
    if (!context)
        return shard_leave(group);
    context->dim = dim;
    shard_shape whole = x->shape;
    shard_tensor *y = NULL;
    if (add_up(sizes, size, dim, context->ranges, &whole) == SHARD_OK)
        y = shard_gather_parts(x, whole, dim, context->ranges, group);
    shard_node *node = shard_record(&gather_type, y, SHARD_INPUTS(x), 0);
    if (!node) {
        free(context);
        return y;
    }
    node->context = context;
    node->group = group;
    return y;
}

shard_tensor *shard_gather_from_group(shard_tensor *x, int dim, shard_group *group)
{
    SHARD_FUNCTION("shard_gather_from_group");
    if (!shard_check_operand("shard_gather_from_group", x) ||
        shard_resolve_dim("shard_gather_from_group", &x->shape, dim, &dim) != SHARD_OK || !may_gather(x, dim, group))
        return shard_leave(group);
    int size = shard_group_size(group);
    if (size == 1)
        return shard_reshape(x, x->shape);
    int64_t *sizes = shard_calloc((size_t)size, sizeof *sizes);
    shard_tensor *y = NULL;
    require_fitting_shards(x, dim);
    if (shard_group_exchange(group, &x->shape.dim[dim], sizeof *sizes, sizes) == SHARD_OK)
        y = gather_sizes(x, dim, sizes, group);
    free(sizes);
    return y;
}
