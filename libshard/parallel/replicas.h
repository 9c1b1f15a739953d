/* Replicas: the values, other than gradients, that data parallel training and ZeRO keep identical on all ranks.
 * Parameters are checked; buffers are made identical after each backward. */
#ifndef SHARD_PARALLEL_REPLICAS_H
#define SHARD_PARALLEL_REPLICAS_H

#include <shard/parallel.h>

typedef struct shard_replicas shard_replicas;

/* With .init_sync frozen parameters get the first replica's values. If names, shapes, dtypes or the frozen parameters
 * differ, all ranks have an error; if values differ, in the first backward that synchronizes, or here in stage 3 without
 * .init_sync: "rank 2: shard_backward: the replicas differ: here it is ...". Several may check the same parameters.
 * Collective over the parameters' and buffers' groups, for a rank that has failed over the world. NULL with the error
 * set. */
shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options);
void shard_replicas_destroy(shard_replicas *replicas);

/* Nothing is checked or exchanged while off. */
void shard_replicas_set_sync(shard_replicas *replicas, bool sync);

/* ---- check_replicas.c ---- */

/* Sets *hash to a hash of the bits of the tensor's values, which this rank has whole. Those of a matrix's recipe are made
 * in blocks, and not kept. */
shard_status shard_replica_hash(shard_tensor *tensor, uint64_t *hash);

#endif
