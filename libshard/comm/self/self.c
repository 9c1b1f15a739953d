/* The transport of one rank: the checked collectives never reach it, so its
 * table is nothing but a name and an end. */
#include "comm/comm.h"

const shard_group_ops shard_self_ops = {
    .name = "self",
    .destroy = shard_group_free,
};

shard_group *shard_self_make(int world_rank)
{
    return shard_group_make(&shard_self_ops, 0, 1, &world_rank, NULL);
}

shard_group *shard_self_open(void)
{
    return shard_self_make(0);
}
