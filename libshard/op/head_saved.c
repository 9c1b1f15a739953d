/*
 * Forward and backward of a linear head as two calls. The forward makes a record of its own, of views of the operands, and
 * keeps it apart; the backward runs the head's node alone, so that it is the implementation of shard_backward, and then the
 * nodes that made its x (a scale, a normalization, a cast), without sums over ranks: these nodes are linear in the gradient.
 */
#include "base/options.h"
#include "comm/function.h"
#include "op/binary_cross_entropy.h"
#include "op/cross_entropy.h"
#include "op/linear_head.h"

#include <shard/head.h>

#include <stdlib.h>

static const char softmax[] = "shard_linear_cross_entropy_forward";
static const char binary[] = "shard_linear_binary_cross_entropy_forward";
static const shard_class_faults softmax_faults = SHARD_CLASS_FAULTS("shard_linear_cross_entropy_forward");
static const shard_binary_faults binary_faults = SHARD_BINARY_FAULTS("shard_linear_binary_cross_entropy_forward");

enum { X = SHARD_LINEAR_X, WEIGHT = SHARD_LINEAR_WEIGHT, BIAS = SHARD_LINEAR_BIAS, INPUTS = SHARD_LINEAR_OPERANDS };

struct shard_head_saved {
    shard_tensor *loss; /* whose history is the record, which refers to the views of the operands */
};

/* ---- forward ---- */

/* A leaf on the tensor's memory, which keeps its kind; NULL for NULL. Only a floating tensor has a gradient: others are
 * refused by the head. */
static shard_tensor *leaf_on(shard_tensor *tensor)
{
    shard_tensor *leaf = shard_detach(tensor);
    if (leaf && shard_make_leaf(leaf))
        leaf->requires_grad = shard_dtype_is_float(leaf->dtype);
    return leaf;
}

/* For a rank that fails before the collectives of a split weight's group, which wait for it. */
static void leave(const shard_tensor *weight)
{
    if (weight && weight->shape.ndim > 0 && shard_is_split(weight, 0))
        shard_group_fail(weight->placement.group);
}

/* The views of the operands, if there is a state to save. True if the mode of recording was on. */
static bool begin(shard_tensor **input, shard_head_saved **saved)
{
    const shard_tensor *weight = input[WEIGHT];
    for (int i = 0; i < INPUTS && saved; i++)
        input[i] = leaf_on(input[i]);
    if (!input[WEIGHT]) /* whose group the loss then does not know */
        leave(weight);
    if (saved)
        *saved = NULL;
    return shard_set_grad_enabled(saved != NULL);
}

/* The loss without its record, which goes into the state. */
static shard_tensor *end(shard_tensor *loss, shard_head_saved **saved, bool recording)
{
    shard_set_grad_enabled(recording);
    if (!loss || !saved)
        return loss;
    shard_tensor *value = loss->history ? shard_detach(loss) : NULL; /* there may be no memory for the record */
    *saved = value ? shard_calloc(1, sizeof **saved) : NULL;
    if (!*saved)
        return NULL;
    (*saved)->loss = shard_keep(loss);
    return value;
}

shard_tensor *shard_linear_cross_entropy_forward_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                      shard_tensor *target, const shard_cross_entropy_options *options,
                                                      shard_head_saved **saved, shard_tensor **label_rank)
{
    SHARD_FUNCTION("shard_linear_cross_entropy_forward");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *input[INPUTS] = {x, weight, bias};
    bool recording = begin(input, saved);
    shard_tensor *loss = shard_linear_cross_entropy_of(softmax, &softmax_faults, input[X], input[WEIGHT], input[BIAS], target,
                                                       options, label_rank);
    loss = shard_scope_return(end(loss, saved, recording), &scope);
    if (label_rank)
        *label_rank = loss ? shard_scope_return(*label_rank, &scope) : NULL;
    shard_scope_close(&scope);
    return loss;
}

/* Whether the loss has no logits. */
static bool is_fused(shard_tensor *const *input, const shard_tensor *target, const shard_binary_cross_entropy_options *given)
{
    SHARD_READ_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT, options, given);
    const shard_tensor *weight = input[WEIGHT];
    bool complete = input[X] && weight && target && options_ok;
    if (!complete || (!shard_dtype_is_float(target->dtype) && options.reduction != SHARD_REDUCTION_NONE))
        return true; /* or the loss reports what is wrong */
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a %s target%s has logits; pairs (int64) and a reduction are needed", binary,
                shard_dtype_name(target->dtype), options.reduction == SHARD_REDUCTION_NONE ? " with SHARD_REDUCTION_NONE" : "");
    leave(weight);
    return false;
}

