/* A weight that is larger than a bucket may be: its values and its gradient pass by in
 * blocks of rows, where ranks keep their parts of them alone. */
#ifndef SHARD_PARALLEL_ROW_BLOCKS_H
#define SHARD_PARALLEL_ROW_BLOCKS_H

#include "parallel/bucket.h"

typedef struct shard_row_blocks shard_row_blocks;

/* Whether a parameter is that large, in a bucket of `bytes`; the same on all ranks that have
 * a part of it. */
bool shard_row_blocks_suit(const shard_tensor *parameter, size_t bytes);

/* For the only member of a bucket whose gradient is kept in parts. NULL with the error set. */
shard_row_blocks *shard_row_blocks_create(shard_bucket *bucket, size_t bytes);
void shard_row_blocks_destroy(shard_row_blocks *blocks);

/* Moves the weight into a bucket whose values are kept in parts; those of the first member to
 * all, with broadcast. Collective over the bucket's group. */
shard_status shard_row_blocks_move_values(shard_row_blocks *blocks, bool broadcast);

/* Whether the whole gradient has passed by in this backward. */
bool shard_row_blocks_passed(const shard_row_blocks *blocks);
/* What of it has not, from memory of all of the bucket's elements (NULL after an error). */
void shard_row_blocks_take_whole(shard_row_blocks *blocks, char *all);
/* For the next backward. */
void shard_row_blocks_rearm(shard_row_blocks *blocks);

#endif
