#include "op/op.h"

#include "comm/function.h"

#include <stdio.h>

bool shard_check_operand(const char *function, shard_tensor *x)
{
    if (x)
        return true;
    shard_null_argument(function, "an operand");
    return false;
}

bool shard_check_same(const char *function, int count, shard_tensor *const *operand)
{
    for (int i = 0; i < count; i++)
        if (!shard_check_operand(function, operand[i]))
            return false;
    for (int i = 1; i < count; i++) {
        if (operand[i]->dtype != operand[0]->dtype) {
            bool half = shard_dtype_size(operand[i]->dtype) == 2 || shard_dtype_size(operand[0]->dtype) == 2;
            shard_error(SHARD_ERROR_SHAPE, "%s: operand %d is %s, operand 0 is %s; one dtype is needed (shard_cast%s)", function,
                        i, shard_dtype_name(operand[i]->dtype), shard_dtype_name(operand[0]->dtype),
                        half ? ", or SHARD_AUTOCAST" : "");
            return false;
        }
        if (shard_device_of(operand[i]) != shard_device_of(operand[0])) {
            shard_error(SHARD_ERROR_SHAPE, "%s: operand %d is on %s, operand 0 on %s; one device is needed (shard_to_device)",
                        function, i, shard_device_of(operand[i])->name, shard_device_of(operand[0])->name);
            return false;
        }
    }
    return true;
}

bool shard_check_operands(const char *function, int count, shard_tensor *const *operand)
{
    for (int i = 0; i < count; i++)
        if (!shard_check_operand(function, operand[i]))
            return false;
    for (int i = 0; i < count; i++) {
        if (!shard_dtype_is_float(operand[i]->dtype)) {
            shard_error(SHARD_ERROR_SHAPE, "%s: operand %d is %s; a floating dtype is needed (shard_cast)", function, i,
                        shard_dtype_name(operand[i]->dtype));
            return false;
        }
    }
    return shard_check_same(function, count, operand);
}

void shard_require_identical_operand(const shard_tensor *x)
{
    shard_shape shape = shard_tensor_whole_shape(x);
    shard_require_identical("%s %s", shard_dtype_name(x->dtype), shard_shape_text(&shape));
}

bool shard_refuse_placement(const char *function, const shard_tensor *x)
{
    static const char *const advice[] = {
        [SHARD_LOCAL] = "",
        [SHARD_SPLIT] = "; shard_gather_from_group makes it local",
        [SHARD_PARTIAL] = "; shard_reduce_from_group takes the sum over its ranks first",
    };
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: no rule for a tensor of shape %s that is %s%s", function,
                shard_shape_text(&x->shape), shard_placement_text(&x->placement), advice[x->placement.kind]);
    return false;
}

bool shard_check_carried(const char *function, const shard_tensor *x, int before)
{
    if (shard_is_local(x) || (x->placement.kind == SHARD_SPLIT && x->placement.dim < before))
        return true;
    return shard_refuse_placement(function, x);
}

shard_axis shard_axis_along(const shard_tensor *x, int dim)
{
    return (shard_axis){.outer = shard_shape_product(&x->shape, 0, dim),
                        .size = x->shape.dim[dim],
                        .inner = shard_shape_product(&x->shape, dim + 1, x->shape.ndim)};
}

shard_status shard_copy_range(shard_tensor *whole, int dim, int64_t start, shard_tensor *part, bool into)
{
    shard_axis all = shard_axis_along(whole, dim);
    size_t size = shard_dtype_size(whole->dtype), width = (size_t)(part->shape.dim[dim] * all.inner) * size;
    size_t pitch = (size_t)(all.size * all.inner) * size;
    void *memory[2];
    if (!shard_load(SHARD_INPUTS(whole, part), memory))
        return shard_last_status();
    if (width == 0 || all.outer == 0)
        return SHARD_OK;
    char *at = (char *)memory[0] + (size_t)(start * all.inner) * size;
    if (into)
        return SHARD_RUN(whole, copy_rows, at, pitch, memory[1], width, width, (size_t)all.outer);
    return SHARD_RUN(whole, copy_rows, memory[1], width, at, pitch, width, (size_t)all.outer);
}

shard_shape shard_shape_without(const shard_shape *shape, int dim, bool keep)
{
    shard_shape rest = *shape;
    if (keep) {
        rest.dim[dim] = 1;
        return rest;
    }
    rest.ndim--;
    for (int i = dim; i < rest.ndim; i++)
        rest.dim[i] = shape->dim[i + 1];
    return rest;
}

shard_placement shard_placement_without(const shard_placement *placement, int dim, bool keep)
{
    shard_placement rest = *placement;
    if (rest.kind == SHARD_SPLIT && rest.dim > dim && !keep)
        rest.dim--;
    return rest;
}

