/* reshape, flatten: other shapes over the same memory. narrow: a range of a dimension; of the first one a view, too. */
#include "op/op.h"

#include <inttypes.h>

/* ---- reshape ---- */

static shard_status reshape_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = shard_tensor_view(dy, 0, node->edge[0].shape);
    shard_place_partial(dx[0], dy);
    return dx[0] ? SHARD_OK : shard_last_status();
}

static const shard_node_type reshape_type = {.name = "reshape", .backward = reshape_backward, .takes_partial = true};

/* Sets the size that is -1; *inferred is its dimension, or -1 if there is none. */
static shard_status resolve_shape(const char *function, const shard_tensor *x, shard_shape *shape, int *inferred)
{
    shard_shape wanted = *shape;
    int64_t known, numel = shard_numel(x);
    *inferred = -1;
    for (int i = 0; i < shape->ndim && i < SHARD_MAX_DIMS; i++) {
        if (shape->dim[i] != -1)
            continue;
        if (*inferred >= 0)
            return shard_error(SHARD_ERROR_SHAPE, "%s: two sizes of %s are -1", function, shard_shape_text(&wanted));
        *inferred = i;
        shape->dim[i] = 1;
    }
    SHARD_TRY(shard_shape_check(function, shape, x->dtype, &known));
    if (*inferred >= 0 && known == 0)
        return shard_error(SHARD_ERROR_SHAPE, "%s: the size -1 in %s cannot be inferred from an empty tensor", function,
                           shard_shape_text(&wanted));
    if (*inferred >= 0 && numel % known == 0)
        known *= shape->dim[*inferred] = numel / known;
    if (known != numel)
        return shard_error(SHARD_ERROR_SHAPE, "%s: a tensor of shape %s, %" PRId64 " elements, cannot be of shape %s", function,
                           shard_tensor_shape_text(x), numel, shard_shape_text(&wanted));
    return SHARD_OK;
}

/* Whether x's split dimension, together with those after it, is dimension `to` of shape together with those after
 * that: the local shard is then a range of `to` as well. */
static bool place_at(const shard_tensor *x, const shard_shape *shape, int to, shard_placement *placement)
{
    int from = x->placement.dim;
    int64_t after = shard_shape_product(&x->shape, from + 1, x->shape.ndim);
    int64_t rest = shard_shape_product(shape, to + 1, shape->ndim);
    int64_t start = x->placement.start, whole = x->placement.whole;
    if (shard_shape_product(&x->shape, 0, from) != shard_shape_product(shape, 0, to) ||
        x->shape.dim[from] * after != shape->dim[to] * rest)
        return false;
    if (after != rest) {
        if (rest == 0 || !shard_multiply(start, after, &start) || !shard_multiply(whole, after, &whole) || start % rest ||
            whole % rest)
            return false;
        start /= rest;
        whole /= rest;
    } else if (x->shape.dim[from] != shape->dim[to]) {
        return false;
    }
    *placement = (shard_placement){.kind = SHARD_SPLIT, .dim = to, .group = x->placement.group, .start = start, .whole = whole};
    return true;
}

/* Whether dimension `to` has the size of x's split one and can be it. */
static bool stays_at(const shard_tensor *x, const shard_shape *shape, int to)
{
    shard_placement placement;
    return to >= 0 && to < shape->ndim && shape->dim[to] == x->shape.dim[x->placement.dim] && place_at(x, shape, to, &placement);
}

/* The one dimension that begins with x's split one; -1: none or several. */
static int only_begin(const shard_tensor *x, const shard_shape *shape)
{
    int from = x->placement.dim, only = -1;
    int64_t before = shard_shape_product(&x->shape, 0, from), behind = shard_shape_product(&x->shape, from, x->shape.ndim);
    for (int to = 0; to < shape->ndim; to++)
        if (shard_shape_product(shape, 0, to) == before && shard_shape_product(shape, to, shape->ndim) == behind) {
            if (only >= 0)
                return -1;
            only = to;
        }
    return only;
}

