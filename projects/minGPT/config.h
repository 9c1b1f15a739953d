/* The sizes of a GPT, by name or from config.json, the file that Hugging Face's transformers has next to a checkpoint. */
#ifndef MINGPT_CONFIG_H
#define MINGPT_CONFIG_H

#include <shard/base.h>

#define GPT_MOST_LAYERS 256
#define GPT_DROPOUT 0.1 /* of GPT2Config */
#define GPT_MOST_DROPOUT 0.99

typedef struct gpt_config {
    int64_t vocab_size, block_size, n_layer, n_head, n_embd; /* n_head divides n_embd */
    double embd_pdrop, resid_pdrop, layer_norm_epsilon;
    bool tie_word_embeddings; /* the head's weight is the token embedding's */
} gpt_config;

/* minGPT's model types. */
typedef struct gpt_type_sizes {
    const char *name; /* NULL ends the list */
    int64_t n_layer, n_head, n_embd;
} gpt_type_sizes;
extern const gpt_type_sizes gpt_types[];

/* Reads a file of model_type gpt2. Errors: IO; FORMAT, no such file, or a number that is out of range; UNSUPPORTED, a network
 * that differs from GPT-2's. */
shard_status config_read(gpt_config *config, const char *path);

/* Writes a file that GPT2LMHeadModel.from_pretrained reads. end_of_text: the token's number, -1 for none. Errors: IO. */
shard_status config_write(const gpt_config *config, const char *path, int64_t end_of_text);

/* Whether both are the same function of the same parameters; dropout may differ. */
bool config_is_same_network(const gpt_config *a, const gpt_config *b);

#endif
