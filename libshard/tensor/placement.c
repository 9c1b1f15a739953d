/* Placements: the views of a tensor with another one, and the region of the whole tensor that a tensor is. */
#include "tensor/tensor.h"

#include <inttypes.h>

bool shard_placement_equal(const shard_placement *a, const shard_placement *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == SHARD_LOCAL)
        return true;
    if (!shard_group_same(a->group, b->group))
        return false;
    return a->kind == SHARD_PARTIAL || (a->dim == b->dim && a->start == b->start && a->whole == b->whole);
}

shard_status shard_tensor_region(const shard_tensor *tensor, shard_region *region)
{
    const shard_shape *shape = &tensor->shape;
    const shard_placement *placement = &tensor->placement;
    int last = shape->ndim ? shape->ndim - 1 : 0;
    int64_t cols = shape->ndim ? shape->dim[last] : 1;
    *region = (shard_region){.rows = shard_shape_product(shape, 0, last), .cols = cols, .whole_cols = cols};
    if (placement->kind != SHARD_SPLIT)
        return SHARD_OK;
    if (placement->dim == last) {
        region->col0 = placement->start;
        region->whole_cols = placement->whole;
        return SHARD_OK;
    }
    if (placement->dim != 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "random values for a tensor split along dimension %d of %d: first or last only", placement->dim,
                           shape->ndim);
    region->row0 = placement->start * shard_shape_product(shape, 1, last);
    return SHARD_OK;
}

/* A view with another placement has no record. */
static bool check_leaf(const char *function, const shard_tensor *tensor)
{
    if (tensor->history || tensor->requires_grad)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: the tensor requires a gradient; shard_detach it", function);
    return !tensor->history && !tensor->requires_grad;
}

static shard_tensor *as_split(const char *function, shard_tensor *tensor, int dim, shard_group *group, int64_t start,
                              int64_t whole)
{
    if (!check_leaf(function, tensor) || shard_resolve_dim(function, &tensor->shape, dim, &dim) != SHARD_OK)
        return NULL;
    if (start < 0 || whole < start || tensor->shape.dim[dim] > whole - start)
        return shard_fail_null(SHARD_ERROR_SHAPE, "%s: %" PRId64 " elements from %" PRId64 " on are no part of %" PRId64,
                               function, tensor->shape.dim[dim], start, whole);
    shard_shape whole_shape = tensor->shape;
    int64_t numel;
    whole_shape.dim[dim] = whole;
    /* the whole tensor's elements are counted in files and by random numbers */
    if (shard_shape_check(function, &whole_shape, tensor->dtype, &numel) != SHARD_OK)
        return NULL;
    bool splits = shard_group_size(group) > 1;
    if (!splits && tensor->shape.dim[dim] != whole)
        return shard_fail_null(SHARD_ERROR_SHAPE,
                               "%s: over one rank the shard is the whole tensor, and %" PRId64 " of %" PRId64
                               " elements are given",
                               function, tensor->shape.dim[dim], whole);
    bool pending = shard_has_recipe(tensor) && !tensor->storage->memory && (splits || shard_is_local(tensor));
    shard_tensor *view = pending ? shard_tensor_like(tensor) : shard_detach(tensor);
    if (!view || !shard_make_leaf(view))
        return shard_release(view), NULL;
    if (pending)
        view->leaf->recipe = tensor->leaf->recipe;
    view->placement = (shard_placement){0};
    if (splits) {
        view->placement = (shard_placement){.kind = SHARD_SPLIT, .dim = dim, .group = group, .start = start, .whole = whole};
        view->leaf->replicas = group->replicas;
    }
    return view;
}

shard_tensor *shard_as_split(shard_tensor *tensor, int dim, shard_group *group, int64_t start, int64_t whole)
{
    return tensor ? as_split("shard_as_split", tensor, dim, group, start, whole) : NULL;
}

shard_tensor *shard_as_placed(shard_tensor *tensor, shard_placement placement)
{
    static const char function[] = "shard_as_placed";
    if (!tensor || !check_leaf(function, tensor))
        return NULL;
    if ((unsigned)placement.kind > SHARD_PARTIAL)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: there is no placement %d", function, (int)placement.kind);
    if (placement.kind == SHARD_SPLIT)
        return as_split(function, tensor, placement.dim, placement.group, placement.start, placement.whole);
    shard_tensor *view = shard_detach(tensor);
    bool partial = placement.kind == SHARD_PARTIAL && shard_group_size(placement.group) > 1;
    if (view)
        view->placement = partial ? (shard_placement){.kind = SHARD_PARTIAL, .group = placement.group} : (shard_placement){0};
    return view;
}
