/* The three computations of a convolution as one (the kind says which array is the result), and the ways to compute
 * them. */
#ifndef SHARD_DEVICE_CPU_CONV2D_H
#define SHARD_DEVICE_CPU_CONV2D_H

#include "device/device.h"

typedef enum shard_cpu_conv_kind {
    SHARD_CPU_CONV_FORWARD,         /* y from x, weight, bias */
    SHARD_CPU_CONV_BACKWARD_DATA,   /* x from weight, y; no bias */
    SHARD_CPU_CONV_BACKWARD_WEIGHT, /* weight and bias from x, y */
    SHARD_CPU_CONV_TRANSPOSED,      /* as BACKWARD_DATA, from flipped weights, by a forward convolution */
} shard_cpu_conv_kind;

/* No array is empty. */
typedef struct shard_cpu_conv {
    shard_cpu_conv_kind kind;
    const shard_conv_shape *shape;
    void *x, *weight, *bias, *y; /* bias may be NULL */
} shard_cpu_conv;

/* In float64, by plain loops. */
shard_status shard_cpu_conv2d_double(shard_device *, const shard_cpu_conv *);

/* In float32, the fastest way. */
shard_status shard_cpu_conv2d_float(shard_device *, const shard_cpu_conv *);

/* In a 16-bit type, by way of float32. */
shard_status shard_cpu_conv2d_wide(shard_device *, const shard_cpu_conv *, shard_dtype);

/* By oneDNN. Sets *there to whether it has the computation for the dtype; with `there` NULL its lack is an error. */
shard_status shard_cpu_conv2d_dnnl(shard_device *, const shard_cpu_conv *, shard_dtype, bool *there);

/* Whether oneDNN writes behind its workspace, and threads into that of each other: for its gradient of the weights of a 1 x 1
 * kernel with strides it places pixels as if they had a whole block of channels, 8 with AVX2 and 16 with AVX-512 (found in 2.6
 * with AVX2). */
static inline bool shard_cpu_conv2d_dnnl_overruns(const shard_cpu_conv *c)
{
    enum { BLOCK = 16 };
    const shard_conv_shape *s = c->shape;
    return c->kind == SHARD_CPU_CONV_BACKWARD_WEIGHT && s->kh * s->kw == 1 && s->stride_h * s->stride_w > 1 && s->groups == 1 &&
           s->pad_h + s->pad_w == 0 && s->c < BLOCK;
}

/* In float32 as a product of matrices; and whether that is possible and faster. */
bool shard_cpu_conv2d_product_pays(const shard_cpu_conv *);
shard_status shard_cpu_conv2d_product(shard_device *, const shard_cpu_conv *);

/* Float32 weights as [outputs / block, kh, kw, inputs, block], filled up with
 * zeros; transposed: their inputs are the outputs. If they can be: block <= 64. */
bool shard_cpu_conv2d_can_pack(const shard_conv_shape *);
void shard_cpu_conv2d_pack(const shard_conv_shape *, bool transposed, int64_t block, const float *weight, float *packed);

/* Forward and the gradient of x in float32, by tiles, of very small images; and
 * whether that is faster. */
bool shard_cpu_conv2d_small_pays(const shard_cpu_conv *);
shard_status shard_cpu_conv2d_small(shard_device *, const shard_cpu_conv *);

/* The gradient of the weights in float32, by tiles; and whether that is faster. */
bool shard_cpu_conv2d_weight_pays(const shard_conv_shape *);
shard_status shard_cpu_conv2d_weight(shard_device *, const shard_cpu_conv *);

#endif
