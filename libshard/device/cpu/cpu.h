/*
 * The CPU device's entries for memory, copies and products, shard_cpu_<entry> for each entry of the table in
 * device/device.h, which documents them. The other entries are the kernels/, of which there are several sets: they
 * are called through the table, device->ops->cast(device, ...).
 */
#ifndef SHARD_DEVICE_CPU_H
#define SHARD_DEVICE_CPU_H

#include "device/device.h"

#define SHARD_CPU_DECLARE(entry) __typeof__(*((shard_device_ops *)0)->entry) shard_cpu_##entry;
SHARD_DEVICE_MEMORY_ENTRIES(SHARD_CPU_DECLARE)
SHARD_DEVICE_PRODUCT_ENTRIES(SHARD_CPU_DECLARE)
#undef SHARD_CPU_DECLARE

/* Memory counted as workspace: for one call, and for data that is not a tensor's. */
void *shard_cpu_scratch(shard_device *, size_t bytes);
void shard_cpu_scratch_release(shard_device *, void *memory, size_t bytes);

/* About how many elements of 16-bit products are widened to float32 at a time; only tests set it. */
extern int64_t shard_cpu_wide_elements;
#endif
