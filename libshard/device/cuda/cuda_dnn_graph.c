#include "device/cuda/cuda_dnn_graph.h"

cudnnBackendDescriptor_t shard_cuda_dnn_begin(shard_cuda_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (g->count == SHARD_CUDA_DNN_DESCRIPTORS)
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendCreateDescriptor(type, &descriptor);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->made[g->count++] = descriptor;
    return descriptor;
}

void shard_cuda_dnn_set(shard_cuda_dnn_graph *g, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                        cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

void shard_cuda_dnn_finish(shard_cuda_dnn_graph *g, cudnnBackendDescriptor_t descriptor)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendFinalize(descriptor);
}

void shard_cuda_dnn_add(shard_cuda_dnn_graph *g, cudnnBackendDescriptor_t operation)
{
    shard_cuda_dnn_finish(g, operation);
    if (g->operation_count == SHARD_CUDA_DNN_OPERATIONS)
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->operations[g->operation_count++] = operation;
}

cudnnDataType_t shard_cuda_dnn_type(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? CUDNN_DATA_BFLOAT16 : dtype == SHARD_FLOAT16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}
