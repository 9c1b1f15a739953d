/* Descriptions of computations for cuDNN's graph API. They need no device. */
#ifndef SHARD_DEVICE_CUDA_DNN_GRAPH_H
#define SHARD_DEVICE_CUDA_DNN_GRAPH_H

#include <shard/base.h>

#include <cudnn.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_CUDA_DNN_DESCRIPTORS = 112, SHARD_CUDA_DNN_OPERATIONS = 32 }; /* the most of a graph */

/* Descriptors as they are made, one after the other; the first failure stays, and the calls after it do nothing. */
typedef struct shard_cuda_dnn_graph {
    cudnnStatus_t status;
    int count, operation_count;
    cudnnBackendDescriptor_t made[SHARD_CUDA_DNN_DESCRIPTORS], operations[SHARD_CUDA_DNN_OPERATIONS];
} shard_cuda_dnn_graph;

cudnnBackendDescriptor_t shard_cuda_dnn_begin(shard_cuda_dnn_graph *, cudnnBackendDescriptorType_t);
void shard_cuda_dnn_set(shard_cuda_dnn_graph *, cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                        cudnnBackendAttributeType_t, int64_t count, const void *values);
void shard_cuda_dnn_finish(shard_cuda_dnn_graph *, cudnnBackendDescriptor_t);
/* Finishes the operation and makes it the graph's next one. */
void shard_cuda_dnn_add(shard_cuda_dnn_graph *, cudnnBackendDescriptor_t operation);

cudnnDataType_t shard_cuda_dnn_type(shard_dtype);

#ifdef __cplusplus
}
#endif

#endif
