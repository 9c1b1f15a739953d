#include "op/expansion.h"

/* ---- the result ---- */

/* Expands shape by that of an operand; false with the error set. first: the operand of shape, or NULL if it is of several. */
static bool join_shapes(const char *function, shard_shape *shape, const shard_tensor *first, const shard_tensor *operand)
{
    const shard_shape *other = &operand->shape;
    shard_shape longer = shape->ndim >= other->ndim ? *shape : *other;
    const shard_shape *shorter = shape->ndim >= other->ndim ? other : shape;
    int lead = longer.ndim - shorter->ndim;
    for (int i = lead; i < longer.ndim; i++) {
        int64_t size = shorter->dim[i - lead];
        if (longer.dim[i] != size && longer.dim[i] != 1 && size != 1) {
            shard_error(SHARD_ERROR_SHAPE, "%s: shapes %s and %s; counted from the last dimension, sizes must be equal or 1",
                        function, first ? shard_tensor_shape_text(first) : shard_shape_text(shape),
                        shard_tensor_shape_text(operand));
            return false;
        }
        longer.dim[i] = longer.dim[i] == 1 ? size : longer.dim[i];
    }
    *shape = longer;
    return true;
}

static shard_placement placement_in(const shard_shape *shape, const shard_tensor *x)
{
    shard_placement placement = x->placement;
    if (placement.kind == SHARD_SPLIT)
        placement.dim += shape->ndim - x->shape.ndim;
    return placement;
}

/* Whether an operand may be placed so for a result that is placed so. A local shard is not repeated along the split
 * dimension, even if its size is 1. */
static bool fits(const shard_shape *shape, const shard_placement *result, const shard_tensor *x)
{
    shard_placement placement = placement_in(shape, x);
    int dim = result->dim - (shape->ndim - x->shape.ndim);
    if (result->kind != SHARD_SPLIT || placement.kind == SHARD_PARTIAL)
        return shard_placement_equal(result, &placement);
    if (placement.kind == SHARD_SPLIT)
        return shard_placement_equal(result, &placement) && x->shape.dim[dim] == shape->dim[result->dim];
    return dim < 0 || x->shape.dim[dim] == 1;
}

static bool place(const char *function, bool linear, const shard_shape *shape, int count, shard_tensor *const *operand,
                  shard_placement *placement)
{
    const shard_tensor *first = operand[0];
    for (int i = 1; i < count; i++)
        first = first->placement.kind == SHARD_LOCAL ? operand[i] : first;
    *placement = placement_in(shape, first);
    if (placement->kind == SHARD_PARTIAL && !linear)
        return shard_refuse_placement(function, first);
    for (int i = 0; i < count; i++) {
        const shard_tensor *other = operand[i] != first ? operand[i] : operand[(i + 1) % count];
        if (fits(shape, placement, operand[i]))
            continue;
        const shard_group *group = other->placement.group;
        bool other_group = group && !shard_group_same(group, first->placement.group);
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: no rule for a tensor of shape %s that is %s and one of shape %s that is %s%s",
                    function, shard_shape_text(&first->shape), shard_placement_text(&first->placement),
                    shard_shape_text(&other->shape), shard_placement_text(&other->placement),
                    other_group ? " over another group" : "");
        return false;
    }
    return true;
}

shard_tensor *shard_expansion_result(const char *function, bool linear, int count, shard_tensor *const *operand,
                                     shard_dtype dtype)
{
    shard_shape shape = operand[0]->shape;
    shard_placement placement;
    for (int i = 1; i < count; i++)
        if (!join_shapes(function, &shape, i == 1 ? operand[0] : NULL, operand[i]))
            return NULL;
    if (!place(function, linear, &shape, count, operand, &placement))
        return NULL;
    shard_tensor *y = shard_tensor_make(shape, dtype, shard_device_of(operand[0]));
    if (y)
        y->placement = placement;
    return y;
}

shard_expansion shard_expansion_operands(const shard_shape *result, int count, shard_tensor *const *operand)
{
    int ndim[SHARD_EXPANSION_OPERANDS];
    const int64_t *shape[SHARD_EXPANSION_OPERANDS];
    for (int i = 0; i < count; i++) {
        ndim[i] = operand[i]->shape.ndim;
        shape[i] = operand[i]->shape.dim;
    }
    return shard_expansion_of(result->ndim, result->dim, count, ndim, shape);
}

