/*
 * The walk back over the record.
 *
 * Nodes are visited from the latest to the earliest, so that a node's gradient is
 * complete when it is visited: every operation that used its result came later.
 */
#include "autograd/autograd.h"

#include "autograd/deferred.h"
#include "base/kept_error.h"
#include "comm/function.h"
#include "device/graph.h"

#include <stdlib.h>

typedef struct end_call {
    shard_status (*function)(void *context);
    void *context;
    bool last; /* after those that are not */
} end_call;

typedef struct walk {
    shard_node **nodes; /* the latest first: nodes[0] is the root */
    int64_t count, capacity;
    end_call *calls;
    int64_t call_count, call_capacity;
} walk;

static _Thread_local walk *current_walk;
static _Thread_local uint64_t visit_number;

shard_status shard_at_backward_end(shard_status (*function)(void *context), void *context, bool last)
{
    walk *w = current_walk;
    if (!w)
        return shard_error(SHARD_ERROR_INTERNAL, "shard_at_backward_end outside of a backward");
    for (int64_t i = 0; i < w->call_count; i++)
        if (w->calls[i].function == function && w->calls[i].context == context)
            return SHARD_OK;
    SHARD_TRY(shard_grow(&w->calls, &w->call_capacity, w->call_count + 1, sizeof *w->calls));
    w->calls[w->call_count++] = (end_call){function, context, last};
    return SHARD_OK;
}

/* ---- collecting ---- */

static shard_status visit(walk *w, shard_node *node)
{
    if (node->visit == visit_number)
        return SHARD_OK;
    node->visit = visit_number;
    if (node->spent)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_backward: the record of %s was freed by an earlier backward; run the forward again",
                           node->name);
    SHARD_TRY(shard_grow(&w->nodes, &w->capacity, w->count + 1, sizeof *w->nodes));
    w->nodes[w->count++] = node;
    return SHARD_OK;
}

static int later_first(const void *a, const void *b)
{
    const shard_node *x = *(shard_node *const *)a, *y = *(shard_node *const *)b;
    return (x->sequence < y->sequence) - (x->sequence > y->sequence);
}

/* Counts the uses of the node's leaves. Those that do not require a gradient any more get none. */
static void count_uses(shard_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        shard_tensor *leaf = node->edge[i].leaf;
        if (leaf && leaf->requires_grad) {
            leaf->leaf->grad_uses++;
        } else {
            node->edge[i].leaf = NULL;
            shard_tensor_unref(leaf);
        }
    }
}

static shard_status collect(walk *w, shard_node *root)
{
    visit_number++;
    SHARD_TRY(visit(w, root));
    for (int64_t at = 0; at < w->count; at++) {
        shard_node *node = w->nodes[at];
        for (int i = 0; i < node->inputs; i++)
            if (node->edge[i].node)
                SHARD_TRY(visit(w, node->edge[i].node));
    }
    for (int64_t at = 0; at < w->count; at++)
        count_uses(w->nodes[at]);
    qsort(w->nodes, (size_t)w->count, sizeof *w->nodes, later_first);
    return SHARD_OK;
}

/* ---- adding gradients up ---- */

/* Sums a PARTIAL gradient, to which there is no other reference, over its group. */
static shard_status make_whole(shard_tensor *gradient)
{
    if (gradient->placement.kind != SHARD_PARTIAL)
        return SHARD_OK;
    shard_group *group = gradient->placement.group;
    gradient->placement = (shard_placement){0};
    return shard_group_all_reduce(group, shard_device_of(gradient), shard_tensor_memory(gradient), shard_numel(gradient),
                                  gradient->dtype, SHARD_SUM);
}

static shard_status add_into(shard_tensor *sum, double alpha, shard_tensor *x, double beta)
{
    const void *from = shard_tensor_values(x);
    void *to = from ? shard_tensor_memory_to_write(sum) : NULL;
    if (!to)
        return shard_last_status();
    return shard_ops(sum)->axpby(shard_device_of(sum), shard_numel(sum), alpha, from, beta, to, sum->dtype);
}

/* x itself, or a copy. Takes over the caller's reference to x. */
static shard_tensor *copy_unless(bool fits, shard_tensor *x)
{
    if (fits)
        return x;
    shard_tensor *copy = shard_keep(shard_tensor_like(x));
    if (copy && add_into(copy, 1.0, x, 0.0) != SHARD_OK) {
        shard_tensor_unref(copy);
        copy = NULL;
    }
    if (copy)
        copy->pending = x->pending;
    shard_tensor_unref(x);
    return copy;
}

