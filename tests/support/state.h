/* A small state dict of every placement, for tests of checkpoints. Its values depend on a seed. */
#ifndef TESTS_SUPPORT_STATE_H
#define TESTS_SUPPORT_STATE_H

#include "support/job.h"

/* Tensors that are small and replicated, large and replicated, split by rows, split by columns; whole if
 * world is NULL. The caller destroys the list. */
shard_tensors *make_state(shard_group *world, uint64_t seed);

/* The same with some pages in all. */
shard_tensors *make_small_state(shard_group *world, uint64_t seed);

/* The same, of which each of 1 to 4 ranks writes enough at a time that it bypasses the page cache. */
shard_tensors *make_direct_state(shard_group *world, uint64_t seed);

/* Fails the test unless the list has the values of make_state with that seed. */
void check_state(const shard_tensors *list, uint64_t seed);

/* check_state for the file at path. Collective over world. */
void check_content(shard_group *world, const char *path, uint64_t seed);

/* Fails unless both files are the same bytes, with the right checksums. */
void check_files_equal(const char *a, const char *b);

#endif
