/*
 * shard/checkpoint.h: state dicts in one ordinary safetensors file, for any number of ranks and any split, and in
 * memory.
 *
 * Saving and loading never need a whole split tensor on any rank: each rank writes its local shards into the one
 * file, and reads only its local shards (of columns below 256 KiB whole rows). The file does not depend on the number of
 * ranks. It loads a torchvision state dict of Python's safetensors package, and that package loads its files.
 * docs/checkpoints.md is the guide; it also converts files of torch.save.
 */
#ifndef SHARD_CHECKPOINT_H
#define SHARD_CHECKPOINT_H

#include <shard/nn.h>

SHARD_BEGIN_C

/* Strings by name, in the file next to the tensors (safetensors' __metadata__): step, epoch, random state, settings.
 * The caller destroys it. */
typedef struct shard_metadata shard_metadata;
SHARD_API shard_metadata *shard_metadata_create(void);
SHARD_API void shard_metadata_destroy(shard_metadata *metadata);
/* Sets a value, in place of the one that the name had. Errors: ARGUMENT, a name or a string that is not UTF-8,
 * or a string of 2 GiB or more; MEMORY. */
SHARD_API SHARD_CHECKED shard_status shard_metadata_set(shard_metadata *metadata, const char *name, const char *value);
SHARD_API SHARD_CHECKED shard_status shard_metadata_set_integer(shard_metadata *metadata, const char *name, int64_t value);
/* Printed so that it reads back to the same bits; a NaN as "nan". */
SHARD_API SHARD_CHECKED shard_status shard_metadata_set_number(shard_metadata *metadata, const char *name, double value);
/* The value of that name; NULL, without an error, if there is none. It belongs to the metadata, and is
 * valid until the metadata is changed or destroyed. */
SHARD_API const char *shard_metadata_get(const shard_metadata *metadata, const char *name);
/* Sets *value. Errors: ARGUMENT, a name that is missing or not a number, with *value unchanged. */
SHARD_API SHARD_CHECKED shard_status shard_metadata_get_integer(const shard_metadata *metadata, const char *name, int64_t *value);
SHARD_API SHARD_CHECKED shard_status shard_metadata_get_number(const shard_metadata *metadata, const char *name, double *value);

typedef struct shard_save_options {
    size_t size;
    /* This rank alone saves, as torch.save: the call is not collective and waits for no other rank. Tensors must be
     * local or replicated; a tensor that is split or partitioned by shard_zero_optimizer is an error (SHAPE): call
     * shard_collect_state_dict first. */
    bool local;
} shard_save_options;
#define SHARD_SAVE_OPTIONS_VALUES sizeof(shard_save_options), false
#define SHARD_SAVE_OPTIONS_INIT {SHARD_SAVE_OPTIONS_VALUES}

/* Writes the tensors and metadata (NULL: none) into one file, with checksums; both are borrowed. path is the old file or the
 * new one, never a mixture, after an error, a kill or a power failure, too. The name of the file has at most 234 bytes.
 * docs/checkpoints.md ("Guarantees of a save") has what each rank writes, temporary files, links and permissions.
 * Errors, on all ranks with the same text, PEER on those that have found nothing themselves: IO, as of a full disk; ARGUMENT, a
 * tensor's name that is not UTF-8, or an average that has its parameter's values between two shard_ema_swap; SHAPE, a PARTIAL
 * tensor, or shards that are not the whole tensor together; MISMATCH, on the ranks that differ from most.
 * Collective over the world, unless .local; path, names, shapes and dtypes must be identical on all its ranks, which must see
 * the directory. Ranks wait for the slowest disk: see SHARD_TIMEOUT. As torch.save. */
#define shard_save(tensors, path, ...)                                                                                           \
    SHARD_GIVEN_STATUS(shard_save_with(tensors, path, SHARD_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_save_with(const shard_tensors *tensors, const char *path,
                                                     const shard_metadata *metadata, const shard_save_options *options);

/* A save in the background that is not finished. */
typedef struct shard_async_save shard_async_save;

/* Begins shard_save and returns when the values are copied to a snapshot in host memory; a thread of each rank writes them
 * while training goes on. From the return on, tensors and metadata may change or be destroyed. path is the old file until the
 * save is complete, in shard_async_save_finish, which must follow, or in the background after a poll. docs/checkpoints.md
 * ("Saving in the background") has the memory, several saves, and saves that are not finished.
 * NULL with the error set, on all ranks; nothing is in the background then. Errors: as shard_save; MEMORY, no memory for the
 * snapshot. Collective over the world, unless .local. As torch.distributed.checkpoint.async_save. */
#define shard_save_async(tensors, path, ...)                                                                                     \
    SHARD_GIVEN(shard_save_async_with(tensors, path, SHARD_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS, __VA_ARGS__)))
SHARD_API shard_async_save *shard_save_async_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                                                  const shard_save_options *options);