/* A tensor with x's values that may be overwritten: x itself if that is so, else a copy. */
static shard_tensor *make_own(shard_tensor *x)
{
    return copy_unless(!x || shard_tensor_is_own(x), x);
}

/* sum = sum + x. A gradient that counts in full on each rank of the other one's groups adds 1 / ranks of
 * itself. */
static shard_status add_gradients(shard_tensor *sum, shard_tensor *x)
{
    shard_pending_sums both = sum->pending;
    SHARD_TRY(shard_pending_sums_join(&both, &x->pending));
    double ranks = (double)shard_pending_sums_ranks(&both, NULL);
    double alpha = (double)shard_pending_sums_ranks(&x->pending, NULL) / ranks;
    double beta = (double)shard_pending_sums_ranks(&sum->pending, NULL) / ranks;
    sum->pending = both;
    return add_into(sum, alpha, x, beta);
}

/* node->gradient += gradient. Takes over the reference to gradient. */
static shard_status add_to_node(shard_node *node, shard_tensor *gradient)
{
    if (!node->gradient) {
        node->gradient = gradient;
        return SHARD_OK;
    }
    shard_tensor *sum = make_own(node->gradient);
    node->gradient = sum;
    bool same_placement =
        sum && sum->placement.kind == gradient->placement.kind &&
        (sum->placement.kind != SHARD_PARTIAL || shard_group_same(sum->placement.group, gradient->placement.group));
    if (!same_placement)
        gradient = make_own(gradient);
    if (!sum || !gradient)
        return shard_tensor_unref(gradient), shard_last_status();
    shard_status status = SHARD_OK;
    if (!same_placement && (status = make_whole(sum)) == SHARD_OK)
        status = make_whole(gradient);
    if (status == SHARD_OK)
        status = add_gradients(sum, gradient);
    shard_tensor_unref(gradient);
    return status;
}

static bool is_gradient_buffer(const shard_leaf *leaf, const shard_tensor *gradient)
{
    return leaf->grad && gradient->storage == leaf->grad->storage && gradient->offset == leaf->grad->offset;
}

/* Adds to the tensor's gradient. Takes over the reference to gradient. */
static shard_status add_to_leaf(shard_tensor *tensor, shard_tensor *gradient)
{
    shard_leaf *leaf = tensor->leaf;
    shard_status status = SHARD_OK;
    if (gradient->placement.kind == SHARD_PARTIAL) {
        gradient = make_own(gradient);
        status = gradient ? make_whole(gradient) : shard_last_status();
        if (status != SHARD_OK)
            return shard_tensor_unref(gradient), status;
    }
    if (leaf->grad && !leaf->has_grad && shard_source_of(gradient) && shard_tensor_is_own(gradient)) { /* it stays deferred */
        shard_tensor_unref(leaf->grad);
        leaf->grad = NULL;
    }
    if (!leaf->grad) {
        if (shard_graph_refuse("the first gradient of a tensor") != SHARD_OK)
            return shard_tensor_unref(gradient), shard_last_status();
        /* It lasts: it keeps no memory that is much larger, of which it is a range. */
        bool fits = shard_tensor_is_own(gradient) && gradient->storage->bytes / 2 <= shard_tensor_bytes(gradient);
        leaf->grad = copy_unless(fits, gradient);
        gradient = NULL;
        if (!leaf->grad)
            return shard_last_status();
        shard_storage_become(leaf->grad->storage, SHARD_MEMORY_GRADIENTS);
        leaf->grad->placement = shard_gradient_placement(tensor);
    } else if (!leaf->has_grad || is_gradient_buffer(leaf, gradient)) {
        leaf->grad->pending = gradient->pending;
        status = is_gradient_buffer(leaf, gradient) ? SHARD_OK : add_into(leaf->grad, 1.0, gradient, 0.0);
    } else {
        status = add_gradients(leaf->grad, gradient);
    }
    if (status == SHARD_OK)
        shard_graph_count_gradients(!leaf->has_grad);
    leaf->has_grad |= status == SHARD_OK;
    shard_tensor_unref(gradient);
    return status;
}

