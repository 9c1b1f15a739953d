/* Values that are kept in parts: a bucket's, gathered when one of its parameters is needed. */
#ifndef SHARD_DIST_GATHERED_H
#define SHARD_DIST_GATHERED_H

#include "distributed/bucket.h"

/* From now on each rank keeps its own part of the bucket's values alone. */
shard_status shard_gathered_begin(shard_bucket *bucket);

/* Gives back what rests and is not on its way for what comes next. */
void shard_gathered_release_resting(void);

/* After an error, which ranks may have met at different places: gives all back, and forgets what
 * comes after what, so that the ranks gather the same again. */
void shard_gathered_forget(void);

/* A backward is over: what is needed next, after a step, is not to be gathered before it. */
void shard_gathered_end_pass(void);

#endif
