/*
 * The optimizers of a run and the learning rate's schedule, as training_options.h has them. One optimizer steps all layers, or
 * the final layer has its own; two step together, by gradients that are clipped by their common norm.
 */
#ifndef COMMON_TRAINING_OPTIMIZERS_H
#define COMMON_TRAINING_OPTIMIZERS_H

#include "training_options.h"

typedef struct training_optimizers {
    shard_optimizer *of[2]; /* the final layer's is the second */
    int count;
    shard_schedule schedule;
    double lr[2]; /* of the schedule's begin */
    double clip_grad;
} training_optimizers;

/* head_prefix: of the names of the final layer's parameters, "fc."; epoch_steps: the steps of an epoch. Not collective.
 * training_optimizers_close follows, also after an error. */
shard_status training_optimizers_open(training_optimizers *made, const training_options *wanted, const head_options *head,
                                      const shard_tensors *parameters, const char *head_prefix, int64_t epoch_steps);
void training_optimizers_close(training_optimizers *made);

/* Sets the learning rates of step 0, 1, and so on; returns --lr's. */
double training_optimizers_set_lr(training_optimizers *made, int64_t step);

/* Clips the gradients and steps. Collective over the world. */
shard_status training_optimizers_step(training_optimizers *made);

/* Adds the optimizers' state; names are the parameters', so that they are of one optimizer or of two. */
shard_status training_optimizers_add_state(const training_optimizers *made, shard_tensors *all, const char *prefix);

#endif
