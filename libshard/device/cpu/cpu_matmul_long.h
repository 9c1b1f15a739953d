/*
 * Products for layers of very many classes, where one matrix is far longer than
 * the cache and the other has few rows: the long one is streamed once, as it
 * lies, and the sums of one part are formed while the next is fetched.
 */
#ifndef SHARD_DEVICE_CPU_MATMUL_LONG_H
#define SHARD_DEVICE_CPU_MATMUL_LONG_H

#include "device/cpu/cpu_matmul.h"

/* Whether a float32 product is one of these, and this machine has the
 * instructions: few rows by a long transposed b (a layer's outputs), or a long
 * transposed a by few rows of b, added to c (its weight's gradient). */
bool shard_cpu_matmul_is_long(const shard_matmul_shape *);

shard_status shard_cpu_matmul_long(shard_device *, const shard_cpu_product *);

#endif
