/* Files that are written: tensors of other files, under the same names or others, cast or as they are. */
#ifndef TOOLS_CHECKPOINT_OUTPUT_H
#define TOOLS_CHECKPOINT_OUTPUT_H

#include "settings.h"
#include "source.h"

#include "checkpoint/writer.h"

/* The tensors of a file that is to be written. */
typedef struct output {
    shard_entry *entries; /* [count]; the list owns the names */
    struct origin {
        source *from;
        const shard_entry *entry;
    } * origins; /* [count] */
    int64_t count, capacity, origins_capacity;
    shard_metadata metadata;
    bool allow_overflow; /* of values that are cast */
} output;

/* Adds a tensor, as it is in its file but for the name. UNSUPPORTED: it cannot be copied. */
shard_status output_add(output *out, source *from, const shard_entry *entry, const char *name);
/* ARGUMENT: two tensors have one name. */
shard_status output_check_names(const output *out);
/* Adds a file's metadata. ARGUMENT: a string of that name has another value. */
shard_status output_add_metadata(output *out, const source *from);
/* Writes the file, each tensor from its origin, cast to the dtype of its entry. ARGUMENT: finite values would become infinite.
 * Then there is no file. */
shard_status output_write(output *out, const char *path);
void output_free(output *out);

/* ARGUMENT: the path is one of the inputs, or one of them would be removed as a leftover of the path. */
shard_status output_check_path(const char *path, const source_list *inputs);

#endif
