/* The preflight check: the exchange of the ranks of a group before a collective. */
#ifndef SHARD_COMM_PREFLIGHT_H
#define SHARD_COMM_PREFLIGHT_H

#include "base/kept_error.h"
#include "comm/transport.h"

/* Identifies an error: by the rank that failed first, also on the ranks that received it. */
typedef struct shard_error_id {
    int32_t rank;    /* of the world; -1: all ranks of a group found it at once */
    uint64_t serial; /* shard_error_serial() there */
} shard_error_id;

#define SHARD_SMALL_BYTES 200

/* The description of a collective that the other ranks receive: compared up to `status`. */
typedef struct shard_fingerprint {
    uint64_t sequence;
    uint64_t layout; /* hash of counts, of the data's identity, of the public function and of its identical arguments */
    int64_t count;
    uint32_t kind, dtype, root; /* kind with flags for the memory of the data; root is the operation of a reduction */
    int32_t status;             /* not SHARD_OK: the rank has failed */
    double computed;            /* seconds; straggler.h */
    uint64_t draws;             /* of random numbers, since all ranks were at the same place of the program */
    union {
        unsigned char data[SHARD_SMALL_BYTES];
        shard_error_id error;
    };
} shard_fingerprint;

_Static_assert(SHARD_OFFER_BYTES <= SHARD_SMALL_BYTES, "an offer travels with the fingerprint");

/* The fingerprints of the last preflight check: [size]. */
static inline const shard_fingerprint *shard_received(const shard_group *group)
{
    return group->peers;
}

/* Sets the error UNSUPPORTED in a capture: a replay would make no preflight check. */
void shard_refuse_captured_collective(void);

/* Fails in a process that a rank has forked, and after the end of the job. */
shard_status shard_refuse_outsider(const shard_group *group);

/* The transport's part before a preflight check: takes the memory of the collective, unless this thread has an error. */
static inline void shard_prepare(const shard_transport *transport, shard_group *group, shard_collective *call)
{
    if (transport->prepare && shard_last_status() == SHARD_OK)
        transport->prepare(group, call);
}
/* And after a check that has failed. */
static inline void shard_discard(const shard_transport *transport, shard_group *group, const shard_collective *call)
{
    if (call->prepared)
        transport->discard(group, call);
}

/* Makes the preflight check. `bytes` of small are sent with it, and are in shard_received afterwards. OK only if all ranks
 * make the same call and no rank has an error. */
shard_status shard_preflight(shard_group *group, const shard_collective *call, const void *small, size_t bytes);

/* A collective that needs only the preflight check: shard_barrier, shard_agree, the first one of a new group. */
shard_status shard_preflight_only(shard_group *group, shard_collective_kind kind);

/* Writes the thread's error for other ranks; a text that is too long is cut between two characters. */
void shard_write_error(const shard_group *group, char *text, size_t bytes);

/* The thread's error has the numbers of the ranks that it is of: this one's is not put before it. */
void shard_note_named_ranks(const shard_group *group);

/* Which error a thread has received with other ranks. */
typedef struct shard_known_error {
    uint64_t serial; /* shard_error_serial(). A later error of the thread has another one. */
    shard_error_id id;
    int size; /* the ranks that have received it */
} shard_known_error;

/* Whether at least `size` ranks have the thread's error, this one included. */
bool shard_error_is_joint(int size);
/* Counts the errors that all ranks of the world have received. A rank may count one of them several times, while it has it. */
unsigned shard_joint_errors(void);

/* An error that all ranks of a group have, taken away on all of them for collectives that they make all the same. */
typedef struct shard_aside_error {
    shard_kept_error kept;
    shard_known_error known;
} shard_aside_error;

/* Clears the thread's error, which *aside has then, if all ranks of the group have it; NULL is the group of this rank alone. False:
 * there is none of that kind. One of different calls is not either: the ranks may be at different places. */
bool shard_set_error_aside(const shard_group *group, shard_aside_error *aside);
/* Replaces the thread's error, or its absence. The error is known to the same ranks as before, unless those collectives have failed
 * with one that is not, as where a rank has died. */
void shard_return_error(const shard_aside_error *aside);

#endif
