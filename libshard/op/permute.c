/* permute, transpose: copies with the dimensions in another order. */
#include "op/op.h"

typedef struct permute_context {
    int inverse[SHARD_MAX_DIMS];
} permute_context;

static shard_status permute_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const permute_context *context = node->context;
    dx[0] = shard_make_gradient(node, 0);
    void *memory[2];
    if (!dx[0] || !shard_load(SHARD_INPUTS(dy, dx[0]), memory))
        return shard_last_status();
    shard_place_partial(dx[0], dy);
    return SHARD_RUN(dy, permute, dy->shape.ndim, dy->shape.dim, context->inverse, memory[0], memory[1], dy->dtype);
}

static const shard_node_type permute_type = {.name = "permute", .backward = permute_backward, .takes_partial = true};

static shard_tensor *permute(shard_tensor *x, const int *axes, const int *inverse)
{
    shard_shape shape = x->shape;
    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = x->shape.dim[axes[i]];
    shard_tensor *y = shard_tensor_make(shape, x->dtype, shard_device_of(x));
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = x->placement;
    if (y->placement.kind == SHARD_SPLIT)
        y->placement.dim = inverse[x->placement.dim];
    y = shard_result(y, SHARD_RUN(x, permute, shape.ndim, x->shape.dim, axes, memory[0], memory[1], x->dtype));
    shard_node *node = shard_record(&permute_type, y, SHARD_INPUTS(x), sizeof(permute_context));
    for (int i = 0; node && i < shape.ndim; i++)
        ((permute_context *)node->context)->inverse[i] = inverse[i];
    return y;
}

shard_tensor *shard_permute(shard_tensor *x, const int *axes)
{
    if (!shard_check_operand("shard_permute", x))
        return NULL;
    if (!axes && x->shape.ndim)
        return shard_null_argument("shard_permute", "axes"), NULL;
    int resolved[SHARD_MAX_DIMS], inverse[SHARD_MAX_DIMS];
    for (int i = 0; i < x->shape.ndim; i++)
        inverse[i] = -1;
    for (int i = 0; i < x->shape.ndim; i++) {
        if (shard_resolve_dim("shard_permute", &x->shape, axes[i], &resolved[i]) != SHARD_OK)
            return NULL;
        if (inverse[resolved[i]] >= 0)
            return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_permute: dimension %d of a tensor of shape %s is named twice",
                                   resolved[i], shard_shape_text(&x->shape));
        inverse[resolved[i]] = i;
    }
    return permute(x, resolved, inverse);
}

shard_tensor *shard_transpose(shard_tensor *x, int dim0, int dim1)
{
    if (!shard_check_operand("shard_transpose", x))
        return NULL;
    if (shard_resolve_dim("shard_transpose", &x->shape, dim0, &dim0) != SHARD_OK ||
        shard_resolve_dim("shard_transpose", &x->shape, dim1, &dim1) != SHARD_OK)
        return NULL;
    int axes[SHARD_MAX_DIMS];
    for (int i = 0; i < x->shape.ndim; i++)
        axes[i] = i == dim0 ? dim1 : i == dim1 ? dim0 : i;
    return permute(x, axes, axes);
}
