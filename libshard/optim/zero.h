/* An optimizer under shard_zero_optimizer, between the files of this folder. */
#ifndef SHARD_OPTIM_ZERO_H
#define SHARD_OPTIM_ZERO_H

#include "optim/optimizer.h"

/* Partitions the parameters that the optimizer has had added since, if the arguments of all ranks agree. Collective over
 * the world, also for a rank that has failed. */
shard_status shard_zero_take(shard_optimizer *optimizer);

/* Whether steps are made during backward. */
bool shard_zero_overlaps(const shard_optimizer *optimizer);

void shard_zero_destroy(struct shard_zero_optimizer *zero);

#endif
