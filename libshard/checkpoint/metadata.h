/* Metadata is the JSON object of strings that it becomes in the file. */
#ifndef SHARD_CHECKPOINT_METADATA_H
#define SHARD_CHECKPOINT_METADATA_H

#include <shard/checkpoint.h>

#include <jansson.h>

/* The object, NULL for NULL; belongs to metadata. */
json_t *shard_metadata_json(const shard_metadata *metadata);

/* Metadata of a copy of the object, which may be NULL: none. */
shard_metadata *shard_metadata_from_json(json_t *object);

#endif
