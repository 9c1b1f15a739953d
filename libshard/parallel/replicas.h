/* Replicas: a check that parameters are identical on all ranks of their replica groups, and buffers that are made
 * identical after each backward. */
#ifndef SHARD_PARALLEL_REPLICAS_H
#define SHARD_PARALLEL_REPLICAS_H

#include <shard/parallel.h>

typedef struct shard_replicas shard_replicas;

/* Gives frozen parameters the first replica's values. If the parameters' names, shapes, dtypes or which of them are
 * frozen differ, all ranks fail, "rank 2: `differ`: here it is ..."; if their values do, in the first backward that
 * synchronizes. Several objects may check the same parameters. Collective over the parameters' and buffers'
 * groups, on a rank that has failed over the world. NULL with the error set. */
shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options,
                                      const char *differ);
void shard_replicas_destroy(shard_replicas *replicas);

/* Nothing is checked or exchanged while off. */
void shard_replicas_set_sync(shard_replicas *replicas, bool sync);

#endif
