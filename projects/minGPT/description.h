/* The files next to a model's: config.json, vocab.json and merges.txt. */
#ifndef MINGPT_DESCRIPTION_H
#define MINGPT_DESCRIPTION_H

#include "config.h"
#include "tokenizer.h"

/* Writes them to a folder. Errors: IO; ARGUMENT, the folder has a model of another network or vocabulary, which these files would
 * describe wrongly; its own files stay. Not collective. */
shard_status description_save(const gpt_config *config, const tokenizer *tokens, const char *folder);

#endif
