/*
 * Finds the ranks that cause a wait to fail. A rank that itself waits for other ranks is
 * not a cause: an error names the ranks at the ends of the chains of waits.
 */
#ifndef SHARD_COMM_CULPRITS_H
#define SHARD_COMM_CULPRITS_H

#include <shard/base.h>

#include <stdbool.h>

/* The state of the world's ranks, as far as it is known; context is passed on. */
typedef struct shard_waits {
    int size;
    const void *context;
    bool (*answers)(const void *context, int rank);              /* it waits, or has left, and says so */
    bool (*waits_for)(const void *context, int rank, int other); /* the first, which answers, for the second */
} shard_waits;

/* For how long a rank that waits may not say so before it counts as silent: on a machine with more
 * to do than cores it runs late. */
static inline double shard_silent_seconds(double timeout)
{
    double seconds = timeout / 10;
    return seconds < 1 ? 1 : seconds > 10 ? 10 : seconds;
}

/* Marks, of culprits [size], those that `rank` waits for in the end, directly or through others
 * that wait, and that do not answer. Is the lowest rank on the way that waits for one of them
 * itself: the collective that it is in is the one to be named. Where all on the way wait, in a
 * circle, it is the lowest of them, and those that it waits for are marked. -1: `rank` waits for no rank. */
int shard_find_culprits(const shard_waits *waits, int rank, bool *culprits);

/* Writes the error of a wait in vain for those marked, in `doing`; `waited_in`: where the first of them waits; NULL:
 * nowhere that is known. */
void shard_write_culprits(int size, const bool *culprits, const char *doing, const char *waited_in, char *text, size_t bytes);

#endif
