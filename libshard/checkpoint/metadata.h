/*
 * Strings by name, as they stand in a file. All texts lie in one block of memory, and an index has their offsets in the order of
 * the names: strings of a file take no more memory than their text in its header. (As a tree of jansson's they took 25 times
 * that.)
 */
#ifndef SHARD_CHECKPOINT_METADATA_H
#define SHARD_CHECKPOINT_METADATA_H

#include <shard/checkpoint.h>

struct shard_metadata {
    char *text; /* name, NUL, value, NUL, of each string in the order in which they were set */
    int64_t bytes, bytes_capacity;
    size_t *by_name; /* [count] offsets into text */
    int64_t count, capacity;
};

/* Makes room for so many strings and bytes of text, with their NULs. */
shard_status shard_metadata_reserve(shard_metadata *metadata, int64_t count, int64_t bytes);
/* Adds a string behind the others. shard_metadata_sort must follow before a string is looked for. */
shard_status shard_metadata_append(shard_metadata *metadata, const char *name, const char *value);
/* Returns a name that two strings have; NULL: none. */
const char *shard_metadata_sort(shard_metadata *metadata);
/* Adds the strings of `more`. Returns the first name that has another value there, and then adds none; NULL: there is none, or
 * the error is set. */
const char *shard_metadata_merge(shard_metadata *metadata, const shard_metadata *more);
/* NULL of NULL. With the error set NULL, or a copy of some strings only. */
shard_metadata *shard_metadata_copy(const shard_metadata *metadata);
void shard_metadata_remove(shard_metadata *metadata, const char *name);
/* Frees what belongs to a metadata that is a field of another structure. */
void shard_metadata_clear(shard_metadata *metadata);

/* Goes through the strings in the order in which they were set, from *at = 0 on; false at the end. */
bool shard_metadata_next(const shard_metadata *metadata, int64_t *at, const char **name, const char **value);

/* Makes metadata of the strings, which it takes; empty after a failure, too. NULL with the error set. */
shard_metadata *shard_metadata_take(shard_metadata *strings);

#endif
