/* The inside of a module, for the files of this folder. */
#ifndef SHARD_NN_NN_H
#define SHARD_NN_NN_H

#include <shard/nn.h>

#include "tensor/scope.h"
#include "tensor/tensor.h"

/* How a layer is split over ranks. */
typedef struct shard_layer_split {
    shard_split split;
    shard_group *group; /* NULL if it is not split */
    int64_t multiple;   /* each shard's size is a multiple of this; at least 1 */
} shard_layer_split;

/* A kind of layer that can be split: the functions for its makers and the conversion. */
typedef struct shard_split_layer {
    const char *name;  /* "linear" */
    int weight_dim[3]; /* the dimension that is split, by shard_split; -1: none */
    int bias_dim[3];
    /* NULL if the module is of another kind. */
    const shard_layer_split *(*split_of)(const shard_module *module);
    /* Makes a layer with old's settings and these parameters, of which it takes references; bias NULL: none. */
    shard_module *(*rebuild)(const shard_module *old, shard_layer_split, shard_tensor *weight, shard_tensor *bias);
} shard_split_layer;

extern const shard_split_layer shard_split_linear, shard_split_classifier, shard_split_embedding;

/* ARGUMENT, in the name of the public function, if split is none of the three values. */
shard_status shard_check_split(const char *function, shard_split split);

/* ARGUMENT, in the name of the public function, unless the dtype of a layer is floating. */
shard_status shard_check_layer_dtype(const char *function, shard_dtype dtype);

/* ARGUMENT, in the name of the public function, unless the split features are a multiple of a split_multiple. */
shard_status shard_check_multiple(const char *function, int64_t features, int64_t multiple);

/* The local shard along dim (-1: all) of a tensor of that whole shape whose values come from a recipe: `make` makes
 * a tensor of a given shape. */
shard_tensor *shard_make_shard(shard_shape whole, int dim, shard_layer_split split,
                               shard_tensor *(*make)(shard_shape shape, const void *context), const void *context);

/* Replaces old by another module, in its parent too if it has one, and destroys old. */
void shard_module_replace(shard_module *old, shard_module *module);

/* Calls function for the module and all modules below it, each before its children. */
void shard_module_each(shard_module *module, void (*function)(shard_module *, void *), void *context);

/* x as the rows that torch.flatten(x, 1) makes of the same values: images [n, h, w, c] in the order [n, c, h, w]. */
shard_tensor *shard_flatten_rows(shard_tensor *x);

/* The name of the module's type, for messages. */
const char *shard_module_type_name(const shard_module *module);

/* Marks the values of the module and all modules below it as not in use, so that values that can be materialized
 * again may be evicted. Called at the end of shard_forward. */
void shard_module_rest(shard_module *module);

/* The destroy function of types whose data is one allocation. */
void shard_module_free(shard_module *module);

/* Makes a module with a copy of the data, of a type that shard_module_free destroys. NULL with the error set. */
shard_module *shard_module_make(const shard_module_type *type, const void *data, size_t bytes);

bool shard_module_has_parent(const shard_module *module);

/* shard_module_add_child; after an error the child is still the caller's. */
shard_status shard_module_append(const char *function, shard_module *module, const char *name, shard_module *child);

/* Destroys a module that could not be added to a parent, unless it has one already. NULL is fine. */
void shard_module_abandon(shard_module *module);

/* Returns the module if status is OK, else destroys it and returns NULL. */
shard_module *shard_module_checked(shard_module *module, shard_status status);

#endif
