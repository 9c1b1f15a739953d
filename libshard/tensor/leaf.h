/*
 * The part of a tensor that leaves have: tensors that no operation made. It has the gradient, and what the folders after
 * this one keep for a parameter. This folder frees it and does not read it, apart from the recipe of initial values and
 * the flat range.
 */
#ifndef SHARD_TENSOR_LEAF_H
#define SHARD_TENSOR_LEAF_H

#include <shard/tensor.h>

#include "base/error.h"
#include "base/random.h"

/* How the values of a tensor are made when they are first needed. A value depends on the element's index in the
 * whole tensor, so that a layer can be split before its parameters have memory. */
typedef enum shard_recipe_kind {
    SHARD_NO_RECIPE = 0,
    SHARD_CONSTANT,
    SHARD_UNIFORM,
    SHARD_NORMAL,
    SHARD_TRUNCATED_NORMAL,
} shard_recipe_kind;
typedef struct shard_recipe {
    shard_recipe_kind kind;
    double a, b;      /* value; low, high; mean, std */
    double low, high; /* of a truncated normal */
    shard_draw draw;
    bool pads; /* the row zero_row of the whole matrix is zeros */
    int64_t zero_row;
} shard_recipe;

/* A flat range of another tensor whose elements are partitioned over a group: the elements from `start` on, counted
 * row-major. The ranges of the ranks follow each other; a range may be empty. */
typedef struct shard_flat_range {
    shard_group *group;
    int64_t start;
    shard_shape shape; /* of the other tensor, which may itself be a local shard */
    shard_placement placement;
} shard_flat_range;

/* Data computed from a tensor's values at their current address. Released when the values move or the tensor is
 * freed. */
typedef struct shard_derived {
    void (*release)(struct shard_derived *);
} shard_derived;

/* A callback for when a leaf's gradient is complete, in the leaf's list. */
typedef struct shard_watch {
    void (*function)(shard_tensor *leaf, void *context);
    void *context;
    struct shard_watch *next; /* the next callback, in the order of registration */
} shard_watch;

typedef struct shard_leaf {
    shard_recipe recipe; /* of values that were not made yet */

    shard_tensor *grad; /* its memory may stay when it has no value */
    bool has_grad;      /* grad has a value */
    shard_tensor *grad_range; /* the flat range whose gradient is this one's sum over ranks; NULL: none. No reference */
    bool defers_grad;   /* its gradient is deferred where the operation can (autograd/deferred.h) */
    /* Not NULL: and grad_ready gathers what it is computed from; grad is the only one in its storage. The same for leaves that
     * are gathered together. */
    const shard_tensor *gathers_grad;
    int grad_uses;      /* uses whose gradients backward has not added yet */
    /* Called when grad_uses reaches 0: first the watches, then grad_ready, which may change the gradient. */
    shard_watch *grad_watches;
    void (*grad_ready)(shard_tensor *leaf, void *context);
    void *grad_ready_context;

    shard_group *replicas;
    shard_flat_range *flat_range; /* NULL: the tensor is no flat range of another tensor */
    shard_tensor *local_range;    /* of a tensor with a materializer: the flat range that this rank has; a reference */
    bool optional;                /* zeros until it is first written to; until then files do not have it and need not have it */
    bool exchanged;               /* an average that has its parameter's values, and the parameter the average's */
    shard_derived *derived;
    struct shard_rows *rows; /* op/rows.h, of a weight that is streamed in row blocks; reset by the code that set it */
} shard_leaf;

/* Without any value. */
extern const shard_leaf shard_no_leaf;

/* The tensor's leaf part, made if it has none; NULL with the error set. */
shard_leaf *shard_make_leaf(shard_tensor *tensor);
/* Frees the leaf part, if there is one. */
void shard_free_leaf(shard_leaf *leaf);
/* Releases the derived data. */
void shard_leaf_release_derived(shard_leaf *leaf);
/* Sets the flat range of another tensor that this tensor is. */
shard_status shard_tensor_set_flat_range(shard_tensor *tensor, const shard_flat_range *range);

/* ---- recipes ---- */

/* The recipe is not followed: the values were written. */
void shard_tensor_forget_recipe(shard_tensor *tensor);
/* Memory for values of which the recipe does not make any first. NULL with the error set: the recipe is still to be followed. */
void *shard_tensor_memory_to_replace(shard_tensor *tensor);
/* Sets the recipe of the tensor's values. They are made now if the tensor has memory, also if ranks keep flat ranges
 * of it (each rank makes its flat range), else when they are first needed. Counts as a write. */
shard_status shard_tensor_set_recipe(shard_tensor *tensor, shard_recipe recipe);
/* Writes the values of the tensor's recipe to memory; `_in`: of a matrix, the values of a region of the whole. */
shard_status shard_recipe_follow(shard_tensor *tensor, void *memory);
shard_status shard_recipe_follow_in(const shard_tensor *tensor, const shard_region *region, void *memory);
/* ARGUMENT, in the name of the public function, if no distribution has these parameters. */
shard_status shard_check_uniform(const char *function, shard_dtype dtype, double low, double high);
shard_status shard_check_normal(const char *function, shard_dtype dtype, double mean, double std);
shard_status shard_check_truncated(const char *function, shard_dtype dtype, double mean, double std, double low, double high);

#endif
