/* A product, with linear's bias. */
#ifndef SHARD_DEVICE_CPU_MATMUL_H
#define SHARD_DEVICE_CPU_MATMUL_H

#include "device/device.h"

typedef struct shard_cpu_product {
    shard_matmul_shape shape; /* no ld is 0 */
    const void *a, *b;
    const void *bias; /* [n], added to each row of c, or NULL; never with accumulate */
    void *c;
} shard_cpu_product;

/* The type of c, of a product of that dtype. */
static inline shard_dtype shard_cpu_result_type(const shard_cpu_product *p, shard_dtype dtype)
{
    return p->shape.wide_c ? SHARD_FLOAT32 : dtype;
}

/* In float64, by plain loops. */
shard_status shard_cpu_matmul_double(const shard_cpu_product *);

/* In float32, some part of a 16-bit product at a time. */
shard_status shard_cpu_matmul_wide(shard_device *, const shard_cpu_product *, shard_dtype);

#endif
