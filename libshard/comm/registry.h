/* The transports that there are. */
#ifndef SHARD_COMM_REGISTRY_H
#define SHARD_COMM_REGISTRY_H

#include "comm/transport.h"

/* The host transport of that name; NULL with the error set. */
const shard_transport *shard_find_transport(const char *name);

/* The host transport of the launcher that started this process: shardrun's shared memory, an MPI launcher's, else self.
 * NULL with the error set: ARGUMENT, a malformed SHARD_MPI. */
const shard_transport *shard_launched_transport(void);

/* Tells the launcher that started this process, if it is shardrun, that the program has called shard_init or shard_init_with. */
void shard_note_call_of_init(void);

/* The host transports by which ranks join that the caller's exchange connects, from the best one on; NULL after the last. */
const shard_transport *shard_joining_transport_at(int number);

/* The device transports from the best one on; NULL after the last, which connects any devices. */
const shard_transport *shard_device_transport_at(int number);

#endif
