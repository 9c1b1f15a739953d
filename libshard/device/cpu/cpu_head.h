/* The head's sweeps in float32 and bfloat16, fused: a tile's logits, exponentials and gradients stay in the second-level cache.
 */
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

/* dz = factor exp(z - center) - spread weight, where factor has exp(center - lse); 0 where factor is 0; arrays of `pitch`. */
typedef struct shard_cpu_head_gradient {
    float *factor, *center, *spread;
} shard_cpu_head_gradient;

/* Logits of a tile in 16 bits. A column has its own steps from its highest to its lowest logit:
 *   0              -infinity, and logits that are more than a span below the highest
 *   1 to 65,534    highest - (65,534 - code) step
 *   65,535         NaN */
typedef struct shard_cpu_head_codes {
    uint16_t *code;        /* [count, pitch] */
    float *highest, *step; /* [pitch] */
} shard_cpu_head_codes;

/* The count of logits before the label's, of each column. */
typedef struct shard_cpu_head_count {
    float *logit;   /* the label's */
    int32_t *place; /* of the label among the tile's classes; less than 0 or past the last one where it is not here */
    int64_t *ahead; /* added to */
} shard_cpu_head_count;

/* Loops over a tile's logits z [count, pitch], classes by columns; compiled for each instruction set (kernels/head.c). */
typedef struct shard_cpu_head_kernels {
    /* z = exp(z - center). Whether a factor is not 1. */
    bool (*exponentials)(int64_t count, int64_t pitch, float *z, const shard_cpu_head_columns *);
    /* Of a capped tile: the exponentials times the derivatives of its logits by those before the map. */
    bool (*capped_exponentials)(int64_t count, int64_t pitch, float *z, const shard_cpu_head_columns *, const shard_logit_map *);
    void (*map_logits)(int64_t count, int64_t pitch, float *z, const shard_logit_map *);
    /* class_weight [count], NULL: ones. */
    void (*gradients)(int64_t count, int64_t pitch, float *z, const float *class_weight, const shard_cpu_head_gradient *);
    /* Of a capped tile: by the logits before the map. */
    void (*capped_gradients)(int64_t count, int64_t pitch, float *z, const float *class_weight, const shard_cpu_head_gradient *,
                             const shard_logit_map *);
    /* Logits as codes: each as that of the nearest step. Those above `most`, a finite number, are it. */
    void (*encode)(int64_t count, int64_t pitch, const float *z, const shard_cpu_head_codes *, float most, float span);
    void (*decode)(int64_t count, int64_t pitch, const shard_cpu_head_codes *, float *z);
    /* Each class's row of z becomes its bias [count]; NULL: zeros. */
    void (*fill_bias)(int64_t count, int64_t pitch, const float *bias, float *z);
    /* sum [count]: of each class over the first `rows` columns. */
    void (*sum_columns)(int64_t count, int64_t pitch, int64_t rows, const float *z, float *sum);
    /* sum [pitch] += the sum over classes of class_weight z. */
    void (*add_logits)(int64_t count, int64_t pitch, const float *z, const float *class_weight, double *sum);
    /* The derivatives of binary cross-entropy with targets of 0, times scale [pitch] (NULL: ones), or, without a scale, sum
     * [pitch] += the losses (NULL: not wanted). Both are 0 where z is -infinity. */
    void (*binary)(int64_t count, int64_t pitch, float *z, const float *class_weight, const float *scale, double *sum);
    /* sum [in] += the sum of the rows [count, in] of the dtype, each times class_weight [count] (NULL: ones). */
    void (*sum_rows)(shard_dtype, int64_t count, int64_t in, const void *rows, const float *class_weight, double *sum);
    void (*count_ahead)(int64_t count, int64_t pitch, const float *z, const shard_cpu_head_count *);
    /* n values of a floating dtype but float64 as float32, and back. */
    void (*widen)(shard_dtype, int64_t n, const void *from, float *to);
    void (*narrow)(shard_dtype, int64_t n, const float *from, void *to);
    /* Rows 2 i and 2 i + 1 of z, rounded to bfloat16, as row i of pairs [(count + 1) / 2, pitch]: the first in the low half.
     * The last row of an odd count is paired with zeros. */
    void (*pack)(int64_t count, int64_t pitch, const float *z, uint32_t *pairs);
    /* z[i * z_pitch] += the product of row i of `rows` [count, pitch] with x [in]; both of float32, or of bfloat16. */
    void (*add_products)(shard_dtype, int64_t count, int64_t in, const void *rows, int64_t pitch, const void *x, float *z,
                         int64_t z_pitch);
    /* The pairs of two rows of bfloat16; high NULL: zeros. */
    void (*interleave)(int64_t n, const uint16_t *low, const uint16_t *high, uint32_t *pairs);
} shard_cpu_head_kernels;

#endif
