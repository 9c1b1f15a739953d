/* Reads the header of a safetensors file, with its checksums. */
#ifndef SHARD_CHECKPOINT_HEADER_H
#define SHARD_CHECKPOINT_HEADER_H

#include "checkpoint/file.h"
#include "checkpoint/safetensors.h"

/* Reads, parses and, if `verify`, verifies the header of an open file; *data_start is where the data begins, *hash a hash of
 * the header and of the file's size. The checksums are not in the metadata. Freed by shard_safetensors_free, after a failure
 * too. */
shard_status shard_header_read(shard_safetensors *header, shard_file *file, int64_t file_bytes, bool verify, int64_t *data_start,
                               uint64_t *hash);
/* Reads and verifies the header of the file at path. Freed by shard_safetensors_free, after a failure too. */
shard_status shard_header_read_path(shard_safetensors *header, const char *path);

/* Where the data begins in a file of these entries, which are laid out, and the size of that file. MEMORY: it overflows. */
shard_status shard_header_size(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t data_bytes,
                               int64_t *data_start, int64_t *file_bytes);
/* Writes the header with the entries' checksums to a file. */
shard_status shard_header_write(shard_file *file, const shard_entry *entries, int64_t count, const shard_metadata *metadata);

#endif
