/*
 * Deferred gradients: gradients of leaves that are not in memory. A source has what they are computed from. They are
 * computed, all gradients of the source at once, when the values of one are needed. An optimizer's step can pass over the
 * gradient of a matrix in runs of rows instead, and update the matrix by each run: the gradient then never exists as a
 * whole (optim/deferred.c).
 *
 * The storage of a deferred gradient has a materializer; other code needs to know nothing else. Computing is not
 * collective.
 */
#ifndef SHARD_AUTOGRAD_DEFERRED_H
#define SHARD_AUTOGRAD_DEFERRED_H

#include "autograd/autograd.h"

typedef struct shard_gradient_source shard_gradient_source;

enum { SHARD_SOURCE_MATRIX, SHARD_SOURCE_VECTOR, SHARD_SOURCE_GRADIENTS };

typedef struct shard_gradient_source_type {
    /* An error if what the gradients are computed from was written to. */
    shard_status (*check)(const shard_gradient_source *);
    /* Writes the gradients to memory[SHARD_SOURCE_...], apart from those that are NULL. With `take` the matrix's
     * gradient is passed to it. */
    shard_status (*compute)(shard_gradient_source *, void *const *memory, shard_take_rows *take, void *context);
    void (*destroy)(shard_gradient_source *);
} shard_gradient_source_type;

struct shard_gradient_source {
    const shard_gradient_source_type *type;
    int references;
    shard_storage *gradient[SHARD_SOURCE_GRADIENTS]; /* deferred gradients, which have the references; NULL: none */
};

void shard_gradient_source_unref(shard_gradient_source *source);

/* ---- in backward ---- */

/* Whether the gradient of the input may be deferred: it is that of a leaf with defers_grad whose gradient nobody takes
 * when it is complete. */
bool shard_may_defer(const shard_node *node, int input);
/* A deferred gradient to be dx[input], of which the source computes gradient number `which`. */
shard_tensor *shard_make_deferred(shard_node *node, int input, shard_gradient_source *source, int which);
/* The source of the leaf's gradient so far, if that is deferred, and a gradient that is added to it has the same pending
 * sums; NULL: none. */
shard_gradient_source *shard_source_to_extend(const shard_node *node, int input);

/* ---- for optimizers ---- */

/* The source of a matrix's deferred gradient; NULL if its values are in memory. */
shard_gradient_source *shard_source_of_matrix(const shard_tensor *gradient);
/* Passes the matrix's gradient to `take` as shard_take_gradient_rows, and computes the source's other gradients, which are in
 * memory then. */
shard_status shard_source_pass(shard_gradient_source *source, shard_take_rows *take, void *context);

#endif