/* Sets *done to whether the save is complete on all ranks, so that shard_async_save_finish does not wait. When all ranks have
 * written their values, a poll combines their checksums and lets the first rank's thread complete the file, and a later one finds
 * it complete. Without polls shard_async_save_finish does both. Errors: those of the save, which later polls and
 * shard_async_save_finish return again. The other polls are one small exchange. Collective over the world, unless the save is
 * .local. As Future.done. */
SHARD_API SHARD_CHECKED shard_status shard_async_save_poll(shard_async_save *save, bool *done);

/* Waits until the save is complete, and destroys it, after an error too. Errors, on all ranks (PEER on those that have found
 * nothing themselves): those of shard_save in writing,
 * with the old file at path unless only its directory could not be synced; MISMATCH, other saves on some ranks. An error that
 * ranks have before, such as a loss that is not finite, becomes the error of all, unless a poll has found the save complete, and
 * is returned. The save is completed all the same: its values are from before the error. But after MISMATCH, and where a rank has
 * died or does not come, the save is given up, unless a poll has already let it become the new file.
 * shard_finalize destroys saves that are not finished. Collective over the world, also after an error that all ranks have, unless
 * the save is .local. As Future.result. */
SHARD_API SHARD_CHECKED shard_status shard_async_save_finish(shard_async_save *save);

typedef struct shard_load_options {
    size_t size;
    const char *prefix;    /* prefix of each name in the file */
    bool allow_missing;    /* tensors that are not in the file keep their values */
    bool allow_unexpected; /* the file may have other tensors (with the prefix) */
    bool convert;          /* floating dtypes may differ and are converted */
    bool local;            /* this rank alone loads, as torch.load: not collective; a split tensor gets its local shard */
    bool skip_checksums;   /* data and header are not compared with the file's checksums; the same on all ranks */
} shard_load_options;
#define SHARD_LOAD_OPTIONS_VALUES sizeof(shard_load_options), NULL, false, false, false, false, false
#define SHARD_LOAD_OPTIONS_INIT {SHARD_LOAD_OPTIONS_VALUES}
/* Fills the tensors from the file; each rank reads its local shards, and may ask for other tensors than another rank. Initial
 * values that were not needed so far are never made. *metadata (NULL: not wanted) is set to the file's, which the caller
 * destroys, and to NULL after an error. docs/checkpoints.md has the cases of SHAPE ("Loading") and of the checksums
 * ("Checksums").
 * Errors, on all ranks with the same text, PEER on those that have found nothing themselves: SHAPE, names, whole shapes and
 * dtypes that differ, with no tensor changed; IO, a failed read, or a file that is replaced or written to while it is read;
 * FORMAT, a malformed file, or a wrong checksum; MISMATCH, other files, or another .skip_checksums, on some ranks; ARGUMENT, an
 * average that has its parameter's values between two shard_ema_swap. After IO, and after a wrong checksum of a tensor, the
 * values are undefined.
 * Collective over the world, unless .local. As torch.load and load_state_dict. */
#define shard_load(tensors, ...)                                                                                                 \
    SHARD_GIVEN_STATUS(shard_load_with(tensors, SHARD_OPTIONS(shard_load_options, SHARD_LOAD_OPTIONS, __VA_ARGS__), NULL))
SHARD_API SHARD_CHECKED shard_status shard_load_with(const shard_tensors *tensors, const char *path,
                                                     const shard_load_options *options, shard_metadata **metadata);
/* The macro with *metadata: shard_load_with_metadata(tensors, path, &metadata, .prefix = "head."). */
#define shard_load_with_metadata(tensors, path, ...)                                                                             \
    SHARD_GIVEN_STATUS(shard_load_with(tensors, path, SHARD_OPTIONS_BEFORE(shard_load_options, SHARD_LOAD_OPTIONS, __VA_ARGS__)))

/* shard_save and shard_load of the module's state dict (shard_state_dict), without metadata and with the defaults of their
 * options: the names of a file that is loaded are exactly those of the module. module and path are borrowed. Errors: ARGUMENT,
 * a NULL module, and PEER on the other ranks; those of shard_save and shard_load. Collective over the world. As
 * torch.save(module.state_dict(), path) and module.load_state_dict(torch.load(path)). */
SHARD_API SHARD_CHECKED shard_status shard_save_module(shard_module *module, const char *path);
SHARD_API SHARD_CHECKED shard_status shard_load_module(shard_module *module, const char *path);

/* Reads the metadata and the whole shapes of a file, not its values: returns tensors without memory, and in
 * *metadata (NULL: not needed) the metadata, both destroyed by the caller. NULL with the error set, *metadata too: IO; FORMAT, a
 * malformed header, or another checksum of it than was saved; UNSUPPORTED, a tensor of an unknown dtype or of a shape that
 * tensors here cannot have, as one of more than SHARD_MAX_DIMS dimensions (shard_load reads the file's other tensors). Not
 * collective. */
