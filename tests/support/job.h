/*
 * Tests of what stands on shard_init: ranks that join and leave as programs do, and
 * tensors that are easy to fill and compare. Values come from an element's index in
 * the whole tensor, so that a part and the whole agree.
 */
#ifndef TESTS_SUPPORT_JOB_H
#define TESTS_SUPPORT_JOB_H

#include "support/host.h"
#include "support/ranks.h"

#include <shard/shard.h>

/* run_ranks with shard_init and shard_finalize around the body. */
void run_job(int size, ranks_body *body, void *context);
void run_job_of(ranks_run run);

/* A tensor of that shape, of numbers in [-1, 1) that depend on seed and index. */
shard_tensor *made_up(shard_shape shape, uint64_t seed, shard_dtype dtype);
/* The same as a leaf that requires a gradient. */
shard_tensor *made_up_leaf(shard_shape shape, uint64_t seed, shard_dtype dtype);
/* Gives x those numbers: of its own part, if it is split. */
void fill_made_up(shard_tensor *x, uint64_t seed);

/* Fails unless x, whole or one part, is the (part of the) whole values, to tolerance x
 * (1 + the expected magnitude). Of a part collective over the group, whose parts are the whole. */
#define check_part(x, whole, tolerance) check_part_at(__FILE__, __LINE__, #x, x, whole, tolerance)
void check_part_at(const char *file, int line, const char *name, shard_tensor *x, const double *whole, double tolerance);
/* Fails unless a and b have the same shape and values, likewise. */
#define check_close(a, b, tolerance) check_close_at(__FILE__, __LINE__, #a, a, b, tolerance)
void check_close_at(const char *file, int line, const char *name, shard_tensor *a, shard_tensor *b, double tolerance);

#endif
