/* Writes a checkpoint tensor by tensor, a run of bytes at a time, for programs that have no whole tensors in memory. */
#ifndef SHARD_CHECKPOINT_WRITER_H
#define SHARD_CHECKPOINT_WRITER_H

#include "checkpoint/checksums.h"
#include "checkpoint/new_file.h"

typedef struct shard_writer {
    shard_new_file new;
    shard_entry *entries; /* [count], the caller's */
    int64_t count, data_start;
    const shard_metadata *metadata; /* the caller's; NULL: none */
    shard_run_sum *sums; /* [count] of what was written */
} shard_writer;

/* Lays out the entries, of which name, shape and dtype (or type) are set, and creates the file, as shard_save: with checksums,
 * and at `path` only when it is complete. entries and metadata must stay until the end. shard_writer_end must follow, after an
 * error too. */
shard_status shard_writer_begin(shard_writer *writer, const char *path, shard_entry *entries, int64_t count,
                                const shard_metadata *metadata);
/* Writes bytes of an entry's data from its byte `begin` on. The runs of an entry follow each other, each byte is written once;
 * the entries have any order. */
shard_status shard_writer_write(shard_writer *writer, int64_t index, const void *data, int64_t bytes, int64_t begin);
/* Writes the header, synchronizes the file and renames it to its path. INTERNAL: an entry is not complete. */
shard_status shard_writer_finish(shard_writer *writer);
/* Removes the file unless it is finished. */
void shard_writer_end(shard_writer *writer);

#endif
