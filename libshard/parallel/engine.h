/*
 * Engines: average gradients over replica groups while backward runs, and partition optimizer state, gradients and values
 * over the groups, by a partition level. An engine has parameters and does not depend on an optimizer: an optimizer
 * updates each parameter's local range (shard_leaf.grad_range), then the engine publishes it. A parameter belongs to one
 * engine at most. As the Reducer of torch's DistributedDataParallel, and FSDP2's fully_shard.
 */
#ifndef SHARD_PARALLEL_ENGINE_H
#define SHARD_PARALLEL_ENGINE_H

#include "parallel/bucket.h"

typedef struct shard_engine shard_engine;

/* Makes an engine without parameters. The caller sets level, whole_parameters, broadcast and bytes of the options, and
 * releases the reference. NULL with the error set. */
shard_engine *shard_engine_create(shard_bucket_options options);
shard_engine *shard_engine_ref(shard_engine *engine);
/* Destroys the engine with its last reference; its parameters keep their memory. NULL is ignored. */
void shard_engine_unref(shard_engine *engine);

/* Whether engines take the parameter: it requires a gradient and is replicated on several ranks. */
bool shard_engine_takes(const shard_tensor *parameter);
/* Adds the parameters that belong to no engine; none of them after an error. Collective over the parameters' replica groups. */
shard_status shard_engine_add(shard_engine *engine, const shard_tensors *parameters);
/* The number of its buckets; and removes those after the first `count`, whose parameters then belong to no engine. */
int64_t shard_engine_buckets(const shard_engine *engine);
void shard_engine_remove_buckets(shard_engine *engine, int64_t count);
/* Whether a parameter of it has a gradient. */
bool shard_engine_has_gradient(const shard_engine *engine);
/* Moves the parameters of an engine of level NONE into buckets with these options. After an error the parameters are in no
 * bucket and belong to no engine. Collective over their replica groups. */
shard_status shard_engine_partition(shard_engine *engine, shard_bucket_options options);

shard_partition_level shard_engine_level(const shard_engine *engine);
/* The engine that a parameter belongs to; NULL: none. */
shard_engine *shard_engine_of(const shard_tensor *parameter);
/* Whether backward averages the parameter's gradient: an engine has it, and sync is on. *identity: the same for its replicas. */
bool shard_engine_averages(const shard_tensor *parameter, uint64_t *identity);
bool shard_engine_is_in(const shard_tensor *parameter, const shard_bucket *bucket);

/* While sync is off, backward accumulates gradients locally. Partitioned gradients are reduced nevertheless. */
void shard_engine_set_sync(shard_engine *engine, bool sync);

/* After an update of local ranges of the parameter, on each of its replicas: its bucket is to be published. */
void shard_engine_mark_updated(const shard_tensor *parameter);
/* Sends the values of the buckets that are marked to the other ranks. Other buckets count no write: a gradient that another
 * optimizer has not stepped by yet may be deferred, and is computed from the values. Collective over the parameters' replica
 * groups, also after an error. */
shard_status shard_engine_publish(shard_engine *engine);

/* Sets a function that updates each bucket during backward, when its gradients and those of the buckets before it have
 * been reduced, clears the gradients by which it has, and marks the bucket, which is then published. NULL: no function. */
void shard_engine_on_reduced(shard_engine *engine, void (*function)(const shard_bucket *, void *context), void *context);

#endif
