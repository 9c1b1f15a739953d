/*
 * Products of matrices by cuBLAS and cuBLASLt on the device's stream.
 *
 * Invariants: sums are in float32, of float64 in float64, also where partial sums
 * are joined; float32 is rounded to TF32 only if the device allows it. One
 * workspace, ours, for all calls, so that the same shapes give the same bits.
 */
#ifndef SHARD_DEVICE_CUDA_BLAS_H
#define SHARD_DEVICE_CUDA_BLAS_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c = op(a) op(b) (+ c if accumulate), as shard_matmul_shape says, of matrices whose
 * rows are ld elements apart. No size is 0. bias [n], NULL where it is not said to be taken, is
 * added to each row of c; of one product, a^T and accumulate being false and b^T true. */
typedef struct shard_cuda_product {
    int64_t batch, m, n, k;
    bool transpose_a, transpose_b, accumulate, wide_c;
    int64_t ld_a, ld_b, ld_c;
    int64_t stride_a, stride_b, stride_c;
    const void *a, *b, *bias;
    void *c;
} shard_cuda_product;

shard_status shard_cuda_multiply(shard_device *device, const shard_cuda_product *product, shard_dtype dtype);

/* As shard_cuda_multiply with its bias, in one kernel; *there is set to whether cuBLASLt has one. */
shard_status shard_cuda_multiply_biased(shard_device *device, const shard_cuda_product *product, shard_dtype dtype, bool *there);

/* The product with a bias or without. Where that is faster, rows that begin at no multiple of 16 bytes go through scratch memory, and
 * where rows end at none the product is divided; cuda_aligned.c. */
shard_status shard_cuda_multiply_aligned(shard_device *device, const shard_cuda_product *product, shard_dtype dtype);

/* Every row of y [rows, cols], whose rows are pitch apart, = row [cols]; cuda_spread.cu. */
shard_status shard_cuda_spread(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const void *row, void *y,
                               shard_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
