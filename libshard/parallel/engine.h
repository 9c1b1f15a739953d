/*
 * Engines: average gradients over replica groups while backward runs, and partition optimizer state,
 * gradients and values over them, by a partition level. An engine is made of parameters, and
 * knows no optimizer: an optimizer updates each parameter's local range (shard_engine_local) and then has the engine
 * publish it. A parameter belongs to one engine at most. As the Reducer inside of torch's DistributedDataParallel, and
 * FSDP2's fully_shard.
 */
#ifndef SHARD_PARALLEL_ENGINE_H
#define SHARD_PARALLEL_ENGINE_H

#include "parallel/bucket.h"

typedef struct shard_engine shard_engine;

/* Of no parameters yet; of the options, level, whole_parameters, broadcast and bytes are the caller's. With a reference, the
 * caller's. NULL with the error set. */
shard_engine *shard_engine_create(shard_bucket_options options);
shard_engine *shard_engine_ref(shard_engine *engine);
/* With the last one the engine goes; its parameters keep their memory. NULL is fine. */
void shard_engine_unref(shard_engine *engine);

/* Whether engines take such a parameter: it requires a gradient, and other ranks have it too. */
bool shard_engine_takes(const shard_tensor *parameter);
/* Takes those of the parameters that belong to no engine. Collective over the parameters' replica groups. */
shard_status shard_engine_add(shard_engine *engine, const shard_tensors *parameters);
/* Moves the parameters of an engine of level NONE into buckets of these options. After an error they are in none, and
 * belong to no engine. Collective over their replica groups. */
shard_status shard_engine_partition(shard_engine *engine, shard_bucket_options options);

shard_partition_level shard_engine_level(const shard_engine *engine);
/* The engine that a parameter belongs to; NULL: none. */
shard_engine *shard_engine_of(const shard_tensor *parameter);
/* The flat range of a partitioned parameter that is this rank's to update, a leaf with its gradient, and at which
 * element it begins; NULL: all of the parameter is. */
shard_tensor *shard_engine_local(const shard_tensor *parameter, int64_t *start);
bool shard_engine_is_in(const shard_tensor *parameter, const shard_bucket *bucket);

/* While off, backward only accumulates locally where gradients are not partitioned; where they are, it goes on. */
void shard_engine_set_sync(shard_engine *engine, bool sync);

/* After an update of the local ranges that have a gradient, or of all: gives the other ranks their values. Collective over
 * the parameters' replica groups, also after an error. */
shard_status shard_engine_publish(shard_engine *engine, bool all);

/* Has function update each bucket in turn during backward, when the reduction of its gradients, and of those before it,
 * is done; then the bucket is published, and its gradients are cleared. NULL: none. */
void shard_engine_on_reduced(shard_engine *engine, void (*function)(const shard_bucket *, void *context), void *context);

#endif
