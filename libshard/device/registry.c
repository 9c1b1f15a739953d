/* The devices by name. One of the two places that know which backends exist. */
#include "device/device.h"

#include "base/error.h"

#include <string.h>

shard_device *shard_device_open(const char *name)
{
    if (!name || strcmp(name, "cpu") == 0)
        return shard_cpu();
    return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "device \"%s\": there is no such device; known: cpu", name);
}

const char *shard_device_name(const shard_device *device)
{
    return device ? device->name : "none";
}

shard_memory_stats shard_get_memory_stats(const shard_device *device)
{
    shard_memory_stats stats = {0};
    if (device)
        device->ops->memory_stats(device, &stats);
    return stats;
}

void shard_reset_peak_memory(shard_device *device)
{
    if (device)
        device->ops->reset_peak(device);
}

void shard_trim_memory(shard_device *device)
{
    if (device)
        device->ops->trim(device);
}

shard_status shard_synchronize(shard_device *device)
{
    return device ? device->ops->synchronize(device) : shard_null_argument("shard_synchronize", "device");
}
