/* The tables of the transports' folders. */
#ifndef SHARD_COMM_BACKENDS_H
#define SHARD_COMM_BACKENDS_H

#include "comm/transport.h"

extern const shard_transport shard_self_transport; /* this rank alone */
extern const shard_transport shard_shm_transport;  /* over the segment that shardrun made */
extern const shard_transport shard_mpi_transport;  /* a plugin for each MPI, loaded by open */
extern const shard_transport shard_exchange_transport; /* through the exchange of shard_init_with */

extern const shard_transport shard_nccl_transport;   /* a plugin, loaded by offer */
extern const shard_transport shard_staged_transport; /* through pinned host memory and the host transport */

/* *launched: whether an MPI's launcher started this process. ARGUMENT: SHARD_MPI names no MPI. */
shard_status shard_mpi_launched(bool *launched);

#endif
