/* An optimizer whose work is shared out, between the files of this folder. */
#ifndef SHARD_OPTIM_ZERO_H
#define SHARD_OPTIM_ZERO_H

#include "optim/optimizer.h"

/* Shares out what the optimizer has had added since, if all ranks mean the same. Collective over
 * the world, also for a rank that has failed. */
shard_status shard_zero_take(shard_optimizer *optimizer);

/* After a step, and in place of the thread's error, if it has one: all get each other's
 * parts of what had a gradient, or of all. Collective over the parameters' replica groups. */
shard_status shard_zero_publish(shard_optimizer *optimizer, bool all);

/* Whether steps are made during backward. */
bool shard_zero_overlaps(const shard_optimizer *optimizer);

void shard_zero_destroy(struct shard_zero_optimizer *zero);

#endif
