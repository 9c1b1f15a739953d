/* Functions of one element at a time: relu, gelu, softplus, exp, log, sqrt, clamp, powers by a number, ... */
#include "op/autocast.h"
#include "op/op.h"

#include <float.h>
#include <math.h>

typedef struct unary_context {
    shard_unary kind;
    double scalars[2];
} unary_context;

static shard_status unary_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const unary_context *context = node->context;
    shard_tensor *saved = shard_saved(node, 0);
    dx[0] = saved ? shard_gradient_over(node, 0, dy) : NULL;
    void *memory[3];
    if (!saved || !dx[0] || !shard_load(SHARD_INPUTS(saved, dy, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(dy, unary_backward, context->kind, context->scalars, shard_numel(dy), memory[0], memory[1], memory[2],
                     dy->dtype);
}

/* x + a number: its gradient is dy. */
static shard_status shift_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    (void)node;
    dx[0] = dy;
    return SHARD_OK;
}

static const shard_node_type unary_type = {.name = "unary", .backward = unary_backward};
static const shard_node_type shift_type = {.name = "add_scalar", .backward = shift_backward};

/* Functions whose gradient is computed from the result, which the next operation saves anyway. */
static bool keeps_result(const unary_context *context)
{
    shard_unary kind = context->kind;
    if (kind == SHARD_LEAKY_RELU)
        return context->scalars[0] >= 0; /* both have the sign of x */
    return kind == SHARD_RELU || kind == SHARD_EXP || kind == SHARD_SQRT || kind == SHARD_RSQRT || kind == SHARD_TANH ||
           kind == SHARD_SIGMOID;
}

static shard_tensor *forward(const char *function, unary_context context, shard_tensor *x)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)) || !shard_check_carried(function, x, SHARD_MAX_DIMS))
        return NULL;
    shard_tensor *y = shard_tensor_like(x);
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y = shard_result(y, SHARD_RUN(x, unary, context.kind, context.scalars, shard_numel(x), memory[0], memory[1], x->dtype));
    if (context.kind == SHARD_SHIFT)
        return shard_record(&shift_type, y, SHARD_INPUTS(x), 0), y;
    shard_node *node = shard_record(&unary_type, y, SHARD_INPUTS(x), sizeof context);
    shard_name_node(node, function);
    if (node) {
        *(unary_context *)node->context = context;
        shard_save_for_backward(node, 0, keeps_result(&context) ? y : x);
    }
    return y;
}

static shard_tensor *unary(const char *function, shard_unary kind, shard_tensor *x)
{
    return forward(function, (unary_context){.kind = kind}, x);
}

/* Computed in float32 if SHARD_AUTOCAST is on. */
static shard_tensor *wide(const char *function, unary_context context, shard_tensor *x)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(forward(function, context, shard_autocast_wide(x)), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_relu(shard_tensor *x)
{
    return unary("shard_relu", SHARD_RELU, x);
}

shard_tensor *shard_leaky_relu(shard_tensor *x, double negative_slope)
{
    if (!shard_check_operand("shard_leaky_relu", x))
        return NULL;
    if (!isfinite(negative_slope))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_leaky_relu: negative_slope %g; a finite number is needed",
                               negative_slope);
    return forward("shard_leaky_relu", (unary_context){SHARD_LEAKY_RELU, {negative_slope}}, x);
}

shard_tensor *shard_gelu(shard_tensor *x)
{
    return unary("shard_gelu", SHARD_GELU, x);
}

shard_tensor *shard_gelu_tanh(shard_tensor *x)
{
    return unary("shard_gelu_tanh", SHARD_GELU_TANH, x);
}

shard_tensor *shard_silu(shard_tensor *x)
{
    return unary("shard_silu", SHARD_SILU, x);
}

shard_tensor *shard_softplus(shard_tensor *x, double beta, double threshold)
{
    if (!shard_check_operand("shard_softplus", x))
        return NULL;
    if (!(fabs(beta) >= FLT_MIN && fabs(beta) <= FLT_MAX) || isnan(threshold)) /* the kernels take it as float32, too */
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_softplus: beta %g and threshold %g; a beta that is finite and not 0 in float32, and a "
                               "threshold that is not NaN are needed",
                               beta, threshold);
    return wide("shard_softplus", (unary_context){SHARD_SOFTPLUS, {beta, threshold}}, x);
}

shard_tensor *shard_exp(shard_tensor *x)
{
    return wide("shard_exp", (unary_context){.kind = SHARD_EXP}, x);
}

shard_tensor *shard_log(shard_tensor *x)
{
    return wide("shard_log", (unary_context){.kind = SHARD_LOG}, x);
}

shard_tensor *shard_log1p(shard_tensor *x)
{
    return wide("shard_log1p", (unary_context){.kind = SHARD_LOG1P}, x);
}

shard_tensor *shard_sqrt(shard_tensor *x)
{
    return unary("shard_sqrt", SHARD_SQRT, x);
}

shard_tensor *shard_rsqrt(shard_tensor *x)
{
    return wide("shard_rsqrt", (unary_context){.kind = SHARD_RSQRT}, x);
}

shard_tensor *shard_abs(shard_tensor *x)
{
    return unary("shard_abs", SHARD_ABS, x);
}

shard_tensor *shard_tanh(shard_tensor *x)
{
    return unary("shard_tanh", SHARD_TANH, x);
}

shard_tensor *shard_sigmoid(shard_tensor *x)
{
    return unary("shard_sigmoid", SHARD_SIGMOID, x);
}

shard_tensor *shard_add_scalar(shard_tensor *x, double number)
{
    return forward("shard_add_scalar", (unary_context){SHARD_SHIFT, {number}}, x);
}

shard_tensor *shard_pow_scalar(shard_tensor *x, double exponent)
{
    return wide("shard_pow_scalar", (unary_context){SHARD_POWER, {exponent}}, x);
}

shard_tensor *shard_clamp(shard_tensor *x, double min, double max)
{
    if (!shard_check_operand("shard_clamp", x))
        return NULL;
    if (isnan(min) || isnan(max))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_clamp: bounds %g and %g; a bound may be infinite, but not NaN", min,
                               max);
    return forward("shard_clamp", (unary_context){SHARD_CLAMP, {min, max}}, x);
}