/* ---- gradients ---- */

/* Whether dx is a sum, has another type, or has another placement than dy. The answer is the same on every rank, as
 * the sum over ranks is a collective. */
static bool is_summed(const shard_node *node, int input, const shard_tensor *dy)
{
    const shard_edge *edge = &node->edge[input];
    return !shard_shape_equal(&edge->shape, &dy->shape) || edge->dtype != dy->dtype ||
           (dy->placement.kind == SHARD_SPLIT && edge->placement.kind != SHARD_SPLIT);
}

shard_tensor *shard_gradient_each(shard_node *node, int input, shard_tensor *dy, bool last)
{
    if (last && shard_tensor_is_own(dy))
        return dy;
    return is_summed(node, input, dy) ? shard_tensor_like(dy) : shard_make_gradient(node, input);
}

/* The dimensions of x that are summed: the first dimensions of [rows, columns], or one of an axis. `ordered` and
 * `one` say whether x has that form, apart from sizes of 1; else it is permuted by axes to [rows, columns]. */
typedef struct summation {
    bool ordered, one;
    int64_t rows, columns;
    shard_axis axis;
    int axes[SHARD_MAX_DIMS];
} summation;

static summation find_summation(const shard_shape *x, const shard_shape *to)
{
    summation s = {.ordered = true, .one = true, .rows = 1, .columns = 1, .axis = {1, 1, 1}};
    int lead = x->ndim - to->ndim, summed = 0, kept = 0, stay[SHARD_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        if (i < lead || to->dim[i - lead] == 1) {
            s.ordered &= s.columns == 1 || x->dim[i] == 1;
            s.one &= s.axis.inner == 1 || x->dim[i] == 1;
            s.axes[summed++] = i;
            s.rows *= x->dim[i];
            s.axis.size *= x->dim[i];
        } else {
            stay[kept++] = i;
            s.columns *= x->dim[i];
            *(s.rows == 1 ? &s.axis.outer : &s.axis.inner) *= x->dim[i];
        }
    }
    for (int i = 0; i < kept; i++)
        s.axes[summed + i] = stay[i];
    return s;
}

/* dx as the sum along one dimension, if the types are equal. */
static shard_tensor *sum_axis(shard_node *node, int input, const summation *s, shard_tensor *each)
{
    shard_tensor *sum = shard_gradient_to_overwrite(node, input);
    void *memory[2];
    if (!sum || !shard_load(SHARD_INPUTS(each, sum), memory))
        return NULL;
    return shard_result(sum, SHARD_RUN(each, sum_dim, &s->axis, 1, memory[0], memory[1], each->dtype));
}

/* dx as the sum over the first dimensions; x is permuted if it has another order. */
static shard_tensor *sum_first(shard_node *node, int input, const summation *s, shard_tensor *each)
{
    bool accumulate;
    shard_tensor *sum = shard_gradient_target(node, input, &accumulate), *x = each;
    void *memory[2];
    if (!sum)
        return NULL;
    if (!s->ordered) {
        x = shard_workspace(each, shard_numel(each), each->dtype);
        if (!x || !shard_load(SHARD_INPUTS(each, x), memory) ||
            SHARD_RUN(each, permute, each->shape.ndim, each->shape.dim, s->axes, memory[0], memory[1], each->dtype) != SHARD_OK)
            return NULL;
    }
    if (!shard_load(SHARD_INPUTS(x, sum), memory) ||
        SHARD_RUN(x, sum_rows, s->rows, s->columns, 0, memory[0], x->dtype, accumulate, memory[1], sum->dtype) != SHARD_OK)
        return NULL;
    return sum;
}

shard_tensor *shard_gradient_summed(shard_node *node, int input, shard_tensor *each, const shard_tensor *dy)
{
    if (!each || !is_summed(node, input, dy))
        return each;
    const shard_edge *edge = &node->edge[input];
    summation s = find_summation(&each->shape, &edge->shape);
    bool along_one = !s.ordered && s.one && edge->dtype == each->dtype;
    shard_tensor *sum = along_one ? sum_axis(node, input, &s, each) : sum_first(node, input, &s, each);
    shard_place_sum(sum, dy);
    return sum;
}
