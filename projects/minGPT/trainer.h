/* A run: the text, the network, the objects that train it, and its position. */
#ifndef MINGPT_TRAINER_H
#define MINGPT_TRAINER_H

#include "gpt.h"
#include "options.h"
#include "text.h"
#include "training_loop.h"

/* The tokens of a text. Block i begins with token shift + i * block_size; the target of a token is the next token. */
typedef struct token_set {
    int32_t *token;
    int64_t count, blocks; /* blocks: of training those that fit at any shift, of validation those at shift 0 */
    int64_t bytes;         /* of the text */
} token_set;

typedef struct trainer {
    training_run base;
    const options *options;
    tokenizer *tokenizer;
    token_set sets[TEXT_SETS];
    gpt_config config;
    shard_group_sampler *sampler; /* of micro-batches */
    int64_t steps;                /* of an epoch; 0: the run only validates */
    shard_group_sampler *val_sampler;
    int64_t *blocks; /* of this rank in a micro-batch */
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the files of --init-from and --resume. With --generate the network and the tokenizer alone.
 * Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* The tokens of blocks and their targets, int64 [count, block_size]. */
shard_status trainer_blocks(const trainer *run, int set, int64_t shift, const int64_t *blocks, int64_t count,
                            shard_tensor **tokens, shard_tensor **targets);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* ---- evaluate.c ---- */

/* The mean loss of the validation set; *interrupted if that was not completed. Collective over the world. */
shard_status evaluate(trainer *run, double *loss, bool *interrupted);

/* ---- generate.c ---- */

/* Prints continuations of --prompt; after a Ctrl-C as far as they are. Collective over the world. */
shard_status generate(trainer *run);

#endif
