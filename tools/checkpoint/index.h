/* The index of a checkpoint in several files, as Hugging Face's transformers: a JSON object with weight_map, file names by
 * tensors' names, and metadata.total_size, the bytes of all tensors. */
#ifndef TOOLS_CHECKPOINT_INDEX_H
#define TOOLS_CHECKPOINT_INDEX_H

#include "source.h"

/* Adds the files of an index, in the order of their names, to the list, and checks that each tensor is in its file and that
 * there are no others. FORMAT: a malformed index, one with a name twice or with a path that is not a file's name, or one that
 * does not agree with its files. */
shard_status index_add_sources(source_list *list, const char *path, bool skip_checksums);

/* Whether a path is that of an index: it ends with .json. */
bool index_is(const char *path);

/* ARGUMENT if it is one, for a command that takes none. */
shard_status index_refuse(const char *path);

/* Adds a file, or those of an index. */
shard_status index_or_file_add(source_list *list, const char *path, bool skip_checksums);

#endif
