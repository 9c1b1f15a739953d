/*
 * Transports: how the ranks of a group exchange bytes. Each fills one table,
 * shard_transport, and takes a collective as one descriptor, shard_collective. A group
 * has a host transport, and gets a device transport at its first collective of memory
 * that the host does not reach.
 *
 * Memory is contiguous. Counts are elements, 64-bit; transports cut them up as their own
 * interface needs. bfloat16 and float16 are summed in float32 and rounded once; sums of
 * integers wrap. Results are the same on every member (of MAX and MIN over MPI only where
 * no value is a NaN).
 */
#ifndef SHARD_COMM_TRANSPORT_H
#define SHARD_COMM_TRANSPORT_H

#include <shard/comm.h>

#include "device/device.h"

/* The most that an exchange takes from each member. */
#define SHARD_EXCHANGE_BYTES 1024

/* Room for any text that a transport or a joint failure makes. */
#define SHARD_COMM_TEXT 512

/* ---- collectives ---- */

typedef enum shard_collective_kind {
    SHARD_COLLECTIVE_WAIT, /* for one that was posted; up to EXCHANGE: for the preflight check and texts alone */
    SHARD_COLLECTIVE_WORLD_OPEN,
    SHARD_COLLECTIVE_GROUP_CREATE,
    SHARD_COLLECTIVE_GROUP_SPLIT,
    SHARD_COLLECTIVE_BARRIER,
    SHARD_COLLECTIVE_AGREE,
    SHARD_COLLECTIVE_FAIL,
    SHARD_COLLECTIVE_EXCHANGE, /* receive [size][count] = every member's send [count]; bytes, at most SHARD_EXCHANGE_BYTES */
    SHARD_COLLECTIVE_ALL_REDUCE,
    SHARD_COLLECTIVE_ALL_GATHER, /* receive = the ranks' pieces one after the other; send may be this rank's piece inside it */
    SHARD_COLLECTIVE_REDUCE_SCATTER, /* receive = the sum of every rank's piece for this rank; may be this rank's piece
                                        inside send, which may be overwritten */
    SHARD_COLLECTIVE_BROADCAST,
} shard_collective_kind;

typedef struct shard_collective {
    shard_collective_kind kind;
    const void *send;
    void *receive;         /* the same as send where data is reduced or broadcast in place */
    int64_t count;         /* in all */
    const int64_t *counts; /* [size] of the members' pieces; NULL where there are none */
    shard_dtype dtype;
    shard_reduce_op op;
    int root;             /* of a broadcast */
    shard_device *device; /* whose memory the data is in; NULL: the host's */
    bool chooses;         /* the preflight check is of the device transport to choose, before the collective's own */
} shard_collective;

/* "all_reduce". */
const char *shard_collective_name(shard_collective_kind kind);

/* A collective that was posted; the transport's own. */
typedef struct shard_request shard_request;

/* ---- transports ---- */

/* The state of the rank that sends an abort notice. */
typedef enum shard_abort_notice {
    SHARD_ABORT_WITHDRAWN, /* it waits in a group no more; the text is NULL */
    SHARD_ABORT_WAITING,   /* it has failed and is about to wait in this group: ranks that wait for it in another one fail */
    SHARD_ABORT_LEAVING,   /* it leaves with an error: ranks that wait for it in any group fail; before the world's close */
    SHARD_ABORT_DEVICE,    /* it has aborted its collectives of device memory, for good; sent once */
} shard_abort_notice;

/* Room for what a member says of its device before a device transport is chosen. */
#define SHARD_OFFER_BYTES 208

