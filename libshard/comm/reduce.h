/* Sums, maxima and minima of several arrays, element by element. */
#ifndef SHARD_COMM_REDUCE_H
#define SHARD_COMM_REDUCE_H

#include <shard/comm.h>

/* out = parts[0] op parts[1] op ... in that order, each [count]. out may be one of
 * the parts. 16-bit types are computed in float32 and rounded once; sums of
 * integers wrap. */
void shard_reduce_elements(void *out, const void *const *parts, int number, int64_t count, shard_dtype dtype, shard_reduce_op op);

#endif