/*
 * The dimension of shape that is split; -1: there is no rule. With sizes of 1 several could be it, and ranks with other sizes
 * could choose differently. So it keeps its size and its place, counted from either end, where it can: [rows, -1] has the
 * rows, and [-1, columns] the columns, also if the other size is 1. An inferred one precedes where it has that size, or divides
 * what was split: [rows, -1, 64] has the heads of split columns, also of 64.
 */
static int carried_dim(const shard_tensor *x, const shard_shape *shape, int inferred)
{
    int from = x->placement.dim, from_end = from + shape->ndim - x->shape.ndim;
    shard_placement placement;
    bool may_infer = inferred >= 0 && place_at(x, shape, inferred, &placement);
    if (may_infer && (inferred == from || shape->dim[inferred] == x->shape.dim[from]))
        return inferred;
    bool front = stays_at(x, shape, from), end = stays_at(x, shape, from_end);
    if (front)
        return end && from_end != from ? -1 : from;
    if (may_infer && (inferred > from || !end))
        return inferred;
    return end ? from_end : only_begin(x, shape);
}

static bool carry_split(const shard_tensor *x, const shard_shape *shape, int inferred, shard_placement *placement)
{
    int to = carried_dim(x, shape, inferred);
    return to >= 0 && place_at(x, shape, to, placement);
}

static shard_tensor *view_as(shard_tensor *x, shard_shape shape, shard_placement placement)
{
    shard_tensor *y = shard_tensor_view(x, 0, shape);
    if (y)
        y->placement = placement;
    shard_record(&reshape_type, y, SHARD_INPUTS(x), 0);
    return y;
}

static shard_tensor *refuse(const char *function, const shard_tensor *x, const shard_shape *shape, const char *hint)
{
    return shard_fail_null(SHARD_ERROR_UNSUPPORTED, "%s: no rule for a tensor of shape %s that is %s as one of shape %s%s",
                           function, shard_shape_text(&x->shape), shard_placement_text(&x->placement), shard_shape_text(shape),
                           hint);
}

shard_tensor *shard_reshape(shard_tensor *x, shard_shape shape)
{
    static const char function[] = "shard_reshape";
    int inferred;
    if (!shard_check_operand(function, x) || resolve_shape(function, x, &shape, &inferred) != SHARD_OK)
        return NULL;
    shard_placement placement = x->placement;
    if (placement.kind == SHARD_SPLIT && !carry_split(x, &shape, inferred, &placement))
        return refuse(function, x, &shape, inferred < 0 ? "; -1 as a size says which one is split" : "");
    return view_as(x, shape, placement);
}

/* The placement if dimensions start to end become one. False: the split one comes after others of them. */
static bool merge_split(const shard_shape *x, int start, int end, shard_placement *placement)
{
    int from = placement->dim;
    if (from > end)
        placement->dim -= end - start;
    if (from < start || from > end)
        return true;
    int64_t after = shard_shape_product(x, from + 1, end + 1);
    placement->dim = start;
    return shard_shape_product(x, start, from) == 1 && shard_multiply(placement->start, after, &placement->start) &&
           shard_multiply(placement->whole, after, &placement->whole);
}

shard_tensor *shard_flatten(shard_tensor *x, int start, int end)
{
    if (!shard_check_operand("shard_flatten", x))
        return NULL;
    shard_shape from = x->shape.ndim > 0 ? x->shape : SHARD_SHAPE(1);
    if (shard_resolve_dim("shard_flatten", &from, start, &start) != SHARD_OK ||
        shard_resolve_dim("shard_flatten", &from, end, &end) != SHARD_OK)
        return NULL;
    if (start > end)
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_flatten: dimensions %d to %d of a tensor of shape %s: the last comes before the first",
                               start, end, shard_shape_text(&x->shape));
    shard_shape shape = {.ndim = from.ndim - (end - start)};
    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = from.dim[i <= start ? i : i + end - start];
    shape.dim[start] = shard_shape_product(&from, start, end + 1);
    shard_placement placement = x->placement;
    if (placement.kind == SHARD_SPLIT && !merge_split(&x->shape, start, end, &placement))
        return refuse("shard_flatten", x, &shape, "");
    return view_as(x, shape, placement);
}

