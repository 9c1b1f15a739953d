/*
 * A save in parts. A synchronous one (save.c) writes the values to the file as it walks over the tensors; an asynchronous one
 * (save_async.c) copies them to a snapshot, which a thread writes, and finishes later.
 *
 * No rank returns early: an error of one rank reaches the others at the next collective, and only errors that all ranks of a
 * group have end their work.
 */
#ifndef SHARD_CHECKPOINT_SAVING_H
#define SHARD_CHECKPOINT_SAVING_H

#include "checkpoint/checksums.h"
#include "checkpoint/metadata.h"
#include "checkpoint/new_file.h"
#include "checkpoint/ranges.h"
#include "checkpoint/snapshot.h"

#include <shard/checkpoint.h>

/* Values on their way from another device to host memory, in two blocks: one is copied while the other is written. */
typedef struct shard_staging {
    shard_device *device; /* NULL: there are no blocks */
    struct shard_staged {
        void *memory, *event;        /* the copy has ended */
        int64_t index, begin, bytes; /* where the values belong in the file; 0 bytes: nothing is on its way */
    } block[2];
    int next; /* of the blocks: it has what was copied first */
} shard_staging;

typedef struct shard_saving {
    const char *function;           /* the public one, for messages */
    shard_group *world;             /* the ranks that save; NULL: this rank alone */
    shard_tensors *tensors;         /* those that this rank keeps; released when their values are taken */
    const shard_metadata *metadata; /* the caller's, until shard_saving_end; NULL: none */
    const char *folder;             /* of the file, until shard_saving_begin returns: made if it is not there; NULL: it must be */
    shard_staging staging;          /* while values are taken */
    shard_snapshot *snapshot;       /* takes the values; NULL: they go to the file */
    int64_t count;
    shard_entry *entries; /* [count], with names of their own */
    shard_run_sum *sums;  /* [count] of what this rank has written */
    bool *written;        /* [count] whether this rank writes its local shard or flat range */
    int64_t data_bytes;
    int64_t data_start; /* in the file */
    shard_new_file new; /* the first rank has created it, and has its lock and permissions */
    int64_t next;       /* the rank that writes the next range of a replicated tensor */
} shard_saving;

/* A whole save; `s` has function, world, metadata and folder. Collective over the ranks that save. */
shard_status shard_saving_run(shard_saving *s, const shard_tensors *tensors, const char *path);
/* The same in the background. */
shard_async_save *shard_saving_start(shard_saving saving, const shard_tensors *tensors, const char *path);

/* ---- the steps of a save ---- */

/* Compares the ranks' arguments, lays out the file and creates it under its temporary name. `s` has function, world, metadata,
 * folder and snapshot. After it returns the error is known to all ranks of the world; shard_saving_end must follow in any case.
 * Collective over the ranks that save. */
shard_status shard_saving_begin(shard_saving *s, const shard_tensors *tensors, const char *path);

/* Writes the local shards and flat ranges of this rank, or copies them to the snapshot. Returns this rank's error. Collective
 * over the ranks that save. */
shard_status shard_saving_take(shard_saving *s);

/* Writes bytes of a tensor's data, from its byte `begin` on, to the file. The runs of a tensor follow each other. */
shard_status shard_saving_write(shard_saving *s, int64_t index, const void *values, int64_t bytes, int64_t begin);

/* Computes the checksums of the whole tensors. After it returns the error is known to all ranks of the world. Collective over the
 * ranks that save. */
shard_status shard_saving_combine(shard_saving *s);

/* The end of this rank's writing: the header, with the checksums, by the first rank; syncs and closes the file. Returns the
 * thread's error. */
shard_status shard_saving_close(shard_saving *s);

/* Of the first rank, after all have closed the file: renames it to its path. */
shard_status shard_saving_replace(shard_saving *s);

/* Removes the temporary file if the thread has an error, and frees everything but the snapshot. */
void shard_saving_end(shard_saving *s);

#endif
