/*
 * shard/custom_op.h: custom operations with their gradients, as torch.autograd.Function. examples/custom_op.c is one,
 * examples/fused_loss.c one of a split operand.
 *
 * The comment at the head of op.h holds for these functions too: NULL operands, errors, devices.
 */
#ifndef SHARD_CUSTOM_OP_H
#define SHARD_CUSTOM_OP_H

#include <shard/op.h>

SHARD_BEGIN_C

/* One call of a custom operation: from its forward to its backward. */
typedef struct shard_custom_op shard_custom_op;

#define SHARD_CUSTOM_OP_INPUTS 8
#define SHARD_CUSTOM_OP_SAVED 16

/*
 * A custom operation is a forward and a backward. Both compute with tensors, by any operation (nothing is recorded), or on
 * the host (shard_copy_to_host, shard_from_host). Their tensors are in a scope that the library opens around each call.
 * A split input has the shape of the local shard. Other operations accept or refuse its placement as always;
 * shard_as_placed(shard_detach(x), (shard_placement){0}) is the local shard without a placement.
 *
 * Placements:
 *   result  as forward returns it (shard_as_placed): as an input, split, PARTIAL, or local. A sum or a gather of local
 *           results over a group follows the operation (shard_reduce_from_group, shard_gather_from_group). A collective
 *           inside forward is right only over a group over which an input is split.
 *   dy      as the result. The gradient of a PARTIAL result is that of the whole sum. dy itself is never PARTIAL.
 *   dx[i]   of a split input: the local shard of the gradient. Of another input: PARTIAL, if backward returns it so
 *           (shard_as_placed); else the whole gradient. Exception: if dy is split and the input is not, dx[i] without
 *           a placement is this rank's summand (a pending sum, as a weight's gradient from the local rows). Set
 *           whole_gradients if backward has gathered or summed it.
 *
 * An error inside a function (shard_error, or that of any call) is reported with the operation's name. The call or the
 * backward fails with it. An error of one rank reaches the others as that of any operation (docs/errors.md).
 */
typedef struct shard_custom_op_type {
    const char *name; /* for messages */
    /* Returns the result, which may be an input; NULL with the error set. A result of an integer dtype has no gradient. */
    shard_tensor *(*forward)(shard_custom_op *op, int inputs, shard_tensor *const *input);
    /* Sets dx[i] for each input that requires a gradient (shard_custom_op_wants_gradient), given dy, the gradient with
     * respect to the result. dx[i] may be dy; dy must not be written to. dx[i] is cast to the input's dtype. Runs in the
     * autocast mode of the forward, as torch.amp.custom_bwd. NULL: no input may require a gradient. */
    shard_status (*backward)(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx);
    void (*destroy)(void *context); /* NULL: nothing to free */
    bool whole_gradients;
} shard_custom_op_type;

/* shard_custom_op_apply(&type, context, x, weight): the result of forward, recorded. At most SHARD_CUSTOM_OP_INPUTS inputs, of
 * any dtype, on one device. A NULL input is left out: forward gets NULL. If the thread has an error already, a NULL input
 * gives NULL and nothing runs. The operation owns context, also after an error: type->destroy is called once, after the
 * backward or when none can follow. type must outlive the record; it is usually static. Errors: ARGUMENT (a missing
 * function, too many inputs), SHAPE (devices, gradients), UNSUPPORTED (placements), and those of the functions.
 * Collective where the functions are. */
#define shard_custom_op_apply(type, context, ...)                                                                            \
    SHARD_GIVEN(shard_custom_op_apply_with(type, context,                                                                    \
                                           (int)(sizeof((shard_tensor *[]){__VA_ARGS__}) / sizeof(shard_tensor *)),          \
                                           (shard_tensor *[]){__VA_ARGS__}))
SHARD_API shard_tensor *shard_custom_op_apply_with(const shard_custom_op_type *type, void *context, int inputs,
                                                   shard_tensor *const *input);

/* ---- inside a custom operation ---- */

/* The context that was given to shard_custom_op_apply. NULL for NULL. */
SHARD_API void *shard_custom_op_context(const shard_custom_op *op);
/* Whether input i requires a gradient. False in a forward that is not recorded. As ctx.needs_input_grad. */
SHARD_API bool shard_custom_op_wants_gradient(const shard_custom_op *op, int input);
/* In forward: keeps a tensor (an input, the result, any other) for the backward, in slot 0 to SHARD_CUSTOM_OP_SAVED - 1. Does
 * nothing in a forward that is not recorded. Errors: ARGUMENT. As ctx.save_for_backward. */
SHARD_API SHARD_CHECKED shard_status shard_custom_op_save(shard_custom_op *op, int slot, shard_tensor *tensor);
/* The saved tensor, placed as it was; it must not be written to. Belongs to the operation. NULL if there is none. NULL with
 * the error set if it was written to since (ARGUMENT). As ctx.saved_tensors. */
SHARD_API shard_tensor *shard_custom_op_saved(shard_custom_op *op, int slot);
/* In backward: a new tensor with the shape, dtype, device and placement of input i, to be dx[i]. Its content is undefined. */
SHARD_API shard_tensor *shard_custom_op_make_gradient(shard_custom_op *op, int input);

SHARD_END_C

#endif
