/*
 * The record of operations, as operations use it.
 *
 * An operation computes its result, then records itself:
 *
 *     shard_tensor *y = shard_tensor_like(x);
 *     if (!y || SHARD_RUN(x, ...) != SHARD_OK)
 *         return shard_release(y), NULL;
 *     shard_node *node = shard_record(&relu_type, y, SHARD_INPUTS(x), 0);
 *     shard_save_for_backward(node, 0, y);
 *     return y;
 *
 * Gradients have placements, as values do. A node's dx[i] is placed as its input
 * was, unless the operation says PARTIAL (the whole gradient is the sum over a
 * group, as for the input of a COLUMN linear). A PARTIAL gradient is summed
 * before the next node sees it, unless that node takes it as it is (the gather of
 * a batch: a reduce-scatter). In addition to its placement a gradient has the groups
 * over which it is a pending sum: autograd/pending_sums.h.
 */
#ifndef SHARD_AUTOGRAD_AUTOGRAD_H
#define SHARD_AUTOGRAD_AUTOGRAD_H

#include <shard/autograd.h>

#include "autograd/pending_sums.h"
#include "tensor/scope.h"

#define SHARD_NODE_INPUTS 8
#define SHARD_NODE_SAVED 16

typedef struct shard_node shard_node;

typedef struct shard_node_type {
    const char *name;
    /* Sets dx[i], a tensor that it makes or dy itself, for each input i for which shard_wants(node, i). Runs in a separate scope,
     * without recording. */
    shard_status (*backward)(shard_node *node, shard_tensor *dy, shard_tensor **dx);
    /* backward takes a dy that is PARTIAL; that of a node with a group, over this
     * group, or over one that crosses it where the input is local. */
    bool takes_partial;
    /* backward places every dx itself, and a dx that is whole is not a pending sum
     * though dy is split (a scatter). */
    bool places_gradients;
    /* dy is PARTIAL over the node's group if each of its ranks has a different loss (a copy). */
    bool sums_gradient;
    /* Frees what the context points to; NULL: nothing. */
    void (*clear)(void *context);
} shard_node_type;

/* The receiver of an input's gradient, and the gradient's shape, dtype, device and placement. */
typedef struct shard_edge {
    shard_node *node;   /* that made it, */
    shard_tensor *leaf; /* or the leaf itself; both NULL: no gradient wanted */
    shard_shape shape;
    shard_dtype dtype;
    shard_device *device;
    shard_placement placement;
} shard_edge;

struct shard_node {
    shard_history history; /* first: a tensor's history is its node */
    const shard_node_type *type;
    const char *name; /* the type's, or that of a custom operation */
    int references;
    uint64_t sequence; /* a node comes after those that made its inputs */
    uint64_t visit;    /* the walk that has seen it */
    int inputs;
    shard_edge edge[SHARD_NODE_INPUTS];
    shard_tensor *saved[SHARD_NODE_SAVED];
    uint64_t saved_version[SHARD_NODE_SAVED];
    shard_placement placement; /* of its result */
    shard_group *group;        /* over which the operation has made the result the same on every rank, or NULL */
    shard_tensor *gradient;    /* with respect to its result, while backward runs */
    bool spent;                /* backward has freed what it saved */
    bool incomplete;           /* there was no memory to save a tensor: its backward is an error */
    void *context;             /* the operation's arguments */
    shard_node *next;          /* among those that are about to be freed */
};

/* The node that made a tensor, NULL for a leaf. */
static inline shard_node *shard_node_of(const shard_tensor *tensor)
{
    return (shard_node *)tensor->history;
}

#define SHARD_INPUTS(...) \
    (int)(sizeof((shard_tensor *[]){__VA_ARGS__}) / sizeof(shard_tensor *)), (shard_tensor *[]){__VA_ARGS__}

/* Makes y the result of a node of that type with context_bytes of zeroed context
 * (node->context). NULL without an error if nothing is to be recorded: no-grad
 * mode, or no input requires a gradient. NULL inputs are allowed (no bias). NULL
 * with the error set if there is no memory; y then has no history. */
shard_node *shard_record(const shard_node_type *type, shard_tensor *y, int inputs, shard_tensor *const *input,
                         size_t context_bytes);
/* Names the node in messages by the public function, "shard_mean", where several have one type. A NULL node is fine. */
static inline void shard_name_node(shard_node *node, const char *function)
{
    if (node)
        node->name = function + sizeof "shard_" - 1;
}

/* Whether shard_record would record: for what is only computed for the backward. */
bool shard_will_record(int inputs, shard_tensor *const *input);

/* Keeps a tensor's memory (not its history) for the backward. A NULL node or
 * tensor is fine. */
void shard_save_for_backward(shard_node *node, int slot, shard_tensor *tensor);
/* In backward: what was saved, NULL if nothing. An error (NULL) if it has been
 * written to since. */
shard_tensor *shard_saved(shard_node *node, int slot);
/* The same for the first slots: saved [count]. False with the error set. */
bool shard_saved_all(shard_node *node, int count, shard_tensor **saved);

/* The same for a caller that keeps tensors elsewhere: it gets the reference; NULL with the error set. */
shard_tensor *shard_keep_for_backward(shard_tensor *tensor);
/* Frees what backward needed. */
void shard_node_clear(shard_node *node);

static inline bool shard_wants(const shard_node *node, int input)
{
    return node->edge[input].node || node->edge[input].leaf;
}

/* In backward: a new tensor shaped and placed like input i, to be dx[i]. */
shard_tensor *shard_make_gradient(shard_node *node, int input);

/* The same where the operation can write straight into a leaf's gradient buffer,
 * as for a weight too large to have twice: *accumulate says whether to add to what
 * is there or to overwrite. */
shard_tensor *shard_gradient_target(shard_node *node, int input, bool *accumulate);

/* The groups over which the gradient of input i will be a pending sum, for a dx that is placed as this one. For
 * callers that need them before dx is passed on. */
shard_status shard_gradient_pending_sums(const shard_node *node, int input, const shard_tensor *dx, shard_pending_sums *pending);
/* The leaf's gradient buffer without its memory, to be dx[i] if another caller has
 * taken the gradient already (shard_rows). */
shard_tensor *shard_gradient_taken(shard_node *node, int input);

/* Runs the backward of one node for node->gradient, in a scope of its own: dx[i], which the caller releases, for each input
 * that wants a gradient, else NULL. Neither sums nor adds up gradients. */
shard_status shard_node_backward(shard_node *node, shard_tensor **dx);

/* Calls the functions that watch a leaf's gradient: when it is complete, or before a caller that takes it
 * earlier. */
void shard_call_watches(shard_tensor *leaf);

/* Calls function once, when the running backward has walked the whole record or failed, however many times it was asked for with
 * the same context; with `last` after those without. */
shard_status shard_at_backward_end(shard_status (*function)(void *context), void *context, bool last);

/* Whether this thread runs a backward. */
bool shard_in_backward(void);

#endif
