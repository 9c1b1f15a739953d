/* The table of one instruction set. */
#include "device/cpu/kernels/kernels.h"

const shard_device_ops KERNEL(kernels) = {
#define SHARD_KERNEL_ENTRY(result, name, ...) .name = KERNEL(name),
#include "device/entries.h"
};
