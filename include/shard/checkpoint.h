/*
 * shard/checkpoint.h: state dicts in one ordinary safetensors file, whatever the
 * number of ranks and the split.
 *
 * Saving and loading never hold a whole split tensor on any rank: each rank writes
 * its own part into the one file, and reads only its own. What is in the file says
 * nothing of ranks; a torchvision state dict saved by the safetensors package for
 * Python loads as it is, and ours loads there.
 */
#ifndef SHARD_CHECKPOINT_H
#define SHARD_CHECKPOINT_H

#include <shard/nn.h>

/* Strings by name, kept beside the tensors (safetensors' __metadata__): step, epoch,
 * random state, settings. */
typedef struct shard_metadata shard_metadata;
SHARD_API shard_metadata *shard_metadata_create(void);
SHARD_API void shard_metadata_destroy(shard_metadata *metadata);
SHARD_API shard_status shard_metadata_set(shard_metadata *metadata, const char *name, const char *value);
SHARD_API shard_status shard_metadata_set_integer(shard_metadata *metadata, const char *name, int64_t value);
/* Printed so that it reads back to the bit. */
SHARD_API shard_status shard_metadata_set_number(shard_metadata *metadata, const char *name, double value);
/* NULL, without an error, if there is none of that name. Belongs to the list. */
SHARD_API const char *shard_metadata_get(const shard_metadata *metadata, const char *name);
/* Missing or not a number: an error that names it, and *value is left alone. */
SHARD_API shard_status shard_metadata_get_integer(const shard_metadata *metadata, const char *name, int64_t *value);
SHARD_API shard_status shard_metadata_get_number(const shard_metadata *metadata, const char *name, double *value);

/*
 * Writes the tensors into path. Replicated tensors are written by one rank (the load
 * is spread), split ones by the first replica of each part. Goes to a temporary file
 * beside path that is fsynced and renamed over it, then the directory is fsynced: path
 * is the old file or the new one, never between. A failure on one rank (disk full) is
 * the same error on all, and the temporary file is removed. At most 64 MiB of buffers a
 * rank. metadata may be NULL; the first rank's counts. Collective over the world; names,
 * shapes and dtypes must agree over it.
 */
SHARD_API shard_status shard_save(const shard_tensors *tensors, const char *path, const shard_metadata *metadata);

typedef struct shard_load_options {
    int reserved;
    const char *prefix;   /* stands before each name in the file */
    bool allow_missing;   /* tensors that the file does not have keep their values */
    bool allow_unexpected; /* the file may have tensors that are not asked for (under the prefix) */
    bool convert;         /* another floating dtype in the file is converted */
    shard_metadata **metadata; /* set to the file's, the caller's to destroy; NULL: not wanted */
} shard_load_options;
/* Fills the tensors, each rank its own part, from the file. Names that are missing or
 * unexpected, shapes (of the whole) and dtypes that differ are errors that list the
 * first few, and nothing is changed then. Every malformed file is a clear error
 * (FORMAT). Collective over the world. */
#define shard_load(tensors, path, ...) shard_load_with(tensors, path, (shard_load_options){.reserved = 0, __VA_ARGS__})
SHARD_API shard_status shard_load_with(const shard_tensors *tensors, const char *path, shard_load_options options);

/* The same for a module's state dict. */
SHARD_API shard_status shard_save_module(shard_module *module, const char *path);
SHARD_API shard_status shard_load_module(shard_module *module, const char *path);

/* The metadata and the whole shapes of a file, without its tensors. Not collective.
 * tensors: names with tensors that have no memory yet. NULL with the error set. */
SHARD_API shard_tensors *shard_inspect(const char *path, shard_metadata **metadata);

/*
 * The whole tensors of a list whose members may be split, on the rank `root` of the
 * world (-1: on every rank); the others get an empty list. Whole ones are shared, not
 * copied. Takes the memory that it says: shard_save does not need it. Collective over
 * the world. As torchshard.collect_state_dict.
 */
SHARD_API shard_tensors *shard_collect_state_dict(const shard_tensors *tensors, int root);

/* The reverse: for each name of like its own part of the whole tensor in whole, placed
 * like it. Not collective. As torchshard.relocate_state_dict. */
SHARD_API shard_tensors *shard_relocate_state_dict(const shard_tensors *like, const shard_tensors *whole);

#endif
