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
 * Writes the tensors into path. Of a split tensor the first replica of each part is
 * written; what shard_zero has shared out, each rank's own part. Replicated tensors are taken to be equal everywhere: small ones are written
 * by the first rank, large ones in pieces by several. Goes to a temporary file beside
 * path (path.tmp. and eight digits) that is fsynced and renamed over it, then the
 * directory is fsynced: path is the old file or the new one, never between. A path that
 * is a symbolic link stays one: all this is done where it leads. A failure on
 * one rank (disk full) is the same error on all, and the temporary file is removed; only
 * a job that is killed as a whole leaves it behind. At most 64 MiB of buffers a rank.
 * metadata may be NULL; the first rank's counts. Collective over the world; path, names,
 * shapes and dtypes must agree over it, and all ranks must see the directory (several
 * hosts: a shared file system). They wait for the slowest disk: see SHARD_TIMEOUT.
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
 * first few, and nothing is changed then; after a read that fails midway (IO) the
 * tensors' values are undefined. A file that is replaced while ranks open it is an error
 * (IO), never read half and half. Every malformed file is a clear error (FORMAT).
 * Initial values that were not needed so far are never made. Collective over the
 * world; ranks may ask for different tensors. */
#define shard_load(tensors, ...) shard_load_with(tensors, SHARD_WITH(shard_load_options, __VA_ARGS__))
SHARD_API shard_status shard_load_with(const shard_tensors *tensors, const char *path, shard_load_options options);

/* The same for a module's state dict. */
SHARD_API shard_status shard_save_module(shard_module *module, const char *path);
SHARD_API shard_status shard_load_module(shard_module *module, const char *path);

/* The metadata and the whole shapes of a file, without its tensors: names with tensors
 * that have no memory yet, and in *metadata (NULL: not wanted) the caller's to destroy.
 * NULL with the error set; a file with a dtype that there is not here is one
 * (UNSUPPORTED), though shard_load reads its other tensors. Not collective. */
SHARD_API shard_tensors *shard_inspect(const char *path, shard_metadata **metadata);

/*
 * The whole tensors of a list whose members may be split, on the rank `root` of the
 * world (-1: on every rank); the others get an empty list. Whole ones are shared, not
 * copied. Takes the memory that it says: shard_save does not need it. Collective over
 * the world. As torchshard.collect_state_dict.
 */
SHARD_API shard_tensors *shard_collect_state_dict(const shard_tensors *tensors, int root);

/* The reverse: for each name of like its own part of the whole tensor in whole, placed
 * like it; what is not split is shared, not copied. Not collective. As torchshard.relocate_state_dict. */
SHARD_API shard_tensors *shard_relocate_state_dict(const shard_tensors *like, const shard_tensors *whole);

#endif
