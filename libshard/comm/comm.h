/*
 * Groups and the checked collectives that the rest of the library calls. The transports'
 * functions are in transport.h.
 */
#ifndef SHARD_COMM_COMM_H
#define SHARD_COMM_COMM_H

#include "comm/transport.h"

/* ---- groups ---- */

/* The number of ranks in both groups; NULL is the group of this rank alone. */
int shard_group_common(const shard_group *a, const shard_group *b);
/* Whether both groups have the same ranks. */
bool shard_group_same(const shard_group *a, const shard_group *b);

/* The world group of this process, by the environment: SHARD_TRANSPORT, else
 * shardrun's shared memory, else the transport of an MPI launcher, else this rank
 * alone. If the ranks of a launcher cannot connect (WORLD_SIZE is 4 without a
 * transport; an mpirun of another MPI), this is an error. NULL with the error
 * set. argc and argv are for MPI_Init and may be NULL. */
shard_group *shard_world_open(int *argc, char ***argv);

/* The world group of the ranks that the caller's exchange connects (shard_init_with). NULL with the error set. */
shard_group *shard_world_join(int rank, int size, shard_exchange_function *exchange, void *context);

/* Leaves the world, with an abort notice if this rank has failed. NULL is ignored. */
void shard_world_close(shard_group *world);

/* Before it is closed, without an error: waits for the other ranks to come here, too. PEER or TIMEOUT if one does not. */
shard_status shard_world_leave(shard_group *world);

/* Called before the world is closed: if this thread has an error that other ranks
 * have not received, sends it to the ranks that wait for this one. */
void shard_world_notify_error(shard_group *world);

/* A group of this rank alone. NULL with the error set. */
shard_group *shard_group_alone(int world_rank);

/* Allocates the lists of a group whose size is set; its ranks are those of the world. False with the error set. */
bool shard_group_allocate(shard_group *group);

/* The group of `ranks`: ascending ranks of parent, this rank among them. Collective over these alone, unlike
 * shard_group_create. */
shard_group *shard_group_make(shard_group *parent, const int *ranks, int size);

/* Destroys any group, also one that a mesh or the library owns. NULL is ignored. */
void shard_group_free(shard_group *group);

/* ---- the checked collectives ---- */

/* Each is called even if this thread already has an error: the other ranks receive it, and all ranks
 * fail with the same text. Data may be NULL with count > 0 then. If the group is NULL or has one rank,
 * there is no communication. The device is the one whose memory has the data, of the same kind on all
 * ranks; NULL is the host. Work on a device's memory is queued on the device, as other operations. */
shard_status shard_group_all_reduce(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, shard_reduce_op);
shard_status shard_group_all_gather(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                    shard_dtype);
/* As shard_group_all_gather, with `count` elements of each rank. */
shard_status shard_group_all_gather_equal(shard_group *, shard_device *, const void *mine, void *all, int64_t count, shard_dtype);
shard_status shard_group_reduce_scatter(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts, shard_dtype,
                                        shard_reduce_op);
shard_status shard_group_broadcast(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, int root);
/* Exchanges small values that may differ between ranks (uneven sizes): all [size][bytes],
 * bytes <= SHARD_EXCHANGE_BYTES. */
shard_status shard_group_exchange(shard_group *, const void *mine, size_t bytes, void *all);

/* Starts the collective. shard_group_wait finishes it, in the order of the starts; memory must not be used in between.
 * NULL if it is done on return, or has failed. */
shard_request *shard_group_post(shard_group *, const shard_collective *);
/* NULL request (a group of one, or a failed start): returns the thread's status. */
shard_status shard_group_wait(shard_group *, shard_device *, shard_request *);

/* Called instead of a collective by a function that failed before it: the other ranks of the group receive the error.
 * Returns the thread's error. */
shard_status shard_group_fail(shard_group *);

#endif