typedef struct shard_transport {
    const char *name;
    const char *title; /* of a device transport, for the log: "NCCL 2.28.9" */

    /* A host transport: joins the world; sets rank, size, transport (this table, or a plugin's) and state of a new
     * group. NULL: it is a device transport. */
    shard_status (*open)(shard_group *world, int *argc, char ***argv);
    /* A device transport: offer [SHARD_OFFER_BYTES] = what this rank says of its device. NULL: nothing. */
    void (*offer)(shard_device *device, void *offer);
    /* A device transport, by the offers of all members [size][SHARD_OFFER_BYTES]: sets device_transport and device_state,
     * or neither, with the reason why the devices do not reach each other in refusal. Collective. */
    shard_status (*connect)(shard_group *, shard_device *, const void *offers, char *refusal, size_t bytes);
    /* Sets the state of a new group of members of the parent, which has this transport. A host transport: called by the group's
     * members. A device transport: by the parent's, in groups by color >= 0; group is NULL for a rank alone in its color.
     * NULL entry: groups connect by themselves. */
    shard_status (*split)(shard_group *parent, shard_group *group, int color);

    /* Starts a collective of more than one member, after its preflight check. *request stays NULL where it is done at once,
     * else wait finishes it, and memory may not be touched in between. Requests are waited for in the order they were
     * posted. A device transport may queue work: data is what it was when everything queued on the device before is done,
     * and the result is there for everything queued after wait. The entry that finds a rank that is gone or late fails with
     * PEER or TIMEOUT and names the world ranks, and so does every later one of the group, on every member. No entry waits
     * past the deadline. */
    shard_status (*post)(shard_group *, const shard_collective *, shard_request **request);
    /* Whether wait would return at once. Lets requests go on that need the host. Both NULL where post leaves none. */
    shard_status (*test)(shard_group *, shard_request *, bool *done);
    shard_status (*wait)(shard_group *, shard_request *);

    /* Without waiting: PEER, with its text, if it is known that a rank of the group died, failed, or waits elsewhere with
     * an error, and so will not finish what it is `doing`; the status of the notice if a rank has aborted its collectives
     * of device memory, also after it has left. NULL: the transport never knows. */
    shard_status (*probe)(shard_group *, const char *doing);
    /* Sends an abort notice to the other ranks of the world. NULL: no other rank can be waiting. */
    void (*abort)(shard_group *, shard_abort_notice, shard_status, const char *text);
    /* Frees the group's state; of the world, leaves it. */
    void (*close)(shard_group *);
    bool takes_small; /* also data that fits into the fingerprint: reading it there would wait for the device */
} shard_transport;

/* ---- groups ---- */

struct shard_group {
    int rank, size;
    int *world_ranks; /* [size] */
    const shard_transport *transport;
    void *state;                             /* the transport's own */
    const shard_transport *device_transport; /* of data in a device's memory; NULL: not chosen yet */
    void *device_state;
    uint64_t sequence;            /* of the last preflight check */
    void *peers;                  /* [size][SHARD_COMM_TEXT] what the members sent in it */
    const void **parts;           /* [size] room for the collective under way */
    const shard_collective *call; /* the one under way, for texts; NULL between them */
    /* The ranks that hold the same part as this one of what is split over the group;
     * set by a mesh. NULL: this rank alone. */
    shard_group *replicas;
    bool is_world; /* callers may keep a pointer to it after the end of the job */
};

/* The text of this rank's current call in the group, "all_reduce of 10 float32". */
void shard_group_describe(const shard_group *group, char *text, size_t bytes);

/* "rank 2" or "ranks 1, 2 and 5": world ranks, those of `group` for which marked[member] is set (NULL: all); adds to text,
 * which is a string already. */
void shard_group_name_ranks(const shard_group *group, const bool *marked, char *text, size_t bytes);
/* The same of the world's ranks: marked [size]. */
void shard_name_world_ranks(int size, const bool *marked, char *text, size_t bytes);

/* The elements of the pieces before the member's. */
static inline int64_t shard_count_before(const int64_t *counts, int member)
{
    int64_t before = 0;
    for (int i = 0; i < member; i++)
        before += counts[i];
    return before;
}

/* ---- the process ---- */

typedef struct shard_comm_process {
    double timeout; /* seconds until a wait gives up: SHARD_TIMEOUT */
    int world_size; /* INT_MAX while there is no world */
    bool forked;    /* by the process that opened the world: it is no rank, and what it has of the world is the other's */
} shard_comm_process;
extern shard_comm_process shard_process;

double shard_comm_timeout(void);
bool shard_comm_forked(void);

#endif