/* ---- narrow ---- */

typedef struct narrow_context {
    int dim;
    int64_t start;
} narrow_context;

/* Rows of any but the last dimension may be padded: a row is then the elements after that dimension. */
static shard_status narrow_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const narrow_context *c = node->context;
    dx[0] = shard_make_gradient(node, 0);
    if (!dx[0])
        return shard_last_status();
    shard_axis axis = shard_axis_along(dx[0], c->dim);
    int last = dy->shape.ndim - 1;
    int64_t inner = axis.inner, part = dy->shape.dim[c->dim] * inner, cols = dy->shape.dim[last], pitch;
    bool whole_rows = c->dim < last && cols > 0;
    void *memory[2];
    if (!(whole_rows ? shard_load_alike(dy, dx[0], memory, &pitch) : shard_load(SHARD_INPUTS(dy, dx[0]), memory)))
        return shard_last_status();
    shard_place_partial(dx[0], dy);
    if (whole_rows) {
        inner = inner / cols * pitch;
        part = part / cols * pitch;
    }
    size_t size = shard_dtype_size(dy->dtype), all = (size_t)(axis.size * inner) * size, width = (size_t)part * size;
    SHARD_TRY(SHARD_RUN(dy, zero, memory[1], all * (size_t)axis.outer));
    char *at = (char *)memory[1] + (size_t)(c->start * inner) * size;
    return width ? SHARD_RUN(dy, copy_rows, at, all, memory[0], width, width, (size_t)axis.outer) : SHARD_OK;
}

static const shard_node_type narrow_type = {.name = "narrow", .backward = narrow_backward, .takes_partial = true};

static shard_tensor *narrow(shard_tensor *x, int dim, int64_t start, shard_shape shape)
{
    if (dim == 0)
        return shard_tensor_view(x, start * shard_shape_product(&x->shape, 1, x->shape.ndim), shape);
    shard_tensor *y = shard_tensor_make(shape, x->dtype, shard_device_of(x));
    return y ? shard_result(y, shard_copy_range(x, dim, start, y, false)) : NULL;
}

shard_tensor *shard_narrow(shard_tensor *x, int dim, int64_t start, int64_t length)
{
    if (!shard_check_operand("shard_narrow", x) || shard_resolve_dim("shard_narrow", &x->shape, dim, &dim) != SHARD_OK)
        return NULL;
    int64_t size = x->shape.dim[dim];
    if (start < 0 || length < 0 || start > size || length > size - start)
        return shard_fail_null(SHARD_ERROR_SHAPE,
                               "shard_narrow: %" PRId64 " elements from %" PRId64
                               " on along dimension %d of a tensor of shape %s, which has not all of them",
                               length, start, dim, shard_tensor_shape_text(x));
    if (shard_is_split(x, dim))
        return shard_refuse_placement("shard_narrow", x), NULL;
    shard_shape shape = x->shape;
    shape.dim[dim] = length;
    shard_tensor *y = narrow(x, dim, start, shape);
    if (y)
        y->placement = x->placement;
    shard_node *node = shard_record(&narrow_type, y, SHARD_INPUTS(x), sizeof(narrow_context));
    if (node)
        *(narrow_context *)node->context = (narrow_context){dim, start};
    return y;
}

shard_tensor *shard_slice(shard_tensor *x, int dim, int parts, int part)
{
    if (!shard_check_operand("shard_slice", x) || shard_resolve_dim("shard_slice", &x->shape, dim, &dim) != SHARD_OK)
        return NULL;
    if (parts < 1 || part < 0 || part >= parts)
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_slice: slice %d of %d slices: at least one is needed, and slices count from 0", part,
                               parts);
    if (shard_is_split(x, dim))
        return shard_refuse_placement("shard_slice", x), NULL;
    shard_range range = shard_split_range(x->shape.dim[dim], parts, part);
    return shard_narrow(x, dim, range.start, range.size);
}
