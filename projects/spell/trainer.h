/* A training run: the words, the network, the objects that train it, and its position. */
#ifndef SPELL_TRAINER_H
#define SPELL_TRAINER_H

#include "metrics.h"
#include "network.h"
#include "progress.h"
#include "training_checkpoint.h"
#include "training_optimizers.h"

typedef struct trainer {
    const options *options;
    words *dictionary;
    typed_words *test; /* NULL: DIR has none */
    pairs *pairs;
    int64_t epoch_pairs;
    shard_mesh *mesh;
    shard_group *model_group; /* the ranks of one final layer: they gather their words' features before it */
    shard_module *network;
    shard_data_parallel *data_parallel; /* this and the following: NULL if the run does not train */
    training_optimizers optimizers;
    shard_group_sampler *sampler;
    shard_group_sampler *test_sampler; /* NULL without a test */
    int64_t *samples;                  /* of this rank in a step: indices of pairs, or of test words */
    training_checkpoint checkpoint;
    training_position at;
    bool resumed;
    progress progress;
    metrics *metrics;
} trainer;

/* Measures of the test, in percent. */
typedef struct accuracy {
    double top1, top5;
} accuracy;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the file of --resume. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* Whether this epoch trains the encoder alone. */
bool trainer_is_tied(const trainer *run);

/* Whether epochs end with a validation: DIR has a test, and --val-interval is not 0. */
bool trainer_validates(const trainer *run);

/* The features of this rank's words, gathered over the model group: [words of the group, dim], of the norm; those of the norm
 * --scale are the final layer's inputs, before they have its dtype. NULL with the error set. Collective over the model group. */
shard_tensor *trainer_features(trainer *run, const char *const *word, int64_t count, double norm);

/* Sets the final layer's rows to the features of the words. Collective over the world with --enable-zero-optim 3, else not. */
shard_status trainer_set_rows(trainer *run);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* ---- loss.c ---- */

/* The loss of the model group's pairs, and the gradient of the mean over the whole batch, scaled by the optimizers' scaler.
 * Collective over the world. */
shard_status loss_backward(trainer *run, int64_t count, double *loss_sum);

/* ---- evaluate.c ---- */

/* The accuracy on the whole test; *interrupted if that was not completed. Collective over the world. */
shard_status evaluate(trainer *run, accuracy *whole, bool *interrupted);

/* ---- correct.c ---- */

/* Reads words from `in` and prints --top-k corrections of each. On one rank. */
shard_status correct(trainer *run, FILE *in, FILE *out);

#endif
