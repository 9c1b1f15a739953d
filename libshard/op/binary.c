/* add, sub, mul, div, pow, minimum, maximum, prelu: of two tensors, expanded to one shape. */
#include "op/autocast.h"
#include "op/expansion.h"

typedef struct binary_context {
    shard_binary kind;
} binary_context;

static shard_status apply(shard_binary kind, shard_tensor *a, shard_tensor *b, shard_tensor *y)
{
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(a, b, y), memory))
        return shard_last_status();
    const shard_expansion over = shard_expansion_operands(&y->shape, SHARD_INPUTS(a, b));
    return SHARD_RUN(y, binary, kind, &over, memory[0], memory[1], memory[2], y->dtype);
}

/* ---- backward ---- */

static shard_status negate(shard_tensor *dy, shard_tensor *dx)
{
    void *memory[2];
    if (!shard_load(SHARD_INPUTS(dy, dx), memory))
        return shard_last_status();
    return SHARD_RUN(dy, axpby, shard_numel(dy), -1.0, memory[0], 0.0, memory[1], dy->dtype);
}

/* For functions whose gradient is an entry of the device. */
static shard_status differentiate(shard_node *node, shard_binary kind, int input, shard_tensor *dy, shard_tensor *dx)
{
    shard_tensor *a = shard_saved(node, 0), *b = a ? shard_saved(node, 1) : NULL;
    void *memory[4];
    if (!a || !b || !shard_load(SHARD_INPUTS(a, b, dy, dx), memory))
        return shard_last_status();
    const shard_expansion over = shard_expansion_operands(&dy->shape, SHARD_INPUTS(a, b));
    return SHARD_RUN(dy, binary_backward, kind, input, &over, memory[0], memory[1], memory[2], memory[3], dy->dtype);
}

/* The gradient of an input for each element of the result, before the sum over expanded dimensions. */
static shard_status each_gradient(shard_node *node, shard_binary kind, int input, shard_tensor *dy, shard_tensor *dx)
{
    if (!dx)
        return shard_last_status();
    if (kind == SHARD_SUB)
        return negate(dy, dx);
    if (kind != SHARD_MUL && !(kind == SHARD_DIV && input == 0))
        return differentiate(node, kind, input, dy, dx);
    shard_tensor *other = shard_saved(node, 1 - input);
    return other ? apply(kind, dy, other, dx) : shard_last_status();
}

static shard_status binary_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_binary kind = ((const binary_context *)node->context)->kind;
    for (int input = 1; input >= 0; input--) {
        if (!shard_wants(node, input))
            continue;
        shard_tensor *each = dy;
        if (kind != SHARD_ADD && !(kind == SHARD_SUB && input == 0)) {
            each = shard_gradient_each(node, input, dy, input == 0 || !shard_wants(node, 0));
            SHARD_TRY(each_gradient(node, kind, input, dy, each));
        }
        dx[input] = shard_gradient_summed(node, input, each, dy);
        if (!dx[input])
            return shard_last_status();
    }
    return SHARD_OK;
}

#define TYPE(kind, text) [kind] = {.name = text, .backward = binary_backward}
static const shard_node_type types[] = {
    TYPE(SHARD_ADD, "add"), TYPE(SHARD_SUB, "sub"),         TYPE(SHARD_MUL, "mul"),         TYPE(SHARD_DIV, "div"),
    TYPE(SHARD_POW, "pow"), TYPE(SHARD_MINIMUM, "minimum"), TYPE(SHARD_MAXIMUM, "maximum"), TYPE(SHARD_PRELU, "prelu"),
};

/* ---- forward ---- */

/* Whether the backward needs the value of an operand. */
static bool needs(const shard_node *node, shard_binary kind, int operand)
{
    switch (kind) {
    case SHARD_ADD:
    case SHARD_SUB:
        return false;
    case SHARD_MUL:
        return shard_wants(node, 1 - operand);
    case SHARD_DIV:
        return operand == 1 || shard_wants(node, 1);
    default:
        return true;
    }
}

/* Computes with a and `operand`, which is b or its cast. */
static shard_tensor *forward(const char *function, shard_binary kind, shard_tensor *a, shard_tensor *b, shard_tensor *operand)
{
    if (!shard_check_operands(function, SHARD_INPUTS(a, operand)))
        return NULL;
    bool linear = kind == SHARD_ADD || kind == SHARD_SUB;
    shard_tensor *y = shard_expansion_result(function, linear, SHARD_INPUTS(a, operand), a->dtype);
    y = shard_result(y, apply(kind, a, operand, y));
    shard_node *node = shard_record(&types[kind], y, SHARD_INPUTS(a, b), sizeof(binary_context));
    if (node) {
        ((binary_context *)node->context)->kind = kind;
        shard_save_for_backward(node, 0, needs(node, kind, 0) ? a : NULL);
        shard_save_for_backward(node, 1, needs(node, kind, 1) ? operand : NULL);
    }
    return y;
}

static shard_tensor *binary(const char *function, shard_binary kind, shard_tensor *a, shard_tensor *b)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *x[] = {a, b};
    for (int i = 0; i < 2 && kind == SHARD_POW; i++)
        x[i] = shard_autocast_wide(x[i]);
    shard_autocast_promote(2, x);
    shard_tensor *y = shard_scope_return(forward(function, kind, x[0], x[1], x[1]), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_add(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_add", SHARD_ADD, a, b);
}

shard_tensor *shard_sub(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_sub", SHARD_SUB, a, b);
}

shard_tensor *shard_mul(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_mul", SHARD_MUL, a, b);
}

shard_tensor *shard_div(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_div", SHARD_DIV, a, b);
}

shard_tensor *shard_pow(shard_tensor *a, shard_tensor *exponent)
{
    return binary("shard_pow", SHARD_POW, a, exponent);
}

shard_tensor *shard_minimum(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_minimum", SHARD_MINIMUM, a, b);
}

shard_tensor *shard_maximum(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_maximum", SHARD_MAXIMUM, a, b);
}

/* A repeated x would be a result of another shape. */
static bool check_slopes(const char *function, shard_tensor *x, shard_tensor *weight)
{
    if (!shard_check_operand(function, x) || !shard_check_operand(function, weight))
        return false;
    int64_t slopes = shard_numel(weight);
    if (x->shape.ndim > 0 && weight->shape.ndim <= 1 && (slopes == 1 || slopes == x->shape.dim[x->shape.ndim - 1]))
        return !shard_is_split(weight, 0) || shard_is_split(x, x->shape.ndim - 1) || shard_refuse_placement(function, weight);
    shard_error(SHARD_ERROR_SHAPE,
                "%s: a weight of shape %s for x of shape %s; it has one number, or one for each channel, x's last dimension",
                function, shard_tensor_shape_text(weight), shard_tensor_shape_text(x));
    return false;
}

shard_tensor *shard_prelu(shard_tensor *x, shard_tensor *weight)
{
    static const char function[] = "shard_prelu";
    if (!check_slopes(function, x, weight))
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *both[] = {x, weight}, *slopes = weight;
    if (x->dtype == shard_autocast_dtype())
        shard_autocast_product(1, &both[1], &slopes);
    else {
        shard_autocast_promote(2, both);
        slopes = both[1];
    }
    shard_tensor *y = shard_scope_return(forward(function, SHARD_PRELU, both[0], both[1], slopes), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_add_bias(shard_tensor *y, shard_tensor *bias)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *operand;
    shard_autocast_product(1, &bias, &operand);
    y = shard_scope_return(forward("shard_linear", SHARD_ADD, y, bias, operand), &scope);
    shard_scope_close(&scope);
    return y;
}
