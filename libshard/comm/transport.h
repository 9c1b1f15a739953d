/*
 * Transports: how the ranks of a group exchange bytes. Each fills one table,
 * shard_transport, and gets a collective as one descriptor, shard_collective. A group
 * has a host transport, and gets a device transport at its first collective of memory
 * that the host does not reach.
 *
 * Memory is contiguous. Counts are 64-bit numbers of elements; transports divide them as
 * their interfaces need. bfloat16 and float16 are summed in float32 and rounded once; sums
 * of integers wrap. Results are identical on all ranks (MAX and MIN over MPI only if no
 * value is a NaN).
 */
#ifndef SHARD_COMM_TRANSPORT_H
#define SHARD_COMM_TRANSPORT_H

#include <shard/comm.h>

#include "device/device.h"

/* The most bytes that an exchange takes from each rank. */
#define SHARD_EXCHANGE_BYTES 1024

/* The size of any text of a transport or a joint failure. */
#define SHARD_COMM_TEXT 512

/* ---- collectives ---- */

typedef enum shard_collective_kind {
    SHARD_COLLECTIVE_WAIT, /* waits for a posted collective; kinds before EXCHANGE are for the preflight check and texts only */
    SHARD_COLLECTIVE_WORLD_OPEN,
    SHARD_COLLECTIVE_GROUP_CREATE,
    SHARD_COLLECTIVE_GROUP_SPLIT,
    SHARD_COLLECTIVE_BARRIER,
    SHARD_COLLECTIVE_AGREE,
    SHARD_COLLECTIVE_FAIL,
    SHARD_COLLECTIVE_EXCHANGE, /* receive [size][count] = every rank's send [count]; bytes, at most SHARD_EXCHANGE_BYTES */
    SHARD_COLLECTIVE_ALL_REDUCE,
    SHARD_COLLECTIVE_ALL_GATHER, /* receive = the ranks' blocks one after the other; send may be this rank's block inside it */
    SHARD_COLLECTIVE_REDUCE_SCATTER, /* receive = the sum of every rank's block for this rank; may be this rank's block
                                        inside send, which may be overwritten */
    SHARD_COLLECTIVE_BROADCAST,
} shard_collective_kind;

typedef struct shard_collective {
    shard_collective_kind kind;
    const void *send;
    void *receive;         /* the same as send if data is reduced or broadcast in place */
    int64_t count;         /* of all blocks */
    const int64_t *counts; /* [size] of the ranks' blocks; NULL: no blocks */
    shard_dtype dtype;
    shard_reduce_op op;
    int root;             /* of a broadcast */
    shard_device *device; /* whose memory the data is in; NULL: the host's */
    uint64_t identity;    /* of the data: a hash that the ranks' calls must have in common; 0: the data has none */
    const char *name;     /* of the data, for texts; NULL: none */
    bool chooses;         /* the preflight check chooses the device transport, before the check of the collective */
    void *prepared;       /* by the transport's prepare, or NULL */
} shard_collective;

/* "all_reduce". */
const char *shard_collective_name(shard_collective_kind kind);

/* Whether data of several ranks becomes one. */
static inline bool shard_collective_reduces(const shard_collective *call)
{
    return call->kind == SHARD_COLLECTIVE_ALL_REDUCE || call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
}

/* A posted collective; each transport defines it. */
typedef struct shard_request shard_request;

/* ---- transports ---- */

/* The state of the rank that sends an abort notice. */
typedef enum shard_abort_notice {
    SHARD_ABORT_WITHDRAWN, /* it no longer waits in a group; the text is NULL */
    SHARD_ABORT_WAITING,   /* it has failed and is about to wait in this group: ranks that wait for it in another one fail */
    SHARD_ABORT_LEAVING,   /* it leaves with an error: ranks that wait for it in any group fail; before the world's close */
    SHARD_ABORT_DEVICE,    /* it has aborted its collectives of device memory, permanently; sent once */
} shard_abort_notice;

