/* Declarations for the files of this folder. */
#ifndef SHARD_DIST_DIST_H
#define SHARD_DIST_DIST_H

#include <shard/distributed.h>

#include "op/op.h"

/* Called instead of a collective by a function that failed before it: the other ranks receive the error. Returns
 * NULL. */
shard_tensor *shard_leave(shard_group *group);

/* Reports that x is placed otherwise; fits: as the function needs it, but over another group than that of the call. */
bool shard_refuse_group(const char *function, const shard_tensor *x, bool fits);

/* Copies the range along dim of a tensor to contiguous memory, and back. */
shard_status shard_copy_part_out(shard_tensor *whole, int dim, shard_range range, void *part);
shard_status shard_copy_part_in(shard_tensor *whole, int dim, shard_range range, const void *part);

/* The range along dim as a new tensor, which has whole's memory if dim is 0. NULL with the error set. */
shard_tensor *shard_part_of(shard_tensor *whole, int dim, shard_range range);

/* shard_split_range in units of `multiple`, which divides size. */
static inline shard_range shard_split_multiple(int64_t size, int64_t multiple, int ranks, int rank)
{
    shard_range range = shard_split_range(size / multiple, ranks, rank);
    return (shard_range){.start = range.start * multiple, .size = range.size * multiple};
}

/* shard_scatter_to_group in units of `multiple`, which divides x's size along dim. */
shard_tensor *shard_scatter_multiple(shard_tensor *x, int dim, int64_t multiple, shard_group *group);

/* Gathers the ranks' local shards (ranges[i] along dim) into one tensor of that shape. */
shard_tensor *shard_gather_parts(shard_tensor *part, shard_shape whole, int dim, const shard_range *ranges, shard_group *group);

#endif
