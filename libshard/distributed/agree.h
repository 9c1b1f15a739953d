/* Compares the arguments of ranks. Each rank adds lines of text, and the ranks exchange a hash of them. Only if hashes
 * differ, the first rank's lines are sent to the others, so that the error names the first difference. */
#ifndef SHARD_DIST_AGREE_H
#define SHARD_DIST_AGREE_H

#include <shard/comm.h>

/* This rank's arguments, as text; {0} at first. */
typedef struct shard_agreement {
    char *text; /* strings, one after the other */
    int64_t bytes, capacity;
} shard_agreement;

/* Adds a line that malloc allocated, and frees it. NULL: the line could not be made, and the thread has the error. */
shard_status shard_agreement_add(shard_agreement *agreement, char *line);

/* Compares the arguments of all ranks of the group with the first one's, and frees them. If they differ, all ranks
 * have an error (MISMATCH on the rank that differs, PEER on the others), as in "rank 2: `what`: here it is ..., on
 * rank 0 ..."; an error of one rank is an error on all. Collective over group, also for a rank that has failed. */
shard_status shard_agreement_check(shard_agreement *agreement, shard_group *group, const char *what);

#endif
