/*
 * The position of a rank's local shard or flat range in the whole tensor, and gathering over a group, a block at a
 * time.
 */
#ifndef SHARD_CHECKPOINT_RANGES_H
#define SHARD_CHECKPOINT_RANGES_H

#include "tensor/tensor.h"

/* Bytes of a block for staging. A rank has at most five such buffers and a file's aligned one. */
#define SHARD_BLOCK_BYTES ((int64_t)8 << 20)
/* Rows of a local shard of at least this many bytes are read and written one by one. */
#define SHARD_WIDE_BYTES ((int64_t)256 << 10)

/* `rows` runs of `width` elements, which follow each other in the local memory. In the whole tensor the first begins
 * at element `start`, and each `pitch` elements after the one before. Contiguous elements are one row. */
typedef struct shard_extent {
    int64_t rows, width, pitch, start;
    int64_t element; /* of the local memory, where the first row is */
} shard_extent;

/* The extents of a tensor in the whole; returns how many. A flat range may have three: the end of a row,
 * whole rows, the beginning of a row. */
#define SHARD_EXTENTS 3
int shard_extents_of(const shard_tensor *tensor, shard_extent extents[SHARD_EXTENTS]);
/* The element of `from` at which the elements of `to` begin, one after the other: 0 if both are the same range of a whole of one
 * shape; the start of a flat range in the local shard that it belongs to. -1 if `from` is neither. */
int64_t shard_first_element(const shard_tensor *from, const shard_tensor *to);

/* The placement and the shape of the local shard; for a flat range, those of the tensor that it belongs to. */
const shard_placement *shard_local_placement(const shard_tensor *tensor);
const shard_shape *shard_local_shape(const shard_tensor *tensor);

/* Whether a state dict can be saved or loaded with the tensor: SHAPE if it is PARTIAL, ARGUMENT if it is an average in its
 * parameter's place. function and name are for the text. */
shard_status shard_check_saved(const char *function, const char *name, const shard_tensor *tensor);

/* A list with the tensors that this rank keeps: a flat range replaces a tensor whose values are gathered when they
 * are needed. idle: whether idle tensors are included. NULL for NULL, or with the error set. */
shard_tensors *shard_tensors_kept(const shard_tensors *tensors, bool idle);
/* Adds an optional tensor of zeros like `idle`: of that shape, and placed as `shard` unless that is NULL. */
shard_status shard_tensors_add_idle(shard_tensors *list, const char *name, shard_shape shape, const shard_tensor *idle,
                                    const shard_tensor *shard);
/* Evicts values that were gathered from the flat ranges, which have changed; they are gathered again when they are
 * needed. */
void shard_tensors_forget_gathered(const shard_tensors *tensors);

/* Whether all ranks call the function with the same names, dtypes, whole shapes and placements in the list, and the
 * same argument, a text. Collective over the world. */
shard_status shard_tensors_check_identical(const char *function, const shard_tensors *tensors, const char *argument);

/* Host memory for staging, SHARD_BLOCK_BYTES; NULL with the error set. */
void *shard_block_allocate(void);
void shard_block_free(void *block);
/* Allocates a block for values, and one for their conversion if there is one, unless they are there. Before a tensor's recipe is
 * removed: without memory the tensor keeps its initial values. */
shard_status shard_blocks_allocate(bool converts, void **block, void **converted);

/* The values of a tensor from an element on, in host memory: its own memory, or count elements copied into `block`.
 * NULL with the error set. */
const void *shard_values_read(shard_tensor *tensor, int64_t element, int64_t count, void *block);
/* Copies count values of a dtype from host memory to `memory`, which is the tensor's, and converts them to its
 * dtype. count is at most the elements of a block in the larger dtype. `converted` is a block for the conversion. */
shard_status shard_values_write(shard_tensor *tensor, char *memory, const void *values, shard_dtype dtype, int64_t count,
                                void *converted);
/* Copies the range of the whole that `like` is out of a local tensor, to memory of that tensor's device and in its
 * dtype. */
shard_status shard_values_copy(const shard_tensor *like, shard_tensor *whole, char *to);
/* Whether a tensor's memory is host memory. */
bool shard_is_host_memory(const shard_tensor *tensor);

/* The ranges along the split dimension of all ranks, [size], of the group of a split tensor, or of the tensor that a
 * flat range belongs to; an error if they do not cover the whole. Collective over the group. Freed by free(); NULL
 * with the error set. */
shard_range *shard_local_ranges(const char *name, const shard_tensor *tensor);

/* Whether this rank's group has the local shards that are written: of several groups that have them, the world's first rank's. */
bool shard_is_written(const shard_tensor *tensor);

/* The flat ranges of all ranks of the group, [size], in rank order; an error if they do not cover the tensor that
 * they belong to. *written (NULL: not wanted) becomes true if shard_is_written holds on one of the ranks. Collective over the
 * group. Freed by free(); NULL with the error set. */
shard_range *shard_flat_ranges(const char *name, const shard_tensor *tensor, bool *written);

/* A block: of each rank, `count[rank]` elements of each of `rows` rows of the whole, from row `row` and the row's
 * element `first[rank]` on. The ranks' elements follow each other in data. A row of the whole has `pitch`
 * elements. */
typedef struct shard_block {
    const char *data;
    int64_t row, rows, pitch;
    const int64_t *count, *first; /* [ranks] */
    int ranks;
} shard_block;

/* Calls take for one block of a split tensor after the other, on every rank: whole rows if they fit into a block.
 * For a flat range the local shard is gathered first. Errors: those of shard_local_ranges and shard_flat_ranges, with the
 * tensor's name. Collective over the placement's group, and over the flat range's; an error of take on one rank ends the walk
 * on all. */
shard_status shard_gather_blocks(const char *name, shard_tensor *tensor,
                                 shard_status (*take)(void *context, const shard_block *block), void *context);

#endif
