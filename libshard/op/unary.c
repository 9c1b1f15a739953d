/* relu, gelu: one element at a time. */
#include "op/op.h"

typedef struct unary_context {
    shard_unary kind;
} unary_context;

static shard_status unary_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const unary_context *context = node->context;
    shard_tensor *x = shard_saved(node, 0);
    dx[0] = shard_gradient_over(node, 0, dy);
    void *memory[3];
    if (!x || !dx[0] || !shard_load(SHARD_INPUTS(x, dy, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(x, unary_backward, context->kind, shard_numel(x), memory[0], memory[1], memory[2], x->dtype);
}

static const shard_node_type unary_type = {.name = "unary", .backward = unary_backward};

static shard_tensor *unary(const char *function, shard_unary kind, shard_tensor *x)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)) || !shard_check_carried(function, x, SHARD_MAX_DIMS))
        return NULL;
    shard_tensor *y = shard_tensor_like(x);
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y = shard_result(y, SHARD_RUN(x, unary, kind, shard_numel(x), memory[0], memory[1], x->dtype));
    shard_node *node = shard_record(&unary_type, y, SHARD_INPUTS(x), sizeof(unary_context));
    if (node) {
        ((unary_context *)node->context)->kind = kind;
        /* relu's gradient is read off its result, which the next operation keeps anyway. */
        shard_save_for_backward(node, 0, kind == SHARD_RELU ? y : x);
    }
    return y;
}

shard_tensor *shard_relu(shard_tensor *x)
{
    return unary("shard_relu", SHARD_RELU, x);
}

shard_tensor *shard_gelu(shard_tensor *x)
{
    return unary("shard_gelu", SHARD_GELU, x);
}

shard_tensor *shard_gelu_tanh(shard_tensor *x)
{
    return unary("shard_gelu_tanh", SHARD_GELU_TANH, x);
}
