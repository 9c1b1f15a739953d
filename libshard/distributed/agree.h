/* Whether ranks mean the same. Each says it in lines of text; a hash shows whether they are
 * the same, and only where they are not the first member's are sent to the others, so that
 * the error names the first difference. */
#ifndef SHARD_DIST_AGREE_H
#define SHARD_DIST_AGREE_H

#include <shard/comm.h>

/* What this rank means; {0} at first. */
typedef struct shard_agreement {
    char *text; /* strings, one after the other */
    int64_t bytes, capacity;
} shard_agreement;

/* Adds a line, of malloc, which is taken over; NULL is the error that it was. */
shard_status shard_agreement_add(shard_agreement *agreement, char *line);

/* An error of all if one member means another thing than the first (MISMATCH there, PEER on
 * the others), as in "rank 2: `what`: here it is ..., on rank 0 ..."; any member's error is
 * everybody's. Frees what was added.
 * Collective over group, also for a rank that has failed. */
shard_status shard_agreement_check(shard_agreement *agreement, shard_group *group, const char *what);

#endif
