/*
 * Operations against finite differences and against themselves. check_operation
 * runs one on made-up inputs and holds that
 * - its gradients are the central differences, in float64;
 * - they are the same whichever inputs require one, for leaves and for results, for
 *   an operand used twice, added up over two backwards, written over what
 *   shard_zero_grad left, and behind a forward without a record;
 * - a second backward over one record fails, and so does one behind a write to an
 *   input that it needs;
 * - float32, bfloat16 and float16 are the float64 results but for their rounding;
 * - no memory is left behind.
 */
#ifndef TESTS_SUPPORT_GRADCHECK_H
#define TESTS_SUPPORT_GRADCHECK_H

#include "support/check.h"
#include "support/host.h"

#include <shard/op.h>

#define OPERATION_INPUTS 4

typedef shard_tensor *operation_maker(shard_tensor *const *x, const void *options);

typedef struct operation {
    const char *name; /* for messages */
    operation_maker *make;
    const void *options; /* for make */
    int inputs;
    shard_shape shape[OPERATION_INPUTS];
    /* Masks of inputs: those whose values the backward needs, if all require a
     * gradient; those that are a normalization's parameters, float32 for 16-bit x. */
    unsigned needs, parameters;
    unsigned constant; /* a mask of inputs on which no result depends, where there are elements of all inputs and of the result */
    double tolerance; /* of differences, relative to the largest gradient; 0: 1e-9 */
    double rounding;  /* of smaller dtypes, in units of their rounding error; 0: 8 */
    unsigned seed;
} operation;

void check_operation(const operation *op);

/* count numbers between -2 and 3 in an order that depends on the seed, all different
 * and none near 0. */
void make_up(double *values, int64_t count, unsigned seed);
/* A float64 tensor of them; options as for shard_empty. */
#define make_up_tensor(shape, seed, ...) make_up_tensor_with(shape, seed, (shard_tensor_options){.size = sizeof(shard_tensor_options), __VA_ARGS__})
shard_tensor *make_up_tensor_with(shard_shape shape, unsigned seed, shard_tensor_options options);

/* check_doubles of a tensor's elements. */
void check_tensor(const char *what, shard_tensor *tensor, const double *expected, double tolerance);

/* Fails unless made is NULL and the thread's error is this one, which is cleared. The
 * text is a pattern of fnmatch. */
void check_refused(const shard_tensor *made, shard_status status, const char *pattern);

#endif
