/*
 * Functions for all operations. Each operation is one file: check the operands, forward, backward, side by side.
 * autograd/autograd.h has the functions that record one.
 */
#ifndef SHARD_OP_OP_H
#define SHARD_OP_OP_H

#include <shard/custom_op.h>
#include <shard/loss.h>
#include <shard/op.h>

#include "autograd/autograd.h"

/* Whether all operands are present (else the first error is kept, or names the function), on one device and of one
 * dtype. */
bool shard_check_same(const char *function, int count, shard_tensor *const *operand);
/* As shard_check_same, for a floating dtype. */
bool shard_check_operands(const char *function, int count, shard_tensor *const *operand);
/* As shard_check_same, for one operand of any dtype. */
bool shard_check_operand(const char *function, shard_tensor *x);

/* All ranks need an operand of this dtype and whole shape in the function's next collectives. */
void shard_require_identical_operand(const shard_tensor *x);

/* Reports that function has no rule for x's placement; false. */
bool shard_refuse_placement(const char *function, const shard_tensor *x);
/* Whether x is local, or split along a dimension in [0, before), so that an operation on the other dimensions keeps
 * its placement. Else an error. */
bool shard_check_carried(const char *function, const shard_tensor *x, int before);

/* x's shape as [outer, size of dim, inner]. */
shard_axis shard_axis_along(const shard_tensor *x, int dim);
/* Copies between part and a range of whole: the range begins at start along dim and has part's shape. From whole to
 * part, or, with `into`, from part into whole. */
shard_status shard_copy_range(shard_tensor *whole, int dim, int64_t start, shard_tensor *part, bool into);
/* The shape, or the placement along another dimension, without dimension dim, or with its size 1 if keep is true. */
shard_shape shard_shape_without(const shard_shape *shape, int dim, bool keep);
shard_placement shard_placement_without(const shard_placement *placement, int dim, bool keep);

/* Whether the two parameters [size of x's last dimension] of a normalization of x are both present or both NULL,
 * local, and of the right shape and dtype; else an error. */
bool shard_check_norm_pair(const char *function, const char *names, const shard_tensor *x, const shard_tensor *first,
                           const shard_tensor *second);

/* Checks of options, for operations and the makers of layers with them; false with the error set. */
bool shard_check_batch_norm(const char *function, double momentum, double eps);
bool shard_check_layer_norm(const char *function, double eps);
bool shard_check_max_norm(const char *function, double max_norm, double norm_type);
bool shard_check_windows(const char *function, const char *direction, int64_t stride, int64_t padding, int64_t dilation);

/* Calls an entry of x's device: SHARD_RUN(x, relu, n, from, to). */
#define SHARD_RUN(x, entry, ...) shard_ops(x)->entry(shard_device_of(x), __VA_ARGS__)

/* Returns y if status is OK, else releases it and returns NULL. */
shard_tensor *shard_result(shard_tensor *y, shard_status status);

/* Sets memory[i] to the tensors' memory; false with the error set if it cannot be made. NULL tensors give NULL. */
bool shard_load(int count, shard_tensor *const *tensor, void **memory);

/* As shard_load for rows that may be padded to a pitch (shard_tensor_rows). Called after shard_load of the other
 * operands. */
bool shard_load_rows(int count, shard_tensor *const *tensor, void **memory, int64_t *pitch);

/* As shard_load_rows for x and y, which has no memory yet and rows of the same length: both get the same pitch. */
bool shard_load_alike(shard_tensor *x, shard_tensor *y, void *memory[2], int64_t *pitch);

/* Device memory [count] of dtype until the end of the enclosing scope: statistics, index tables. */
shard_tensor *shard_workspace(const shard_tensor *like, int64_t count, shard_dtype dtype);

/* In backward: dy itself, to be overwritten with dx[input], if no other tensor uses its memory and it has the
 * input's shape and type; else a new tensor of shard_make_gradient. */
shard_tensor *shard_gradient_over(shard_node *node, int input, shard_tensor *dy);
/* As shard_gradient_target, for functions that cannot accumulate. */
shard_tensor *shard_gradient_to_overwrite(shard_node *node, int input);
/* As shard_gradient_to_overwrite, for functions that write rows `pitch` elements apart, as those of the input are. Call it after
 * shard_load_rows of the input. */
shard_tensor *shard_gradient_of_rows(shard_node *node, int input, int64_t pitch);
/* As shard_gradient_to_overwrite, for functions that compute in dtype although the input may have another: first the
 * tensor to compute in, then dx[input] made of it. NULL for NULL. */
shard_tensor *shard_gradient_of_type(shard_node *node, int input, shard_dtype dtype);
shard_tensor *shard_gradient_as_input(shard_node *node, int input, shard_tensor *computed);
/* Adds a bias to a product's result y if the product cannot: in y's type; the bias' gradient has the bias' type. */
shard_tensor *shard_add_bias(shard_tensor *y, shard_tensor *bias);

/* Places the gradient of a local operand that all of dy was summed into. If dy is split along rows (dimension 0),
 * the gradient has a pending sum, which the backward pass derives itself. If dy is split along another dimension,
 * the gradient is PARTIAL. */
void shard_place_sum(shard_tensor *gradient, const shard_tensor *dy);
/* Places the gradient of a linear operation on elements: PARTIAL if dy is. */
void shard_place_partial(shard_tensor *gradient, const shard_tensor *dy);

/* The dtype of a normalization layer's parameters, for values of dtype. */
static inline shard_dtype shard_norm_dtype(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

#endif
