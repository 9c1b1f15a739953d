/* Every collective of a group against the values that it must give, for all
 * transports: called by all members alike. */
#ifndef TESTS_SUPPORT_COLLECTIVES_H
#define TESTS_SUPPORT_COLLECTIVES_H

#include "comm/comm.h"

/* Whether sums of floats must be those of adding in rank order, to the bit, or only
 * close to them. */
typedef enum sum_order { RANK_ORDER, ANY_ORDER } sum_order;

/* Starts an all-reduce in place, for shard_group_wait. */
static inline shard_request *start_all_reduce(shard_group *group, shard_device *device, void *data, int64_t count,
                                              shard_dtype dtype, shard_reduce_op op)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_ALL_REDUCE,
                                   .send = data,
                                   .receive = data,
                                   .count = count,
                                   .dtype = dtype,
                                   .op = op,
                                   .device = device};
    return shard_group_post(group, &call);
}

void check_all_reduce(shard_group *group, sum_order order);
void check_all_reduce_start(shard_group *group, sum_order order);
void check_all_gather(shard_group *group);
void check_reduce_scatter(shard_group *group, sum_order order);
void check_broadcast(shard_group *group);
void check_exchange(shard_group *group);

/* Each of the above once with all dtypes and operations, on arrays of this many
 * elements. */
void check_sizes(shard_group *group, int64_t count, sum_order order);

/* Every way to write the world as rows times columns: the groups of both, at once. */
void check_grids(shard_group *world, sum_order order);

/* Two ranks of one machine: in a barrier rank 0 waits for rank 1 while both are stopped for longer than SHARD_TIMEOUT. */
void check_stopped_job(shard_group *world);

#endif
