/* scale, neg: a number times a tensor. */
#include "op/op.h"

typedef struct scale_context {
    double factor;
} scale_context;

static shard_status scale(shard_tensor *x, double factor, shard_tensor *y)
{
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_last_status();
    return SHARD_RUN(x, axpby, shard_numel(x), factor, memory[0], 0.0, memory[1], x->dtype);
}

static shard_status scale_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const scale_context *context = node->context;
    dx[0] = shard_gradient_over(node, 0, dy);
    shard_place_partial(dx[0], dy);
    return scale(dy, context->factor, dx[0]);
}

static const shard_node_type scale_type = {.name = "scale", .backward = scale_backward, .takes_partial = true};

static shard_tensor *forward(const char *function, shard_tensor *x, double factor)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)))
        return NULL;
    shard_tensor *y = shard_tensor_like(x);
    y = shard_result(y, scale(x, factor, y));
    shard_node *node = shard_record(&scale_type, y, SHARD_INPUTS(x), sizeof(scale_context));
    shard_name_node(node, function);
    if (node)
        ((scale_context *)node->context)->factor = factor;
    return y;
}

shard_tensor *shard_scale(shard_tensor *x, double factor)
{
    return forward("shard_scale", x, factor);
}

shard_tensor *shard_neg(shard_tensor *x)
{
    return forward("shard_neg", x, -1);
}
