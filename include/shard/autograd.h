/*
 * shard/autograd.h: gradients.
 *
 * Operations on tensors that require a gradient are recorded as they run;
 * shard_backward walks the record backwards and adds to the leaves' gradients.
 */
#ifndef SHARD_AUTOGRAD_H
#define SHARD_AUTOGRAD_H

#include <shard/tensor.h>

/* Gradients of a scalar with respect to every leaf that it depends on, added to
 * shard_grad(leaf). The record is freed on the way: once per forward. NULL
 * leaves the first error alone and returns it. Collective over the groups of the
 * operations that it walks back through, and over the replica groups of
 * parameters under shard_data_parallel. */
SHARD_API shard_status shard_backward(shard_tensor *loss);

/* The same from any tensor and the gradient with respect to it, of its shape. */
SHARD_API shard_status shard_backward_from(shard_tensor *tensor, shard_tensor *gradient);

/* Forgets a leaf's gradient (its memory may be kept for the next one). */
SHARD_API void shard_zero_grad(shard_tensor *leaf);

/* Whether operations are recorded in this thread; as torch.set_grad_enabled.
 * Returns what it was before. */
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

#endif
