/* The values of the command line. */
#ifndef MINGPT_OPTIONS_H
#define MINGPT_OPTIONS_H

#include "config.h"
#include "tokenizer.h"
#include "training_options.h"

#define OPTIONS_VOCAB_SIZE 4096
#define OPTIONS_AUTO (-1) /* that of --init-from, else the program's own */

typedef struct options {
    const char *text;      /* TEXT */
    const char *init_from; /* a folder of transformers */
    int tokenizer;         /* options_tokenizer, or OPTIONS_AUTO */
    int64_t vocab_size;    /* 0: that of --init-from, else OPTIONS_VOCAB_SIZE */
    int model_type;        /* of gpt_types, or OPTIONS_AUTO */
    int64_t n_layer, n_head, n_embd, block_size; /* 0: those of the model type, or of --init-from */
    int tie_word_embeddings;                     /* or OPTIONS_AUTO */
    double embd_pdrop, resid_pdrop;              /* or OPTIONS_AUTO */
    int64_t accumulate;
    training_options training;
    head_options parallel; /* --enable-model-parallel and --model-parallel-size */
    bool generate, do_sample;
    const char *prompt;
    int64_t max_new_tokens, num_samples, top_k;
    double temperature;
    bool help;
} options;

typedef enum options_tokenizer { OPTIONS_CHAR = 0, OPTIONS_BPE } options_tokenizer;

/* The command line. */
extern const command_line options_line;

/* ARGUMENT for options that do not fit together. `values`: options. */
shard_status options_check(void *values);

/* The network's sizes: of config.json with --init-from, else of the options. Errors: ARGUMENT, an option that differs from the
 * files of --init-from; those of config_read. */
shard_status options_config(const options *wanted, const tokenizer *tokens, gpt_config *config);

#endif
