/*
 * shard/checkpoint.h: state dicts in one ordinary safetensors file, whatever the
 * number of ranks and the split, and in memory.
 *
 * Saving and loading never hold a whole split tensor on any rank: each rank writes
 * its own part into the one file, and reads only its own. The file does not depend on the number
 * of ranks; a torchvision state dict saved by the safetensors package for
 * Python loads as it is, and ours loads there. A file of torch.save is converted in Python:
 *     state = torch.load("old.pth", map_location="cpu")   (of a checkpoint: ["state_dict"])
 *     safetensors.torch.save_file(state, "new.safetensors")
 */
#ifndef SHARD_CHECKPOINT_H
#define SHARD_CHECKPOINT_H

#include <shard/nn.h>

SHARD_BEGIN_C

/* Strings by name, in the file next to the tensors (safetensors' __metadata__): step, epoch,
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

typedef struct shard_save_options {
    size_t size;
    /* This rank alone saves, as torch.save: not collective, and no other rank is waited for. The
     * tensors are local or replicated; one that is split or partitioned by shard_zero_optimizer is an
     * error (SHAPE), after shard_collect_state_dict there is none. */
    bool local;
} shard_save_options;
#define SHARD_SAVE_OPTIONS_VALUES sizeof(shard_save_options), false
#define SHARD_SAVE_OPTIONS_INIT {SHARD_SAVE_OPTIONS_VALUES}

/*
 * Writes the tensors into path. Of a split tensor the first replica of each part is
 * written; of a tensor that shard_zero_optimizer has partitioned, each rank writes its own range. Replicated
 * tensors are taken to be equal everywhere: small ones are written by the first rank, large ones
 * in pieces by several. The file is written as path.tmp. and 16 digits, fsynced and renamed to
 * path, then the directory is fsynced: path is the old file or the new one, never between. A path that
 * is a symbolic link stays one: all this is done where it leads. A link in a sticky directory
 * that all may write to (/tmp) is refused (IO) unless the caller or the directory's owner has
 * made it, as the kernel does with fs.protected_symlinks. A file that is replaced hands on its
 * permissions. A failure on one rank (disk full, the limit of ulimit -f) is the same error on
 * all, and the temporary file is removed; only a job that is killed as a whole leaves it
 * behind. At most 64 MiB of buffers a rank.
 * metadata may be NULL; the first rank's counts. Collective over the world, unless .local;
 * path, names, shapes and dtypes must agree over it, and all ranks must see the directory
 * (several hosts: a shared file system). They wait for the slowest disk: see SHARD_TIMEOUT.
 */
#define shard_save(tensors, path, ...) \
    SHARD_GIVEN(shard_save_with(tensors, path, SHARD_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS, __VA_ARGS__)))
SHARD_API shard_status shard_save_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                                       const shard_save_options *options);

typedef struct shard_load_options {
    size_t size;
    const char *prefix;   /* stands before each name in the file */
    bool allow_missing;   /* tensors that the file does not have keep their values */
    bool allow_unexpected; /* the file may have tensors that are not asked for (under the prefix) */
    bool convert;         /* another floating dtype in the file is converted */
    bool local;           /* this rank alone loads, as torch.load: not collective; split tensors get its part */
} shard_load_options;
#define SHARD_LOAD_OPTIONS_VALUES sizeof(shard_load_options), NULL, false, false, false, false
#define SHARD_LOAD_OPTIONS_INIT {SHARD_LOAD_OPTIONS_VALUES}
/* Fills the tensors, each rank its own part, from the file. Names that are missing or
 * unexpected, shapes (of the whole) and dtypes that differ are errors (SHAPE) that list the
 * first few, and nothing is changed then; a scalar ([]) also takes a tensor of shape [1], as
 * files of PyTorch 0.3 have it, and as torch.nn.Module.load_state_dict does. After a read that
 * fails midway (IO) the tensors' values are undefined. A file that is replaced while ranks open
 * it, or written to while they read it, is an error (IO) on all, never read half and half. Every
 * malformed file is a clear error (FORMAT).
 * The format has no checksums: a byte that changed on the disk is not found.
 * Initial values that were not needed so far are never made. *metadata is set to the file's, the caller's to
 * destroy; NULL: not wanted. shard_load_with_metadata(tensors, path, &metadata, .prefix = "head.") is
 * the macro with it. Collective over the world, unless .local; ranks may ask for different tensors. */
#define shard_load(tensors, ...) \
    SHARD_GIVEN(shard_load_with(tensors, SHARD_OPTIONS(shard_load_options, SHARD_LOAD_OPTIONS, __VA_ARGS__), NULL))
SHARD_API shard_status shard_load_with(const shard_tensors *tensors, const char *path, const shard_load_options *options,
                                       shard_metadata **metadata);
/* The macro with *metadata. */
#define shard_load_with_metadata(tensors, path, ...) \
    SHARD_GIVEN(shard_load_with(tensors, path, SHARD_OPTIONS_BEFORE(shard_load_options, SHARD_LOAD_OPTIONS, __VA_ARGS__)))

/* The same for a module's state dict. */
SHARD_API shard_status shard_save_module(shard_module *module, const char *path);
SHARD_API shard_status shard_load_module(shard_module *module, const char *path);

/* The metadata and the whole shapes of a file, without its tensors: names with tensors
 * that have no memory yet, and in *metadata (NULL: not wanted) the caller's to destroy.
 * NULL with the error set; a file with a dtype that there is not here is one
 * (UNSUPPORTED), though shard_load reads its other tensors. Not collective. */
SHARD_API shard_tensors *shard_inspect(const char *path, shard_metadata **metadata);

