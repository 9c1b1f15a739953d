/* layer_norm: over the last dimension. */
#include "op/autocast.h"
#include "op/op.h"

enum { X, WEIGHT, BIAS };
enum { SAVED_X, SAVED_WEIGHT, SAVED_MEAN, SAVED_RSTD };

typedef struct layer_norm_context {
    int64_t rows, cols;
} layer_norm_context;

static shard_status layer_norm_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const layer_norm_context *context = node->context;
    shard_tensor *x = shard_saved(node, SAVED_X), *weight = shard_saved(node, SAVED_WEIGHT);
    shard_tensor *mean = shard_saved(node, SAVED_MEAN), *rstd = shard_saved(node, SAVED_RSTD);
    if (!x || !mean || !rstd || (node->saved[SAVED_WEIGHT] && !weight))
        return shard_last_status();
    if (shard_wants(node, X))
        dx[X] = shard_gradient_over(node, X, dy);
    for (int i = WEIGHT; i <= BIAS && weight; i++) {
        dx[i] = shard_wants(node, i) ? shard_gradient_to_overwrite(node, i) : shard_workspace(x, context->cols, weight->dtype);
        shard_place_sum(dx[i], dy);
    }
    if ((shard_wants(node, X) && !dx[X]) || (weight && (!dx[WEIGHT] || !dx[BIAS])))
        return shard_last_status();
    void *memory[8];
    if (!shard_load(SHARD_INPUTS(x, weight, mean, rstd, dy, dx[X], dx[WEIGHT], dx[BIAS]), memory))
        return shard_last_status();
    return SHARD_RUN(x, layer_norm_backward, context->rows, context->cols, memory[0], memory[1], memory[2], memory[3], memory[4],
                     memory[5], memory[6], memory[7], x->dtype);
}

static const shard_node_type layer_norm_type = {.name = "layer_norm", .backward = layer_norm_backward};

static shard_tensor *forward(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps)
{
    int last = x->shape.ndim - 1;
    layer_norm_context context = {.rows = shard_shape_product(&x->shape, 0, last), .cols = x->shape.dim[last]};
    shard_tensor *y = shard_tensor_like(x);
    shard_tensor *mean = shard_workspace(x, context.rows, SHARD_FLOAT64), *rstd = shard_workspace(x, context.rows, SHARD_FLOAT64);
    void *memory[6];
    if (!y || !mean || !rstd || !shard_load(SHARD_INPUTS(x, weight, bias, y, mean, rstd), memory))
        return NULL;
    if (SHARD_RUN(x, layer_norm, context.rows, context.cols, memory[0], memory[1], memory[2], eps, memory[3], memory[4],
                  memory[5], x->dtype) != SHARD_OK)
        return NULL;
    shard_node *node = shard_record(&layer_norm_type, y, SHARD_INPUTS(x, weight, bias), sizeof context);
    if (node) {
        *(layer_norm_context *)node->context = context;
        shard_save_for_backward(node, SAVED_X, x);
        shard_save_for_backward(node, SAVED_WEIGHT, weight);
        shard_save_for_backward(node, SAVED_MEAN, mean);
        shard_save_for_backward(node, SAVED_RSTD, rstd);
    }
    return y;
}

bool shard_check_layer_norm(const char *function, double eps)
{
    if (!(eps >= 0))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: eps is %g; it must be at least 0", function, eps);
    return eps >= 0;
}

static shard_tensor *layer_norm(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps)
{
    static const char function[] = "shard_layer_norm";
    if (!shard_check_operands(function, SHARD_INPUTS(x)))
        return NULL;
    if (x->shape.ndim == 0)
        return shard_fail_null(SHARD_ERROR_SHAPE, "%s: x has shape []; [..., features] is needed", function);
    if (!shard_check_carried(function, x, x->shape.ndim - 1) ||
        !shard_check_norm_pair(function, "weight and bias", x, weight, bias))
        return NULL;
    return shard_check_layer_norm(function, eps) ? forward(x, weight, bias, eps) : NULL;
}

shard_tensor *shard_layer_norm(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(layer_norm(shard_autocast_wide(x), weight, bias, eps), &scope);
    shard_scope_close(&scope);
    return y;
}