shard_tensor *shard_gradient_target(shard_node *node, int input, bool *accumulate)
{
    shard_edge *edge = &node->edge[input];
    const shard_leaf *leaf = edge->leaf ? edge->leaf->leaf : &shard_no_leaf;
    *accumulate = false;
    if (!leaf->grad || leaf->grad->dtype != edge->dtype)
        return shard_make_gradient(node, input);
    for (int i = 0; i < node->inputs; i++) /* there is one buffer, but gradients for two operands */
        if (i != input && node->edge[i].leaf == edge->leaf)
            return shard_make_gradient(node, input);
    for (int i = 0; i < SHARD_NODE_SAVED; i++) /* the buffer is an operand, which the node still reads */
        if (node->saved[i] && node->saved[i]->storage == leaf->grad->storage)
            return shard_make_gradient(node, input);
    /* The gradient is added in place only if both have the same pending sums. */
    bool sums_parts = edge->placement.kind != SHARD_SPLIT && node->gradient->placement.kind == SHARD_SPLIT;
    if (leaf->has_grad && (sums_parts || !shard_pending_sums_equal(&leaf->grad->pending, &node->gradient->pending)))
        return shard_make_gradient(node, input);
    *accumulate = leaf->has_grad;
    shard_tensor *target = shard_detach(leaf->grad);
    if (target) {
        target->placement = edge->placement;
        shard_tensor_count_write(target); /* an operation that has saved the gradient may not read it any more */
    }
    return target;
}

shard_tensor *shard_gradient_taken(shard_node *node, int input)
{
    const shard_edge *edge = &node->edge[input];
    const shard_tensor *buffer = edge->leaf->leaf->grad;
    shard_tensor *gradient = shard_tensor_on(buffer->storage, buffer->offset, edge->shape, edge->dtype);
    if (!gradient)
        return NULL;
    gradient->placement = edge->placement;
    shard_scope_adopt(gradient);
    return gradient;
}

void shard_zero_grad(shard_tensor *tensor)
{
    shard_leaf *leaf = tensor ? tensor->leaf : NULL;
    if (!leaf)
        return;
    shard_graph_count_gradients(-leaf->has_grad);
    leaf->has_grad = false;
    shard_remove_deferred(tensor);
    if (leaf->grad)
        leaf->grad->pending = (shard_pending_sums){0};
    shard_zero_grad(leaf->grad_range);
}

/* ---- the walk ---- */

/* The placement of a gradient and its pending sums. */
typedef struct gradient_placement {
    shard_placement placement;
    shard_pending_sums pending;
} gradient_placement;

/* The placement and pending sums of dx, where the operation did not set them: dx is placed as its input was, and is
 * a pending sum over dy's groups, and over the group of a split dy if dx itself is not split. */
static shard_status decide_placement(const shard_node *node, const shard_edge *edge, const shard_tensor *dx,
                                     const gradient_placement *dy, gradient_placement *placed)
{
    *placed = (gradient_placement){dx->placement, dy->pending};
    SHARD_TRY(shard_pending_sums_join(&placed->pending, &dx->pending));
    if (!node->type->places_gradients && dx->placement.kind != SHARD_PARTIAL) {
        placed->placement = edge->placement.kind == SHARD_SPLIT ? edge->placement : (shard_placement){0};
        if (dy->placement.kind == SHARD_SPLIT && placed->placement.kind != SHARD_SPLIT)
            SHARD_TRY(shard_pending_sums_add(&placed->pending, dy->placement.group));
    }
    shard_group *over = placed->placement.group;
    if (over && shard_pending_sums_has(&placed->pending, over))
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "backward of %s: a gradient that is %s over %d ranks is of rows or summands of the same ranks",
                           node->name, shard_placement_text(&placed->placement), shard_group_size(over));
    if (over)
        SHARD_TRY(shard_pending_sums_check(node->name, &placed->pending, over));
    /* A PARTIAL gradient of a replicated tensor is a pending sum: such gradients are added without communication. */
    const shard_node *next = edge->node;
    if (!next || !next->group || placed->placement.kind != SHARD_PARTIAL || !shard_group_same(over, next->group))
        return SHARD_OK;
    placed->placement = (shard_placement){0};
    return shard_pending_sums_add(&placed->pending, next->group);
}

shard_status shard_gradient_pending_sums(const shard_node *node, int input, const shard_tensor *dx, shard_pending_sums *pending)
{
    gradient_placement dy = {node->gradient->placement, node->gradient->pending}, placed;
    SHARD_TRY(decide_placement(node, &node->edge[input], dx, &dy, &placed));
    *pending = placed.pending;
    return SHARD_OK;
}

