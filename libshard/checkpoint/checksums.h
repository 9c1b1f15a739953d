/*
 * Checksums of a checkpoint, CRC-64 of base/crc64.h: of each tensor's data, and of the header. They are two strings of the
 * file's metadata, each an error without the other, so that no change of one of their names hides both:
 *     crc64.header    16 hexadecimal digits, of the file's bytes before the data, in which these digits count as zeros
 *     crc64.tensors   a JSON object: 16 hexadecimal digits for each tensor, by name
 * Each rank has the checksum of what it reads or writes of a tensor; moved to the tensor's end and added by XOR, those of
 * all ranks are the tensor's.
 */
#ifndef SHARD_CHECKPOINT_CHECKSUMS_H
#define SHARD_CHECKPOINT_CHECKSUMS_H

#include "checkpoint/safetensors.h"

#include <shard/comm.h>

/* ---- in a header ---- */

/* The file's first bytes, as of shard_safetensors_format, with the two strings before those of metadata (NULL: none), which
 * has no effect on the two. The length does not depend on the entries' checksums. Freed by free(); NULL with the error set. */
char *shard_checksums_format(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t *bytes);

/* Takes both strings out of the metadata of a parsed header. verify: checks the header's checksum, sets those of the
 * entries, and header->checksums if the file has any. first and text are the file's first bytes and the JSON text. FORMAT:
 * the header was changed. */
shard_status shard_checksums_take(shard_safetensors *header, const char *path, const unsigned char first[8], const char *text,
                                  int64_t text_bytes, bool verify);

/* FORMAT unless the checksum of an entry's data is the one that was saved. */
shard_status shard_checksums_compare(const char *path, const shard_entry *entry, uint64_t checksum);

/* Advice to a user whose checkpoint was changed, for the ends of messages. */
#define SHARD_CHECKSUMS_ADVICE                                                                                                   \
    "load another checkpoint; if a program changed it on purpose, leave crc64.header and crc64.tensors out of its metadata, "    \
    "or load it with .skip_checksums = true, or give it new checksums with shard-checkpoint convert --skip-checksums"

/* ---- of parts ---- */

/* Runs of one tensor's bytes, each behind those before; {0} at first. */
typedef struct shard_run_sum {
    uint64_t crc;        /* moved to `end`, where the last run ends */
    uint64_t boundaries; /* a hash of where runs begin and end: those of neighbours cancel out */
    int64_t end;
    int64_t distance; /* by which the checksum was moved last, and the factor of that */
    uint64_t factor;
} shard_run_sum;

/* Adds a run whose checksum is crc. */
void shard_run_sum_add(shard_run_sum *sum, int64_t begin, int64_t bytes, uint64_t crc);
/* This part of the checksum of a tensor of so many bytes. */
uint64_t shard_run_sum_part(const shard_run_sum *sum, int64_t bytes);
/* The boundaries of one run of all bytes, and so of any runs that have each byte once. */
uint64_t shard_run_sum_whole(int64_t bytes);
/* INTERNAL unless the boundaries of all runs that were written of an entry, added up, are those of each byte once. */
shard_status shard_run_sum_check_whole(const shard_entry *entry, uint64_t boundaries);

/* words[i] = the XOR of words[i] of all ranks. NULL: a group of one. Collective. */
shard_status shard_checksums_combine(shard_group *group, uint64_t *words, int64_t count);

#endif
