/* The three computations of a convolution as one: which array is the result
 * depends on the kind. */
#ifndef SHARD_DEVICE_CPU_CONV2D_H
#define SHARD_DEVICE_CPU_CONV2D_H

#include "device/device.h"

typedef enum shard_cpu_conv_kind {
    SHARD_CPU_CONV_FORWARD,         /* y from x, weight, bias */
    SHARD_CPU_CONV_BACKWARD_DATA,   /* x from weight, y; no bias */
    SHARD_CPU_CONV_BACKWARD_WEIGHT, /* weight and bias from x, y */
    SHARD_CPU_CONV_TRANSPOSED,      /* as BACKWARD_DATA, from flipped weights, by a forward convolution */
} shard_cpu_conv_kind;

typedef struct shard_cpu_conv {
    shard_cpu_conv_kind kind;
    const shard_conv_shape *shape;
    void *x, *weight, *bias, *y; /* bias may be NULL */
} shard_cpu_conv;

/* In float64, by plain loops. */
shard_status shard_cpu_conv2d_double(shard_device *, const shard_cpu_conv *);

/* The gradient of the weights in float32, by tiles; and whether the shape is one
 * for which that is faster than oneDNN here. */
bool shard_cpu_conv2d_weight_pays(const shard_conv_shape *);
shard_status shard_cpu_conv2d_weight(shard_device *, const shard_cpu_conv *);

#endif
