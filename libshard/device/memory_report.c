/* A table of a device's memory by kind. */
#include "device/device.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

static const char *const names[SHARD_MEMORY_KINDS] = {
    [SHARD_MEMORY_PARAMETERS] = "parameters",
    [SHARD_MEMORY_GRADIENTS] = "gradients",
    [SHARD_MEMORY_OPTIMIZER_STATE] = "optimizer state",
    [SHARD_MEMORY_ACTIVATIONS] = "activations",
    [SHARD_MEMORY_BUCKETS] = "buckets",
    [SHARD_MEMORY_WORKSPACE] = "workspace",
};

static bool is_kind(shard_memory_kind kind)
{
    return (int)kind >= 0 && kind < SHARD_MEMORY_KINDS;
}

const char *shard_memory_kind_name(shard_memory_kind kind)
{
    return is_kind(kind) ? names[kind] : NULL;
}

shard_memory_stats shard_get_memory_by_kind(const shard_device *device, shard_memory_kind kind)
{
    if (!device || !is_kind(kind))
        return (shard_memory_stats){0};
    const shard_memory_count *count = &device->memory[kind];
    return (shard_memory_stats){.current = __atomic_load_n(&count->current, __ATOMIC_RELAXED),
                                .peak = __atomic_load_n(&count->peak, __ATOMIC_RELAXED)};
}

static void print_row(FILE *file, const char *name, const shard_memory_stats *stats)
{
    fprintf(file, "  %-16s%12.1f%12.1f\n", name, (double)stats->current / 1048576.0, (double)stats->peak / 1048576.0);
}

shard_status shard_memory_report(const shard_device *device, FILE *file)
{
    if (!device || !file)
        return shard_null_argument("shard_memory_report", device ? "file" : "device");
    shard_memory_stats all = shard_get_memory_stats(device);
    errno = 0;
    if (shard_log_rank() >= 0)
        fprintf(file, "rank %d: ", shard_log_rank());
    fprintf(file, "memory of %s, MiB\n  %-16s%12s%12s\n", device->name, "", "now", "peak");
    for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++) {
        shard_memory_stats stats = shard_get_memory_by_kind(device, (shard_memory_kind)kind);
        print_row(file, names[kind], &stats);
    }
    print_row(file, "in all", &all);
    fprintf(file, "  %-16s%12.1f\n", "held by the pool", (double)all.reserved / 1048576.0);
    if (fflush(file) == 0 && !ferror(file))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_IO, "shard_memory_report: cannot write to the file: %s",
                       errno ? strerror(errno) : "an earlier write has failed");
}