/* The size of a rank's description of its device, by which a device transport is chosen. */
#define SHARD_OFFER_BYTES 200

/* The ranks of shard_init_with; rendezvous.h. */
typedef struct shard_rendezvous shard_rendezvous;

typedef struct shard_transport {
    const char *name;
    const char *title; /* of a device transport, for the log: "NCCL 2.28.9" */

    /* A host transport: joins the world of shard_init; sets rank, size, transport (this table, or a plugin's) and state of a
     * new group. NULL: it needs shard_init_with, or is a device transport. */
    shard_status (*open)(shard_group *world, int *argc, char ***argv);
    /* A host transport: joins the world of shard_init_with, as open; or leaves state NULL, and writes the reason to refusal,
     * on all ranks. NULL: it does not use an exchange. */
    shard_status (*join)(shard_group *world, shard_rendezvous *rendezvous, char *refusal, size_t bytes);
    /* A device transport: offer [SHARD_OFFER_BYTES] = this rank's description of its device. NULL: it connects any devices,
     * without connect. */
    void (*offer)(shard_device *device, void *offer);
    /* A device transport, by the offers of all ranks [size][SHARD_OFFER_BYTES]: sets device_transport and device_state,
     * or neither; then refusal is the reason why the devices do not reach each other. Collective. */
    shard_status (*connect)(shard_group *, shard_device *, const void *offers, char *refusal, size_t bytes);
    /* A host transport: sets the state of a new group of ranks of the parent, which has this transport; called by the ranks of
     * the group. A device transport of a new group is chosen anew. */
    shard_status (*split)(shard_group *parent, shard_group *group);

    /* Takes the memory that post needs, before the collective's preflight check, by which all ranks receive an error: a rank
     * that failed after the check would not post what the others wait for. Sets call->prepared, or keeps the memory with
     * the group. NULL: post takes no memory. */
    shard_status (*prepare)(shard_group *, shard_collective *call);
    /* Frees call->prepared, which is not NULL, where post does not follow. */
    void (*discard)(shard_group *, const shard_collective *call);
    /* Starts a collective of several ranks, after its preflight check, and frees call->prepared when it is done. *request
     * stays NULL if it is done at once; else wait finishes it, and memory must not be used in between. Requests are waited
     * for in the order they were posted. A device transport may queue work: it reads the data after all work that was queued
     * on the device before, and work that is queued after wait reads the result. A function that finds a dead or late rank
     * fails with PEER or TIMEOUT and names the world ranks; so does every later one of the group, on all ranks. No function
     * waits past the deadline. */
    shard_status (*post)(shard_group *, const shard_collective *, shard_request **request);
    /* NULL if post makes no requests. There is no test of a request: callers post early and wait where they need the data. */
    shard_status (*wait)(shard_group *, shard_request *);

    /* Without waiting: PEER, with its text, if it is known that a rank of the group died or left with an error, or waits with
     * SHARD_ERROR_DEVICE, and so will not finish what its device is `doing`; one that waits with another error will. The status
     * of the notice if a rank has aborted its collectives of device memory, also after it has left. NULL: the transport never
     * knows. */
    shard_status (*probe)(shard_group *, const char *doing);
    /* Sends an abort notice to the other ranks of the world. NULL: no other rank can be waiting. */
    void (*abort)(shard_group *, shard_abort_notice, shard_status, const char *text);
    /* Of the world, by a rank without an error that is about to close it: waits until all ranks are. PEER or TIMEOUT if one does
     * not come. NULL: close does that, or nothing does. */
    shard_status (*leave)(shard_group *);
    /* Frees the group's state; of a host transport also leaves the world, if the group is that. */
    void (*close)(shard_group *);
    /* A device transport: the world is left, which may not have used it. Frees what groups that failed have left. NULL: nothing.
     */
    void (*end)(void);
    bool ends_process; /* close of the world does not return if the ranks cannot leave together: the error is printed before */
    bool takes_small; /* also takes data that fits into the fingerprint: to read it there would wait for the device */
} shard_transport;

