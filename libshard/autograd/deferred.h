/*
 * Deferred gradients: gradients of leaves that are not in memory. A source has what they are computed from. They are
 * computed, all gradients of the source at once, when the values of one are needed. An optimizer's step can pass over the
 * gradient of a matrix in runs of rows instead, and update the matrix by each run: the gradient then never exists as a
 * whole (optim/deferred.c).
 *
 * The storage of a deferred gradient has a materializer; other code needs to know nothing else. Computing is not
 * collective, also with replicas: these gather what the source has, so that each computes the gradient of all of them
 * (parallel/engine.c).
 */
#ifndef SHARD_AUTOGRAD_DEFERRED_H
#define SHARD_AUTOGRAD_DEFERRED_H

#include "autograd/autograd.h"
#include "device/head.h"

typedef struct shard_gradient_source shard_gradient_source;

enum { SHARD_SOURCE_MATRIX, SHARD_SOURCE_VECTOR, SHARD_SOURCE_GRADIENTS };

/* A replica's source, compared before the replicas gather. */
typedef struct shard_source_facts {
    uint64_t hash;              /* of all that must be the same on each replica; 0: there is no source */
    int64_t rows, pairs, bytes; /* that the replica adds */
    int64_t gathered_bytes;     /* that all replicas have already */
    bool sampled;               /* it is of sampled classes: a step leaves the other rows as they are */
} shard_source_facts;

/* Takes the gradient of rows of a matrix, in runs, as shard_take_gradient_rows. take NULL: it is not computed, but the vector's. */
typedef struct shard_row_receiver {
    shard_take_rows *take;
    shard_status (*take_list)(void *context, shard_device *, const shard_row_list *, void *gradient); /* as of shard_head_gradient */
    shard_status (*take_product)(void *context, shard_device *, int64_t first, int64_t count,
                                 const shard_update_product *); /* as of shard_head_gradient */
    void *context;
    shard_row_array updated[SHARD_UPDATE_ARRAYS]; /* as of shard_head_gradient, from the first of the rows on */
    int updated_arrays;
} shard_row_receiver;

typedef struct shard_gradient_source_type {
    /* An error if what the gradients are computed from was written to. */
    shard_status (*check)(const shard_gradient_source *);
    /* Writes the gradients to memory[SHARD_SOURCE_...], apart from those that are NULL. With a receiver the gradient of these
     * rows of the matrix is passed to it, and of the vector the same rows are written. */
    shard_status (*compute)(shard_gradient_source *, shard_range rows, void *const *memory, const shard_row_receiver *);
    shard_status (*describe)(shard_gradient_source *, shard_source_facts *facts);
    /* Replaces the rows that were added since the last call by those of all ranks, each times that rank's `scale`. facts: of
     * each rank. Collective over the group, also after an error. */
    shard_status (*gather)(shard_gradient_source *, shard_group *, const shard_source_facts *facts, double scale);
    void (*destroy)(shard_gradient_source *);
} shard_gradient_source_type;

/* A gradient's elements are limited to [-bound / *scale, bound / *scale] whenever it is computed. */
typedef struct shard_source_clip {
    shard_device *device; /* NULL: they are not limited */
    double bound, *scale; /* device memory; NULL: 1 */
    int64_t columns;      /* elements of a row */
    shard_dtype dtype;    /* of the gradient */
} shard_source_clip;

struct shard_gradient_source {
    const shard_gradient_source_type *type;
    int references;
    shard_source_clip clip[SHARD_SOURCE_GRADIENTS];
    bool gathered;                                   /* since rows were added */
    shard_storage *gradient[SHARD_SOURCE_GRADIENTS]; /* deferred gradients, which have the references; NULL: none */
};

void shard_gradient_source_unref(shard_gradient_source *source);

/* ---- in backward ---- */

/* Whether the gradient of the input may be deferred: it is that of a leaf with defers_grad whose gradient no function
 * takes when it is complete. */
bool shard_may_defer(const shard_node *node, int input);
/* A deferred gradient to be dx[input], of which the source computes gradient number `which`. */
shard_tensor *shard_make_deferred(shard_node *node, int input, shard_gradient_source *source, int which);
/* The source of the leaf's gradient so far, if that is deferred, and a gradient that is added to it has the same pending
 * sums; NULL: none. */
shard_gradient_source *shard_source_to_extend(const shard_node *node, int input);

/* Makes the leaf's gradient, which has no value any more, an ordinary one, or NULL if it is not of an engine's memory. */
void shard_remove_deferred(shard_tensor *leaf);

/* ---- for optimizers and engines ---- */

/* The source of a deferred gradient; NULL if its values are in memory. */
shard_gradient_source *shard_source_of(const shard_tensor *gradient);
/* The same, of a matrix. */
shard_gradient_source *shard_source_of_matrix(const shard_tensor *gradient);
/* Of replicas: gathers what the source (NULL: none) of the gradient of a matrix of `bytes` has, each rank's times its `scale`.
 * *gathered is set to whether that was done: not if the ranks' sources differ, or if they have more bytes together than a
 * gradient that is not of sampled classes, which may as well be in memory. Collective over the group, also after an error. */
shard_status shard_source_gather(shard_gradient_source *source, shard_group *group, size_t bytes, double scale, bool *gathered);
/* Limits the elements of a deferred gradient, in rows of `columns` elements, to [-bound, bound], where *scale (device memory;
 * NULL: 1) times the gradient is meant. It stays deferred, unless it has been limited before. */
shard_status shard_source_clip_value(shard_tensor *gradient, int64_t columns, double bound, const double *scale);
/* Passes the gradient of these rows of the matrix to the receiver, and computes the source's other gradients, which are in memory
 * until they are evicted: of these rows, the others are 0. All stay deferred. */
shard_status shard_source_pass(shard_gradient_source *source, shard_range rows, const shard_row_receiver *);
void shard_source_evict(shard_gradient_source *source);
/* The last pass: gradients that are in memory afterwards stay there, and are not deferred any more. NULL: all are. */
shard_status shard_source_finish(shard_gradient_source *source, shard_range rows, const shard_row_receiver *);

#endif
