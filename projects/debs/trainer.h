/* A training run: the data, the network, the objects that train it, and its position. */
#ifndef DEBS_TRAINER_H
#define DEBS_TRAINER_H

#include "measures.h"
#include "network.h"
#include "training_loop.h"

typedef struct trainer {
    training_run base;
    const options *options;
    xmc_data *train, *test;
    double *inverse; /* propensities of the labels */
    shard_group_sampler *sampler;
    shard_group_sampler *test_sampler;
    int64_t *points; /* of this rank in a step */
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the file of --resume. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* The features of this rank's points, gathered over the model group, in the last layer's dtype: [points of the group, hidden].
 * NULL with the error set. Collective over the model group. */
shard_tensor *trainer_features(trainer *run, const xmc_data *data, const int64_t *points, int64_t count, uint64_t dropout_key);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* ---- evaluate.c ---- */

/* The network's measures on the test set; *interrupted if that was not completed. Collective over the world. */
shard_status evaluate(trainer *run, measures *whole, bool *interrupted);

#endif
