/* softmax, log_softmax: over the last dimension. */
#include "op/logsumexp.h"

#include "comm/function.h"
#include "op/autocast.h"

typedef struct softmax_context {
    bool log;
} softmax_context;

static int64_t columns(const shard_tensor *x)
{
    return x->shape.dim[x->shape.ndim - 1];
}

static int64_t rows(const shard_tensor *x)
{
    return shard_shape_product(&x->shape, 0, x->shape.ndim - 1);
}

static shard_status softmax_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const softmax_context *context = node->context;
    shard_tensor *y = shard_saved(node, 0);
    dx[0] = shard_gradient_over(node, 0, dy);
    void *memory[3];
    if (!y || !dx[0] || !shard_load(SHARD_INPUTS(y, dy, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(y, softmax_backward, context->log, rows(y), columns(y), memory[0], memory[1], memory[2], y->dtype);
}

static const shard_node_type softmax_type = {.name = "softmax", .backward = softmax_backward};

static shard_tensor *forward(const char *function, bool log, shard_tensor *x)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)))
        return NULL;
    if (x->shape.ndim == 0)
        return shard_fail_null(SHARD_ERROR_SHAPE, "%s: x has shape []; [..., classes] is needed", function);
    if (!shard_check_carried(function, x, x->shape.ndim - 1))
        return NULL;
    shard_tensor *y = shard_tensor_like(x);
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y = shard_result(y, SHARD_RUN(x, softmax, log, rows(x), columns(x), memory[0], memory[1], x->dtype));
    shard_node *node = shard_record(&softmax_type, y, SHARD_INPUTS(x), sizeof(softmax_context));
    shard_name_node(node, function);
    if (node)
        ((softmax_context *)node->context)->log = log;
    shard_save_for_backward(node, 0, y);
    return y;
}

static shard_tensor *softmax(const char *function, bool log, shard_tensor *x)
{
    shard_scope scope;
    shard_scope_open(&scope);
    bool split = x && x->shape.ndim > 0 && shard_is_split(x, x->shape.ndim - 1);
    shard_tensor *y = split ? shard_softmax_of_split(function, log, x) : forward(function, log, shard_autocast_wide(x));
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_softmax(shard_tensor *x)
{
    SHARD_FUNCTION("shard_softmax");
    return softmax("shard_softmax", false, x);
}

shard_tensor *shard_log_softmax(shard_tensor *x)
{
    SHARD_FUNCTION("shard_log_softmax");
    return softmax("shard_log_softmax", true, x);
}
