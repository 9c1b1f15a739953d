/*
 * The transport of ranks on one machine, over the segment that the launcher
 * made. Each group has an area in it: the barrier, the data that its ranks
 * exchange, and two chunks of memory for each rank.
 *
 * Data is exchanged in rounds: each rank writes, enters a barrier, and reads
 * what the other ranks wrote. A round uses the half (round % 2) of the memory,
 * so that the next round may be written while slow ranks still read this one.
 * Two barriers lie between two uses of a half.
 */
#ifndef SHARD_COMM_SHM_SHM_H
#define SHARD_COMM_SHM_SHM_H

#include "base/clock.h"
#include "comm/transport.h"
#include "comm/shm/segment.h"

#include <pthread.h>

#define SHARD_LINE 64

/* One rank's place in the barrier. */
typedef struct shm_place {
    _Alignas(SHARD_LINE) _Atomic uint32_t round; /* the last round it has come to */
} shm_place;

/* A group's failure: there is none; its text is there; rank broken - SHM_BREAKING writes the text. */
enum { SHM_WHOLE = 0, SHM_BROKEN = 1, SHM_BREAKING = 2 };

/* The head of an area. */
typedef struct shm_area {
    _Alignas(SHARD_LINE) _Atomic uint32_t come;  /* ranks that have come to this round */
    _Alignas(SHARD_LINE) _Atomic uint32_t round; /* rounds that are complete; a futex */
    _Atomic uint32_t sleepers;
    _Alignas(SHARD_LINE) _Atomic uint32_t broken; /* one of these */
    int32_t status;
    char text[SHARD_COMM_TEXT];
    shm_place places[]; /* [size] */
} shm_area;

/* The state of the world in this process. */
typedef struct shm_world {
    shard_segment *segment;
    int file;       /* the launcher's descriptor */
    int locks;      /* the same file, opened by this process: that description has the locks, and is not mapped,
                       as a mapping that a forked child has would keep it */
    int rank;       /* this process's in the world */
    int spins;      /* before a wait gives way */
    int references; /* groups that use it */
    bool watched;   /* by a thread, for the launcher's end */
    pthread_t watcher;
} shm_world;

/* A group's state. */
typedef struct shm_group {
    shm_world *world;
    shard_segment_group *entry;
    shm_area *area;
    int64_t bytes;         /* of the area */
    char *exchange;        /* [2][size][SHARD_EXCHANGE_BYTES] */
    char *chunks;          /* [2][size][chunk] */
    char *results;         /* [2][chunk] */
    int64_t chunk;         /* bytes of one */
    uint32_t round;        /* rounds that this rank has come to */
    bool whole;            /* the world itself, whose end is this rank's leaving */
    uint64_t broken_since; /* of shard_group_broken_prefix */
} shm_group;

/* This rank's entry in the segment. */
static inline shard_segment_rank *shm_own_entry(const shard_group *group)
{
    const shm_world *world = ((const shm_group *)group->state)->world;
    return &world->segment->ranks[world->rank];
}

/* Locks (F_WRLCK) or unlocks (F_UNLCK) a byte of the segment for this rank; false if another has it. */
bool shm_lock(const shm_world *world, short type, int byte);

/* Enters the next round and waits until all ranks of the group have. PEER or TIMEOUT,
 * permanently, if one does not. */
shard_status shm_barrier(shard_group *group);

/* The failure of a group in which a rank has waited in vain; such a group is not used again. */
shard_status shm_check_whole(const shard_group *group);

/* PEER if a rank is known to be gone, other than by leaving in peace, or its device has failed. */
shard_status shm_probe(shard_group *group, const char *doing);

/* Whether the rank's process lives, which has joined. */
bool shm_is_alive(const shm_world *world, int rank);

/* Whether the rank will never come to `doing`, and why. */
bool shm_is_gone(const shm_world *world, int rank, const char *doing, char *text, size_t bytes);

/* Whether the rank has failed and waits, and not just in passing, and why. A rank that waits in the group `except` (NULL: none)
 * has come to an earlier round of it: it goes on when it runs again. */
bool shm_waits_with_error(const shm_world *world, int rank, const shm_group *except, char *text, size_t bytes);

/* Notifies all ranks, again and again while it is so, that this one waits in `doing`: bit r of waits_for: for world rank r. */
void shm_say_waiting(const shard_group *group, const uint64_t *waits_for, const char *doing);

/* The deadline has passed: the error that names those that this rank waits for in the end. All
 * ranks get the text of the first that finds it. False if all have come just now. */
bool shm_find_late(const shard_group *group, char *text, size_t bytes);

/* Of the world: waits until all ranks leave. PEER or TIMEOUT if one does not. */
shard_status shm_wait_for_end(shard_group *group);

/* How long waits spin, by the number of ranks and cores. */
void shm_set_patience(shm_world *world);

/* Joins the group of these world ranks, this process's being ranks[rank]: maps its
 * area. Each rank's n-th group of the same ranks is the same group. */
shard_status shm_join(shm_group *state, const int *ranks, int size, int rank);
void shm_leave(shm_group *state);

/* From now on this process is killed when its launcher has ended, if there is one that is watched. */
void shm_watch_launcher(shm_world *world);
void shm_stop_watching(shm_world *world);

/* Every collective; done at once. */
shard_status shm_post(shard_group *group, const shard_collective *call, shard_request **request);

#endif
