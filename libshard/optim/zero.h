/* An optimizer under shard_zero_optimizer, between the files of this folder. */
#ifndef SHARD_OPTIM_ZERO_H
#define SHARD_OPTIM_ZERO_H

#include "distributed/identical.h"
#include "optim/optimizer.h"

/* Adds the settings that are equal on all ranks, with so many digits. */
void shard_optimizer_describe(const shard_optimizer *optimizer, int digits, shard_identical_lines *mine);

/* Partitions the parameters that the optimizer has had added since, if the arguments are identical on all ranks. Collective over
 * the world, also for a rank that has failed. */
shard_status shard_zero_take(shard_optimizer *optimizer);

void shard_zero_destroy(struct shard_zero_optimizer *zero);

#endif
