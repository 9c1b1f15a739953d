/*
 * Unsharding: a unit with partitioned values is gathered when one of its parameters is needed, and evicted
 * after its module's forward or backward; FSDP's unshard and reshard.
 */
#ifndef SHARD_PARALLEL_UNSHARD_H
#define SHARD_PARALLEL_UNSHARD_H

#include "parallel/unit.h"

/* The order in which an engine's units are unsharded. It is recorded in one pass; the next pass prefetches in it. */
typedef struct shard_unshard_order shard_unshard_order;

/* The caller releases the reference; each unit takes one. NULL with the error set. */
shard_unshard_order *shard_unshard_order_create(void);
/* NULL is ignored. */
void shard_unshard_order_unref(shard_unshard_order *order);

/* Makes the unit's memory of all values one that is materialized from the ranks' local values: on all ranks or, where one has
 * failed, on none. Collective over the unit's group. */
shard_status shard_unshard_attach(shard_unit *unit, shard_unshard_order *order);

/* Evicts the units that are idle and are not being prefetched. */
void shard_unshard_evict_idle(shard_unshard_order *order);

/* Ends a backward: no unit is prefetched before the step that follows. */
void shard_unshard_end_pass(shard_unshard_order *order);

#endif
