/*
 * shard/autograd.h: gradients.
 *
 * Operations on tensors that require a gradient are recorded as they run;
 * shard_backward walks the record backwards and adds to the leaves' gradients.
 */
#ifndef SHARD_AUTOGRAD_H
#define SHARD_AUTOGRAD_H

#include <shard/tensor.h>

SHARD_BEGIN_C

/* Adds the gradients of a scalar with respect to every leaf that it depends on to shard_grad(leaf), and frees the
 * record: one backward for each forward, as torch.Tensor.backward. The gradients of a PARTIAL scalar are those of the whole
 * sum. NULL returns the thread's error. Collective over
 * the groups of the operations in the record, and over the replica groups of parameters under shard_data_parallel. */
SHARD_API shard_status shard_backward(shard_tensor *loss);

/* As shard_backward for any tensor, with the gradient with respect to it, of its shape; as torch.autograd.backward. */
SHARD_API shard_status shard_backward_from(shard_tensor *tensor, shard_tensor *gradient);

/* Clears a leaf's gradient; its memory may be kept for the next one. */
SHARD_API void shard_zero_grad(shard_tensor *leaf);

/* Switches the recording of operations in this thread on or off and returns the previous state, as
 * torch.set_grad_enabled. */
SHARD_API bool shard_set_grad_enabled(bool enabled);
SHARD_API bool shard_grad_enabled(void);

/* SHARD_NO_GRAD { ... }: nothing inside is recorded. */
static inline void shard_restore_grad_enabled(const bool *before)
{
    shard_set_grad_enabled(*before);
}
#define SHARD_NO_GRAD SHARD_NO_GRAD_IN(SHARD_JOIN(shard_no_grad_, __LINE__), SHARD_JOIN(shard_no_grad_turn_, __LINE__))
#define SHARD_NO_GRAD_IN(before, turn)                                                                             \
    for (bool turn = true, before __attribute__((unused, cleanup(shard_restore_grad_enabled))) = shard_set_grad_enabled(false); \
         turn; turn = false)

SHARD_END_C

#endif
