/* Operations of the program: shard_custom_op_apply. */
#include "comm/preflight.h"
#include "op/autocast.h"
#include "op/op.h"

#include <stdlib.h>

_Static_assert(SHARD_CUSTOM_OP_INPUTS <= SHARD_NODE_INPUTS, "a node has room for all inputs");

struct shard_custom_op {
    const shard_custom_op_type *type;
    void *context;
    unsigned wants;   /* bit i: a gradient of input i */
    shard_node *node; /* set while backward runs */
    shard_dtype autocast;
    shard_tensor *saved[SHARD_CUSTOM_OP_SAVED];
    uint64_t version[SHARD_CUSTOM_OP_SAVED];
};

/* ---- functions for the operation's callbacks ---- */

void *shard_custom_op_context(const shard_custom_op *op)
{
    return op ? op->context : NULL;
}

bool shard_custom_op_wants_gradient(const shard_custom_op *op, int input)
{
    return op && input >= 0 && input < SHARD_CUSTOM_OP_INPUTS && op->wants >> input & 1;
}

static shard_status check_slot(const char *function, const shard_custom_op *op, int slot)
{
    if (!op)
        return shard_null_argument(function, "op");
    if (slot >= 0 && slot < SHARD_CUSTOM_OP_SAVED)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "%s: slot %d is none of 0 to %d", function, slot, SHARD_CUSTOM_OP_SAVED - 1);
}

shard_status shard_custom_op_save(shard_custom_op *op, int slot, shard_tensor *tensor)
{
    static const char function[] = "shard_custom_op_save";
    SHARD_TRY(check_slot(function, op, slot));
    if (!tensor)
        return shard_null_argument(function, "tensor");
    if (op->node)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: called in a backward; the forward saves", function);
    if (!op->wants)
        return SHARD_OK;
    shard_tensor *kept = shard_keep_for_backward(tensor);
    if (!kept)
        return shard_last_status();
    shard_tensor_unref(op->saved[slot]);
    op->saved[slot] = kept;
    op->version[slot] = shard_tensor_version(kept);
    return SHARD_OK;
}

shard_tensor *shard_custom_op_saved(shard_custom_op *op, int slot)
{
    if (check_slot("shard_custom_op_saved", op, slot) != SHARD_OK)
        return NULL;
    shard_tensor *tensor = op->saved[slot];
    if (tensor && shard_tensor_version(tensor) != op->version[slot])
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "a %s tensor of shape %s that it needs was written to after the forward",
                               shard_dtype_name(tensor->dtype), shard_shape_text(&tensor->shape));
    return tensor;
}

shard_tensor *shard_custom_op_make_gradient(shard_custom_op *op, int input)
{
    static const char function[] = "shard_custom_op_make_gradient";
    if (!op)
        return shard_null_argument(function, "op"), NULL;
    if (!op->node)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: called in a forward", function);
    if (!shard_custom_op_wants_gradient(op, input))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: input %d requires no gradient", function, input);
    return shard_make_gradient(op->node, input);
}

/* ---- errors ---- */

/* The status after a callback of the program: its error with the operation's name added, unless all ranks have that
 * error already. */
static shard_status finish(const shard_custom_op_type *type, const char *function, shard_status before, shard_status status)
{
    shard_status now = shard_last_status();
    if (before != SHARD_OK) /* the first error stays */
        return status;
    if (now == SHARD_OK)
        return status == SHARD_OK ? SHARD_OK
                                  : shard_error(status, "%s of %s failed and gave no reason (shard_error)", function, type->name);
    if (shard_error_is_joint(1))
        return now;
    char *text = shard_format("%s of %s: %s", function, type->name, shard_last_error());
    if (text)
        shard_replace_error(now, text);
    free(text);
    return now;
}

/* ---- backward ---- */

static bool check_gradient(const char *name, const shard_edge *edge, const shard_tensor *dx, int input)
{
    if (!shard_shape_equal(&dx->shape, &edge->shape)) {
        shard_error(SHARD_ERROR_SHAPE, "backward of %s: a gradient of shape %s for input %d of shape %s", name,
                    shard_shape_text(&dx->shape), input, shard_shape_text(&edge->shape));
        return false;
    }
    if (!shard_dtype_is_float(dx->dtype) || shard_device_of(dx) != edge->device) {
        shard_error(SHARD_ERROR_SHAPE, "backward of %s: a gradient that is %s on %s for input %d, which is %s on %s", name,
                    shard_dtype_name(dx->dtype), shard_device_of(dx)->name, input, shard_dtype_name(edge->dtype),
                    edge->device->name);
        return false;
    }
    bool fits = dx->placement.kind == SHARD_LOCAL ||
                (dx->placement.kind == SHARD_PARTIAL ? edge->placement.kind != SHARD_SPLIT
                                                     : shard_placement_equal(&dx->placement, &edge->placement));
    if (!fits)
        shard_error(SHARD_ERROR_UNSUPPORTED, "backward of %s: a gradient that is %s for input %d, which is %s", name,
                    shard_placement_text(&dx->placement), input, shard_placement_text(&edge->placement));
    return fits;
}

