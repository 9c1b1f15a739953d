/* Attention of the 16-bit types by cuDNN (cuda_dnn_attention.c); cuda_attention.cu has the kernels for all others. */
#ifndef SHARD_DEVICE_CUDA_ATTENTION_H
#define SHARD_DEVICE_CUDA_ATTENTION_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As the device's entries. Sets *there to whether cuDNN has computed it; else the results are undefined. */
shard_status shard_cuda_dnn_attention(shard_device *device, const shard_attention_shape *, const void *query, const void *key,
                                      const void *value, void *y, double *lse, shard_dtype, bool *there);
shard_status shard_cuda_dnn_attention_backward(shard_device *device, const shard_attention_shape *, const void *query,
                                               const void *key, const void *value, const void *y, const double *lse,
                                               const void *dy, void *dquery, void *dkey, void *dvalue, shard_dtype, bool *there);

#ifdef __cplusplus
}
#endif

#endif
