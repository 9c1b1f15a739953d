/*
 * shard/graph.h: CUDA graphs: the operations of a training step are captured once and then
 * replayed with one launch, as torch.cuda.CUDAGraph. For models whose kernels are so short that
 * the host cannot launch them fast enough.
 *
 *     shard_tensor *images = shard_zeros(...), *labels = shard_zeros(...);   // static inputs
 *     ...                                    // some eager steps on them, then:
 *     shard_graph *graph = shard_graph_begin(device);
 *     SHARD_SCOPE {
 *         loss = shard_keep(shard_cross_entropy(shard_forward(model, images), labels));
 *         shard_backward(loss);
 *     }
 *     shard_step(optimizer);
 *     shard_graph_end(graph);
 *     for (...) {
 *         shard_copy_from_host(images, ...);
 *         shard_copy_from_host(labels, ...);
 *         shard_optimizer_set_lr(optimizer, ...);
 *         shard_graph_replay(graph);
 *         ... shard_item(loss) ...
 *     }
 *
 * A capture records operations without computing them. A replay gives the same bits as the eager
 * step would. It reads and writes the memory that the capture did: inputs are copied into the same
 * tensors each time, and results that are kept are overwritten by the next replay; they have no
 * values before the first.
 *
 * Of what changes from step to step on the host, a replay takes: learning rates, the numbers of
 * steps of an optimizer (Adam's bias corrections), the draws of dropout (the thread's random state
 * goes on as in an eager step), the number of updates of shard_ema_update, and num_batches_tracked of
 * batch norms. All other arguments are those of the capture: shapes, weight decay, momentum, max_norm
 * of clipping, the factor of shard_scale, training mode. Operations on the CPU are not captured.
 *
 * A capture is to have whole steps: gradients that it computes are used and zeroed in it
 * (shard_step). Before it at least one such step is to have been made eagerly, so that gradients,
 * optimizer states and the plans of CUDA's libraries are there. It cannot have: what waits for the
 * device or reads from it on the host (shard_item, shard_copy_to_host, shard_count_top_k, the norm
 * of shard_clip_grad_norm), copies from the host, tensors that get their first memory in it though
 * they were made before, initialisation with random values, a gradient scaler, an average whose decay
 * warms up, shard_zero_optimizer, and collectives of more than one rank, whose preflight checks are the host's.
 * Each is an error with a message that says so.
 *
 * Faults that kernels find in a replay (labels, indices) are reported as those of eager operations.
 * Memory that is allocated in a capture belongs to the graph, not to the device's pool; shard_graph_begin
 * trims the pool. It counts in memory statistics while the capture lasts and, in the peaks, with
 * each replay.
 */
#ifndef SHARD_GRAPH_H
#define SHARD_GRAPH_H

#include <shard/device.h>

SHARD_BEGIN_C

typedef struct shard_graph shard_graph;

/* Begins a capture of what this thread calls on a device. Other threads leave the device alone
 * until it has ended. NULL with the error set: UNSUPPORTED on the CPU, ARGUMENT if the thread
 * captures already. Not collective. */
SHARD_API shard_graph *shard_graph_begin(shard_device *device);

/* Ends the capture. With the thread's error set, or where something in the capture was refused, there
 * is nothing to replay, and the error stays, or becomes DEVICE or UNSUPPORTED. Not collective. */
SHARD_API shard_status shard_graph_end(shard_graph *graph);

/* Queues all that was captured. Models, optimizers and static inputs are to be there still; an
 * optimizer that was destroyed is an ARGUMENT error. DEVICE. Not collective. */
SHARD_API shard_status shard_graph_replay(shard_graph *graph);

/* Operations, copies and allocations that a replay queues; 0 where there is nothing to replay. */
SHARD_API int64_t shard_graph_nodes(const shard_graph *graph);

/* Ends the capture if it has not ended. Results that were kept stay. NULL is fine. */
SHARD_API void shard_graph_destroy(shard_graph *graph);

/* Whether this thread captures, as torch.cuda.is_current_stream_capturing. */
SHARD_API bool shard_is_capturing(void);

SHARD_END_C

#endif
