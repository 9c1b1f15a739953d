/* The choice of a group's device transport. */
#ifndef SHARD_COMM_DEVICE_TRANSPORT_H
#define SHARD_COMM_DEVICE_TRANSPORT_H

#include "comm/transport.h"

/* Sets the group's device transport by the offers of all ranks, before its first collective of a device's memory, `call`.
 * The choice is the same on all ranks. Collective. */
shard_status shard_device_transport_choose(shard_group *group, const shard_collective *call);

/* Sets the device transport of the groups into which a parent was just split, if the parent's transport can be split. The
 * ranks of one color are `group` (NULL: this rank alone). Collective over the parent. */
shard_status shard_device_transport_split(shard_group *parent, shard_group *group, int color);

#endif
