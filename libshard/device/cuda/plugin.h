/* The interface between the library and its CUDA plugin. */
#ifndef SHARD_DEVICE_CUDA_PLUGIN_H
#define SHARD_DEVICE_CUDA_PLUGIN_H

#include "base/plugin.h"
#include "device/device.h"

/* The plugin's symbol: returns the device of that ordinal, -1 for this rank's; the same pointer each time. NULL with
 * the error set. One thread at a time. */
#define SHARD_CUDA_PLUGIN_OPEN "shard_cuda_plugin_open"
typedef shard_device *shard_cuda_plugin_open_function(const shard_plugin_base *base, int ordinal);
SHARD_API shard_cuda_plugin_open_function shard_cuda_plugin_open;

#endif
