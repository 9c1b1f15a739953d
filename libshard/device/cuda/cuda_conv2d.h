/* Convolutions on the device's stream, in channels-last. */
#ifndef SHARD_DEVICE_CUDA_CONV2D_H
#define SHARD_DEVICE_CUDA_CONV2D_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shard_cuda_conv_kind {
    SHARD_CUDA_CONV_FORWARD,         /* y from x, weight */
    SHARD_CUDA_CONV_BACKWARD_DATA,   /* x from weight, y */
    SHARD_CUDA_CONV_BACKWARD_WEIGHT, /* weight from x, y */
} shard_cuda_conv_kind;

/* No array is empty. */
typedef struct shard_cuda_conv {
    shard_cuda_conv_kind kind;
    const shard_conv_shape *shape;
    shard_dtype dtype;
    bool accumulate; /* the result is added to y, x or weight */
    void *x, *weight, *y;
} shard_cuda_conv;

/* By cuDNN, with weights [o, kh, kw, c / groups]. Sets *there to whether cuDNN has it. */
shard_status shard_cuda_dnn_convolve(shard_device *device, const shard_cuda_conv *, bool *there);

/* Any convolution of float32 or float64, with weights as the table's, as products of
 * matrices of the images' windows; cuda_conv2d_columns.cu. */
shard_status shard_cuda_conv2d_columns(shard_device *device, const shard_cuda_conv *);

#ifdef __cplusplus
}
#endif

#endif
