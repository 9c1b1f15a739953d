/*
 * Computations by cuDNN's graph API on the device's stream: convolutions (cuda_dnn_conv2d.c) and attention
 * (cuda_dnn_attention.c).
 *
 * Invariants: only engines whose notes say that they give the same bits in every run and
 * take float32 as it is, unless the device allows TF32; never by measuring. In this order,
 * and within it in that of cuDNN's heuristics: those of heuristic A that are compiled
 * already; those that are compiled at run time, which takes up to seconds a shape; the
 * fallbacks. These sum in float32. For 16-bit types there is a last choice, which is warned
 * of once: engines that note REDUCED_PRECISION_REDUCTION, parts of whose sums are rounded to
 * the type before they are added up. PyTorch takes them without asking; products of windows
 * instead would be many times slower.
 *
 * An engine that fails, when its plan is made or when it is run, or whose workspace there is
 * no memory for, is followed by the next one, which then stays. Each shape's engine and each
 * failure is logged once.
 */
#ifndef SHARD_DEVICE_CUDA_DNN_H
#define SHARD_DEVICE_CUDA_DNN_H

#include "device/cuda/cuda.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_dnn_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_CUDA_DNN_TENSORS = 16 }; /* the most of a graph that are in memory or passed by value */

#define SHARD_CUDA_DNN_MOST_WORKSPACE ((int64_t)2 << 30) /* engines that need more are not used */

/* A computation: a graph, and the memory of its tensors. */
typedef struct shard_cuda_dnn_call {
    void (*describe)(shard_cuda_dnn_graph *, const void *of); /* adds the operations */
    const char *(*name)(const void *of);                      /* for messages, with its article */
    const char *instead;                                      /* how it is computed where cuDNN refuses it, for messages */
    const void *of;
    shard_cuda_key key; /* all that what is described depends on; the last two words are 0 */
    shard_dtype dtype;
    bool accumulate; /* the result is added to what is there: the caller begins again after an engine that failed in it */
    bool optional;   /* cuDNN may take the graph for wrong, and refuses it then */
    bool asks_again; /* an engine whose workspace there is no memory for has not failed: the next call tries it again */
    int64_t count;   /* of the tensors in memory */
    int64_t names[SHARD_CUDA_DNN_TENSORS];
    void *data[SHARD_CUDA_DNN_TENSORS]; /* of numbers that are passed by value, on the host */
} shard_cuda_dnn_call;

/* Sets *there to whether cuDNN has it. */
shard_status shard_cuda_dnn_run(shard_device *device, const shard_cuda_dnn_call *, bool *there);

#ifdef __cplusplus
}
#endif

#endif
