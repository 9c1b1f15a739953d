/* Weights that are streamed in row blocks: by linear, from the ranks that partition them. */
#ifndef SHARD_OP_ROWS_H
#define SHARD_OP_ROWS_H

#include "tensor/tensor.h"

/* A weight whose values or gradient are too large to be in memory at once: they are streamed in row blocks
 * (shard_rows_in_block), from the first to the last. The functions for a block are collective. They are called for
 * each block, also after an error. */
typedef struct shard_rows {
    int64_t block; /* rows of a block; a multiple of SHARD_ROW_BLOCK */
    /* The values of a block, valid until the next call; NULL with the error set. The function is NULL if all values
     * are in memory. */
    const void *(*values)(struct shard_rows *, int64_t first, int64_t count);
    void (*values_end)(struct shard_rows *);
    /* Whether the gradient, with these pending sums, can be streamed now. If false it is computed as one tensor. */
    bool (*gradient_begin)(struct shard_rows *, const shard_pending_sums *);
    /* Memory for the gradient of a block, in the weight's type. gradient_take then reads it. */
    void *(*gradient)(struct shard_rows *, int64_t first, int64_t count);
    void (*gradient_take)(struct shard_rows *, int64_t count);
    shard_status (*gradient_end)(struct shard_rows *);
} shard_rows;

#endif
