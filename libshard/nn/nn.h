/* The inside of a module, for the files of this folder. */
#ifndef SHARD_NN_NN_H
#define SHARD_NN_NN_H

#include <shard/nn.h>

#include "tensor/scope.h"
#include "tensor/tensor.h"

/* What a linear layer is, plain or parallel: the conversion reads it. */
typedef struct shard_linear_data {
    int64_t in, out;
    shard_split split;
    shard_group *group;
} shard_linear_data;

/* NULL if the module is neither. */
shard_linear_data *shard_linear_of(const shard_module *module);

/* A parallel linear layer of those parameters, whose shares it takes. */
shard_module *shard_linear_from(shard_linear_data what, shard_tensor *weight, shard_tensor *bias);

/* Puts another module in a child's place; the old one is destroyed. */
void shard_module_replace_child(shard_module *module, int index, shard_module *child);

/* Calls function for the module and all below it, each before its children. */
void shard_module_each(shard_module *module, void (*function)(shard_module *, void *), void *context);

/* Nobody has pointers to the values of the module and of all below it any more: those that
 * are elsewhere too may go. shard_forward does it at its end. */
void shard_module_rest(shard_module *module);

/* destroy of the types whose data is one allocation. */
void shard_module_free(shard_module *module);

/* The module with what was added to it, or NULL after destroying it if that failed. */
shard_module *shard_module_checked(shard_module *module, shard_status status);

#endif