SHARD_API shard_tensors *shard_inspect(const char *path, shard_metadata **metadata);
/* As shard_inspect, without the tensors that shard_load cannot load: those of an unknown dtype, such as BOOL, or of such a
 * shape. Not collective. */
SHARD_API shard_tensors *shard_inspect_loadable(const char *path, shard_metadata **metadata);

/* Compares the header and all data of a file with its checksums, in blocks of 8 MiB. Errors: FORMAT, a malformed or changed
 * file, the first tensor named that was changed; IO; UNSUPPORTED, a file without checksums, which another program or an
 * earlier version of this library has saved. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_verify(const char *path);

/*
 * ---- a directory of checkpoints ----
 *
 * One checkpoint of each of several steps: directory/step-000120/checkpoint.safetensors, a file of shard_save. A step whose
 * file is not there is of a save that did not end, and counts for nothing.
 */

typedef struct shard_save_checkpoint_options {
    size_t size;
    int64_t max_to_keep; /* the newest checkpoints up to this step stay, 2 or more of them; 0: all. Default: 2. */
} shard_save_checkpoint_options;
#define SHARD_SAVE_CHECKPOINT_OPTIONS_VALUES sizeof(shard_save_checkpoint_options), 2
#define SHARD_SAVE_CHECKPOINT_OPTIONS_INIT                                                                                       \
    {                                                                                                                            \
        SHARD_SAVE_CHECKPOINT_OPTIONS_VALUES                                                                                     \
    }

/* shard_save as the checkpoint of a step, of at least 0, in a directory, which is made if it is not there (its parent must be).
 * When the file is durable, older checkpoints are removed but for the newest; those of later steps stay. Folders of saves that
 * did not end are removed, of any step and for any max_to_keep. The first rank removes them; the others may return before that.
 * A damaged checkpoint (a malformed header, another size) does not count as one that stays. Errors: as shard_save; ARGUMENT, a
 * negative step, max_to_keep of 1 or below 0. A checkpoint that cannot be removed is a line of the log. Collective over the
 * world. As orbax's CheckpointManager.save. */