bool shard_check_norm_pair(const char *function, const char *names, const shard_tensor *x, const shard_tensor *first,
                           const shard_tensor *second)
{
    if (!first && !second)
        return true;
    shard_dtype dtype = shard_norm_dtype(x->dtype);
    shard_shape shape = SHARD_SHAPE(x->shape.dim[x->shape.ndim - 1]);
    const shard_tensor *pair[] = {first, second};
    for (int i = 0; i < 2; i++) {
        if (!pair[i] || pair[i]->dtype != dtype || !shard_shape_equal(&pair[i]->shape, &shape) ||
            shard_device_of(pair[i]) != shard_device_of(x)) {
            char found[120] = "NULL";
            if (pair[i])
                snprintf(found, sizeof found, "%s of shape %s on %s", shard_dtype_name(pair[i]->dtype),
                         shard_shape_text(&pair[i]->shape), shard_device_of(pair[i])->name);
            shard_error(SHARD_ERROR_SHAPE, "%s: %s must both be %s of shape %s, on the same device as x, or both NULL; one is %s",
                        function, names, shard_dtype_name(dtype), shard_shape_text(&shape), found);
            return false;
        }
        if (!shard_is_local(pair[i]))
            return shard_refuse_placement(function, pair[i]);
    }
    return true;
}

shard_tensor *shard_result(shard_tensor *y, shard_status status)
{
    if (status == SHARD_OK)
        return y;
    shard_release(y);
    return NULL;
}

bool shard_load(int count, shard_tensor *const *tensor, void **memory)
{
    for (int i = 0; i < count; i++) {
        memory[i] = tensor[i] ? shard_tensor_values(tensor[i]) : NULL;
        if (tensor[i] && !memory[i])
            return false;
    }
    return true;
}

bool shard_load_rows(int count, shard_tensor *const *tensor, void **memory, int64_t *pitch)
{
    for (int i = 0; i < 2 * count; i++) { /* twice, as rows of one storage may become dense for another tensor on it */
        shard_tensor *x = tensor[i % count];
        bool there = x && shard_tensor_materialize(x) == SHARD_OK;
        memory[i % count] = there ? shard_tensor_rows(x, &pitch[i % count]) : NULL;
        if (x && !memory[i % count])
            return false;
    }
    return true;
}

bool shard_load_alike(shard_tensor *x, shard_tensor *y, void *memory[2], int64_t *pitch)
{
    int64_t each[2];
    if (!shard_load_rows(SHARD_INPUTS(x), memory, each))
        return false;
    shard_tensor_pad_rows(y, each[0]);
    if (!shard_load_rows(SHARD_INPUTS(x, y), memory, each))
        return false;
    *pitch = each[0] == each[1] ? each[0] : x->shape.dim[x->shape.ndim - 1];
    return each[0] == each[1] || shard_load(SHARD_INPUTS(x, y), memory);
}

shard_tensor *shard_workspace(const shard_tensor *like, int64_t count, shard_dtype dtype)
{
    shard_tensor *workspace = shard_tensor_make(SHARD_SHAPE(count), dtype, shard_device_of(like));
    if (workspace)
        shard_storage_set_kind(workspace->storage, SHARD_MEMORY_WORKSPACE);
    return workspace;
}

shard_tensor *shard_gradient_over(shard_node *node, int input, shard_tensor *dy)
{
    const shard_edge *edge = &node->edge[input];
    if (shard_tensor_is_own(dy) && dy->dtype == edge->dtype && shard_shape_equal(&dy->shape, &edge->shape))
        return dy;
    return shard_make_gradient(node, input);
}

shard_tensor *shard_gradient_to_overwrite(shard_node *node, int input)
{
    bool accumulate;
    shard_tensor *target = shard_gradient_target(node, input, &accumulate);
    return accumulate ? shard_make_gradient(node, input) : target;
}

shard_tensor *shard_gradient_of_rows(shard_node *node, int input, int64_t pitch)
{
    bool accumulate;
    int64_t buffer_pitch;
    shard_tensor *gradient = shard_gradient_target(node, input, &accumulate);
    bool is_buffer = gradient && gradient->storage->references > 1; /* the leaf's, which has a pitch already */
    if (is_buffer && !accumulate && shard_tensor_rows(gradient, &buffer_pitch) && buffer_pitch == pitch)
        return gradient;
    if (is_buffer)
        gradient = shard_make_gradient(node, input);
    if (gradient)
        shard_tensor_pad_rows(gradient, pitch);
    return gradient;
}

shard_tensor *shard_gradient_of_type(shard_node *node, int input, shard_dtype dtype)
{
    const shard_edge *edge = &node->edge[input];
    if (edge->dtype == dtype)
        return shard_gradient_to_overwrite(node, input);
    return shard_tensor_make(edge->shape, dtype, edge->device);
}

shard_tensor *shard_gradient_as_input(shard_node *node, int input, shard_tensor *computed)
{
    if (!computed || computed->dtype == node->edge[input].dtype)
        return computed;
    shard_tensor *gradient = shard_gradient_to_overwrite(node, input);
    void *memory[2];
    if (!gradient || !shard_load(SHARD_INPUTS(computed, gradient), memory))
        return NULL;
    return shard_result(gradient,
                        SHARD_RUN(computed, cast, shard_numel(computed), memory[0], computed->dtype, memory[1], gradient->dtype));
}

void shard_place_sum(shard_tensor *gradient, const shard_tensor *dy)
{
    if (gradient && shard_is_local(gradient) && dy->placement.kind == SHARD_SPLIT && dy->placement.dim != 0)
        gradient->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = dy->placement.group};
}

void shard_place_partial(shard_tensor *gradient, const shard_tensor *dy)
{
    if (gradient && dy->placement.kind == SHARD_PARTIAL)
        gradient->placement = dy->placement;
}
