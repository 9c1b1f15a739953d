/*
 * What a communicator can do: the table that each transport's folder fills,
 * and the checked collectives that the rest of the library calls.
 *
 * Memory is contiguous; transports' is host memory. Counts are elements, 64-bit; transports
 * cut them up as their own interface needs. bfloat16 and float16 are summed in
 * float32 and rounded once; sums of integers wrap. Results are the same on every
 * member (of MAX and MIN over MPI only where no value is a NaN).
 */
#ifndef SHARD_COMM_COMM_H
#define SHARD_COMM_COMM_H

#include <shard/comm.h>

#include "device/device.h"

/* The most that exchange carries from each member. */
#define SHARD_EXCHANGE_BYTES 1024

/* Room for any text that a transport or a joint failure makes. */
#define SHARD_COMM_TEXT 512

typedef struct shard_request shard_request;

typedef struct shard_group_ops {
    const char *name;
    /* all [size][bytes] = every member's mine; bytes <= SHARD_EXCHANGE_BYTES and the
     * same everywhere. The entry that finds a rank that is gone or late: it fails with
     * PEER or TIMEOUT and names the world ranks, and so does every later one of the
     * group, on every member. Nobody waits past the deadline in any entry. */
    shard_status (*exchange)(shard_group *, const void *mine, size_t bytes, void *all);
    shard_status (*all_reduce)(shard_group *, void *data, int64_t count, shard_dtype, shard_reduce_op);
    /* Starts the same; finished by wait, which frees the request. data may not be
     * touched in between. Requests are waited for in the order they were started.
     * Both NULL where nothing could go on in between: all_reduce is called instead. */
    shard_request *(*all_reduce_start)(shard_group *, void *data, int64_t count, shard_dtype, shard_reduce_op);
    shard_status (*wait)(shard_group *, shard_request *);
    /* all is the members' pieces one after the other; counts [size] elements each.
     * mine may be the own piece inside all. */
    shard_status (*all_gather)(shard_group *, const void *mine, void *all, const int64_t *counts, shard_dtype);
    /* mine = the sum of every member's piece of that rank. mine may be the own piece
     * inside all, which may be overwritten. */
    shard_status (*reduce_scatter)(shard_group *, void *all, void *mine, const int64_t *counts, shard_dtype, shard_reduce_op);
    /* Starts the same, as all_reduce_start; NULL without an error where it was done at once.
     * NULL entry: reduce_scatter is called instead. */
    shard_request *(*reduce_scatter_start)(shard_group *, void *all, void *mine, const int64_t *counts, shard_dtype,
                                           shard_reduce_op);
    shard_status (*broadcast)(shard_group *, void *data, int64_t count, shard_dtype, int root);
    /* The group of the named members of this one (ranks of this group, ascending),
     * called by exactly those; NULL with the error set. */
    shard_group *(*subgroup)(shard_group *, const int *members, int size);
    /* Of the world, before its destroy: this rank leaves with an error that not all
     * know; whoever waits for it in any group, now or later, fails with that text. */
    void (*post)(shard_group *, const char *text);
    /* This rank has failed and is about to wait in this group: whoever waits for it in
     * another one meanwhile fails with that text. NULL: it waits no more. NULL entry:
     * nobody can be waiting elsewhere. */
    void (*abort_notice)(shard_group *, const char *text);
    /* This rank has aborted its collectives of device memory, for good. probe() of a group that it
     * is a member of fails with the status and the text, also after this rank has left. Called
     * once. NULL entry: probe() is NULL too. */
    void (*notify_abort)(shard_group *, shard_status status, const char *text);
    /* Without waiting: PEER, with its text, if it is known that a member died, failed, or
     * waits elsewhere with an error, and so will not finish what it is `doing`; the status of the
     * notice if a member has aborted its collectives. NULL entry: that is never known. */
    shard_status (*probe)(shard_group *, const char *doing);
    void (*destroy)(shard_group *);
} shard_group_ops;

/* Made by shard_group_make, for a transport; freed by shard_group_free. */
struct shard_group {
    const shard_group_ops *ops;
    int rank, size;
    int *world_ranks;                    /* [size] */
    uint64_t sequence;                   /* of the next checked collective */
    void *peers;                         /* [size] what the members told in the last one */
    const struct shard_call *call;       /* the one under way, for texts; NULL between them */
    void *state;                         /* the transport's own */
    const struct shard_device_transport *device_transport; /* of data in a device's memory; NULL: not chosen yet */
    void *device_state;
    /* The ranks that hold the same part as this one of what is split over the group;
     * set by a mesh. NULL: this rank alone. */
    struct shard_group *replicas;
    bool is_world; /* callers may keep a pointer to it after the end of the job */
};

shard_group *shard_group_make(const shard_group_ops *ops, int rank, int size, const int *world_ranks, void *state);
void shard_group_free(shard_group *group);

