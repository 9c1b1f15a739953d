/* Convolutions as graphs of cuDNN, in channels-last. */
#include "device/cuda/cuda_conv2d.h"
#include "device/cuda/cuda_dnn.h"

#include <stdio.h>

enum { X = 1, WEIGHT, Y }; /* the tensors' names in a graph */
enum { ALIGNMENT = 16 };   /* that engines can make use of */

/* Images [n, h, w, c], named in cuDNN's order n, c, h, w; weights are o images. */
static cudnnBackendDescriptor_t describe_images(shard_cuda_dnn_graph *g, int64_t name, int64_t n, int64_t h, int64_t w, int64_t c,
                                                shard_dtype dtype, int64_t alignment)
{
    cudnnDataType_t type = shard_cuda_dnn_type(dtype);
    cudnnBackendDescriptor_t images = shard_cuda_dnn_begin(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    shard_cuda_dnn_set(g, images, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    shard_cuda_dnn_set(g, images, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    shard_cuda_dnn_set(g, images, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    shard_cuda_dnn_set(g, images, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, (const int64_t[]){n, c, h, w});
    shard_cuda_dnn_set(g, images, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, (const int64_t[]){h * w * c, 1, w * c, c});
    shard_cuda_dnn_finish(g, images);
    return images;
}

static cudnnBackendDescriptor_t describe_windows(shard_cuda_dnn_graph *g, const shard_conv_shape *s)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dimensions = 2, pads[] = {s->pad_h, s->pad_w}, strides[] = {s->stride_h, s->stride_w},
            dilations[] = {s->dilation_h, s->dilation_w};
    cudnnBackendDescriptor_t windows = shard_cuda_dnn_begin(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    shard_cuda_dnn_set(g, windows, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    shard_cuda_dnn_finish(g, windows);
    return windows;
}

/* The names of the three operations' attributes. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t windows, x, weight, y, alpha, beta;
} operations[] = {
    [SHARD_CUDA_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [SHARD_CUDA_CONV_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [SHARD_CUDA_CONV_BACKWARD_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* The channels of the images and of the weights determine the groups. */
static void describe(shard_cuda_dnn_graph *g, const void *of)
{
    const shard_cuda_conv *c = of;
    const shard_conv_shape *s = c->shape;
    cudnnBackendDescriptor_t x = describe_images(g, X, s->n, s->h, s->w, s->c, c->dtype, shard_cuda_alignment(c->x, ALIGNMENT));
    cudnnBackendDescriptor_t weight =
        describe_images(g, WEIGHT, s->o, s->kh, s->kw, s->c / s->groups, c->dtype, shard_cuda_alignment(c->weight, ALIGNMENT));
    cudnnBackendDescriptor_t y = describe_images(g, Y, s->n, s->oh, s->ow, s->o, c->dtype, shard_cuda_alignment(c->y, ALIGNMENT));
    cudnnBackendDescriptor_t windows = describe_windows(g, s), operation = shard_cuda_dnn_begin(g, operations[c->kind].type);
    float alpha = 1, beta = c->accumulate ? 1 : 0;
    shard_cuda_dnn_set(g, operation, operations[c->kind].windows, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &windows);
    shard_cuda_dnn_set(g, operation, operations[c->kind].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    shard_cuda_dnn_set(g, operation, operations[c->kind].weight, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &weight);
    shard_cuda_dnn_set(g, operation, operations[c->kind].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    shard_cuda_dnn_set(g, operation, operations[c->kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    shard_cuda_dnn_set(g, operation, operations[c->kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    shard_cuda_dnn_add(g, operation);
}

static shard_cuda_key key_of(const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    int64_t alignments = shard_cuda_alignment(c->x, ALIGNMENT) | shard_cuda_alignment(c->weight, ALIGNMENT) << 8 |
                         shard_cuda_alignment(c->y, ALIGNMENT) << 16;
    return (shard_cuda_key){{(int64_t)c->kind << 8 | (int64_t)c->dtype << 2 | c->accumulate << 1, alignments, s->n, s->h, s->w,
                             s->c, s->o, s->kh, s->kw, s->oh, s->ow, s->stride_h, s->stride_w, s->pad_h, s->pad_w, s->dilation_h,
                             s->dilation_w, s->groups}};
}

static const char *name_of(const void *of)
{
    static _Thread_local char text[160];
    static const char *const kinds[] = {"forward", "backward of the data", "backward of the weights"};
    const shard_cuda_conv *c = of;
    const shard_conv_shape *s = c->shape;
    snprintf(text, sizeof text, "a convolution (%s, %s, %lld channels to %lld in %lld groups, kernel %lld x %lld)",
             kinds[c->kind], shard_dtype_name(c->dtype), (long long)s->c, (long long)s->o, (long long)s->groups, (long long)s->kh,
             (long long)s->kw);
    return text;
}

shard_status shard_cuda_dnn_convolve(shard_device *device, const shard_cuda_conv *c, bool *there)
{
    shard_cuda_dnn_call call = {.name = name_of,
                                .describe = describe,
                                .of = c,
                                .instead = "as products of windows",
                                .key = key_of(c),
                                .dtype = c->dtype,
                                .accumulate = c->accumulate,
                                .optional = c->accumulate,
                                .count = 3,
                                .names = {X, WEIGHT, Y},
                                .data = {c->x, c->weight, c->y}};
    return shard_cuda_dnn_run(device, &call, there);
}