/* dx as the backward pass needs it: of the input's dtype, and placed as the input if that is split. */
static shard_tensor *finish_gradient(const shard_node *node, int input, shard_tensor *dx)
{
    const shard_edge *edge = &node->edge[input];
    if (!dx)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "backward of %s: no gradient for input %d, which requires one", node->name,
                               input);
    if (!check_gradient(node->name, edge, dx, input))
        return NULL;
    shard_placement placement = dx->placement.kind == SHARD_PARTIAL ? dx->placement : edge->placement;
    if (placement.kind == SHARD_PARTIAL && dx->placement.kind != SHARD_PARTIAL)
        placement = (shard_placement){0}; /* a summand's gradient is the gradient of the sum */
    shard_tensor *gradient = dx->dtype == edge->dtype ? shard_detach(dx) : shard_cast(dx, edge->dtype);
    if (gradient)
        gradient->placement = placement;
    return gradient;
}

static shard_status custom_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_custom_op *op = node->context;
    uint64_t version = shard_tensor_version(dy);
    shard_status before = shard_last_status();
    shard_dtype autocast = shard_set_autocast(op->autocast);
    op->node = node;
    shard_status status = finish(op->type, "backward", before, op->type->backward(op, dy, node->inputs, dx));
    op->node = NULL;
    shard_set_autocast(autocast);
    SHARD_TRY(status);
    if (shard_tensor_version(dy) != version)
        return shard_error(SHARD_ERROR_ARGUMENT, "backward of %s: it has written to dy, which other operations may read",
                           node->name);
    for (int i = 0; i < node->inputs; i++)
        if (shard_wants(node, i) && !(dx[i] = finish_gradient(node, i, dx[i])))
            return shard_last_status();
    return SHARD_OK;
}

/* ---- the record ---- */

static void clear(void *context)
{
    shard_custom_op *op = context;
    for (int i = 0; i < SHARD_CUSTOM_OP_SAVED; i++)
        shard_tensor_unref(op->saved[i]);
    if (op->type->destroy)
        op->type->destroy(op->context);
}

static const shard_node_type custom_types[] = {
    {.name = "a custom operation", .backward = custom_backward, .clear = clear},
    {.name = "a custom operation", .backward = custom_backward, .clear = clear, .places_gradients = true},
};

static bool record(shard_custom_op *op, shard_tensor *y, int inputs, shard_tensor *const *input)
{
    shard_node *node = shard_record(&custom_types[op->type->whole_gradients], y, inputs, input, 0);
    if (!node)
        return false;
    node->name = op->type->name;
    node->context = op;
    return true;
}

/* ---- forward ---- */

static bool check(const shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    const char *name = op->type->name;
    const shard_tensor *first = NULL;
    for (int i = 0; i < inputs; i++) {
        if (!input[i] && shard_last_status() != SHARD_OK)
            return false;
        if (!input[i])
            continue;
        first = first ? first : input[i];
        if (shard_device_of(input[i]) == shard_device_of(first))
            continue;
        shard_error(SHARD_ERROR_SHAPE, "%s: input %d is on %s, another input on %s", name, i, shard_device_of(input[i])->name,
                    shard_device_of(first)->name);
        return false;
    }
    if (op->wants && !op->type->backward)
        shard_error(SHARD_ERROR_ARGUMENT, "%s has no backward, but an input requires a gradient", name);
    return !op->wants || op->type->backward;
}

/* The result, in the scope, without a history: forward may have returned an input. */
static shard_tensor *compute(shard_custom_op *op, int inputs, shard_tensor *const *input, const shard_scope *scope)
{
    shard_status before = shard_last_status();
    bool enabled = shard_set_grad_enabled(false);
    shard_tensor *y = op->type->forward(op, inputs, input);
    shard_set_grad_enabled(enabled);
    if (finish(op->type, "forward", before, y ? SHARD_OK : SHARD_ERROR_ARGUMENT) != SHARD_OK)
        return NULL;
    bool fresh = y->scope == scope && !y->history && !y->requires_grad;
    return fresh ? y : shard_detach(y);
}

static shard_tensor *apply(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = check(op, inputs, input) ? compute(op, inputs, input, &scope) : NULL;
    bool records = y && op->wants && shard_dtype_is_float(y->dtype);
    bool recorded = records && record(op, y, inputs, input);
    if (!recorded) {
        clear(op);
        free(op);
    }
    y = records && !recorded ? NULL : shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_custom_op_apply_with(const shard_custom_op_type *type, void *context, int inputs, shard_tensor *const *input)
{
    static const char function[] = "shard_custom_op_apply";
    if (!type) /* and the context cannot be freed */
        return shard_null_argument(function, "type"), NULL;
    shard_custom_op *op = NULL;
    if (!type->name || !type->forward)
        shard_null_argument(function, !type->name ? "type->name" : "type->forward");
    else if (inputs < 0 || inputs > SHARD_CUSTOM_OP_INPUTS)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %s has %d inputs; at most %d can be", function, type->name, inputs,
                    SHARD_CUSTOM_OP_INPUTS);
    else if (inputs > 0 && !input)
        shard_null_argument(function, "input");
    else
        op = shard_calloc(1, sizeof *op);
    if (!op) {
        if (type->destroy)
            type->destroy(context);
        return NULL;
    }
    *op = (shard_custom_op){.type = type, .context = context, .autocast = shard_autocast_dtype()};
    for (int i = 0; i < inputs; i++)
        op->wants |= (unsigned)shard_will_record(1, &input[i]) << i;
    return apply(op, inputs, input);
}
