/*
 * Reducers: gradients averaged over replica groups while backward runs, for data
 * parallel training and for ZeRO, which are one engine or several of different dealing.
 * A parameter belongs to one. As the Reducer inside of torch's DistributedDataParallel.
 */
#ifndef SHARD_PARALLEL_ENGINE_H
#define SHARD_PARALLEL_ENGINE_H

#include "parallel/bucket.h"

typedef struct shard_engine shard_engine;

/* Reduces the gradients of the parameters that require one and are not this rank's
 * alone. One that deals out takes over those of one that does not, which leaves them to
 * it; what two would deal out is an error (ARGUMENT). Collective over the parameters' replica
 * groups. NULL with the error set. */
shard_engine *shard_engine_create(const shard_tensors *parameters, shard_bucket_options options);
/* Parameters keep their memory. NULL is fine. */
void shard_engine_destroy(shard_engine *engine);

/* More of them; the same. */
shard_status shard_engine_add(shard_engine *engine, const shard_tensors *parameters);

/* While off, backward only accumulates locally where whole gradients are kept; where parts
 * are, it goes on. Counts for the reducers too that have parameters of this one's list. */
void shard_engine_set_sync(shard_engine *engine, bool sync);

/* Its buckets, in an order that is the same on all ranks. */
const shard_buckets *shard_engine_buckets(const shard_engine *engine);
/* Where a parameter is in them, NULL if it is not. */
const shard_bucket_entry *shard_engine_find(const shard_engine *engine, const shard_tensor *parameter);

/* Waits for the gathers of values that were started (shard_bucket.publishing); backward does
 * at its end. */
shard_status shard_engine_await_values(shard_engine *engine);

/* Calls function for each bucket in turn when the reduction of its gradients, and of
 * those before it, is done. */
void shard_engine_on_reduced(shard_engine *engine, void (*function)(shard_bucket *, void *context), void *context);

#endif
