/* Products of small matrices in the caches: a tile of c in registers, a sum of outer products. */
#ifndef SHARD_CPU_PRODUCT_H
#define SHARD_CPU_PRODUCT_H

#include "device/cpu/kernels/kernels.h"

enum {
#if defined(__AVX512F__)
    PRODUCT_VECTOR = 64, /* bytes */
#elif defined(__AVX2__) && defined(__FMA__)
    PRODUCT_VECTOR = 32,
#else
    PRODUCT_VECTOR = 16,
#endif
};

/* c[i, j] = sum over k < depth of a[i * a_row + k * a_step] * b[k * b_row + j] (+ c[i, j] if accumulate), for i < rows and
 * j < cols, a multiple of the numbers in a vector; c[i, j] is at i * c_row + j. */
typedef struct product {
    int64_t rows, cols, depth;
    const void *a;
    int64_t a_row, a_step;
    const void *b;
    int64_t b_row;
    void *c;
    int64_t c_row;
    bool accumulate;
} product;

void KERNEL(product_float)(const product *);
void KERNEL(product_double)(const product *);

#endif
