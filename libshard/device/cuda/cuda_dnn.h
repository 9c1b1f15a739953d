/*
 * Convolutions by cuDNN's graph API on the device's stream, in channels-last.
 *
 * Invariants: only engines whose notes say that they give the same bits in every
 * run, sum in float32 and take float32 as it is, unless the device allows TF32. Of
 * those that cuDNN's heuristics name, in their order, the first one that does not
 * refuse, be it when its plan is made or when it is run; never by measuring.
 */
#ifndef SHARD_DEVICE_CUDA_DNN_H
#define SHARD_DEVICE_CUDA_DNN_H

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
    bool accumulate; /* the result is added to what is there */
    void *x, *weight, *y;
} shard_cuda_conv;

/* With weights [o, kh, kw, c / groups]. *there tells whether cuDNN has it. */
shard_status shard_cuda_dnn_convolve(shard_device *device, const shard_cuda_conv *, bool *there);

/* Any convolution of float32 or float64, with weights as the table's, as products of
 * matrices of the images' windows; cuda_conv2d_columns.cu. */
shard_status shard_cuda_conv2d_columns(shard_device *device, const shard_cuda_conv *);

#ifdef __cplusplus
}
#endif

#endif
