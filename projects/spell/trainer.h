/* A training run: the words, the network, the objects that train it, and its position. */
#ifndef SPELL_TRAINER_H
#define SPELL_TRAINER_H

#include "network.h"
#include "training_loop.h"

typedef struct trainer {
    training_run base;
    shard_data_parallel *head_data_parallel; /* the base's has the encoder alone */
    const options *options;
    words *dictionary;
    typed_words *test; /* NULL: DIR has none */
    pairs *pairs;
    int64_t epoch_pairs;
    shard_group_sampler *sampler;
    shard_group_sampler *test_sampler; /* NULL without a test */
    int64_t *samples;                  /* of this rank in a step: indices of pairs, or of test words */
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

/* The features of this rank's words, gathered over the model group: [words of the group, dim], of the norm; those of the norm
 * --scale are the last layer's inputs, before they have its dtype. NULL with the error set. Collective over the model group. */
shard_tensor *trainer_features(trainer *run, const char *const *word, int64_t count, double norm);

/* Sets the last layer's rows to the features of the words. Collective over the world with --enable-zero-optim 3, else not. */
shard_status trainer_set_rows(trainer *run);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* ---- loss.c ---- */

/* training_loop's backward, of a trainer: the loss of the model group's pairs, and the gradient of the mean over the whole batch.
 */
shard_status loss_backward(void *of, training_batch *made);

/* ---- evaluate.c ---- */

/* The accuracy on the whole test; *interrupted if that was not completed. Collective over the world. */
shard_status evaluate(trainer *run, accuracy *whole, bool *interrupted);

/* ---- correct.c ---- */

/* Reads words from `in` and prints --top-k corrections of each. On one rank. */
shard_status correct(trainer *run, FILE *in, FILE *out);

#endif
