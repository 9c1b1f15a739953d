/* A matrix that is larger than a bucket. If its values or its gradient are partitioned, they are streamed in row
 * blocks. */
#ifndef SHARD_PARALLEL_ROW_BLOCKS_H
#define SHARD_PARALLEL_ROW_BLOCKS_H

#include "op/rows.h"
#include "parallel/unshard.h"

typedef struct shard_row_blocks shard_row_blocks;

typedef struct shard_row_blocks_options {
    size_t bytes;               /* the size of a bucket */
    shard_unshard_order *order; /* the engine's */
    /* Whether the gradient, with these pending sums, may be reduced block by block now; *scale: its factor. */
    bool (*begin)(void *context, const shard_pending_sums *pending, double *scale);
    void *context;
} shard_row_blocks_options;

/* Whether the parameter is larger than a bucket of `bytes`; the same on all ranks that have a shard of it. */
bool shard_row_blocks_suit(const shard_tensor *parameter, size_t bytes);

/* Makes the row blocks of a unit with this matrix only, and a partitioned gradient. NULL with the error set. */
shard_row_blocks *shard_row_blocks_create(shard_unit *unit, shard_tensor *matrix, const shard_row_blocks_options *options);
void shard_row_blocks_destroy(shard_row_blocks *blocks);

/* Moves the matrix into the unit, whose values are partitioned; with broadcast, all ranks get the values of the group's
 * first rank. Collective over the unit's group. */
shard_status shard_row_blocks_move_values(shard_row_blocks *blocks, bool broadcast);

/* Whether the whole gradient has been streamed in this backward. */
bool shard_row_blocks_streamed(const shard_row_blocks *blocks);
/* Streams the remaining blocks, from memory of all of the unit's elements (NULL after an error). */
void shard_row_blocks_stream_rest(shard_row_blocks *blocks, char *all);
/* Resets the state for the next backward. */
void shard_row_blocks_rearm(shard_row_blocks *blocks);

#endif