static shard_status deliver(shard_node *node, int input, shard_tensor *dx, const gradient_placement *dy)
{
    shard_edge *edge = &node->edge[input];
    if (!shard_shape_equal(&dx->shape, &edge->shape) || dx->dtype != edge->dtype) {
        shard_error(SHARD_ERROR_INTERNAL, "backward of %s made a %s gradient of shape %s for a %s input of shape %s", node->name,
                    shard_dtype_name(dx->dtype), shard_shape_text(&dx->shape), shard_dtype_name(edge->dtype),
                    shard_shape_text(&edge->shape));
        return shard_tensor_unref(dx), shard_last_status();
    }
    gradient_placement placed;
    if (decide_placement(node, edge, dx, dy, &placed) != SHARD_OK)
        return shard_tensor_unref(dx), shard_last_status();
    if (dx->references > 1) { /* dx is dy, whose placement others read */
        shard_tensor *own = shard_keep(shard_detach(dx));
        shard_tensor_unref(dx);
        if (!own)
            return shard_last_status();
        dx = own;
    }
    dx->placement = placed.placement;
    dx->pending = placed.pending;
    return edge->node ? add_to_node(edge->node, dx) : add_to_leaf(edge->leaf, dx);
}

shard_status shard_node_backward(shard_node *node, shard_tensor **dx)
{
    shard_scope scope;
    if (node->incomplete)
        return shard_error(SHARD_ERROR_MEMORY,
                           "backward of %s: in the forward there was no memory to save a tensor that it needs", node->name);
    shard_scope_open(&scope);
    shard_status status = node->type->backward(node, node->gradient, dx);
    for (int i = 0; i < node->inputs; i++) {
        if (!shard_wants(node, i) || status != SHARD_OK)
            dx[i] = NULL;
        else if (!dx[i])
            status = shard_error(SHARD_ERROR_INTERNAL, "backward of %s made no gradient for input %d", node->name, i);
        else
            dx[i] = dx[i]->scope == &scope ? shard_keep(dx[i]) : shard_tensor_ref(dx[i]);
    }
    shard_scope_close(&scope);
    return status;
}

/* Makes sure that there is no other reference to node->gradient, so that it can be written to. */
static shard_status own_gradient(shard_node *node)
{
    node->gradient = make_own(node->gradient);
    return node->gradient ? SHARD_OK : shard_last_status();
}

/* Called for a PARTIAL gradient. */
static bool takes(const shard_node *node)
{
    const shard_group *over = node->gradient->placement.group;
    if (!node->type->takes_partial || !node->group || shard_group_same(node->group, over))
        return node->type->takes_partial;
    return shard_group_common(node->group, over) == 1 && node->edge[0].placement.kind == SHARD_LOCAL;
}

/* Whether a tensor of the node is placed, gathered or summed over a group that has all ranks of `group`; an error if a
 * group has several of them, but not all. */
static shard_status spans(const shard_node *node, const shard_group *group, bool *all)
{
    const shard_group *over[SHARD_NODE_INPUTS + 2] = {node->placement.group, node->type->sums_gradient ? NULL : node->group};
    for (int i = 0; i < node->inputs; i++)
        over[i + 2] = node->edge[i].placement.group;
    for (int i = 0; i < node->inputs + 2; i++) {
        int common = over[i] ? shard_group_common(over[i], group) : 0;
        if (common > 1 && common < shard_group_size(group))
            return shard_error(SHARD_ERROR_UNSUPPORTED,
                               "backward of copy: a copy over %d ranks before %s over %d ranks, of which %d are in both groups; "
                               "copy over a group that has the same ranks or this rank alone in common",
                               shard_group_size(group), node->name, shard_group_size(over[i]), common);
        *all |= common > 1;
    }
    return SHARD_OK;
}

/*
 * Whether each rank of a copy's group has a different loss, so that the gradient is of the sum of the losses: no tensor from
 * the copy's result to the loss is placed, gathered or summed over the group. Else there is one loss, and a gradient that is
 * no pending sum counts in full on each rank. So does the gradient of another copy over the group, which sums it.
 */
static shard_status has_losses_per_rank(const walk *w, const shard_node *copy, bool *per_rank)
{
    bool one = false;
    w->nodes[0]->visit = ++visit_number;
    for (int64_t at = 0; at < w->count && !one; at++) {
        const shard_node *node = w->nodes[at];
        if (node->visit != visit_number)
            continue;
        SHARD_TRY(spans(node, copy->group, &one));
        if (node->type->sums_gradient && shard_group_same(node->group, copy->group))
            continue;
        for (int i = 0; i < node->inputs; i++)
            if (node->edge[i].node)
                node->edge[i].node->visit = visit_number;
    }
    *per_rank = !one && copy->visit == visit_number;
    return SHARD_OK;
}

