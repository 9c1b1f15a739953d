/*
 * Convolutions by cuDNN's graph API on the device's stream, in channels-last.
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

/* With weights [o, kh, kw, c / groups]. *there tells whether cuDNN has it. */
shard_status shard_cuda_dnn_convolve(shard_device *device, const shard_cuda_conv *, bool *there);

/* Any convolution of float32 or float64, with weights as the table's, as products of
 * matrices of the images' windows; cuda_conv2d_columns.cu. */
shard_status shard_cuda_conv2d_columns(shard_device *device, const shard_cuda_conv *);

#ifdef __cplusplus
}
#endif

#endif
