/*
 * The CPU device's entries, shard_cpu_<entry> for each of the table in
 * device/device.h, where what they do stands. Memory, copies and products are
 * here in cpu/; the rest is in kernels/.
 */
#ifndef SHARD_DEVICE_CPU_H
#define SHARD_DEVICE_CPU_H

#include "device/device.h"

/* ---- memory ---- */

void *shard_cpu_allocate(shard_device *, size_t bytes);
void shard_cpu_release(shard_device *, void *memory, size_t bytes);
void shard_cpu_memory_stats(const shard_device *, shard_memory_stats *stats);
void shard_cpu_reset_peak(shard_device *);
void shard_cpu_trim(shard_device *);
shard_status shard_cpu_synchronize(shard_device *);
shard_status shard_cpu_copy_in(shard_device *, void *to, const void *from_host, size_t bytes);
shard_status shard_cpu_copy_out(shard_device *, void *to_host, const void *from, size_t bytes);
shard_status shard_cpu_copy_rows(shard_device *, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                 size_t rows);
shard_status shard_cpu_zero(shard_device *, void *to, size_t bytes);

/* ---- elements ---- */

shard_status shard_cpu_fill(shard_device *, int64_t n, double value, void *y, shard_dtype);
shard_status shard_cpu_cast(shard_device *, int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to);
shard_status shard_cpu_axpby(shard_device *, int64_t n, double alpha, const void *x, double beta, void *y, shard_dtype);
shard_status shard_cpu_unary(shard_device *, shard_unary, int64_t n, const void *x, void *y, shard_dtype);
shard_status shard_cpu_unary_backward(shard_device *, shard_unary, int64_t n, const void *x, const void *dy, void *dx,
                                      shard_dtype);
shard_status shard_cpu_binary(shard_device *, shard_binary, int64_t rows, int64_t cols, const void *a, const void *b, void *y,
                              shard_dtype);
shard_status shard_cpu_sum_rows(shard_device *, int64_t rows, int64_t cols, const void *x, bool accumulate, void *y, shard_dtype);
shard_status shard_cpu_permute(shard_device *, int ndim, const int64_t *shape, const int *axes, const void *x, void *y,
                               shard_dtype);

/* ---- random ---- */

shard_status shard_cpu_random_uniform(shard_device *, const shard_region *, shard_draw, double low, double high, void *y,
                                      shard_dtype);
shard_status shard_cpu_random_normal(shard_device *, const shard_region *, shard_draw, double mean, double deviation, void *y,
                                     shard_dtype);
shard_status shard_cpu_dropout(shard_device *, const shard_region *, shard_draw, double p, const void *x, void *y, shard_dtype);

/* ---- products ---- */

shard_status shard_cpu_matmul(shard_device *, const shard_matmul_shape *, const void *a, const void *b, void *c, shard_dtype);
shard_status shard_cpu_linear(shard_device *, int64_t rows, int64_t in, int64_t out, const void *x, const void *weight,
                              const void *bias, void *y, shard_dtype);
shard_status shard_cpu_conv2d(shard_device *, const shard_conv_shape *, const void *x, const void *weight, const void *bias,
                              void *y, shard_dtype);
shard_status shard_cpu_conv2d_backward_data(shard_device *, const shard_conv_shape *, const void *weight, const void *dy,
                                            void *dx, shard_dtype);
shard_status shard_cpu_conv2d_backward_weight(shard_device *, const shard_conv_shape *, const void *x, const void *dy,
                                              void *dweight, void *dbias, shard_dtype);

/* ---- pooling ---- */

shard_status shard_cpu_max_pool(shard_device *, const shard_pool_shape *, const void *x, void *y, int32_t *argmax, shard_dtype);
shard_status shard_cpu_max_pool_backward(shard_device *, const shard_pool_shape *, const void *dy, const int32_t *argmax,
                                         void *dx, shard_dtype);
shard_status shard_cpu_avg_pool(shard_device *, const shard_pool_shape *, const void *x, void *y, shard_dtype);
shard_status shard_cpu_avg_pool_backward(shard_device *, const shard_pool_shape *, const void *dy, void *dx, shard_dtype);

/* ---- normalisation ---- */

shard_status shard_cpu_layer_norm(shard_device *, int64_t rows, int64_t cols, const void *x, const void *gamma, const void *beta,
                                  double eps, void *y, double *mean, double *rstd, shard_dtype);
shard_status shard_cpu_layer_norm_backward(shard_device *, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                           const double *mean, const double *rstd, const void *dy, void *dx, void *dgamma,
                                           void *dbeta, shard_dtype);
shard_status shard_cpu_batch_norm_sums(shard_device *, int64_t rows, int64_t channels, const void *x, const double *shift,
                                       double *sums, shard_dtype);
shard_status shard_cpu_batch_norm(shard_device *, int64_t rows, int64_t channels, const void *x, const double *mean,
                                  const double *rstd, const void *gamma, const void *beta, const void *residual, bool relu,
                                  void *y, shard_dtype);
shard_status shard_cpu_batch_norm_backward_sums(shard_device *, int64_t rows, int64_t channels, const void *x, const void *y,
                                                const void *dy, const double *mean, const double *rstd, double *sums,
                                                shard_dtype);
shard_status shard_cpu_batch_norm_backward(shard_device *, int64_t rows, int64_t channels, const void *x, const void *y,
                                           const void *dy, const double *mean, const double *rstd, const void *gamma,
                                           const double *sums, double count, void *dx, void *dresidual, shard_dtype);

/* ---- softmax and loss ---- */

shard_status shard_cpu_softmax(shard_device *, bool log, int64_t rows, int64_t cols, const void *x, void *y, shard_dtype);
shard_status shard_cpu_softmax_backward(shard_device *, bool log, int64_t rows, int64_t cols, const void *y, const void *dy,
                                        void *dx, shard_dtype);
shard_status shard_cpu_check_index(shard_device *, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                   int64_t *bad_host);
shard_status shard_cpu_cross_entropy_stats(shard_device *, const shard_cross_entropy_shape *, const void *x,
                                           const int64_t *target, const void *probability, const void *weight, double *stats,
                                           shard_dtype);
shard_status shard_cpu_cross_entropy_backward(shard_device *, const shard_cross_entropy_shape *, const void *x,
                                              const int64_t *target, const void *probability, const void *weight,
                                              const double *lse, const double *b, const double *scale, void *dx, shard_dtype);
shard_status shard_cpu_pick_target(shard_device *, const shard_cross_entropy_shape *, const void *x, const int64_t *target,
                                   double *out, shard_dtype);
shard_status shard_cpu_count_ahead(shard_device *, const shard_cross_entropy_shape *, const void *x, const int64_t *target,
                                   const double *logit, int64_t *ahead, shard_dtype);

/* ---- embedding ---- */

shard_status shard_cpu_embedding(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                                 const void *weight, void *y, shard_dtype);
shard_status shard_cpu_embedding_backward(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                          const int64_t *index, const void *dy, bool accumulate, void *dweight, shard_dtype);

/* ---- optimizer steps ---- */

shard_status shard_cpu_sgd(shard_device *, int64_t n, const shard_sgd_options *, const void *gradient, void *momentum_buffer,
                           void *parameter, shard_dtype);
#endif