/* Converts node->gradient to the placement that the node's backward takes. */
static shard_status prepare_gradient(const walk *w, shard_node *node)
{
    const shard_placement *placement = &node->gradient->placement;
    bool summand = node->group && shard_pending_sums_has(&node->gradient->pending, node->group);
    bool partial = placement->kind == SHARD_PARTIAL;
    if (!summand && node->type->sums_gradient && !(partial && shard_group_same(placement->group, node->group)))
        SHARD_TRY(has_losses_per_rank(w, node, &summand));
    if (partial && (summand || !takes(node))) {
        SHARD_TRY(own_gradient(node));
        SHARD_TRY(make_whole(node->gradient));
    }
    if (node->group)
        SHARD_TRY(shard_pending_sums_check(node->name, &node->gradient->pending, node->group));
    if (!summand)
        return SHARD_OK;
    SHARD_TRY(own_gradient(node));
    shard_pending_sums_remove(&node->gradient->pending, node->group);
    node->gradient->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = node->group};
    return takes(node) ? SHARD_OK : make_whole(node->gradient);
}

void shard_call_watches(shard_tensor *leaf)
{
    for (const shard_watch *watch = leaf->leaf->grad_watches; watch; watch = watch->next)
        watch->function(leaf, watch->context);
}

static shard_status step_back(const walk *w, shard_node *node)
{
    SHARD_TRY(prepare_gradient(w, node));
    shard_tensor *dx[SHARD_NODE_INPUTS] = {NULL};
    gradient_placement dy = {node->gradient->placement, node->gradient->pending};
    shard_status status = shard_node_backward(node, dx);
    shard_node_clear(node);
    node->spent = true;
    for (int i = 0; i < node->inputs; i++) {
        shard_tensor *leaf = node->edge[i].leaf;
        if (dx[i] && status == SHARD_OK)
            status = deliver(node, i, dx[i], &dy);
        else
            shard_tensor_unref(dx[i]);
        if (!leaf || --leaf->leaf->grad_uses > 0 || status != SHARD_OK)
            continue;
        uint64_t serial = shard_error_serial(); /* an earlier error does not keep this rank from collectives */
        shard_call_watches(leaf);
        if (leaf->leaf->grad_ready)
            leaf->leaf->grad_ready(leaf, leaf->leaf->grad_ready_context);
        if (shard_error_serial() != serial)
            status = shard_last_status();
    }
    return status;
}

/* Whether the gradient of a leaf that the walk comes to is in that memory. */
static bool is_written_to(const walk *w, const shard_storage *storage)
{
    for (int64_t at = 0; at < w->count; at++)
        for (int i = 0; i < w->nodes[at]->inputs; i++) {
            const shard_tensor *leaf = w->nodes[at]->edge[i].leaf;
            if (leaf && leaf->leaf->grad && leaf->leaf->grad->storage == storage)
                return true;
        }
    return false;
}

/* Gives the root its gradient. A local gradient of a split root is the gradient of its local shard. */
static shard_status begin(const walk *w, shard_tensor *gradient)
{
    shard_node *root = w->nodes[0];
    const shard_placement *placement = &root->placement;
    bool local = shard_is_local(gradient);
    if (!local && !shard_placement_equal(&gradient->placement, placement) &&
        !(gradient->placement.kind == SHARD_PARTIAL && placement->kind == SHARD_LOCAL))
        return shard_error(SHARD_ERROR_UNSUPPORTED, "shard_backward_from: a gradient that is %s for a tensor that is %s",
                           shard_placement_text(&gradient->placement), shard_placement_text(placement));
    root->gradient = shard_keep(shard_detach(gradient));
    if (!root->gradient)
        return shard_last_status();
    root->gradient->pending = gradient->pending;
    if (is_written_to(w, gradient->storage))
        SHARD_TRY(own_gradient(root));
    if (local && placement->kind == SHARD_SPLIT)
        root->gradient->placement = *placement;
    return SHARD_OK;
}

