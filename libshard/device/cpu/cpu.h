/*
 * The CPU device's entries for memory, copies and products, shard_cpu_<entry> for each entry of these
 * families in device/entries.h, which documents them. The other entries are the kernels/, of which there are several
 * sets: they are called through the table, device->ops->cast(device, ...).
 */
#ifndef SHARD_DEVICE_CPU_H
#define SHARD_DEVICE_CPU_H

#include "device/device.h"

#define SHARD_MEMORY_ENTRY(result, name, ...) result shard_cpu_##name(__VA_ARGS__);
#define SHARD_PRODUCT_ENTRY SHARD_MEMORY_ENTRY
#include "device/entries.h"

/* Memory counted as workspace: for one call, and for data that is not a tensor's. */
void *shard_cpu_scratch(shard_device *, size_t bytes);
void shard_cpu_scratch_release(shard_device *, void *memory, size_t bytes);

/* About how many elements of 16-bit products are widened to float32 at a time; only tests set it. */
extern int64_t shard_cpu_wide_elements;
#endif
