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

#define ENTRY(entry) .entry = shard_cpu_##entry,
static shard_device_ops operations = {.host_memory = true,
                                      SHARD_DEVICE_MEMORY_ENTRIES(ENTRY) SHARD_DEVICE_PRODUCT_ENTRIES(ENTRY)};
#undef ENTRY

#define COUNT(entry) +1
_Static_assert(sizeof(shard_device_ops) ==
                   offsetof(shard_device_ops, allocate) + (0 SHARD_DEVICE_ENTRIES(COUNT)) * sizeof(void (*)(void)),
               "SHARD_DEVICE_ENTRIES names each function of the table once");
#undef COUNT

static shard_memory_count memory[SHARD_MEMORY_KINDS];
static shard_device cpu = {.ops = &operations, .head = &shard_cpu_head, .name = "cpu", .memory = memory};

static void complete_table(void)
{
    const shard_device_ops *kernels = shard_cpu_kernels();
#define TAKE(entry) operations.entry = kernels->entry;
    SHARD_DEVICE_KERNEL_ENTRIES(TAKE)
#undef TAKE
}

shard_device *shard_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!shard_cpu_kernels())
        return NULL;
    pthread_once(&once, complete_table);
    return &cpu;
}
