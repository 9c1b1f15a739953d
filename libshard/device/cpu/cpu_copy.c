/* Copies, on all threads where that pays. */
#include "device/cpu/cpu.h"

#include "base/math.h"

#include <string.h>

/* One thread copies less than this about as fast as several. */
#define CHUNK ((size_t)1 << 20)

static void copy(char *to, const char *from, size_t bytes)
{
    int64_t chunks = shard_divide_up((int64_t)bytes, CHUNK);
#pragma omp parallel for schedule(static) if (chunks > 2)
    for (int64_t i = 0; i < chunks; i++) {
        size_t start = (size_t)i * CHUNK;
        memcpy(to + start, from + start, bytes - start < CHUNK ? bytes - start : CHUNK);
    }
}

shard_status shard_cpu_copy_in(shard_device *device, void *to, const void *from_host, size_t bytes)
{
    (void)device;
    copy(to, from_host, bytes);
    return SHARD_OK;
}

shard_status shard_cpu_copy_out(shard_device *device, void *to_host, const void *from, size_t bytes)
{
    (void)device;
    copy(to_host, from, bytes);
    return SHARD_OK;
}

shard_status shard_cpu_copy_out_async(shard_device *device, void *to_host, const void *from, size_t bytes)
{
    return shard_cpu_copy_out(device, to_host, from, bytes);
}

void *shard_cpu_copy_in_async(shard_device *device, const void *from_host, size_t bytes, void **arrival)
{
    void *memory = shard_cpu_allocate(device, bytes);
    *arrival = NULL;
    if (memory)
        shard_cpu_copy_in(device, memory, from_host, bytes);
    return memory;
}

shard_status shard_cpu_wait_arrival(shard_device *device, void *arrival, bool used)
{
    (void)device, (void)arrival, (void)used;
    return SHARD_OK;
}

shard_status shard_cpu_copy_rows(shard_device *device, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                 size_t width, size_t rows)
{
    (void)device;
    if (width == 0)
        return SHARD_OK;
    if (to_pitch == width && from_pitch == width) {
        copy(to, from, width * rows);
        return SHARD_OK;
    }
    if (width >= 2 * CHUNK) {
        for (size_t i = 0; i < rows; i++)
            copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
        return SHARD_OK;
    }
#pragma omp parallel for schedule(static) if (width * rows > 2 * CHUNK)
    for (size_t i = 0; i < rows; i++)
        memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return SHARD_OK;
}

shard_status shard_cpu_zero(shard_device *device, void *to, size_t bytes)
{
    (void)device;
    int64_t chunks = shard_divide_up((int64_t)bytes, CHUNK);
#pragma omp parallel for schedule(static) if (chunks > 2)
    for (int64_t i = 0; i < chunks; i++) {
        size_t start = (size_t)i * CHUNK;
        memset((char *)to + start, 0, bytes - start < CHUNK ? bytes - start : CHUNK);
    }
    return SHARD_OK;
}
