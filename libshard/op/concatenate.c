/*
 * concatenate: tensors one after the other along a dimension.
 *
 * The number of tensors is not bounded, but a node has few inputs. So each tensor is recorded by a node of its own,
 * whose other input is the result of the node before. The results share the memory, and the backward passes the
 * whole gradient from node to node; each node takes the range of its tensor.
 */
#include "op/autocast.h"
#include "op/op.h"

#include <stdlib.h>

enum { BEFORE, PART };

typedef struct part_context {
    int dim;
    int64_t start; /* of the tensor's range along it */
} part_context;

static shard_tensor *gradient_of_part(shard_node *node, shard_tensor *dy)
{
    const part_context *c = node->context;
    shard_axis all = shard_axis_along(dy, c->dim);
    if (all.outer == 1)
        return shard_tensor_view(dy, c->start * all.inner, node->edge[PART].shape);
    shard_tensor *gradient = shard_make_gradient(node, PART);
    return gradient ? shard_result(gradient, shard_copy_range(dy, c->dim, c->start, gradient, false)) : NULL;
}

static shard_status part_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[BEFORE] = dy;
    if (!shard_wants(node, PART))
        return SHARD_OK;
    dx[PART] = gradient_of_part(node, dy);
    shard_place_partial(dx[PART], dy);
    return dx[PART] ? SHARD_OK : shard_last_status();
}

static const shard_node_type part_type = {.name = "concatenate", .backward = part_backward, .takes_partial = true};

/* ---- forward ---- */

static bool fits(const shard_tensor *x, const shard_tensor *first, int dim)
{
    bool equal = x->dtype == first->dtype && shard_device_of(x) == shard_device_of(first) && x->shape.ndim == first->shape.ndim;
    for (int i = 0; i < x->shape.ndim && equal; i++)
        equal = i == dim || x->shape.dim[i] == first->shape.dim[i];
    return equal;
}

static bool check(shard_tensor *const *x, int count, int dim, shard_shape *shape)
{
    static const char function[] = "shard_concatenate";
    *shape = x[0]->shape;
    for (int i = 0; i < count; i++) {
        if (!fits(x[i], x[0], dim)) {
            shard_error(SHARD_ERROR_SHAPE,
                        "%s: tensor %d is %s of shape %s on %s, tensor 0 %s of shape %s on %s; they may differ in the size along "
                        "dimension %d alone",
                        function, i, shard_dtype_name(x[i]->dtype), shard_shape_text(&x[i]->shape), shard_device_of(x[i])->name,
                        shard_dtype_name(x[0]->dtype), shard_shape_text(&x[0]->shape), shard_device_of(x[0])->name, dim);
            return false;
        }
        if (shard_is_split(x[i], dim) || !shard_placement_equal(&x[i]->placement, &x[0]->placement))
            return shard_refuse_placement(function, x[i]);
        if (i > 0 && __builtin_add_overflow(shape->dim[dim], x[i]->shape.dim[dim], &shape->dim[dim])) {
            shard_error(SHARD_ERROR_MEMORY, "%s: the sizes along dimension %d overflow", function, dim);
            return false;
        }
    }
    return true;
}

/* y after the tensor is copied to its range, as the result of a node. */
static shard_tensor *put(shard_tensor *y, shard_tensor *before, shard_tensor *x, int dim, int64_t start)
{
    if (shard_copy_range(y, dim, start, x, true) != SHARD_OK)
        return NULL;
    shard_tensor *next = before ? shard_tensor_view(y, 0, y->shape) : y;
    if (!next)
        return NULL;
    next->placement = x->placement;
    shard_node *node = shard_record(&part_type, next, SHARD_INPUTS(before, x), sizeof(part_context));
    if (node)
        *(part_context *)node->context = (part_context){.dim = dim, .start = start};
    return next;
}

static shard_tensor *concatenate(shard_tensor *const *x, int count, int dim)
{
    for (int i = 0; i < count; i++)
        if (!shard_check_operand("shard_concatenate", x[i]))
            return NULL;
    shard_shape shape;
    if (shard_resolve_dim("shard_concatenate", &x[0]->shape, dim, &dim) != SHARD_OK || !check(x, count, dim, &shape))
        return NULL;
    shard_tensor *y = shard_tensor_make(shape, x[0]->dtype, shard_device_of(x[0])), *next = NULL;
    int64_t start = 0;
    for (int i = 0; i < count && y; i++) {
        next = put(y, next, x[i], dim, start);
        if (!next)
            return NULL;
        start += x[i]->shape.dim[dim];
    }
    return next;
}

shard_tensor *shard_concatenate(shard_tensor *const *x, int count, int dim)
{
    if (!x || count < 1) {
        if (!x)
            shard_null_argument("shard_concatenate", "the array of tensors");
        else
            shard_error(SHARD_ERROR_ARGUMENT, "shard_concatenate: %d tensors; at least one is needed", count);
        return NULL;
    }
    shard_tensor **same = shard_calloc((size_t)count, sizeof *same);
    if (!same)
        return NULL;
    for (int i = 0; i < count; i++)
        same[i] = x[i];
    shard_scope scope;
    shard_scope_open(&scope);
    shard_autocast_promote(count, same);
    shard_tensor *y = shard_scope_return(concatenate(same, count, dim), &scope);
    shard_scope_close(&scope);
    free(same);
    return y;
}
