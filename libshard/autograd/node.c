/* Recording operations. */
#include "autograd/autograd.h"

#include <stdlib.h>

static _Thread_local bool disabled;
static _Thread_local uint64_t next_sequence = 1;

bool shard_set_grad_enabled(bool enabled)
{
    bool before = !disabled;
    disabled = !enabled;
    return before;
}

bool shard_grad_enabled(void)
{
    return !disabled;
}

void shard_node_clear(shard_node *node)
{
    for (int i = 0; i < SHARD_NODE_SAVED; i++) {
        shard_tensor_unref(node->saved[i]);
        node->saved[i] = NULL;
    }
    shard_tensor_unref(node->gradient);
    node->gradient = NULL;
    if (node->context && node->type->clear)
        node->type->clear(node->context);
    free(node->context);
    node->context = NULL;
}

/* A record may be thousands of nodes deep: those that go with this one are
 * listed, not recursed into. */
static void unref_node(shard_history *history)
{
    shard_node *node = (shard_node *)history;
    if (--node->references)
        return;
    node->next = NULL;
    for (shard_node *doomed = node; doomed; doomed = node) {
        node = doomed->next;
        for (int i = 0; i < doomed->inputs; i++) {
            shard_tensor_unref(doomed->edge[i].leaf);
            shard_node *maker = doomed->edge[i].node;
            if (maker && --maker->references == 0) {
                maker->next = node;
                node = maker;
            }
        }
        shard_node_clear(doomed);
        free(doomed);
    }
}

bool shard_will_record(int inputs, shard_tensor *const *input)
{
    if (disabled)
        return false;
    for (int i = 0; i < inputs; i++)
        if (input[i] && input[i]->requires_grad)
            return true;
    return false;
}

static shard_edge make_edge(shard_tensor *input)
{
    shard_edge edge = {
        .shape = input->shape, .dtype = input->dtype, .device = shard_device_of(input), .placement = input->placement};
    if (!input->requires_grad)
        return edge;
    edge.node = shard_node_of(input);
    if (edge.node)
        edge.node->references++;
    else
        edge.leaf = shard_tensor_ref(input);
    return edge;
}

shard_node *shard_record(const shard_node_type *type, shard_tensor *y, int inputs, shard_tensor *const *input,
                         size_t context_bytes)
{
    if (!y || !shard_will_record(inputs, input))
        return NULL;
    shard_node *node = shard_calloc(1, sizeof *node);
    void *context = context_bytes ? shard_calloc(1, context_bytes) : NULL;
    if (!node || (context_bytes && !context)) {
        free(node);
        free(context);
        return NULL;
    }
    *node = (shard_node){.history.unref = unref_node,
                         .type = type,
                         .name = type->name,
                         .references = 1,
                         .sequence = next_sequence++,
                         .inputs = inputs,
                         .placement = y->placement,
                         .context = context};
    for (int i = 0; i < inputs; i++)
        if (input[i])
            node->edge[i] = make_edge(input[i]);
    y->history = &node->history;
    y->requires_grad = true;
    return node;
}

shard_tensor *shard_keep_for_backward(shard_tensor *tensor)
{
    /* Not the tensor itself: a result to which its own node has a reference would never be freed. */
    shard_tensor *kept = shard_keep(shard_detach(tensor));
    if (kept)
        shard_storage_become(kept->storage, SHARD_MEMORY_ACTIVATIONS); /* no workspace any more: it lasts */
    return kept;
}

void shard_save_for_backward(shard_node *node, int slot, shard_tensor *tensor)
{
    if (!node || !tensor)
        return;
    node->saved[slot] = shard_keep_for_backward(tensor);
    node->incomplete |= !node->saved[slot];
    node->saved_version[slot] = node->saved[slot] ? shard_tensor_version(node->saved[slot]) : 0;
}

shard_tensor *shard_saved(shard_node *node, int slot)
{
    shard_tensor *tensor = node->saved[slot];
    if (tensor && shard_tensor_version(tensor) != node->saved_version[slot])
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "backward of %s: a %s tensor of shape %s that it needs was written to after the forward",
                               node->name, shard_dtype_name(tensor->dtype), shard_shape_text(&tensor->shape));
    return tensor;
}

bool shard_saved_all(shard_node *node, int count, shard_tensor **saved)
{
    for (int i = 0; i < count; i++) {
        saved[i] = shard_saved(node, i);
        if (node->saved[i] && !saved[i])
            return false;
    }
    return true;
}

shard_tensor *shard_make_gradient(shard_node *node, int input)
{
    const shard_edge *edge = &node->edge[input];
    shard_tensor *gradient = shard_tensor_make(edge->shape, edge->dtype, edge->device);
    /* A PARTIAL tensor, a summand, has the gradient of the sum, which is whole. */
    if (gradient && edge->placement.kind != SHARD_PARTIAL)
        gradient->placement = edge->placement;
    return gradient;
}
