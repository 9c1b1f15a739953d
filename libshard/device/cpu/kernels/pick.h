/* The choice between the instruction sets that the kernels are compiled for. */
#ifndef SHARD_CPU_PICK_H
#define SHARD_CPU_PICK_H

#include "device/device.h"

/* The kernels' entries of the table, of the best set that this machine runs or
 * of the one that SHARD_CPU_ISA names (baseline, v3, v4), which is read once.
 * NULL with the error set if there is no such set or this machine cannot run it. */
const shard_device_ops *shard_cpu_kernels(void);

/* Those for the head's sweeps, of the same set; after shard_cpu_kernels. */
const struct shard_cpu_head_kernels *shard_cpu_head_kernels_picked(void);

/* The i-th set, the best last, its name, and whether this machine runs it; NULL past the end. */
const shard_device_ops *shard_cpu_kernel_set(int i, const char **name, bool *runs);

#endif
