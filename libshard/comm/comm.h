/*
 * Groups and the checked collectives that the rest of the library calls. The transports'
 * functions are in transport.h.
 */
#ifndef SHARD_COMM_COMM_H
#define SHARD_COMM_COMM_H

#include "comm/transport.h"

/* ---- groups ---- */

/* How many ranks are members of both; this rank alone for NULL. */
int shard_group_common(const shard_group *a, const shard_group *b);
/* Whether they have the same members. */
bool shard_group_same(const shard_group *a, const shard_group *b);

/* The world group of this process, by the environment: SHARD_TRANSPORT, else
 * shardrun's shared memory, else an MPI launcher's, else this rank alone. A
 * launcher whose ranks cannot find each other (WORLD_SIZE says 4 but nobody
 * connects them; an mpirun of another MPI) is an error. NULL with the error
 * set. argc and argv are for MPI_Init and may be NULL. */
shard_group *shard_world_open(int *argc, char ***argv);

/* Leaves the world, with an abort notice if this rank has failed. NULL is fine. */
void shard_world_close(shard_group *world);

/* Before the end of the world: if this thread has an error that not all ranks
 * know, sends it to those that wait for this one. */
void shard_world_notify_error(shard_group *world);

/* A group of this rank alone. NULL with the error set. */
shard_group *shard_group_alone(int world_rank);

/* The lists of a group whose size is set: group, or NULL with the error set. */
shard_group *shard_group_allocate(shard_group *group);

/* Makes a new group ready for collectives by a first one, which every rank calls. NULL, and the group
 * destroyed, if that fails. */
shard_group *shard_group_start(shard_group *group, shard_collective_kind kind);

/* The group of `members` (ranks of parent), for a rank among them. Collective
 * over those. Destroyed by shard_group_destroy; NULL is fine there. */
shard_group *shard_group_create(shard_group *parent, const int *members, int size);
void shard_group_destroy(shard_group *group);

/* The parent's members fall into groups of one color >= 0 each, in the parent's order: this
 * rank's. Collective over the parent, whose device transport makes those of its groups all at once. */
shard_group *shard_group_split(shard_group *parent, int color);

/* Agrees on the group's device transport now, for data in the memory of a device like this one. Collective. */
shard_status shard_group_choose_device_transport(shard_group *group, shard_device *device);

/* ---- the checked collectives ---- */

/* Each takes part even if this thread already has an error: the others receive it then, and all
 * fail with the same text. A NULL data pointer with count > 0 and a set error is that case. A group
 * that is NULL or of one member costs nothing. The device is the one whose memory the data is in, of
 * one kind on all members; NULL is the host. Where it is not the host's memory the work is queued
 * on the device, as its own entries'. */
shard_status shard_group_all_reduce(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, shard_reduce_op);
shard_status shard_group_all_gather(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                    shard_dtype);
shard_status shard_group_reduce_scatter(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts, shard_dtype,
                                        shard_reduce_op);
shard_status shard_group_broadcast(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, int root);
/* Small values of any kind from each member, for what differs by right (uneven
 * sizes): all [size][bytes], bytes <= SHARD_EXCHANGE_BYTES. */
shard_status shard_group_exchange(shard_group *, const void *mine, size_t bytes, void *all);

/* Starts the collective; finished by shard_group_wait, in the order of the starts, and memory may not be touched in
 * between. NULL where it is done on return, or has failed. */
shard_request *shard_group_post(shard_group *, const shard_collective *);
shard_request *shard_group_all_reduce_start(shard_group *, shard_device *, void *data, int64_t count, shard_dtype,
                                            shard_reduce_op);
shard_request *shard_group_all_gather_start(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                            shard_dtype);
shard_request *shard_group_reduce_scatter_start(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts,
                                                shard_dtype, shard_reduce_op);
/* Whether shard_group_wait would return at once. Lets a transport go on whose collectives need the host (MPI's). */
bool shard_group_test(shard_group *, shard_device *, shard_request *);
/* NULL request (a group of one, or a failed start): returns the thread's status. */
shard_status shard_group_wait(shard_group *, shard_device *, shard_request *);

/* For a maker that failed before the collective that the other members are entering: they receive
 * its error. Returns the thread's error. */
shard_status shard_group_fail(shard_group *);

/* Whether all ranks of the group have this thread's error, with the same text. */
bool shard_group_failure_is_joint(const shard_group *group);

#endif
