/*
 * The CPU device's entries for memory, copies and products, shard_cpu_<entry>
 * for each of the table in device/device.h, where what they do stands. The rest
 * are the kernels/, of which there are several sets: they are called through
 * the table, device->ops->cast(device, ...).
 */
#ifndef SHARD_DEVICE_CPU_H
#define SHARD_DEVICE_CPU_H

#include "device/device.h"

/* ---- memory ---- */

void *shard_cpu_allocate(shard_device *, size_t bytes);
void shard_cpu_release(shard_device *, void *memory, size_t bytes);
/* The same as workspace: what one call needs for itself, and memory that is not a tensor's. */
void *shard_cpu_scratch(shard_device *, size_t bytes);
void shard_cpu_scratch_release(shard_device *, void *memory, size_t bytes);
void shard_cpu_memory_stats(const shard_device *, shard_memory_stats *stats);
void shard_cpu_reset_peak(shard_device *);
void shard_cpu_trim(shard_device *);
shard_status shard_cpu_synchronize(shard_device *);
shard_status shard_cpu_copy_in(shard_device *, void *to, const void *from_host, size_t bytes);
shard_status shard_cpu_copy_out(shard_device *, void *to_host, const void *from, size_t bytes);
shard_status shard_cpu_copy_rows(shard_device *, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                 size_t rows);
shard_status shard_cpu_zero(shard_device *, void *to, size_t bytes);

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

/* About how many elements of 16-bit products are widened to float32 at a time;
 * only tests set it. */
extern int64_t shard_cpu_wide_elements;
#endif
