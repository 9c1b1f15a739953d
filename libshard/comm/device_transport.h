/* Which device transport a group takes. */
#ifndef SHARD_COMM_DEVICE_TRANSPORT_H
#define SHARD_COMM_DEVICE_TRANSPORT_H

#include "comm/transport.h"

/* Sets the group's device transport by what all members offer, before its first collective of a device's memory, `call`;
 * the same on every member. Collective. */
shard_status shard_device_transport_choose(shard_group *group, const shard_collective *call);

/* Gives groups that a parent was just split into their device transport, if the parent's can be
 * split too; all in one color are `group` (NULL: of this rank alone). Collective over the parent. */
shard_status shard_device_transport_split(shard_group *parent, shard_group *group, int color);

#endif
