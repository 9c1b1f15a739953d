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
 * A capture records operations without computing them. A replay gives the same bits as an eager step. It uses the
 * memory of the capture: inputs are copied into the same tensors each time, and results that were kept are
 * overwritten by the next replay; they have no values before the first one (ARGUMENT).
 *
 * A replay uses the host's current values of: learning rates, an optimizer's numbers of steps (Adam's bias
 * corrections), the draws of dropout (the thread's random state advances as in an eager step), the number of updates
 * of shard_ema_update, and num_batches_tracked of batch norms. All other arguments are those of the capture: shapes,
 * weight decay, momentum, max_norm of clipping, the factor of shard_scale, training mode. Operations on the CPU are
 * not captured.
 *
 * A capture must have whole steps: the gradients that it computes are used and zeroed in it (shard_step). At least
 * one such step must run eagerly before it, to make gradients, optimizer states and the plans of CUDA's libraries. A
 * capture cannot have the following; each is an error with a message:
 *   - calls that wait for the device or read from it on the host (shard_item, shard_copy_to_host,
 *     shard_count_top_k, the norm of shard_clip_grad_norm), events, copies from the host, new pinned memory, and
 *     shard_trim_memory;
 *   - the first use of a tensor that was made before, initialization with random values;
 *   - the first product of matrices on the device, which makes cuBLAS's workspace, and the first convolution, or attention
 *     of 16 bits, of each shape, which makes cuDNN's plan;
 *   - a gradient scaler, an average whose decay warms up, shard_ema_swap, the first clipping of an optimizer's gradients;
 *   - the step of an optimizer whose parameters are partitioned (shard_zero_optimizer, or shard_data_parallel_create with a
 *     .stage), shard_take_gradient_rows;
 *   - samples of classes, a loss with one, and a classifier's logits with .normalized;
 *   - collectives of more than one rank, as their preflight checks run on the host.
 *
 * Faults that kernels find in a replay (labels, indices) are reported as those of eager operations. Memory that is
 * allocated in a capture belongs to the graph, not to the device's pool; shard_graph_begin trims the pool. Memory
 * statistics include it during the capture and, in the peaks, at each replay.
 */
#ifndef SHARD_GRAPH_H
#define SHARD_GRAPH_H

#include <shard/device.h>

SHARD_BEGIN_C

typedef struct shard_graph shard_graph;

/* Begins the capture of this thread's calls on a device. Other threads must not use the device until the capture has
 * ended. NULL with the error set: UNSUPPORTED, the CPU; ARGUMENT, the thread captures already; MEMORY; DEVICE; the error that
 * the thread has already. Not collective. As
 * torch.cuda.CUDAGraph.capture_begin. */
SHARD_API shard_graph *shard_graph_begin(shard_device *device);

/* Ends the capture. If the thread has an error, or a call in the capture was refused, there is nothing to replay;
 * the error is the thread's, DEVICE or UNSUPPORTED. A graph that this thread does not capture is ARGUMENT. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_graph_end(shard_graph *graph);

/* Queues all captured work. Models, optimizers and static inputs must still exist. Does nothing if the thread has an error,
 * which is returned. Errors: ARGUMENT, nothing to replay, a call in a capture, an optimizer that was destroyed, parameters
 * whose numbers of steps have come to differ, or averages in the parameters' place (shard_ema_swap); DEVICE. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_graph_replay(shard_graph *graph);

/* The number of operations, copies and allocations that a replay queues; 0 if there is nothing to replay. */
SHARD_API int64_t shard_graph_nodes(const shard_graph *graph);

/* Destroys the graph; ends its capture if it has not ended. Results that were kept stay valid. NULL is fine. */
SHARD_API void shard_graph_destroy(shard_graph *graph);

/* Whether this thread is capturing, as torch.cuda.is_current_stream_capturing. */
SHARD_API bool shard_is_capturing(void);

SHARD_END_C

#endif