#define shard_save_checkpoint(tensors, directory, step, ...)                                                                     \
    SHARD_GIVEN_STATUS(shard_save_checkpoint_with(                                                                               \
        tensors, directory, step, SHARD_OPTIONS(shard_save_checkpoint_options, SHARD_SAVE_CHECKPOINT_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_save_checkpoint_with(const shard_tensors *tensors, const char *directory, int64_t step,
                                                                const shard_metadata *metadata,
                                                                const shard_save_checkpoint_options *options);

/* shard_save_checkpoint by shard_save_async: older checkpoints are removed when the save is complete. Until then the step's
 * folder has no checkpoint. Collective over the world. */
#define shard_save_checkpoint_async(tensors, directory, step, ...)                                                               \
    SHARD_GIVEN(shard_save_checkpoint_async_with(                                                                                \
        tensors, directory, step, SHARD_OPTIONS(shard_save_checkpoint_options, SHARD_SAVE_CHECKPOINT_OPTIONS, __VA_ARGS__)))
SHARD_API shard_async_save *shard_save_checkpoint_async_with(const shard_tensors *tensors, const char *directory, int64_t step,
                                                             const shard_metadata *metadata,
                                                             const shard_save_checkpoint_options *options);

/* Finds the newest checkpoint of a step before `before` (INT64_MAX: of any step) whose file has a whole header and the size that
 * belongs to it; others are left out with a line of the log. Sets *step, and path, which has `bytes`, for shard_load; -1 and ""
 * if there is none, and after an error. If shard_load then finds a damaged tensor, search again before this step. Errors: IO, a
 * directory or a checkpoint that cannot be read; ARGUMENT, a path that does not fit, or an empty directory. The directory is the
 * same on all ranks; the first rank reads it. Collective over the world. As orbax's CheckpointManager.latest_step. */
SHARD_API SHARD_CHECKED shard_status shard_latest_checkpoint(const char *directory, int64_t before, int64_t *step, char *path,
                                                             size_t bytes);

/*
 * ---- state dicts in memory ----
 *
 * shard_save and shard_load do not need these functions: no rank ever has a whole split tensor. With these functions
 * one rank reads and writes files of whole tensors alone, as TorchShard's programs do.
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
 *                                                    shard_tensors *local =
 *     state = ts.relocate_state_dict(m, state)           shard_relocate_state_dict(state, whole, .root = 0);
 *     m.load_state_dict(state)                       shard_module_load_state_dict(m, local);
 *
 *     o.load_state_dict(o_state)                     shard_tensors *o_state = shard_optimizer_state_dict(o);
 *                                                    shard_load_state_dict(o_state, local);
 *
 * TorchShard calls torch.load on every rank; the same is possible here, without .root. One file may have both
 * states: shard_tensors_extend joins them, and .prefix separates them.
 */

/*
 * Gathers a list whose tensors may be split: rank `root` of the world (-1: every rank) gets the whole tensors, the
 * others an empty list. Tensors that are not split are referenced, not copied. It needs memory for the whole
 * tensors; shard_save does not. The caller destroys the list. NULL with the error set. Collective over the world. As
 * torchshard.collect_state_dict.
 */
SHARD_API shard_tensors *shard_collect_state_dict(const shard_tensors *tensors, int root);

typedef struct shard_relocate_options {
    size_t size;
    int root; /* the rank of the world that alone has the whole tensors; -1: every rank has them. Default: -1. */
} shard_relocate_options;
#define SHARD_RELOCATE_OPTIONS_VALUES sizeof(shard_relocate_options), -1
#define SHARD_RELOCATE_OPTIONS_INIT {SHARD_RELOCATE_OPTIONS_VALUES}

/* The reverse of shard_collect_state_dict: a list, the caller's to destroy, with the local shard of each tensor of `like`,
 * taken from the whole tensor in `whole`. It is placed as like's tensor and has whole's dtype; tensors that are not split are
 * referenced, not copied, where whole's are read. docs/checkpoints.md ("Whole tensors on one rank") has names, devices and
 * memory.
 * NULL with the error set: ARGUMENT, a missing name, or an average that has its parameter's values between two shard_ema_swap;
 * SHAPE, another shape, a PARTIAL tensor, or a tensor in whole that is not whole.
 * With .root only the root's whole is read, and may be NULL on other ranks; the call is then collective over the world, and
 * names, shapes, dtypes and placements of like are identical on all its ranks. Else it is not collective. As
 * torchshard.relocate_state_dict; with .root as broadcast_from_rank0 of set_model_state_dict in torch.distributed.checkpoint. */
#define shard_relocate_state_dict(like, ...) \
    SHARD_GIVEN(shard_relocate_state_dict_with(like, SHARD_OPTIONS(shard_relocate_options, SHARD_RELOCATE_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensors *shard_relocate_state_dict_with(const shard_tensors *like, const shard_tensors *whole,
                                                        const shard_relocate_options *options);

typedef struct shard_load_state_dict_options {
    size_t size;
    const char *prefix;    /* prefix of each name in the source */
    bool allow_missing;    /* tensors that are not in the source keep their values */
    bool allow_unexpected; /* the source may have other tensors (with the prefix) */
    bool convert;          /* floating dtypes may differ and are converted */
} shard_load_state_dict_options;
#define SHARD_LOAD_STATE_DICT_OPTIONS_VALUES sizeof(shard_load_state_dict_options), NULL, false, false, false
#define SHARD_LOAD_STATE_DICT_OPTIONS_INIT {SHARD_LOAD_STATE_DICT_OPTIONS_VALUES}

/* Copies values from tensors in memory into the tensors of a list (a module's, or of shard_optimizer_state_dict or
 * shard_ema_state_dict). A source tensor is whole, or it has this rank's local shard or flat range, as from
 * shard_relocate_state_dict. docs/checkpoints.md ("Whole tensors on one rank") has partitioned and tied tensors.
 * Errors: SHAPE, missing and unexpected names, other whole shapes ([1] fits a scalar, as in shard_load) and dtypes, local
 * shards of other ranges, a PARTIAL tensor; the text lists the first few, and no tensor is changed; ARGUMENT, an average that
 * has its parameter's values between two shard_ema_swap. After MEMORY or DEVICE the values are undefined. Not collective: each
 * rank loads by itself, and in stage 3 of shard_zero_optimizer all ranks must. As torch.nn.Module.load_state_dict; strict=False
 * is .allow_missing = true, .allow_unexpected = true. */
#define shard_load_state_dict(tensors, ...)                                                                                      \
    SHARD_GIVEN_STATUS(shard_load_state_dict_with(                                                                               \
        tensors, SHARD_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS, __VA_ARGS__)))
#define shard_module_load_state_dict(module, ...)                                                                                \
    SHARD_GIVEN_STATUS(shard_module_load_state_dict_with(                                                                        \
        module, SHARD_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_load_state_dict_with(const shard_tensors *tensors, const shard_tensors *source,
                                                                const shard_load_state_dict_options *options);
SHARD_API SHARD_CHECKED shard_status shard_module_load_state_dict_with(shard_module *module, const shard_tensors *source,
                                                                       const shard_load_state_dict_options *options);

SHARD_END_C

#endif
