/* The inside of a module, for the files of this folder. */
#ifndef SHARD_NN_NN_H
#define SHARD_NN_NN_H

#include <shard/nn.h>

#include "tensor/scope.h"
#include "tensor/tensor.h"

/* How a layer is split over ranks. */
typedef struct shard_layer_split {
    shard_split split;
    shard_group *group; /* NULL where it is not split */
    int64_t multiple;   /* of which each shard's size is one; 0 is 1 */
} shard_layer_split;

/* A kind of layer that can be split: what its makers and the conversion have in common. */
typedef struct shard_split_layer {
    const char *name;  /* "linear" */
    int weight_dim[3]; /* the dimension that is split, by shard_split; -1: none */
    int bias_dim[3];
    /* NULL if the module is no such layer. */
    const shard_layer_split *(*split_of)(const shard_module *module);
    /* One of old's settings, with these parameters, of which it takes a reference; bias NULL: none. */
    shard_module *(*rebuild)(const shard_module *old, shard_layer_split, shard_tensor *weight, shard_tensor *bias);
} shard_split_layer;

extern const shard_split_layer shard_split_linear, shard_split_embedding;

/* split, or an error (ARGUMENT) of that public function: none of the three. */
shard_status shard_check_split(const char *function, shard_split split);

/* The local shard along dim (-1: all) of a tensor of that whole shape whose values come from a recipe: `make`
 * gives a tensor of the shape that it is asked for. */
shard_tensor *shard_make_shard(shard_shape whole, int dim, shard_layer_split split,
                               shard_tensor *(*make)(shard_shape shape, const void *context), const void *context);

/* Puts another module in the place of old, in its parent too if it has one, and destroys old. */
void shard_module_replace(shard_module *old, shard_module *module);

/* Calls function for the module and all below it, each before its children. */
void shard_module_each(shard_module *module, void (*function)(shard_module *, void *), void *context);

/* Nobody has pointers to the values of the module and of all below it any more: those that
 * are elsewhere too may go. shard_forward does it at its end. */
void shard_module_rest(shard_module *module);

/* destroy of the types whose data is one allocation. */
void shard_module_free(shard_module *module);

/* Destroys a module that was to be another one's child, unless somebody else has it as one. NULL is fine. */
void shard_module_abandon(shard_module *module);

/* The module with what was added to it, or NULL after destroying it if that failed. */
shard_module *shard_module_checked(shard_module *module, shard_status status);

#endif
