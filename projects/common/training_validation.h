/* A validation over the batches of a sampler, each sample once, on any number of ranks. */
#ifndef COMMON_TRAINING_VALIDATION_H
#define COMMON_TRAINING_VALIDATION_H

#include "training_run.h"

#include <shard/data.h>

typedef struct training_validation {
    training_run *run;
    shard_group_sampler *sampler;
    int64_t *samples; /* of this rank in a batch */
    void *of;
    /* Adds the results of the batch's samples to `sums`; count: this rank's, at times 0. Recording is off. */
    shard_status (*add)(void *of, int64_t count);
    /* Writes the results so far, as this rank has them. NULL: nothing. */
    void (*describe)(const void *of, char *text, size_t bytes);
    double *sums; /* [count]: at the end over the world */
    int64_t count;
} training_validation;

/* Goes over all batches, with the model in its evaluation mode. *local_samples: this rank's; *interrupted: a signal ended it, and
 * the sums are not complete. Collective over the world. */
shard_status training_validate(const training_validation *over, int64_t *local_samples, bool *interrupted);

#endif
