/* dropout: the backward repeats the forward's draw; nothing is saved. */
#include "op/op.h"

#include "device/graph.h"

typedef struct dropout_context {
    shard_region region;
    shard_draw draw;
    double p;
} dropout_context;

static shard_status apply(const dropout_context *context, shard_tensor *x, shard_tensor *y)
{
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_last_status();
    return SHARD_RUN(x, dropout, &context->region, context->draw, context->p, memory[0], memory[1], x->dtype);
}

static shard_status dropout_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = shard_gradient_over(node, 0, dy);
    return apply(node->context, dy, dx[0]);
}

static const shard_node_type dropout_type = {.name = "dropout", .backward = dropout_backward};

shard_tensor *shard_dropout(shard_tensor *x, double p)
{
    if (!shard_check_operands("shard_dropout", SHARD_INPUTS(x)) || !shard_check_carried("shard_dropout", x, SHARD_MAX_DIMS))
        return NULL;
    if (!(p >= 0 && p <= 1))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_dropout: the probability %g is not in [0, 1]", p);
    dropout_context context = {.p = p};
    if (shard_tensor_region(x, &context.region) != SHARD_OK)
        return NULL;
    if (shard_graph_check_device("shard_dropout", shard_device_of(x)) != SHARD_OK)
        return NULL;
    context.draw = shard_next_draw();
    shard_tensor *y = shard_tensor_like(x);
    y = shard_result(y, apply(&context, x, y));
    shard_node *node = shard_record(&dropout_type, y, SHARD_INPUTS(x), sizeof context);
    if (node)
        *(dropout_context *)node->context = context;
    return y;
}