/* ---- groups ---- */

struct shard_group {
    int rank, size;
    int *world_ranks; /* [size] */
    const shard_transport *transport;
    void *state;                             /* of the transport */
    const shard_transport *device_transport; /* for data in a device's memory; NULL: not chosen yet */
    void *device_state;
    uint64_t sequence;            /* number of the last preflight check */
    void *peers;                  /* [size][SHARD_COMM_TEXT] the ranks' messages in it */
    const void **parts;           /* [size] workspace of the current collective */
    int64_t *counts;              /* [size] the same, of the device transport */
    const shard_collective *call; /* the current collective, for texts; else NULL */
    bool waited; /* this rank has waited SHARD_TIMEOUT for the others outside of the transport, and does not wait so long again */
    /* The ranks that have the same shard as this one of tensors that are split over the group;
     * set by a mesh or shard_group_set_replicas. NULL: no other rank. */
    shard_group *replicas;
    struct shard_stragglers *stragglers; /* straggler.h; the first rank's are used */
    bool is_world; /* callers may keep a pointer to it after the end of the job */
    bool is_owned; /* by a mesh: shard_group_destroy refuses it */
};

/* The text before the error of a group that cannot be used again. It is empty until an error has been cleared after the first of
 * these calls, before which *since is 0. */
const char *shard_group_broken_prefix(uint64_t *since);

/* Seconds that a wait of the group may take. */
static inline double shard_group_patience(const shard_group *group, double timeout)
{
    return group->waited && timeout > 1 ? 1 : timeout;
}

/* The text of this rank's current call in the group, "all_reduce of 10 float32". */
void shard_group_describe(const shard_group *group, char *text, size_t bytes);

/* The most ranks that a text names; more are counted: "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 292 more". */
#define SHARD_NAMED_RANKS 8

/* "rank 2" or "ranks 1, 2 and 5": the group's ranks for which has(context, rank of the group) is true, by their numbers in the
 * world, or by those in the group if it has no list of these. Appends to the string in text. */
void shard_name_ranks(const shard_group *group, bool (*has)(const void *context, int rank), const void *context, char *text,
                      size_t bytes);
/* The same of the group's ranks for which marked is set; NULL: of all. */
void shard_group_name_ranks(const shard_group *group, const bool *marked, char *text, size_t bytes);

/* The number of elements of the blocks before that of `rank`. */
static inline int64_t shard_count_before(const int64_t *counts, int rank)
{
    int64_t before = 0;
    for (int i = 0; i < rank; i++)
        before += counts[i];
    return before;
}

/* Of `count` elements the number of those from `at` on, at most `most`. */
static inline int64_t shard_count_from(int64_t count, int64_t at, int64_t most)
{
    int64_t left = count > at ? count - at : 0;
    return left < most ? left : most;
}

/* The number of elements of the largest of `size` blocks. */
static inline int64_t shard_largest_count(const int64_t *counts, int size)
{
    int64_t largest = 0;
    for (int i = 0; i < size; i++)
        largest = counts[i] > largest ? counts[i] : largest;
    return largest;
}

/* ---- the process ---- */

typedef struct shard_comm_process {
    double timeout; /* seconds after which a wait fails: SHARD_TIMEOUT */
    double straggler_seconds; /* the period of SHARD_STRAGGLER_SECONDS; 0: stragglers are not looked for */
    int world_size; /* INT_MAX while there is no world */
    bool forked;    /* a fork of the process that opened the world: it is not a rank, and must not use its copy of the world */
    bool waited;    /* collectives of device memory have not been done within SHARD_TIMEOUT, and were aborted */
    bool ended;     /* the world has been closed: its groups can only be destroyed */
} shard_comm_process;
extern shard_comm_process shard_process;

double shard_comm_timeout(void);

#endif
