/*
 * Where a rank's part of a tensor lies in the whole, and the members' parts brought
 * together, a block at a time.
 */
#ifndef SHARD_CHECKPOINT_PART_H
#define SHARD_CHECKPOINT_PART_H

#include "tensor/tensor.h"

/* What is staged at a time. A rank has at most two such buffers and a file's bounce. */
#define SHARD_BLOCK_BYTES ((int64_t)8 << 20)
/* Pieces of a split tensor's rows from this on are read and written each by its own. */
#define SHARD_WIDE_BYTES ((int64_t)256 << 10)

/* `rows` pieces of `width` elements, one after the other in the part's memory; in the
 * whole tensor the first begins at element `start`, and each `pitch` after the one
 * before. A part that lies in one piece has one row. */
typedef struct shard_part {
    int64_t rows, width, pitch, start;
    int64_t element; /* of the part's memory, where the first row is */
} shard_part;

/* All of it, which for a slice may take three: the end of a row, rows, the beginning of
 * one. How many. */
#define SHARD_PARTS 3
int shard_parts_of(const shard_tensor *tensor, shard_part parts[SHARD_PARTS]);
/* Whether two tensors of one whole shape have the same elements of it. */
bool shard_parts_equal(const shard_tensor *a, const shard_tensor *b);

/* The placement in the whole, and the shape of the part: of a slice, those of the tensor it
 * is of. */
const shard_placement *shard_part_placement(const shard_tensor *tensor);
const shard_shape *shard_part_shape(const shard_tensor *tensor);

/* Refuses a PARTIAL tensor; function and name are for the text. */
shard_status shard_part_check(const char *function, const char *name, const shard_tensor *tensor);

/* The same list with what this rank keeps of each tensor in its place: a slice, where its
 * values are gathered when they are needed; those that are idle among them, or not. NULL for
 * NULL, or with the error set. */
shard_tensors *shard_tensors_kept(const shard_tensors *tensors, bool idle);
/* Adds zeros as idle as `idle` is: of that shape, and placed as `part` where it is not NULL. */
shard_status shard_tensors_add_idle(shard_tensors *list, const char *name, shard_shape shape, const shard_tensor *idle,
                                    const shard_tensor *part);
/* Values that were gathered from what this rank keeps are old: they are freed, and gathered
 * anew when they are needed. */
void shard_tensors_forget_gathered(const shard_tensors *tensors);

/* Whether all ranks call the function with the same names, dtypes, whole shapes and
 * placements in the list, and the same argument, which is a text. Collective over the
 * world. */
shard_status shard_tensors_agree(const char *function, const shard_tensors *tensors, const char *argument);

/* Host memory for staging, SHARD_BLOCK_BYTES; NULL with the error set. */
void *shard_block_take(void);
void shard_block_give_back(void *block);

/* The values of a tensor from an element on, as host memory: its own, or copied into
 * `block`, which then holds count elements. NULL with the error set. */
const void *shard_part_read(shard_tensor *tensor, int64_t element, int64_t count, void *block);
/* count values of a dtype from host memory into a tensor's memory at `memory`, converted to its
 * dtype. count is at most what a block holds of the larger dtype. *converted is a block for the
 * conversion, taken when it is first needed; the caller gives it back. */
shard_status shard_part_write(shard_tensor *tensor, char *memory, const void *values, shard_dtype dtype, int64_t count,
                              void **converted);
/* What `like` has of its whole, out of a tensor that has the whole, into memory of the latter's
 * device and in its dtype. */
shard_status shard_part_copy(const shard_tensor *like, shard_tensor *whole, char *to);
/* Whether a tensor's memory is host memory. */
bool shard_part_is_host(const shard_tensor *tensor);

/* The ranges of all members of the group of a split tensor, or of a slice of one, along the
 * split dimension, [size]; an error if they do not cover the whole. Collective over the group. Freed
 * by free(); NULL with the error set. */
shard_range *shard_part_ranges(const char *name, const shard_tensor *tensor);

/* The ranges of all members of a slice's group, [size], in their order; an error if they do
 * not make up the tensor that it is of. Collective over the group. Freed by free(); NULL
 * with the error set. */
shard_range *shard_slice_ranges(const char *name, const shard_tensor *tensor);

/* A block: of each member `count[member]` elements of each of `rows` rows of the whole,
 * from row `row` and the row's element `first[member]` on. The members' stand one after
 * the other in data. A row of the whole has `pitch` elements. */
typedef struct shard_block {
    const char *data;
    int64_t row, rows, pitch;
    const int64_t *count, *first; /* [members] */
    int members;
} shard_block;

/* Calls take for block after block of a split tensor, on every member: whole rows where
 * they fit into a block. Of a slice, whose group's members have those ranges (slices, else
 * NULL), the part is brought together first. Collective over its group, of a slice over both;
 * an error of take's on one member ends it for all. */
shard_status shard_part_gather(shard_tensor *tensor, const shard_range *ranges, const shard_range *slices,
                               shard_status (*take)(void *context, const shard_block *block), void *context);

#endif
