/*
 * The shared memory of one job on one machine: a file without a name (memfd)
 * that the launcher makes and the ranks inherit, as SHARD_SHM_FD. It begins
 * with this head; behind it lie the groups' areas, each mapped by its ranks
 * alone.
 *
 * A rank that has joined opens the file anew and holds a lock of that open file
 * description (F_OFD_SETLK) on byte `rank` until its process ends, however it ends: others
 * see by the lock that it lives, whether or not its parent has reaped it. Unlike a lock of
 * the process it stays when some other descriptor of the file is closed; a forked child
 * closes the descriptor. Byte SHARD_SEGMENT_RANKS is the lock of `groups`.
 */
#ifndef SHARD_COMM_SHM_SEGMENT_H
#define SHARD_COMM_SHM_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SHARD_SEGMENT_MAGIC 0x3730647261687320u /* the layout's version is part of it */
#define SHARD_SEGMENT_RANKS 256
#define SHARD_SEGMENT_GROUPS 1024
#define SHARD_SEGMENT_TEXT 512
#define SHARD_SEGMENT_DOING 200
#define SHARD_SEGMENT_NO_BIRTH UINT64_MAX

/* LEAVING: it waits in shard_finalize for the others. LEFT: none waits for it any more. FAILED: it has left with an error.
 * CALLED: as ABSENT, but it has called shard_init or shard_init_with, which failed, or joined the world by another transport. */
enum { SHARD_RANK_ABSENT, SHARD_RANK_JOINED, SHARD_RANK_LEAVING, SHARD_RANK_LEFT, SHARD_RANK_FAILED, SHARD_RANK_CALLED };

typedef struct shard_segment_rank {
    _Atomic uint32_t state;
    _Atomic uint32_t ended; /* the launcher has seen the process end */
    /* Since when (monotonic nanoseconds) it has waited in some group with an error, for
     * the others to learn of it, or its shard_init has failed; 0: neither. */
    _Atomic int64_t failed_since;
    _Atomic uint64_t failed_in; /* the birth of that group, or NO_BIRTH; this and the status are written before failed_since */
    _Atomic int32_t failed_status;
    char text[SHARD_SEGMENT_TEXT]; /* the abort notice of a rank that waits with an error, has left with one or could not join */
    /* When (monotonic nanoseconds) it last said that it waits, which it says again and again; for
     * whom (bit r: world rank r) and in what. 0: it does not. */
    _Atomic int64_t waits_at;
    _Atomic uint64_t waits_for[SHARD_SEGMENT_RANKS / 64];
    char doing[SHARD_SEGMENT_DOING];
    /* Not SHARD_OK: it has aborted its collectives of device memory, for good, with this status and text. */
    _Atomic int32_t aborted;
    char abort_text[SHARD_SEGMENT_TEXT];
    _Atomic uint32_t given_up;              /* 0; 1 while the text is written; 2 */
    char given_up_text[SHARD_SEGMENT_TEXT]; /* the error of the first that has waited for it in vain */
} shard_segment_rank;

/* A group that at least one rank is in. */
typedef struct shard_segment_group {
    int64_t offset, bytes; /* its area in the file; bytes 0: of no group */
    uint64_t birth;        /* ascending, of the groups ever made */
    int32_t size, left;    /* ranks, and how many have left again */
    uint16_t world_ranks[SHARD_SEGMENT_RANKS]; /* ascending */
    uint8_t joined[SHARD_SEGMENT_RANKS];
} shard_segment_group;

typedef struct shard_segment {
    uint64_t magic;
    int32_t world_size;
    /* The end for reading of a pipe that the launcher alone has open to write, as ranks inherit it: it
     * hangs up when the launcher has ended. 0: there is none. */
    int32_t lifeline;
    uint64_t lifeline_inode;
    uint64_t births;
    _Atomic int32_t list_holder; /* the rank that has the lock of `groups`, + 1; or 0 */
    shard_segment_rank ranks[SHARD_SEGMENT_RANKS];
    shard_segment_group groups[SHARD_SEGMENT_GROUPS];
} shard_segment;

/* For the launcher: the file, which its children inherit; *segment is its head.
 * -1 with errno set. */
int shard_segment_create(int world_size, shard_segment **segment);

/* For the launcher: makes the pipe of that name. 0, or -1 with errno set. */
int shard_segment_make_lifeline(shard_segment *segment);

/* For a child, before it becomes rank `rank`: sets its environment. 0, or
 * -1 with errno set. */
int shard_segment_set_environment(int file, int rank, int world_size);

/* For a rank: CALLED, in the segment of its launcher, if there is one. */
void shard_segment_note_call(void);

/* For a rank, at the end of that call: with a status other than 0 a rank that has not joined notifies those that wait for it. */
void shard_segment_note_end(int status, const char *text);

/* Unmaps and closes. */
void shard_segment_close(shard_segment *segment, int file);

/* The head of an inherited file; NULL with errno set, EPROTO if it is none of
 * this version. */
shard_segment *shard_segment_map(int file);

#endif
