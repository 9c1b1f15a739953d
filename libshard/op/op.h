/*
 * What operations share. Each operation is one file: check the operands, forward,
 * backward, side by side. See autograd/autograd.h for how one is recorded.
 */
#ifndef SHARD_OP_OP_H
#define SHARD_OP_OP_H

#include <shard/op.h>

#include "autograd/autograd.h"

/* Whether all operands are there (else the first error is left alone, or names
 * the function), on one device and of one dtype. */
bool shard_check_same(const char *function, int count, shard_tensor *const *operand);
/* The same, of a floating dtype. */
bool shard_check_operands(const char *function, int count, shard_tensor *const *operand);
/* The same for one, of any dtype. */
bool shard_check_operand(const char *function, shard_tensor *x);

/* An error that says that function has no rule for x as it is placed; false. */
bool shard_refuse_placement(const char *function, const shard_tensor *x);
/* Whether x is whole, or split along a dimension in [0, before): what operations
 * on the rest of the dimensions carry. Else refused. */
bool shard_check_carried(const char *function, const shard_tensor *x, int before);

/* x's shape as [outer, size of dim, inner]. */
shard_axis shard_axis_along(const shard_tensor *x, int dim);
/* Copies the range of whole that begins at start along dim and has part's shape: to part, or into whole from it. */
shard_status shard_copy_range(shard_tensor *whole, int dim, int64_t start, shard_tensor *part, bool into);
/* What becomes of a shape and of a placement along another dimension when dim goes: its size is
 * 1 if it is kept. */
shard_shape shard_shape_without(const shard_shape *shape, int dim, bool keep);
shard_placement shard_placement_without(const shard_placement *placement, int dim, bool keep);

/* Whether two tensors [size of x's last dimension] of a normalisation of x are both
 * there or both not, whole, and of the right shape and dtype; else an error. */
bool shard_check_norm_pair(const char *function, const char *names, const shard_tensor *x, const shard_tensor *first,
                           const shard_tensor *second);

/* Calls an entry of x's device: SHARD_RUN(x, relu, n, from, to). */
#define SHARD_RUN(x, entry, ...) shard_ops(x)->entry(shard_device_of(x), __VA_ARGS__)

/* y after its computation went `status`: y, or NULL after releasing it. */
shard_tensor *shard_result(shard_tensor *y, shard_status status);

/* The operands' memory, for a call that must not go on without it: false with the
 * error set if one cannot be made. NULL tensors give NULL and are fine. */
bool shard_load(int count, shard_tensor *const *tensor, void **memory);

/* The same of rows that may be pitch[i] elements apart: shard_tensor_rows. Behind shard_load of the other operands. */
bool shard_load_rows(int count, shard_tensor *const *tensor, void **memory, int64_t *pitch);

/* The same of x and of y, which has no memory yet and rows as long: they are *pitch apart in both. */
bool shard_load_alike(shard_tensor *x, shard_tensor *y, void *memory[2], int64_t *pitch);

/* Device memory that lives until the end of the enclosing scope: statistics, index
 * tables. [count] of dtype. */
shard_tensor *shard_workspace(const shard_tensor *like, int64_t count, shard_dtype dtype);

/* In backward: dy itself, to be overwritten with dx[input], where nobody else sees
 * it and it looks like that input; else a new tensor as of shard_make_gradient. */
shard_tensor *shard_gradient_over(shard_node *node, int input, shard_tensor *dy);
/* shard_gradient_target for what can only overwrite. */
shard_tensor *shard_gradient_to_overwrite(shard_node *node, int input);
/* The same for what computes in dtype though the input may be of another: where to
 * compute, and what then is dx[input]. NULL for NULL. */
shard_tensor *shard_gradient_of_type(shard_node *node, int input, shard_dtype dtype);
shard_tensor *shard_gradient_as_input(shard_node *node, int input, shard_tensor *computed);
/* A product's result y and its bias, where the product itself cannot add it: in y's type, the
 * bias' gradient in its own. */
shard_tensor *shard_add_bias(shard_tensor *y, shard_tensor *bias);

/* The gradient of a whole operand that all of dy went into. If dy is a part of the
 * rows (dimension 0) it is a contribution, which the walk knows by itself; if it is
 * split along another dimension, the gradient is PARTIAL. */
void shard_place_sum(shard_tensor *gradient, const shard_tensor *dy);
/* The gradient of a linear operation on elements: PARTIAL if dy is. */
void shard_place_partial(shard_tensor *gradient, const shard_tensor *dy);

/* The dtype of a normalisation layer's parameters for values of dtype. */
static inline shard_dtype shard_norm_dtype(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

#endif
