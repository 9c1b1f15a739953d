/* Values copied to host memory that are written later. The memory is the CPU's, whose pool keeps it for the next snapshot: first
 * touches of fresh memory cost about twenty times what rewriting it does. */
#ifndef SHARD_CHECKPOINT_SNAPSHOT_H
#define SHARD_CHECKPOINT_SNAPSHOT_H

#include <shard/base.h>

/* Bytes of tensor `index` from its byte `begin` on, in one block. */
typedef struct shard_snapshot_run {
    int64_t index, begin, bytes;
    char *values;
    int64_t block; /* its number */
} shard_snapshot_run;

/* {0} at first. */
typedef struct shard_snapshot {
    shard_snapshot_run *runs; /* [count], in the order in which they were added */
    int64_t count, capacity;
    void **blocks; /* [block_count], each of SHARD_BLOCK_BYTES; NULL: released */
    int64_t block_count, block_capacity;
    int64_t used; /* bytes of the last block */
} shard_snapshot;

/* Adds a run, and returns the memory that the caller copies it to. *bytes is the size of the run, and becomes less if the block
 * is full then: whole elements if it is a number of them. `place` is the run's place in the file, by which the memory of large
 * runs is aligned for direct writes. NULL with the error set. */
void *shard_snapshot_add(shard_snapshot *snapshot, int64_t index, int64_t begin, int64_t place, int64_t *bytes);
/* Gives a block back to the pool, by any thread. */
void shard_snapshot_release(shard_snapshot *snapshot, int64_t block);
/* Frees everything. */
void shard_snapshot_free(shard_snapshot *snapshot);

#endif
