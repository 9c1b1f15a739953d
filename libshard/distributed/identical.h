/* A comparison of what must be identical on all ranks, with a collective of its own: arguments too many for a fingerprint
 * (shard_require_identical), as lists of tensors. Each rank adds lines of text, and the ranks exchange a hash of them. Only if
 * hashes differ, a rank sends the lines that most ranks have, so that the error of the others names the first difference. */
#ifndef SHARD_DIST_IDENTICAL_H
#define SHARD_DIST_IDENTICAL_H

#include <shard/comm.h>

/* The lines of this rank; {0} at first. */
typedef struct shard_identical_lines {
    char *text; /* strings, one after the other */
    int64_t bytes, capacity;
} shard_identical_lines;

/* Adds a line that malloc allocated, and frees it. NULL: the line could not be made, and the thread has the error. */
shard_status shard_identical_lines_add(shard_identical_lines *lines, char *line);

/* Compares the lines of all ranks of the group, and frees them. If they differ, all ranks have an error (MISMATCH on those
 * that differ from most ranks, of two ranks on the second; PEER on the others), as in "rank 2: `what`: here it is ..., on ranks
 * 0 and 1 ..."; an error of one rank is an error on all. Collective over group, also for a rank that has failed. */
shard_status shard_identical_lines_check(shard_identical_lines *lines, shard_group *group, const char *what);

#endif
