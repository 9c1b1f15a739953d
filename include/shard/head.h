/*
 * shard/head.h: the losses of a linear layer without its logits (shard_linear_cross_entropy, shard_linear_binary_cross_entropy),
 * as a forward and a backward that the caller calls: for programs with a record of their own, as a torch.autograd.Function or
 * jax.custom_vjp, and for optimizers of the caller's. Nothing is recorded for shard_backward, and no operand needs to require a
 * gradient.
 *
 *     forward     loss, and what the backward needs: a shard_head_saved, which the caller destroys
 *     backward    dx, dweight and dbias from it and dy
 *     rows        a deferred dweight is passed in runs of rows (shard_take_gradient_rows), and need never exist as a whole
 *
 * Values and gradients are those of the two functions, whose comments describe operands, options, placements and errors. Ranks
 * that split the classes call the forward together; the backward and the rows communicate nothing, unless stage 3 partitions the
 * weight. docs/classifier.md has a program.
 */
#ifndef SHARD_HEAD_H
#define SHARD_HEAD_H

#include <shard/loss.h>
#include <shard/op.h>

SHARD_BEGIN_C

/*
 * The state that a forward saves. It refers to x, weight, bias, target and the options' tensors, which may be released and may
 * not be written to before the last backward: the backward refuses a tensor that was written to, except through shard_data,
 * which the library does not notice. docs/classifier.md ("With your own record or optimizer") has its memory. No scope owns it.
 * It belongs to one thread at a time. As ctx of a torch.autograd.Function.
 */
typedef struct shard_head_saved shard_head_saved;

/* The loss of shard_linear_cross_entropy. *saved becomes its state, which the caller destroys; NULL after an error. NULL for
 * saved: the loss alone, as in evaluation. *label_rank (NULL: not wanted) is as for shard_linear_cross_entropy; the macro,
 * shard_linear_cross_entropy_forward(x, weight, bias, target, &saved, .label_smoothing = 0.1), has none. Collective over the
 * weight's group if it is split. */
#define shard_linear_cross_entropy_forward(x, weight, bias, target, ...)                                                         \
    SHARD_GIVEN(shard_linear_cross_entropy_forward_with(                                                                         \
        x, weight, bias, target, SHARD_OPTIONS_BEFORE(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__),    \
        NULL))
SHARD_API shard_tensor *shard_linear_cross_entropy_forward_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                                shard_tensor *target, const shard_cross_entropy_options *options,
                                                                shard_head_saved **saved, shard_tensor **label_rank);

/* The same for shard_linear_binary_cross_entropy, of pairs and with a reduction: a floating target and SHARD_REDUCTION_NONE,
 * which have logits, are refused (UNSUPPORTED). Collective over the weight's group if it is split. */
#define shard_linear_binary_cross_entropy_forward(x, weight, bias, target, ...)                                                  \
    SHARD_GIVEN(shard_linear_binary_cross_entropy_forward_with(                                                                  \
        x, weight, bias, target,                                                                                                 \
        SHARD_OPTIONS_BEFORE(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_linear_binary_cross_entropy_forward_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                                       shard_tensor *target,
                                                                       const shard_binary_cross_entropy_options *options,
                                                                       shard_head_saved **saved);

typedef struct shard_head_backward_options {
    size_t size;
    bool accumulate; /* gradients are added to *dweight and *dbias, which are NULL at first: of micro-batches */
    bool deferred;   /* dweight and dbias are deferred: computed when their values are needed, or passed in rows */
} shard_head_backward_options;
#define SHARD_HEAD_BACKWARD_OPTIONS_VALUES sizeof(shard_head_backward_options), false, false
#define SHARD_HEAD_BACKWARD_OPTIONS_INIT                                                                                         \
    {                                                                                                                            \
        SHARD_HEAD_BACKWARD_OPTIONS_VALUES                                                                                       \
    }
/* The gradients of a loss, where dy is the gradient with respect to it: a tensor of its shape, dtype and device. Each of dx,
 * dweight and dbias that is not NULL becomes a new tensor of the operand's shape and dtype; NULL after an error, and *dbias
 * without a bias. A gradient that is not wanted is not computed. Can be called again for the same state. docs/classifier.md
 * ("What shard_head_backward returns") has the placements and the options. With the macro:
 *     shard_head_backward(saved, dy, &dx, &dweight, &dbias, .deferred = true)
 * Errors: ARGUMENT, a tensor that was written to since the forward; SHAPE, a dy, *dweight or *dbias of another shape, dtype or
 * device; MEMORY; UNSUPPORTED, a PARTIAL dy. Not collective, unless stage 3 partitions the weight (parallel.h). As a
 * torch.autograd.Function's backward. */
#define shard_head_backward(saved, dy, dx, dweight, ...)                                                                         \
    SHARD_GIVEN_STATUS(shard_head_backward_with(saved, dy, SHARD_HEAD_BACKWARD_OPTIONS_BEFORE(dx, dweight, __VA_ARGS__, )))
#define SHARD_HEAD_BACKWARD_OPTIONS_BEFORE(dx, dweight, dbias, ...)                                                              \
    &(shard_head_backward_options)SHARD_FIELDS(shard_head_backward_options, SHARD_HEAD_BACKWARD_OPTIONS, __VA_ARGS__), dx,       \
        dweight, dbias
SHARD_API SHARD_CHECKED shard_status shard_head_backward_with(shard_head_saved *saved, shard_tensor *dy,
                                                              const shard_head_backward_options *options, shard_tensor **dx,
                                                              shard_tensor **dweight, shard_tensor **dbias);

/* NULL is fine. Not collective. */
SHARD_API void shard_head_saved_destroy(shard_head_saved *saved);

SHARD_END_C

#endif
