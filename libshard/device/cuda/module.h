/* Between the library and its CUDA module. */
#ifndef SHARD_DEVICE_CUDA_MODULE_H
#define SHARD_DEVICE_CUDA_MODULE_H

#include "base/module.h"
#include "device/device.h"

/* What the module exports: the device of that ordinal, -1 for this rank's own;
 * the same pointer each time. NULL with the error set. One thread at a time. */
#define SHARD_CUDA_MODULE_OPEN "shard_cuda_module_open"
typedef shard_device *shard_cuda_module_open_function(const shard_module_base *base, int ordinal);
SHARD_API shard_cuda_module_open_function shard_cuda_module_open;

#endif
