/* Which tensor of a checkpoint is searched or exported. */
#ifndef TOOLS_SEARCH_PICK_H
#define TOOLS_SEARCH_PICK_H

#include "checkpoint/safetensors.h"

/* The tensor of that name, or without one the only floating tensor of two dimensions. NULL with the error set: ARGUMENT, no
 * tensor of that name, none or several that could be meant, listed with their shapes; SHAPE, UNSUPPORTED, a tensor that is no
 * matrix of float16, bfloat16, float32 or float64. */
const shard_entry *pick_tensor(const shard_safetensors *header, const char *path, const char *name);

#endif
