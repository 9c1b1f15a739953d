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
 * record: one backward for each forward, as torch.Tensor.backward. The gradients of a PARTIAL scalar are those of the
 * whole sum. NULL returns the thread's error. Errors: SHAPE, a loss of more than one element, those of a split loss on all ranks
 * together; ARGUMENT, a tensor that depends on nothing that requires a gradient, a record that an earlier backward freed, a call
 * within a backward, or a tensor that an operation has saved and that was written to since; UNSUPPORTED, gradients over groups
 * that do not fit together (shard/distributed.h); MEMORY, also of the forward's record. Collective over the groups of the
 * operations in the record, and over the replica groups of parameters under shard_data_parallel. */
SHARD_API SHARD_CHECKED shard_status shard_backward(shard_tensor *loss);

/* As shard_backward for any tensor, with the gradient with respect to it, of its shape, dtype and device (else SHAPE). A gradient
 * is placed as the tensor (else UNSUPPORTED); a local one of a split tensor is that of the local shard. Of a leaf
 * that requires a gradient it adds this to shard_grad(leaf): a gradient of the caller's own for an optimizer. Collective as
 * shard_backward. As torch.autograd.backward. */
SHARD_API SHARD_CHECKED shard_status shard_backward_from(shard_tensor *tensor, shard_tensor *gradient);

/* Clears a leaf's gradient, under ZeRO this rank's range of it; its memory may be kept for the next one. */
SHARD_API void shard_zero_grad(shard_tensor *leaf);

/* Takes the gradient of `count` rows of a matrix from `first` on: [count, columns] of float64 for a float64 matrix, else of
 * float32, in the device's memory, which the function may write to. On a GPU work with it goes on the device's stream. A status
 * other than SHARD_OK fails the call that it was given to. */
typedef shard_status shard_take_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient);

/* Passes a gradient of a matrix to `take` in runs of rows, each row once, in any order and on the CPU from several threads at
 * a time. A deferred gradient, as shard_grad of the weight of shard_nn_parallel_classifier or that of shard_head_backward, is
 * computed run by run. It is never in memory as a whole. Rows are not rounded to a 16-bit matrix's dtype. The rows of a
 * sample's classes (shard_sample_classes) are passed alone, others are zeros. A gradient in memory is copied in runs, and stays.
 *
 * `take` may write to these rows of the matrix itself, by the address of shard_data that was taken before: an optimizer of the
 * caller's. A deferred gradient may then only be released or zeroed. Rows that were passed before an error remain passed.
 * Errors: SHAPE, no floating matrix; UNSUPPORTED, in a graph's capture; those of `take`. Not collective, but for a gradient of
 * shard_head_backward whose weight stage 3 partitions: then over its replicas. */
SHARD_API SHARD_CHECKED shard_status shard_take_gradient_rows(shard_tensor *gradient, shard_take_rows *take, void *context);

/* Switches the recording of operations in this thread on or off and returns the previous state, as
 * torch.set_grad_enabled. */
SHARD_API bool shard_set_grad_enabled(bool enabled);
SHARD_API bool shard_grad_enabled(void);

/* SHARD_NO_GRAD { ... }: nothing inside is recorded. break and continue leave only the block, as of SHARD_SCOPE. */
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
