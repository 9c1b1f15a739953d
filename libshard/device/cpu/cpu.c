/* The CPU device: its table, which are the entries of this folder and the
 * kernels of the instruction set that is picked. */
#include "device/cpu/cpu.h"

#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/pick.h"

#include <pthread.h>

shard_status shard_cpu_synchronize(shard_device *device)
{
    (void)device;
    return SHARD_OK;
}

static shard_device_ops operations = {
    .host_memory = true,
    .allocate = shard_cpu_allocate,
    .release = shard_cpu_release,
    .allocate_host = shard_cpu_scratch,
    .release_host = shard_cpu_scratch_release,
    .memory_stats = shard_cpu_memory_stats,
    .reset_peak = shard_cpu_reset_peak,
    .trim = shard_cpu_trim,
    .synchronize = shard_cpu_synchronize,
    .copy_in = shard_cpu_copy_in,
    .copy_out = shard_cpu_copy_out,
    .copy_rows = shard_cpu_copy_rows,
    .zero = shard_cpu_zero,
    .matmul = shard_cpu_matmul,
    .linear = shard_cpu_linear,
    .conv2d = shard_cpu_conv2d,
    .conv2d_backward_data = shard_cpu_conv2d_backward_data,
    .conv2d_backward_weight = shard_cpu_conv2d_backward_weight,
};

static shard_memory_count memory[SHARD_MEMORY_KINDS];
static shard_device cpu = {.ops = &operations, .name = "cpu", .memory = memory};

static void complete_table(void)
{
    const shard_device_ops *kernels = shard_cpu_kernels();
#define TAKE(entry) operations.entry = kernels->entry;
    KERNEL_ENTRIES(TAKE)
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
