/* Partitioned values: a bucket's are gathered when one of its parameters is needed. */
#ifndef SHARD_PARALLEL_UNSHARD_H
#define SHARD_PARALLEL_UNSHARD_H

#include "parallel/bucket.h"

/* From now on each rank keeps its own range of the bucket's values alone. */
shard_status shard_unshard_begin(shard_bucket *bucket);

/* Evicts what is idle and is not being prefetched. */
void shard_unshard_evict_idle(void);

/* After an error, which ranks may have met at different places: evicts everything, and forgets the
 * order of gathers, so that the ranks gather the same again. */
void shard_unshard_forget(void);

/* A backward is over: nothing is prefetched across the step that follows. */
void shard_unshard_end_pass(void);

#endif
