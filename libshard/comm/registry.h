/* The transports that there are, and the choice among them. */
#ifndef SHARD_COMM_REGISTRY_H
#define SHARD_COMM_REGISTRY_H

#include "comm/transport.h"

/* The host transport of that name; NULL with the error set. */
const shard_transport *shard_find_transport(const char *name);

/* The host transport of the launcher that started this process: shardrun's shared memory, an MPI launcher's, else self.
 * NULL with the error set: ARGUMENT, a malformed SHARD_MPI. */
const shard_transport *shard_launched_transport(void);

/* Notifies the launcher that started this process, if it is shardrun, that the program has called shard_init or shard_init_with.
 */
void shard_note_call_of_init(void);

/* The end of that call: with an error of this thread, ranks that wait for this one receive it, if shardrun started them. */
void shard_note_end_of_init(void);

/* The host transports; NULL after the last. Of those with a join, the better ones come first. */
const shard_transport *shard_host_transport_at(int number);

/* Sets the group's device transport by the offers of all ranks, before its first collective of a device's memory, `call`.
 * The choice is the same on all ranks. Collective. */
shard_status shard_device_transport_choose(shard_group *group, const shard_collective *call);

/* Ends all device transports, before the host transport leaves the world. */
void shard_device_transports_end(void);

#endif
