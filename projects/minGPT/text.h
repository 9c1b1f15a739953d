/* Files of text: as they are, and as tokens of a training and a validation set. */
#ifndef MINGPT_TEXT_H
#define MINGPT_TEXT_H

#include "tokenizer.h"

#include <limits.h>

/* The bytes of a file, and a 0 behind them; the caller frees them. most_bytes 0: of any size, also of a pipe. NULL with the error
 * set: IO, with most_bytes also of what is not a regular file; MEMORY; FORMAT, more than most_bytes. */
char *text_read(const char *path, int64_t most_bytes, int64_t *bytes);

enum { TEXT_TRAIN = 0, TEXT_VAL, TEXT_SETS };

/* Two texts in valid UTF-8. */
typedef struct text_sets {
    char *text[TEXT_SETS];
    int64_t bytes[TEXT_SETS];
    char path[TEXT_SETS][PATH_MAX];
} text_sets;

/*
 * Reads a folder with train.txt and val.txt, or with wikitext's wiki.train.tokens and wiki.valid.tokens, or these with .raw; or a
 * file, of which the last tenth, from the beginning of a line on, is for validation. Errors: IO; FORMAT, an empty set, or
 * malformed UTF-8, with its line. Not collective.
 */
shard_status text_open(text_sets *sets, const char *path);
void text_close(text_sets *sets);

/* The text of both sets, one after the other; the caller frees it. NULL with the error set. */
char *text_join(const text_sets *sets, int64_t *bytes);

#endif
