/* The CPU device: its table. */
#include "device/cpu/cpu.h"

shard_status shard_cpu_synchronize(shard_device *device)
{
    (void)device;
    return SHARD_OK;
}

static const shard_device_ops operations = {
    .synchronize = shard_cpu_synchronize,
};

static shard_device cpu = {.ops = &operations, .name = "cpu"};

shard_device *shard_cpu(void)
{
    return &cpu;
}
