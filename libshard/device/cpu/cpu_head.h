/* The head's sweeps in float32, fused: a tile's logits, exponentials and gradients stay in the second-level cache. */
#ifndef SHARD_DEVICE_CPU_HEAD_H
#define SHARD_DEVICE_CPU_HEAD_H

#include "device/head.h"

extern const struct shard_head_ops shard_cpu_head;

/* The state of each of `pitch` columns of logits, which are rows of x. */
typedef struct shard_cpu_head_columns {
    float *max;
    float *center; /* exponentials are relative to it; -inf before the first tile */
    float *factor; /* from the center before a tile to the one after it */
    double *sum;   /* of exponentials */
} shard_cpu_head_columns;

/* dz = factor exp(z - high - low) - spread weight, 0 where factor is 0; arrays of `pitch`. */
typedef struct shard_cpu_head_gradient {
    float *factor, *high, *low, *spread;
} shard_cpu_head_gradient;

/* The same from exponentials, of which scale is the factor: dz = scale e - spread weight. */
typedef struct shard_cpu_head_scaled {
    const float *scale;
    const shard_cpu_head_gradient *of;
} shard_cpu_head_scaled;

/* Loops over a tile's logits z [count, pitch], classes by columns; compiled for each instruction set (kernels/head.c). */
typedef struct shard_cpu_head_kernels {
    /* z = exp(z - center). Whether a factor is not 1. */
    bool (*exponentials)(int64_t count, int64_t pitch, float *z, const shard_cpu_head_columns *);
    /* class_weight [count], NULL: ones. */
    void (*gradients)(int64_t count, int64_t pitch, float *z, const float *class_weight, const shard_cpu_head_gradient *);
    /* dz of exponentials e, which z may be. */
    void (*scaled)(int64_t count, int64_t pitch, const float *e, float *z, const float *class_weight,
                   const shard_cpu_head_scaled *);
    /* sum [pitch] += the sum over classes of class_weight z. */
    void (*add_logits)(int64_t count, int64_t pitch, const float *z, const float *class_weight, double *sum);
    /* n values of a floating dtype but float64 as float32, and back. */
    void (*widen)(shard_dtype, int64_t n, const void *from, float *to);
    void (*narrow)(shard_dtype, int64_t n, const float *from, void *to);
} shard_cpu_head_kernels;

#endif
