/*
 * GPT-2: token and position embeddings, blocks of causal attention and an MLP, a final layer norm, and a head whose weight is the
 * token embedding's (tied) or its own.
 *
 *     x = drop(wte[tokens] + wpe[positions])                  [samples, tokens, n_embd]
 *     x = x + drop(c_proj(attention(q(ln_1(x)), k(...), v(...))))      n_layer times
 *     x = x + drop(c_proj(gelu(c_fc(ln_2(x)))))
 *     x = ln_f(x), logits = x head^T
 *
 * Over a group the vocabulary of wte and of the head is split, the heads of q, k and v, and the units of the MLP. A block sums
 * over the group twice in forward, and twice in backward. Initial values are minGPT's, and the same for any number of ranks.
 */
#ifndef MINGPT_GPT_H
#define MINGPT_GPT_H

#include "config.h"

#include <shard/shard.h>

/* The keys and values of the tokens so far, of a rank's heads. */
typedef struct gpt_cache {
    int64_t length; /* tokens */
    struct {
        shard_tensor *key, *value; /* [samples, heads, length, n_embd / n_head] */
    } layer[GPT_MOST_LAYERS];
} gpt_cache;

/* Dropout of a batch whose samples are divided over a group. An element is dropped by its index in the whole batch. */
typedef struct gpt_dropout {
    double embd, resid;
    shard_group *group;
} gpt_dropout;

/* The network; group NULL: whole. NULL with the error set. Not collective. */
shard_module *gpt_make(const gpt_config *config, shard_group *group);

/*
 * The features of tokens, int64 [samples, tokens]: [samples, tokens, n_embd]. With a cache (NULL: none) the tokens follow those
 * of the cache, which gets theirs. dropout NULL: none. NULL with the error set: SHAPE, more tokens than block_size. Collective
 * over the network's group.
 */
shard_tensor *gpt_forward(shard_module *gpt, shard_tensor *tokens, gpt_cache *cache, const gpt_dropout *dropout);

/* The sum of the cross-entropies of the targets, int64 [samples, tokens], without logits in memory. Collective over the network's
 * group. */
shard_tensor *gpt_loss(shard_module *gpt, shard_tensor *features, shard_tensor *targets);

/* The logits, split over the network's group along the vocabulary. */
shard_tensor *gpt_logits(shard_module *gpt, shard_tensor *features);

const gpt_config *gpt_config_of(const shard_module *gpt);

/* Empties it, and releases its tensors. */
void gpt_cache_clear(gpt_cache *cache);

/* ---- gpt_file.c: files of Hugging Face's transformers ---- */

/*
 * Copies of the values, under the names and in the layout of GPT2LMHeadModel's state dict. A rank has its shards: of the fused
 * c_attn [n_embd, 3 n_embd] rows, of the others its shards, transposed. The caller destroys the list. NULL with the error set.
 * Collective over the network's group.
 */
shard_tensors *gpt_export(shard_module *gpt);

/* Takes the values of such a list. Collective over the network's group. */
shard_status gpt_import(shard_module *gpt, const shard_tensors *list);

/* Loads a file of transformers, or of this program. Names may begin with "transformer." or not. Errors: those of shard_load;
 * SHAPE, a tensor that GPT-2 does not have, or another shape than the network's, before memory of its sizes is taken. Collective
 * over the world. */
shard_status gpt_load(shard_module *gpt, const char *path);

#endif