/*
 * ---- state dicts in memory ----
 *
 * shard_save and shard_load above go without these: no rank ever has a whole split tensor. With
 * these one rank reads and writes files of whole tensors alone, as TorchShard's programs do.
 * In TorchShard's lines (m is the module, o its optimizer) and here:
 *
 *     state = m.state_dict()                         shard_tensors *state = shard_state_dict(m);
 *     state = ts.collect_state_dict(m, state)        shard_tensors *whole = shard_collect_state_dict(state, 0);
 *     if rank == 0:                                  if (shard_group_rank(shard_world()) == 0)
 *         torch.save(state, 'm.pt')                      shard_save(whole, "m.safetensors", NULL, .local = true);
 *
 *     if rank == 0:                                  if (shard_group_rank(shard_world()) == 0) {
 *                                                        whole = shard_inspect("m.safetensors", NULL);
 *         state = torch.load('m.pt')                     shard_load(whole, "m.safetensors", .local = true);
 *                                                    }
 *                                                    shard_tensors *own =
 *     state = ts.relocate_state_dict(m, state)           shard_relocate_state_dict(state, whole, .root = 0);
 *     m.load_state_dict(state)                       shard_module_load_state_dict(m, own);
 *
 *     o.load_state_dict(o_state)                     shard_tensors *o_state = shard_optimizer_state_dict(o);
 *                                                    shard_load_state_dict(o_state, own);
 *
 * TorchShard has torch.load on every rank; so it is here without .root. One file may have both
 * states: shard_tensors_extend puts them together, and .prefix takes them apart.
 */

/*
 * The whole tensors of a list whose members may be split, on the rank `root` of the
 * world (-1: on every rank); the others get an empty list. Whole ones are shared, not
 * copied. Takes the memory that it says: shard_save does not need it. Collective over
 * the world. As torchshard.collect_state_dict.
 */
SHARD_API shard_tensors *shard_collect_state_dict(const shard_tensors *tensors, int root);

typedef struct shard_relocate_options {
    size_t size;
    int root; /* the rank of the world that alone has the whole tensors; -1: every rank has them */
} shard_relocate_options;
#define SHARD_RELOCATE_OPTIONS_VALUES sizeof(shard_relocate_options), -1
#define SHARD_RELOCATE_OPTIONS_INIT {SHARD_RELOCATE_OPTIONS_VALUES}

/*
 * The reverse: for each name of like the local shard of the whole tensor in whole, placed like
 * it and of whole's dtype; names that like does not have are left out. A name that is missing is
 * an error (ARGUMENT), another shape or a tensor that is not whole one (SHAPE).
 * As a rule every rank has the whole tensors; what is not split is shared, not copied, and the
 * call is not collective. As torchshard.relocate_state_dict.
 * With .root whole is looked at on that rank alone and may be NULL on the others. The tensors
 * are sent in blocks: a rank needs 16 MiB besides its shards, which are on like's devices.
 * Collective over the world then; names, shapes, dtypes and placements of like must agree over
 * it. As broadcast_from_rank0 of set_model_state_dict in torch.distributed.checkpoint.
 */
#define shard_relocate_state_dict(like, ...) \
    SHARD_GIVEN(shard_relocate_state_dict_with(like, SHARD_OPTIONS(shard_relocate_options, SHARD_RELOCATE_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensors *shard_relocate_state_dict_with(const shard_tensors *like, const shard_tensors *whole,
                                                        const shard_relocate_options *options);

typedef struct shard_load_state_dict_options {
    size_t size;
    const char *prefix;    /* stands before each name in the source */
    bool allow_missing;    /* tensors that the source does not have keep their values */
    bool allow_unexpected; /* the source may have tensors that are not asked for (under the prefix) */
    bool convert;          /* another floating dtype in the source is converted */
} shard_load_state_dict_options;
#define SHARD_LOAD_STATE_DICT_OPTIONS_VALUES sizeof(shard_load_state_dict_options), NULL, false, false, false
#define SHARD_LOAD_STATE_DICT_OPTIONS_INIT {SHARD_LOAD_STATE_DICT_OPTIONS_VALUES}

/*
 * Copies the source's values into the tensors of a list, as of shard_optimizer_state_dict or
 * shard_ema_state_dict, or of a module. A source tensor is whole, of which this rank takes its
 * local shard, or has the same shard, as shard_relocate_state_dict makes it; also of what
 * shard_zero_optimizer has partitioned, and on another device. Names that are missing or unexpected,
 * shapes (of the whole; [1] fits a scalar, as in shard_load) and dtypes that differ, and shards of other ranges are errors
 * (SHAPE) that list the first few; then this rank's tensors are not changed. After a failure of memory or of a device midway
 * their values are undefined. Initial values that were not needed so far are never made. The source stays as it is. Not
 * collective: each rank loads its own part, and in stage 3 of shard_zero_optimizer all ranks do. As
 * torch.nn.Module.load_state_dict; strict=False is .allow_missing = true, .allow_unexpected = true.
 */
#define shard_load_state_dict(tensors, ...) \
    SHARD_GIVEN(shard_load_state_dict_with( \
        tensors, SHARD_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS, __VA_ARGS__)))
#define shard_module_load_state_dict(module, ...) \
    SHARD_GIVEN(shard_module_load_state_dict_with( \
        module, SHARD_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS, __VA_ARGS__)))
SHARD_API shard_status shard_load_state_dict_with(const shard_tensors *tensors, const shard_tensors *source,
                                                  const shard_load_state_dict_options *options);
SHARD_API shard_status shard_module_load_state_dict_with(shard_module *module, const shard_tensors *source,
                                                         const shard_load_state_dict_options *options);

SHARD_END_C

#endif
