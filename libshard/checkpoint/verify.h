/*
 * Whether ranks have read from a file what was saved to it. Each rank adds the checksums of its runs of a tensor. The tensor's
 * checksum follows from those of a set of ranks that together have read each byte once: the ranks that a tensor is split or
 * partitioned over, or one rank that has read all of it. There may be several such sets, replicas. Other tensors, as those of
 * which ranks ask for some parts only, are read again as a whole, divided over the ranks that load.
 */
#ifndef SHARD_CHECKPOINT_VERIFY_H
#define SHARD_CHECKPOINT_VERIFY_H

#include "checkpoint/checksums.h"
#include "checkpoint/file.h"

typedef struct shard_verification {
    const shard_safetensors *header;
    /* By entry of the header, [count]: the XOR of the ranks' words is 0 if all sets have read what was saved, */
    uint64_t *crc;
    /* ... and the sum of these is 0 if each set has read each byte once. */
    uint64_t *cover;
} shard_verification;

/* Also if it fails, shard_verification_end comes last. */
shard_status shard_verification_start(shard_verification *v, const shard_safetensors *header);
/* Adds what this rank has read of an entry into the tensor. */
void shard_verification_add(shard_verification *v, const shard_entry *entry, const shard_tensor *tensor,
                            const shard_run_sum *sum);
/* Compares the checksums. FORMAT: a tensor's data is not what was saved; an error is the same on all ranks. Collective over
 * the ranks that load (NULL: this rank alone), also for one that has failed; a header without tensors needs no collective. */
shard_status shard_verification_finish(shard_verification *v, shard_group *world, shard_file *file, int64_t data_start);
void shard_verification_end(shard_verification *v);

#endif
