/* Replicas: what data parallel training keeps alike on all ranks beside the gradients. A
 * check that the parameters are, and buffers that are made so after each backward. */
#ifndef SHARD_DIST_REPLICAS_H
#define SHARD_DIST_REPLICAS_H

#include <shard/dist.h>

typedef struct shard_replicas shard_replicas;

/* An error of all where the parameters' names, shapes, dtypes or what is frozen differ.
 * Collective over the parameters' and buffers' groups, for a rank that has failed over the
 * world's. NULL with the error set. */
shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options);
void shard_replicas_destroy(shard_replicas *replicas);

/* Compares the parameters: names, shapes, dtypes and what is frozen, in their order, and
 * values. An error of all where they differ, as in "rank 2: `what`: here it is ...".
 * Collective over their replica groups, also for a rank that has failed. */
shard_status shard_replicas_compare(const shard_tensors *parameters, bool values, const char *what);

/* Nothing is checked or exchanged while off. */
void shard_replicas_set_sync(shard_replicas *replicas, bool sync);

#endif
