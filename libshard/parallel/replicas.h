/* Replicas: what data parallel training and ZeRO keep alike on all ranks beside the gradients. A
 * check that the parameters are, and buffers that are made so after each backward. */
#ifndef SHARD_PARALLEL_REPLICAS_H
#define SHARD_PARALLEL_REPLICAS_H

#include <shard/parallel.h>

typedef struct shard_replicas shard_replicas;

/* What is frozen becomes the first replica's. An error of all where the parameters' names,
 * shapes, dtypes or what is frozen differ, and in the first backward that synchronises where
 * their values do: "rank 2: `differ`: here it is ...". Several may look on the same parameters.
 * Collective over the parameters' and buffers' groups, for a rank that has failed over the
 * world's. NULL with the error set. */
shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options,
                                      const char *differ);
void shard_replicas_destroy(shard_replicas *replicas);

/* Nothing is checked or exchanged while off. */
void shard_replicas_set_sync(shard_replicas *replicas, bool sync);

#endif
