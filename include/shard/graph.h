/*
 * shard/graph.h: CUDA graphs: the operations of a training step are captured once and then replayed with one launch, as
 * torch.cuda.CUDAGraph. For models whose kernels are so short that the host cannot launch them fast enough.
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
 * A capture records operations without computing them. A replay gives the same bits as an eager step. It uses the memory of the
 * capture: inputs are copied into the same tensors each time, and results that were kept are overwritten by the next replay; they
 * have no values before the first one (ARGUMENT). A capture has whole steps, and at least one runs eagerly before it.
 * docs/gpu.md ("Graphs of a step") has the values of the host that a replay reads, what a capture cannot have, and its memory.
 */
#ifndef SHARD_GRAPH_H
#define SHARD_GRAPH_H

#include <shard/device.h>

SHARD_BEGIN_C

typedef struct shard_graph shard_graph;

/* Begins the capture of this thread's calls on a device. Other threads must not use the device until the capture has ended. The
 * caller destroys the graph. NULL with the error set: UNSUPPORTED, the CPU; ARGUMENT, the thread captures already; MEMORY;
 * DEVICE; the error that the thread has already. Not collective. As torch.cuda.CUDAGraph.capture_begin. */
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
