/*
 * Two trainings side by side: parameters of all sorts under shard_data_parallel and an
 * optimizer, and equal ones under shard_zero_optimizer. Both must give the same bits.
 */
#ifndef TESTS_SUPPORT_ZERO_H
#define TESTS_SUPPORT_ZERO_H

#include "support/job.h"

/* Sizes that are no multiples of 64 bytes, an empty one, one of the loss twice and one
 * not at all, a frozen one, three dtypes, a name of two. */
enum { SORTS_PARAMETERS = 10, SORTS_UNUSED = 4, SORTS_FROZEN = 5, SORTS_DOUBLE = 6, SORTS_HALF = 9 };

typedef struct sorts {
    shard_tensor *parameter[SORTS_PARAMETERS];
} sorts;

/* The leaves, in the innermost scope: the same on each rank, but that the first of them
 * begins with other values. */
sorts make_sorts(shard_group *world);
/* A list of them, the caller's. */
shard_tensors *list_sorts(const sorts *s);

/* A backward of a loss that differs from rank to rank and from turn to turn. */
void back_sorts(const sorts *s, shard_group *world, int turn);

/* Fails unless the values are the same bits, or (tolerance > 0) close; of bfloat16 to its
 * rounding then. */
#define check_sorts_equal(a, b, tolerance) check_sorts_equal_at(__LINE__, a, b, tolerance)
void check_sorts_equal_at(int line, const sorts *a, const sorts *b, double tolerance);

/* A model of layers, the last of them split over group, and a backward of its loss: each
 * rank has rows of its own, which are gathered over group before the last. */
shard_module *make_split_model(shard_split split, shard_group *group);
void back_split_model(shard_module *model, shard_group *world, shard_group *group, int turn);

/* Fails if a parameter of one differs by more from that of the other. */
void check_models_equal(shard_module *a, shard_module *b, double most);

#endif
