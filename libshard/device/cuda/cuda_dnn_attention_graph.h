/* Attention as graphs of cuDNN. */
#ifndef SHARD_DEVICE_CUDA_DNN_ATTENTION_GRAPH_H
#define SHARD_DEVICE_CUDA_DNN_ATTENTION_GRAPH_H

#include "device/cuda/cuda_dnn_graph.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tensors' names in a graph. ATTENTION_END + i: those that are in no memory. */
enum {
    ATTENTION_QUERY = 1,
    ATTENTION_KEY,
    ATTENTION_VALUE,
    ATTENTION_Y,
    ATTENTION_LSE, /* float32 [batch, heads, queries] */
    ATTENTION_DY,
    ATTENTION_DQUERY,
    ATTENTION_DKEY,
    ATTENTION_DVALUE,
    ATTENTION_TERM,  /* the sums of y dy, as LSE; written */
    ATTENTION_SCALE, /* from here on by value: float32 */
    ATTENTION_ONE,
    ATTENTION_LOWEST, /* -infinity */
    ATTENTION_OFFSET, /* int32 */
    ATTENTION_END,
};

enum { ATTENTION_ALIGNMENT = 16 }; /* of all tensors in memory */

/* The key heads of the whole batch are the batch, and the heads of each of them the heads: shape.key_heads is 1. */
typedef struct shard_attention_graph {
    shard_attention_shape shape;
    shard_dtype dtype;
} shard_attention_graph;

/* QUERY, KEY, VALUE to Y, LSE; by value SCALE, if causal LOWEST and, with an offset, OFFSET. */
void shard_cuda_dnn_describe_attention(shard_cuda_dnn_graph *, const shard_attention_graph *);
/* QUERY, KEY, VALUE, Y, LSE, DY to DQUERY, DKEY, DVALUE, TERM; by value also ONE. */
void shard_cuda_dnn_describe_attention_backward(shard_cuda_dnn_graph *, const shard_attention_graph *);

#ifdef __cplusplus
}
#endif

#endif
