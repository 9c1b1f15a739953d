/*
 * Texts as tokens, of one of two kinds:
 *   characters   a token is a character of Unicode, numbered in the order of the code points;
 *   byte pairs   GPT-2's: bytes, of which the pairs that were most frequent in a text are merged, within words (words.h).
 * The files vocab.json and merges.txt are those of GPT-2, which transformers and tokenizers read, too. A tokenizer of characters
 * has no merges.txt.
 */
#ifndef MINGPT_TOKENIZER_H
#define MINGPT_TOKENIZER_H

#include "containers.h"

typedef struct tokenizer {
    string_set vocabulary; /* the bytes of each token */
    bool has_pairs;        /* byte pairs; else characters, and the rest is empty */
    number_map rank;       /* of each merge, by pair_key of its tokens: the earlier, the smaller */
    int32_t *pair[2];      /* [merges]: the tokens of each merge */
    int32_t *merged;       /* [merges]: the token that it makes */
    int64_t merges, room[3];
    int32_t of_byte[256];
    int32_t end_of_text; /* the token of TOKENIZER_END, -1 for none */
} tokenizer;

#define TOKENIZER_END "<|endoftext|>"

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Of the characters of a text. NULL with the error set. */
tokenizer *tokenizer_of_characters(const char *text, int64_t bytes);

/* tokenizer_train.c: `size` tokens: the 256 bytes, TOKENIZER_END, and between them the most frequent pairs, fewer if no pair is
 * there twice. Of pairs that are equally frequent the one with the smaller left token comes first, then the smaller right one.
 * NULL with the error set: ARGUMENT, a size below 257. */
tokenizer *tokenizer_of_pairs(const char *text, int64_t bytes, int64_t size);

/* tokenizer_file.c: vocab.json and, if it is there, merges.txt of a folder. NULL with the error set: IO; FORMAT. */
tokenizer *tokenizer_open(const char *folder);
/* Writes these files; removes the merges.txt of another tokenizer if this one has none. Errors: IO. */
shard_status tokenizer_save(const tokenizer *of, const char *folder);

void tokenizer_close(tokenizer *of);

int64_t tokenizer_size(const tokenizer *of);

/* The tokens of a text in valid UTF-8, which the caller frees; `name` is for errors. TOKENIZER_END in a text is one token of byte
 * pairs. NULL with the error set: FORMAT, a character that the vocabulary lacks. */
int32_t *tokenizer_encode(const tokenizer *of, const char *text, int64_t bytes, const char *name, int64_t *count);

/* The bytes of a token, which need not be a whole character. */
const char *tokenizer_text(const tokenizer *of, int64_t token, int64_t *bytes);

/* A hash of the vocabulary and the merges. */
uint64_t tokenizer_hash(const tokenizer *of);

/* ---- for the other files ---- */

/* A tokenizer of byte pairs with the 256 bytes in GPT-2's order; without them an empty one. NULL with the error set. */
tokenizer *tokenizer_make(bool with_bytes);
/* Adds a merge, and the token that it makes if it is new. */
shard_status tokenizer_add_merge(tokenizer *of, int32_t left, int32_t right);

#endif
