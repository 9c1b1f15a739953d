/*
 * shard/device.h: where tensors live and are computed.
 *
 * A device is opened by name and stays open until the process ends; opening it
 * again gives the same pointer. "cpu" is always there. Others are modules that
 * are loaded when asked for.
 */
#ifndef SHARD_DEVICE_H
#define SHARD_DEVICE_H

#include <shard/base.h>

typedef struct shard_device shard_device;

/* The device of that name: "cpu"; "cuda:1", the GPU of that number; "cuda", the
 * one that is this rank's on its machine (LOCAL_RANK modulo their number). With
 * NULL, the one that SHARD_DEVICE names, else the CPU: where a tensor goes for
 * which no device is named. NULL with the error set (UNAVAILABLE, with why and
 * what to install) if it is not here. Never destroyed by the caller. Not
 * collective. */
SHARD_API shard_device *shard_device_open(const char *name);

/* "cpu", "cuda:0"; static. */
SHARD_API const char *shard_device_name(const shard_device *device);

/* Bytes of this process's tensors on one device. */
typedef struct shard_memory_stats {
    int64_t current;  /* in use by tensors and workspaces now */
    int64_t peak;     /* the most that current has been since the start or the last reset */
    int64_t reserved; /* held by the pool, in use or kept for reuse */
} shard_memory_stats;

SHARD_API shard_memory_stats shard_get_memory_stats(const shard_device *device);

/* Sets peak to current, as torch.cuda.reset_peak_memory_stats. */
SHARD_API void shard_reset_peak_memory(shard_device *device);

/* Gives memory that the pool keeps but nobody uses back to the system. */
SHARD_API void shard_trim_memory(shard_device *device);

/* Waits until everything queued on the device is done. */
SHARD_API shard_status shard_synchronize(shard_device *device);

#endif
