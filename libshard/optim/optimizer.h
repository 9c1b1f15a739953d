/* What every optimizer is made of: a table of functions over one parameter. */
#ifndef SHARD_OPTIM_OPTIMIZER_H
#define SHARD_OPTIM_OPTIMIZER_H

#include <shard/optim.h>

#include "tensor/tensor.h"

#define SHARD_OPTIMIZER_STATES 2 /* tensors of state a parameter, at most */

typedef struct shard_slot {
    const char *name;
    shard_tensor *parameter; /* the list's */
    shard_tensor *step; /* int64, on the host: how many were made of this parameter */
    shard_tensor *state[SHARD_OPTIMIZER_STATES]; /* NULL until it is needed */
} shard_slot;

typedef struct shard_optimizer_ops {
    const char *name;
    int states;
    const char *state_name[SHARD_OPTIMIZER_STATES];
    /* One step of one parameter, whose gradient is there; step counts its own from 1, and
     * in the first one the state holds nothing yet. */
    shard_status (*step)(shard_optimizer *, shard_slot *, int64_t step);
} shard_optimizer_ops;

struct shard_optimizer {
    const shard_optimizer_ops *ops;
    shard_tensors *parameters;
    shard_slot *slots;
    int64_t count;
    double lr;
    void *settings; /* the optimizer's own, freed with it */
};

/* Takes parameters and settings over, even when it fails. */
shard_optimizer *shard_optimizer_make(const shard_optimizer_ops *ops, shard_tensors *parameters, double lr, void *settings);

#endif
