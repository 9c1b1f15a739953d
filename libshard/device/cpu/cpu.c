/* The CPU device: its table of the entries of this folder and the kernels of the selected instruction set. */
#include "device/cpu/cpu.h"

#include "base/error.h"
#include "device/cpu/cpu_head.h"

#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/pick.h"

#include <pthread.h>

shard_status shard_cpu_synchronize(shard_device *device)
{
    (void)device;
    return SHARD_OK;
}

/* Nothing is queued, so events are empty. */
void *shard_cpu_event_create(shard_device *device)
{
    return device;
}

void shard_cpu_event_destroy(shard_device *device, void *event)
{
    (void)device, (void)event;
}

shard_status shard_cpu_event_record(shard_device *device, void *event)
{
    (void)device, (void)event;
    return SHARD_OK;
}

shard_status shard_cpu_event_synchronize(shard_device *device, void *event)
{
    (void)device, (void)event;
    return SHARD_OK;
}

shard_status shard_cpu_use_stream(shard_device *device, void *stream)
{
    return stream ? shard_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: %s has no streams; stream is NULL there",
                                device->name)
                  : SHARD_OK;
}

/* There is nothing to capture; shard_graph_begin refuses. */
shard_status shard_cpu_graph_begin(shard_device *device)
{
    return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: nothing can be captured", device->name);
}

shard_status shard_cpu_graph_end(shard_device *device, void **executable)
{
    (void)executable;
    return shard_cpu_graph_begin(device);
}

shard_status shard_cpu_graph_launch(shard_device *device, void *executable)
{
    (void)executable;
    return shard_cpu_graph_begin(device);
}

int64_t shard_cpu_graph_nodes(shard_device *device, const void *executable)
{
    (void)device, (void)executable;
    return 0;
}

void shard_cpu_graph_destroy(shard_device *device, void *executable)
{
    (void)device, (void)executable;
}

shard_status shard_cpu_report(shard_device *device)
{
    (void)device;
    return SHARD_OK;
}

static shard_device_ops operations = {
    .host_memory = true,
#define SHARD_MEMORY_ENTRY(result, name, ...) .name = shard_cpu_##name,
#define SHARD_PRODUCT_ENTRY SHARD_MEMORY_ENTRY
#include "device/entries.h"
};

static shard_memory_count memory[SHARD_MEMORY_KINDS];
static shard_device cpu = {.ops = &operations, .head = &shard_cpu_head, .name = "cpu", .memory = memory};

static void complete_table(void)
{
    const shard_device_ops *kernels = shard_cpu_kernels();
#define SHARD_KERNEL_ENTRY(result, name, ...) operations.name = kernels->name;
#include "device/entries.h"
}

shard_device *shard_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!shard_cpu_kernels())
        return NULL;
    pthread_once(&once, complete_table);
    return &cpu;
}
