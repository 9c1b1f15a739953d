/*
 * Unsharding: a unit whose values are partitioned is gathered when one of its parameters is needed, and
 * evicted once its module's forward, or backward, is done with it; FSDP's unshard and reshard.
 */
#ifndef SHARD_PARALLEL_UNSHARD_H
#define SHARD_PARALLEL_UNSHARD_H

#include "parallel/unit.h"

/* The order in which an engine's units are unsharded: recorded in a pass, by which the next one prefetches. */
typedef struct shard_unshard_order shard_unshard_order;

/* With a reference, the caller's; each unit takes one. NULL with the error set. */
shard_unshard_order *shard_unshard_order_create(void);
/* NULL is fine. */
void shard_unshard_order_unref(shard_unshard_order *order);

/* From now on the unit's memory of all values is materialized from its local values. */
shard_status shard_unshard_attach(shard_unit *unit, shard_unshard_order *order);

/* Evicts the units that are idle and are not being prefetched. */
void shard_unshard_evict_idle(shard_unshard_order *order);

/* A backward is over: nothing is prefetched across the step that follows. */
void shard_unshard_end_pass(shard_unshard_order *order);

/* After an error, which ranks may have met at different places: each engine evicts its units and
 * forgets its order before its next gather, so that the ranks gather the same again. */
void shard_unshard_forget(void);

#endif