static shard_status run(walk *w, shard_node *root, shard_tensor *gradient)
{
    shard_status status = collect(w, root);
    if (status == SHARD_OK)
        status = begin(w, gradient);
    for (int64_t at = 0; at < w->count && status == SHARD_OK; at++)
        if (w->nodes[at]->gradient)
            status = step_back(w, w->nodes[at]);
    /* After an error too: these calls wait for collectives that were started, and notify the other ranks. */
    for (int64_t i = 0; i < 2 * w->call_count; i++) {
        const end_call *call = &w->calls[i % w->call_count];
        shard_status ended = call->last == (i >= w->call_count) ? call->function(call->context) : SHARD_OK;
        status = status == SHARD_OK ? ended : status;
    }
    for (int64_t at = 0; at < w->count; at++) { /* after an error: leave nothing half done */
        shard_node *node = w->nodes[at];
        shard_tensor_unref(node->gradient);
        node->gradient = NULL;
        for (int i = 0; i < node->inputs; i++)
            if (node->edge[i].leaf)
                node->edge[i].leaf->leaf->grad_uses = 0;
    }
    return status;
}

bool shard_in_backward(void)
{
    return current_walk != NULL;
}

static shard_status pass_on(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    (void)node;
    dx[0] = dy;
    return SHARD_OK;
}

static const shard_node_type leaf_type = {.name = "a leaf", .backward = pass_on};

/* The tensor, or of a leaf a result that is the leaf itself. NULL with the error set. */
static shard_tensor *as_result(shard_tensor *tensor)
{
    if (tensor->history)
        return tensor;
    bool enabled = shard_set_grad_enabled(true);
    shard_tensor *result = shard_tensor_view(tensor, 0, tensor->shape);
    if (result)
        result->placement = tensor->placement;
    shard_node *node = shard_record(&leaf_type, result, SHARD_INPUTS(tensor), 0);
    shard_set_grad_enabled(enabled);
    return node ? result : (shard_release(result), NULL);
}

static shard_status backward_from(const char *function, shard_tensor *tensor, shard_tensor *gradient)
{
    if (!tensor->requires_grad)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: the tensor of shape %s does not depend on anything that requires a gradient "
                           "(shard_set_requires_grad), or was computed with gradients off (shard_set_grad_enabled)",
                           function, shard_shape_text(&tensor->shape));
    if (current_walk)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: called from within a backward: call it after that one has returned",
                           function);
    shard_tensor *result = as_result(tensor);
    if (!result)
        return shard_last_status();
    walk w = {0};
    current_walk = &w;
    bool enabled = shard_set_grad_enabled(false);
    shard_status status = run(&w, shard_node_of(result), gradient);
    shard_set_grad_enabled(enabled);
    current_walk = NULL;
    free(w.nodes);
    free(w.calls);
    if (result != tensor)
        shard_release(result);
    return status;
}

shard_status shard_backward_from(shard_tensor *tensor, shard_tensor *gradient)
{
    SHARD_FUNCTION("shard_backward_from");
    if (!tensor || !gradient)
        return shard_null_argument("shard_backward_from", tensor ? "gradient" : "tensor");
    if (!shard_shape_equal(&tensor->shape, &gradient->shape))
        return shard_error(SHARD_ERROR_SHAPE,
                           "shard_backward_from: a gradient of shape %s for a tensor of shape %s; one is needed",
                           shard_shape_text(&gradient->shape), shard_shape_text(&tensor->shape));
    if (tensor->dtype != gradient->dtype)
        return shard_error(SHARD_ERROR_SHAPE, "shard_backward_from: a gradient of %s for a tensor of %s; cast it (shard_cast)",
                           shard_dtype_name(gradient->dtype), shard_dtype_name(tensor->dtype));
    if (shard_device_of(tensor) != shard_device_of(gradient))
        return shard_error(SHARD_ERROR_SHAPE,
                           "shard_backward_from: a gradient on %s for a tensor on %s; one device is needed (shard_to_device)",
                           shard_device_of(gradient)->name, shard_device_of(tensor)->name);
    return backward_from("shard_backward_from", tensor, gradient);
}

shard_status shard_backward(shard_tensor *loss)
{
    SHARD_FUNCTION("shard_backward");
    if (!loss)
        return shard_null_argument("shard_backward", "loss");
    shard_shape whole = shard_tensor_whole_shape(loss); /* of a split loss each rank may have one element, or one rank alone */
    if (shard_shape_product(&whole, 0, whole.ndim) != 1)
        return shard_error(SHARD_ERROR_SHAPE, "shard_backward: the loss has shape %s, not one element", shard_shape_text(&whole));
    shard_tensor *one = shard_full(loss->shape, 1.0, .dtype = loss->dtype, .device = shard_device_of(loss));
    shard_status status = one ? backward_from("shard_backward", loss, one) : shard_last_status();
    shard_release(one);
    return status;
}
