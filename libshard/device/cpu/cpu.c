/* The CPU device: its table. */
#include "device/cpu/cpu.h"

shard_status shard_cpu_synchronize(shard_device *device)
{
    (void)device;
    return SHARD_OK;
}

static const shard_device_ops operations = {
    .allocate = shard_cpu_allocate,
    .release = shard_cpu_release,
    .memory_stats = shard_cpu_memory_stats,
    .reset_peak = shard_cpu_reset_peak,
    .trim = shard_cpu_trim,
    .synchronize = shard_cpu_synchronize,
    .copy_in = shard_cpu_copy_in,
    .copy_out = shard_cpu_copy_out,
    .copy_rows = shard_cpu_copy_rows,
    .zero = shard_cpu_zero,
};

static shard_device cpu = {.ops = &operations, .name = "cpu"};

shard_device *shard_cpu(void)
{
    return &cpu;
}
