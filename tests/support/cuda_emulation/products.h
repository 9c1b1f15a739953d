/* Arithmetic of the host for the stand-ins of cuBLAS and cuDNN: their types, and
 * products of matrices in their order (by columns). */
#ifndef CUDA_EMULATION_PRODUCTS_H
#define CUDA_EMULATION_PRODUCTS_H

#include "library_types.h"

#include <stddef.h>
#include <stdint.h>

namespace emulation {

size_t size_of(cudaDataType type); /* 0 for no type */

/* Elements from and to float, rounded once. */
void widen(cudaDataType type, int64_t count, const void *from, float *to);
void narrow(cudaDataType type, int64_t count, const float *from, void *to);

/* As tensor cores take float32: with 10 bits of mantissa. */
void round_to_tf32(int64_t count, float *values);

/* c += alpha op(a) op(b), by rows (as oneDNN's sgemm). */
void multiply_rows(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t ld_a,
                   const float *b, int64_t ld_b, float *c, int64_t ld_c);

/* d [m, n] = alpha op(a) op(b) + beta c (+ bias [m] along each column); c is read only
 * if beta is not 0. In float, of float64 in double. */
struct Product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    double alpha, beta;
    cudaDataType type;        /* of a and b */
    cudaDataType result_type; /* of c, d and bias */
    const void *a, *b, *c, *bias;
    void *d;
    int64_t ld_a, ld_b, ld_c, ld_d;
    bool tf32;
    bool coarse; /* two partial sums, each rounded to the result's type */
    bool halves; /* two partial sums */
};
void multiply(const Product &product);

/* Counts it (seen.h). */
void count_product(const Product &product);

/* Bytes from the first element of a matrix to its last. */
size_t span(int64_t rows, int64_t cols, int64_t ld, cudaDataType type);

} // namespace emulation

#endif