/* How many ranks are members of both; this rank alone for NULL. */
int shard_group_common(const shard_group *a, const shard_group *b);
/* Whether they have the same members. */
bool shard_group_same(const shard_group *a, const shard_group *b);

/* What this rank is doing in the group: "all_reduce of 10 float32". */
void shard_group_describe(const shard_group *group, char *text, size_t bytes);

/* "rank 2" or "ranks 1, 2 and 5": world ranks, those of `group` for which
 * marked[member] is set; adds to text, which is a string already. */
void shard_group_name_ranks(const shard_group *group, const bool *marked, char *text, size_t bytes);
/* The same of the world's ranks: marked [size]. */
void shard_name_world_ranks(int size, const bool *marked, char *text, size_t bytes);

/* The world group of this process, by the environment: SHARD_TRANSPORT, else
 * shardrun's shared memory, else an MPI launcher's, else this rank alone. A
 * launcher whose ranks cannot find each other (WORLD_SIZE says 4 but nobody
 * connects them; an mpirun of another MPI) is an error. NULL with the error
 * set. argc and argv are for MPI_Init and may be NULL. */
shard_group *shard_world_open(int *argc, char ***argv);

/* Leaves the world: tells the others if this rank has failed. NULL is fine. */
void shard_world_close(shard_group *world);

/* The transports' makers: shm's segment comes from the environment that
 * shardrun sets; mpi is a module that is loaded when asked for. */
shard_group *shard_self_open(void);
shard_group *shard_shm_open(void);
shard_group *shard_mpi_open(int *argc, char ***argv);

/* Whether an MPI's launcher started this process. */
bool shard_mpi_launched(void);

/* A group of this rank alone. */
extern const shard_group_ops shard_self_ops;
shard_group *shard_self_make(int world_rank);

/* Makes a new group ready for checked collectives: the first one, which
 * all members enter. NULL, and the group destroyed, if that fails or group is NULL. */
shard_group *shard_group_start(shard_group *group, const char *what);

/* The group of `members` (ranks of parent), for a rank among them. Collective
 * over those. Destroyed by shard_group_destroy; NULL is fine there. */
shard_group *shard_group_create(shard_group *parent, const int *members, int size);
void shard_group_destroy(shard_group *group);

/* The parent's members fall into groups of one color >= 0 each, in the parent's order: this
 * rank's. Collective over the parent, whose device transport makes those of its groups all at once. */
shard_group *shard_group_split(shard_group *parent, int color);

/* Agrees on the group's device transport now, for data on a device like this one. Collective. */
shard_status shard_group_choose_device_transport(shard_group *group, shard_device *device);

/* The checked collectives. Each takes part even if this thread already has an
 * error: it then tells the others, and all fail alike. A NULL data pointer with
 * count > 0 and a set error is that case. A group that is NULL or of one member
 * costs nothing. The device is the one whose memory the data is in, of one kind on
 * all members; NULL is the host. Where it is not the host's memory the work is queued
 * on the device, as its own entries'. */
shard_status shard_group_all_reduce(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, shard_reduce_op);
shard_request *shard_group_all_reduce_start(shard_group *, shard_device *, void *data, int64_t count, shard_dtype,
                                            shard_reduce_op);
/* The same of the other two. Where nothing could go on in between they are done on return. */
shard_request *shard_group_all_gather_start(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                            shard_dtype);
shard_request *shard_group_reduce_scatter_start(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts,
                                                shard_dtype, shard_reduce_op);
/* NULL request (a group of one, or a failed start): returns the thread's status. */
shard_status shard_group_wait(shard_group *, shard_device *, shard_request *);
shard_status shard_group_all_gather(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                    shard_dtype);
shard_status shard_group_reduce_scatter(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts, shard_dtype,
                                        shard_reduce_op);
shard_status shard_group_broadcast(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, int root);
/* Small values of any kind from each member, for what differs by right (uneven
 * sizes): all [size][bytes], bytes <= SHARD_EXCHANGE_BYTES. */
shard_status shard_group_exchange(shard_group *, const void *mine, size_t bytes, void *all);

/* For a maker that failed before the collective its peers are entering: tells
 * them. Returns the thread's error. */
shard_status shard_group_fail(shard_group *);

/* Before the end of the world: if this thread has an error that not all ranks
 * know, tells it to those that wait for this one. */
void shard_group_post(shard_group *world);
/* This rank has aborted its collectives of device memory with the thread's error: tells all ranks. */
void shard_group_notify_abort(shard_group *group);

/* Whether all members have this thread's error, with the same text. */
bool shard_group_failure_is_joint(const shard_group *group);

/* Seconds until a wait gives up: SHARD_TIMEOUT. */
double shard_comm_timeout(void);

/* Whether this process was forked by the one that opened the world: it is no rank, and what it
 * has of the world is the other's. */
bool shard_comm_forked(void);
/* An error there. */
shard_status shard_refuse_fork(const shard_group *group);

/* Ranks of the world; INT_MAX while there is none. */
int shard_comm_world_size(void);

#endif
