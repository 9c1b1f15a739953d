/* The devices by name. One of the two places that know which backends exist. */
#include "device/registry.h"

#include "base/env.h"
#include "base/error.h"
#include "base/memory.h"
#include "device/device.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The last device that was opened whose memory the host does not reach. */
static shard_device *_Atomic opened;

/* "cuda" is -1, "cuda:1" is 1, all else -2. */
static int cuda_ordinal(const char *name)
{
    if (strcmp(name, "cuda") == 0)
        return -1;
    char *end;
    long ordinal = strncmp(name, "cuda:", 5) == 0 && isdigit((unsigned char)name[5]) ? strtol(name + 5, &end, 10) : -2;
    return ordinal >= 0 && ordinal < 1024 && *end == '\0' ? (int)ordinal : -2;
}

shard_device *shard_device_open(const char *name)
{
    if (!name)
        return shard_default_device();
    if (strcmp(name, "cpu") == 0)
        return shard_cpu();
    int ordinal = cuda_ordinal(name);
    if (ordinal >= -1) {
        shard_device *device = shard_cuda_open(ordinal);
        if (device)
            opened = device;
        return device;
    }
    return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "device \"%s\": there is no such device; known: cpu, cuda, cuda:N", name);
}

static _Thread_local shard_device *default_device;

shard_device *shard_default_device(void)
{
    return default_device ? default_device : shard_device_open(shard_env_string("SHARD_DEVICE", "cpu"));
}

shard_status shard_device_check_environment(void)
{
    const char *name = shard_env_string("SHARD_DEVICE", "cpu");
    return strcmp(name, "cpu") == 0 || cuda_ordinal(name) >= -1
               ? SHARD_OK
               : shard_error(SHARD_ERROR_ARGUMENT, "SHARD_DEVICE is \"%s\"; the devices are cpu, cuda and cuda:N", name);
}

void shard_set_default_device(shard_device *device)
{
    default_device = device;
}

shard_device *shard_opened_accelerator(void)
{
    return opened;
}

const char *shard_device_name(const shard_device *device)
{
    return device ? device->name : "none";
}

void shard_set_allow_tf32(shard_device *device, bool allow)
{
    if (device)
        device->allow_tf32 = allow;
}

bool shard_allow_tf32(const shard_device *device)
{
    return device && device->allow_tf32;
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
    if (!device)
        return;
    device->ops->reset_peak(device);
    for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++)
        shard_memory_count_reset_peak(&device->memory[kind]);
}

void shard_trim_memory(shard_device *device)
{
    if (device)
        device->ops->trim(device);
}

void *shard_device_allocate_host(shard_device *device, size_t bytes)
{
    if (!device)
        return shard_null_argument("shard_device_allocate_host", "device"), NULL;
    return device->ops->allocate_host(device, bytes ? bytes : 1);
}

void shard_device_free_host(shard_device *device, void *memory, size_t bytes)
{
    if (device && memory)
        device->ops->release_host(device, memory, bytes ? bytes : 1);
}

shard_status shard_synchronize(shard_device *device)
{
    return device ? device->ops->synchronize(device) : shard_null_argument("shard_synchronize", "device");
}

shard_status shard_device_use_stream(shard_device *device, void *stream)
{
    return device ? device->ops->use_stream(device, stream) : shard_null_argument("shard_device_use_stream", "device");
}

struct shard_event {
    shard_device *device;
    void *mark; /* the device's */
};

shard_event *shard_event_create(shard_device *device)
{
    if (!device)
        return shard_null_argument("shard_event_create", "device"), NULL;
    void *mark = device->ops->event_create(device);
    shard_event *event = mark ? shard_calloc(1, sizeof *event) : NULL;
    if (event)
        *event = (shard_event){.device = device, .mark = mark};
    else if (mark)
        device->ops->event_destroy(device, mark);
    return event;
}

void shard_event_destroy(shard_event *event)
{
    if (!event)
        return;
    event->device->ops->event_destroy(event->device, event->mark);
    free(event);
}

shard_status shard_event_record(shard_event *event)
{
    if (!event)
        return shard_null_argument("shard_event_record", "event");
    return event->device->ops->event_record(event->device, event->mark);
}

shard_status shard_event_synchronize(shard_event *event)
{
    if (!event)
        return shard_null_argument("shard_event_synchronize", "event");
    return event->device->ops->event_synchronize(event->device, event->mark);
}
