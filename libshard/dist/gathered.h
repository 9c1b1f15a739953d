/* Values that are kept in parts: a bucket's, gathered when one of its parameters is needed. */
#ifndef SHARD_DIST_GATHERED_H
#define SHARD_DIST_GATHERED_H

#include "dist/bucket.h"

/* From now on each rank keeps its own part of the bucket's values alone. */
shard_status shard_gathered_begin(shard_bucket *bucket);

/* A pass is over; the next one is expected to need the same in the same order. */
void shard_gathered_end_pass(void);

#endif
