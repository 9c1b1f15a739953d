/*
 * shard/autograd.h: gradients.
 *
 * Operations on tensors that require a gradient are recorded as they run;
 * shard_backward walks the record backwards and adds to the leaves' gradients.
 */
#ifndef SHARD_AUTOGRAD_H
#define SHARD_AUTOGRAD_H

#include <shard/tensor.h>

/* Adds the gradient of a scalar with respect to every leaf that it depends on to shard_grad(leaf), as
 * torch.Tensor.backward. Frees the record, so that it is called once for each forward. NULL returns the
 * thread's first error. Collective over the groups of the operations in the record, and over the
 * replica groups of parameters under shard_data_parallel or shard_zero_optimizer. */
SHARD_API shard_status shard_backward(shard_tensor *loss);

/* The same from a tensor of any shape, and the gradient with respect to it, of that shape. */
SHARD_API shard_status shard_backward_from(shard_tensor *tensor, shard_tensor *gradient);

/* Clears a leaf's gradient; its memory may be kept for the next one. Not collective. */
SHARD_API void shard_zero_grad(shard_tensor *leaf);

/* Switches recording of operations on or off in this thread, as torch.set_grad_enabled; returns the previous state.
 * shard_grad_enabled returns the state. Not collective. */
SHARD_API bool shard_set_grad_enabled(bool enabled);
SHARD_API bool shard_grad_enabled(void);

/* SHARD_NO_GRAD { ... }: no operation inside is recorded, as with torch.no_grad(). */
static inline void shard_restore_grad_enabled(const bool *before)
{
    shard_set_grad_enabled(*before);
}
#define SHARD_NO_GRAD SHARD_NO_GRAD_IN(SHARD_JOIN(shard_no_grad_, __LINE__), SHARD_JOIN(shard_no_grad_turn_, __LINE__))
#define SHARD_NO_GRAD_IN(before, turn)                                                                             \
    for (bool turn = true, before __attribute__((unused, cleanup(shard_restore_grad_enabled))) = shard_set_grad_enabled(false); \
         turn; turn = false)

#endif