shard_tensor *shard_linear_binary_cross_entropy_forward_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                             shard_tensor *target,
                                                             const shard_binary_cross_entropy_options *options,
                                                             shard_head_saved **saved)
{
    SHARD_FUNCTION("shard_linear_binary_cross_entropy_forward");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *input[INPUTS] = {x, weight, bias}, *loss = NULL;
    bool recording = begin(input, saved);
    if (is_fused(input, target, options))
        loss =
            shard_linear_binary_cross_entropy_of(binary, &binary_faults, input[X], input[WEIGHT], input[BIAS], target, options);
    loss = shard_scope_return(end(loss, saved, recording), &scope);
    shard_scope_close(&scope);
    return loss;
}

void shard_head_saved_destroy(shard_head_saved *saved)
{
    if (!saved)
        return;
    shard_release(saved->loss);
    free(saved);
}

/* ---- backward ---- */

static shard_status check_dy(const shard_tensor *loss, const shard_tensor *dy)
{
    static const char function[] = "shard_head_backward";
    if (!shard_shape_equal(&dy->shape, &loss->shape) || dy->dtype != loss->dtype || shard_device_of(dy) != shard_device_of(loss))
        return shard_error(SHARD_ERROR_SHAPE, "%s: dy is %s of shape %s on %s, the loss is %s of shape %s on %s", function,
                           shard_dtype_name(dy->dtype), shard_shape_text(&dy->shape), shard_device_of(dy)->name,
                           shard_dtype_name(loss->dtype), shard_shape_text(&loss->shape), shard_device_of(loss)->name);
    if (dy->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(function, dy), shard_last_status();
    return SHARD_OK;
}

/* Has the gradient of weight or bias computed into `sum` (NULL: new memory), by the rules for leaves. */
static shard_status prepare(const shard_edge *edge, shard_tensor *sum, bool deferred)
{
    shard_leaf *leaf = edge->leaf->leaf;
    if (sum &&
        (!shard_shape_equal(&sum->shape, &edge->shape) || sum->dtype != edge->dtype || shard_device_of(sum) != edge->device))
        return shard_error(SHARD_ERROR_SHAPE,
                           "shard_head_backward: a gradient is added to %s of shape %s on %s; %s of shape %s on %s is needed",
                           shard_dtype_name(sum->dtype), shard_shape_text(&sum->shape), shard_device_of(sum)->name,
                           shard_dtype_name(edge->dtype), shard_shape_text(&edge->shape), edge->device->name);
    leaf->grad = shard_keep(shard_detach(sum));
    leaf->has_grad = leaf->grad != NULL;
    leaf->defers_grad = deferred;
    return sum && !leaf->grad ? shard_last_status() : SHARD_OK;
}

static void forget(shard_leaf *leaf)
{
    shard_tensor_unref(leaf->grad);
    leaf->grad = NULL;
    leaf->has_grad = false;
}

/* Runs a node's backward for dy, whose reference it takes over. */
static shard_status run(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    node->gradient = dy;
    shard_status status = dy ? shard_node_backward(node, dx) : shard_last_status();
    shard_tensor_unref(node->gradient);
    node->gradient = NULL;
    return status;
}

/* *dx of the head's x becomes that of the operand. */
static shard_status run_features(const shard_node *head, shard_tensor **dx)
{
    shard_status status = SHARD_OK;
    const shard_placement placement = (*dx)->placement;
    for (shard_node *node = head->edge[X].node; node && status == SHARD_OK; node = node->edge[0].node) {
        shard_tensor *dy = *dx, *inner[SHARD_NODE_INPUTS] = {NULL};
        dy->placement = (shard_placement){0};
        status = run(node, dy, inner);
        *dx = inner[0];
    }
    if (*dx)
        (*dx)->placement = placement;
    return status;
}

/* The gradients that are wanted; the caller releases them. */
static shard_status run_record(shard_node *head, shard_tensor *dy, const bool *wanted, shard_tensor **gradient)
{
    shard_edge kept[INPUTS];
    shard_tensor *dx[SHARD_NODE_INPUTS] = {NULL};
    for (int i = 0; i < INPUTS; i++) {
        kept[i] = head->edge[i];
        if (!wanted[i])
            head->edge[i].node = NULL, head->edge[i].leaf = NULL;
    }
    shard_tensor *own = shard_keep(shard_detach(dy));
    if (own)
        own->placement = (shard_placement){0}; /* rows that are split leave their sum to the caller */
    shard_status status = run(head, own, dx);
    for (int i = 0; i < INPUTS; i++) {
        head->edge[i] = kept[i];
        gradient[i] = dx[i];
    }
    return gradient[X] && status == SHARD_OK ? run_features(head, &gradient[X]) : status;
}

/* Adds a gradient that was not computed into the sum's memory, as where that shares a storage with an operand. */
static shard_status add_apart(shard_tensor *gradient, shard_tensor *sum)
{
    void *memory[2];
    if (gradient->storage == sum->storage && gradient->offset == sum->offset)
        return SHARD_OK;
    if (!shard_load(SHARD_INPUTS(gradient, sum), memory))
        return shard_last_status();
    return SHARD_RUN(sum, axpby, shard_numel(sum), 1.0, memory[0], 1.0, memory[1], sum->dtype);
}

/* Moves gradients to the caller's scope, but for those that were added to *result. */
static void move_out(shard_tensor **gradient, shard_tensor **const *result, const bool *adds)
{
    for (int i = 0; i < INPUTS; i++) {
        if (!gradient[i])
            continue;
        if (adds[i]) {
            shard_tensor_count_write(*result[i]);
            shard_tensor_unref(gradient[i]);
            continue;
        }
        if (i != X)
            shard_storage_become(gradient[i]->storage, SHARD_MEMORY_GRADIENTS);
        shard_scope_adopt(gradient[i]);
        *result[i] = gradient[i];
    }
}

/* Gradients are added to those *result of weight and bias that are not NULL. */
static shard_status backward(shard_node *head, shard_tensor *dy, shard_tensor **const *result, bool deferred)
{
    bool wanted[INPUTS], adds[INPUTS];
    shard_tensor *gradient[INPUTS] = {NULL};
    shard_status status = SHARD_OK;
    for (int i = 0; i < INPUTS; i++) {
        wanted[i] = result[i] && (head->edge[i].node || head->edge[i].leaf);
        adds[i] = wanted[i] && i != X && *result[i];
        if (wanted[i] && i != X && status == SHARD_OK)
            status = prepare(&head->edge[i], adds[i] ? *result[i] : NULL, deferred);
    }
    if (status == SHARD_OK)
        status = run_record(head, dy, wanted, gradient);
    for (int i = WEIGHT; i < INPUTS; i++)
        if (wanted[i])
            forget(head->edge[i].leaf->leaf);
    for (int i = WEIGHT; i < INPUTS && status == SHARD_OK; i++)
        if (adds[i])
            status = add_apart(gradient[i], *result[i]);
    if (status == SHARD_OK) {
        move_out(gradient, result, adds);
        return SHARD_OK;
    }
    for (int i = 0; i < INPUTS; i++)
        shard_tensor_unref(gradient[i]);
    return status;
}

shard_status shard_head_backward_with(shard_head_saved *saved, shard_tensor *dy, const shard_head_backward_options *given,
                                      shard_tensor **dx, shard_tensor **dweight, shard_tensor **dbias)
{
    SHARD_READ_OPTIONS(shard_head_backward_options, SHARD_HEAD_BACKWARD_OPTIONS_INIT, options, given);
    shard_tensor **const result[INPUTS] = {[X] = dx, [WEIGHT] = dweight, [BIAS] = dbias};
    for (int i = 0; i < INPUTS; i++)
        if (result[i] && (i == X || !options.accumulate))
            *result[i] = NULL;
    if (!saved || !dy)
        return shard_null_argument("shard_head_backward", saved ? "dy" : "saved");
    SHARD_TRY(options_ok ? check_dy(saved->loss, dy) : shard_last_status());
    bool recording = shard_set_grad_enabled(false);
    shard_status status = backward(shard_node_of(saved->loss), dy, result, options.deferred);
    shard_set_grad_enabled(recording);
    return status;
}
