/*
 * Stragglers: ranks for which the others wait, as they compute longer between collectives. Each preflight check brings along
 * how long a rank has computed so far: its time apart from collectives. The first rank of a group compares these over a
 * period of time.
 */
#ifndef SHARD_COMM_STRAGGLER_H
#define SHARD_COMM_STRAGGLER_H

#include <stdbool.h>
#include <stddef.h>

/* A collective of this thread begins or ends, with its waits. Inner ones of nested collectives count for nothing. */
void shard_straggler_enter(void);
void shard_straggler_leave(void);

/* Seconds that this thread has computed since the end of its first collective. */
double shard_straggler_computed(void);

/* Of a group, whose first rank compares. */
typedef struct shard_stragglers {
    double since;    /* when the period began; 0: it has not */
    int checks;      /* preflight checks in the period */
    int quiet, left; /* periods between two reports, and those that are left until the next */
    double before[]; /* [3][size] seconds computed when the period began, and room */
} shard_stragglers;

/* For free(). NULL with the error set. */
shard_stragglers *shard_stragglers_create(int size);

/* The rank that computed for more than half of the period, and SHARD_STRAGGLER_FACTOR times as long as the others' median. */
#define SHARD_STRAGGLER_FACTOR 4
typedef struct shard_straggler {
    int rank;
    double computed, median, period; /* seconds */
} shard_straggler;

/* Takes the ranks' seconds, at `computed` and each `stride` bytes, of one preflight check. True if a period has ended, which
 * lasts `seconds` at least (0: for ever), with a straggler that is to be reported. */
bool shard_stragglers_find(shard_stragglers *s, int size, const double *computed, size_t stride, double seconds,
                           shard_straggler *found);

#endif
