/* Of the residual blocks of all models. */
#ifndef SHARD_MODELS_BLOCK_H
#define SHARD_MODELS_BLOCK_H

#include <shard/nn.h>

#include <string.h>

#define SHARD_MODEL_MOST_WIDTH (INT64_MAX >> 40) /* channels: sizes of all tensors stay within int64_t */

/* x in the shape of the block's result: through "downsample", the last child, if there is one. */
static inline shard_tensor *shard_block_shortcut(shard_module *block, shard_tensor *x)
{
    int last = shard_module_child_count(block) - 1;
    bool changes = strcmp(shard_module_child_name(block, last), "downsample") == 0;
    return changes ? shard_forward(shard_module_child_at(block, last), x) : x;
}

#endif
