/* sum, mean: along one dimension. */
#include "op/autocast.h"
#include "op/op.h"

typedef struct sum_context {
    shard_axis axis;
    double factor;
} sum_context;

static shard_status sum_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const sum_context *context = node->context;
    dx[0] = shard_make_gradient(node, 0);
    void *memory[2];
    if (!dx[0] || !shard_load(SHARD_INPUTS(dy, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(dy, spread_dim, &context->axis, context->factor, memory[0], memory[1], dy->dtype);
}

static const shard_node_type sum_type = {.name = "sum_dim", .backward = sum_backward};

static bool check(const char *function, shard_tensor *x, int *dim)
{
    return shard_check_operand(function, x) && shard_resolve_dim(function, &x->shape, *dim, dim) == SHARD_OK &&
           shard_check_operands(function, SHARD_INPUTS(x));
}

static shard_tensor *sum(const char *function, bool mean, shard_tensor *x, int dim, bool keepdim)
{
    if (!check(function, x, &dim))
        return NULL;
    sum_context context = {.axis = shard_axis_along(x, dim), .factor = 1};
    if (mean)
        context.factor = 1 / (double)shard_tensor_whole_shape(x).dim[dim];
    shard_tensor *y = shard_tensor_make(shard_shape_without(&x->shape, dim, keepdim), x->dtype, shard_device_of(x));
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = shard_placement_without(&x->placement, dim, keepdim);
    if (shard_is_split(x, dim))
        y->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = x->placement.group};
    y = shard_result(y, SHARD_RUN(x, sum_dim, &context.axis, context.factor, memory[0], memory[1], x->dtype));
    shard_node *node = shard_record(&sum_type, y, SHARD_INPUTS(x), sizeof context);
    shard_name_node(node, function);
    if (node)
        *(sum_context *)node->context = context;
    return y;
}

shard_tensor *shard_sum_dim(shard_tensor *x, int dim, bool keepdim)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(sum("shard_sum_dim", false, shard_autocast_wide(x), dim, keepdim), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_mean_dim(shard_tensor *x, int dim, bool keepdim)
{
    return sum("shard_mean_dim", true, x, dim, keepdim);
}
