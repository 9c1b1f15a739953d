/* Metadata is the JSON object of strings as it is written to the file. */
#ifndef SHARD_CHECKPOINT_METADATA_H
#define SHARD_CHECKPOINT_METADATA_H

#include <shard/checkpoint.h>

#include <jansson.h>

/* The object, NULL for NULL; belongs to metadata. */
json_t *shard_metadata_json(const shard_metadata *metadata);

/* Makes metadata with a copy of the object, which may be NULL: empty. */
shard_metadata *shard_metadata_from_json(json_t *object);

#endif
