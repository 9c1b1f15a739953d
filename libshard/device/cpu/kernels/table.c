/* The table of one instruction set. */
#include "device/cpu/kernels/kernels.h"

#define ENTRY(entry) .entry = KERNEL(entry),

const shard_device_ops KERNEL(kernels) = {SHARD_DEVICE_KERNEL_ENTRIES(ENTRY)};
