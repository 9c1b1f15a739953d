/* Text for the terminal. */
#ifndef TOOLS_CHECKPOINT_TEXT_H
#define TOOLS_CHECKPOINT_TEXT_H

#include "checkpoint/safetensors.h"

/* The text with control characters escaped, whole; one of a few static buffers. */
const char *shown(const char *text);
/* "float32", or the format's name of a dtype that tensors here cannot have: "F8_E4M3". */
const char *dtype_text(const shard_entry *entry);
/* "[5, 2]"; one of a few static buffers. */
const char *entry_shape_text(const shard_entry *entry);

#endif
