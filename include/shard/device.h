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

#include <stdio.h>

SHARD_BEGIN_C

typedef struct shard_device shard_device;

/* The device of that name: "cpu"; "cuda:1", the GPU of that number; "cuda", the
 * one that is this rank's on its machine (its number there, as the launcher says it,
 * modulo the number of GPUs). With NULL, where a tensor goes for which no device is
 * named: the one of shard_set_default_device, else the one that SHARD_DEVICE names,
 * else the CPU. NULL with the error set (UNAVAILABLE, with why and what to install)
 * if it is not here. Never destroyed by the caller. Not collective. */
SHARD_API shard_device *shard_device_open(const char *name);

/* Where this thread's tensors go for which no device is named, as
 * torch.set_default_device. NULL: SHARD_DEVICE decides again. Stays the library's.
 * Cannot fail. Not collective. */
SHARD_API void shard_set_default_device(shard_device *device);

/* "cpu", "cuda:0"; static. */
SHARD_API const char *shard_device_name(const shard_device *device);

/* Whether products and convolutions of float32 may take their operands with 10 bits
 * of mantissa (TF32), many times as fast on GPUs that have it, as torch's
 * backends.cuda.matmul.allow_tf32 and backends.cudnn.allow_tf32. Not at first,
 * unless SHARD_TF32=1 is set when the GPU is opened. The CPU takes no notice.
 * Cannot fail; of NULL false. Not collective: ranks that differ compute differently. */
SHARD_API void shard_set_allow_tf32(shard_device *device, bool allow);
SHARD_API bool shard_allow_tf32(const shard_device *device);

/* Bytes of this process's tensors on one device. */
typedef struct shard_memory_stats {
    int64_t current;  /* in use by tensors and workspaces now */
    int64_t peak;     /* the most that current has been since the start or the last reset */
    int64_t reserved; /* held by the pool, in use or kept for reuse */
} shard_memory_stats;

/* Of the device; zeros for NULL. Not collective. */
SHARD_API shard_memory_stats shard_get_memory_stats(const shard_device *device);

/* What memory is for. */
typedef enum shard_memory_kind {
    SHARD_MEMORY_PARAMETERS = 0, /* parameters and buffers of modules, leaves that require a gradient */
    SHARD_MEMORY_GRADIENTS,      /* of leaves */
    SHARD_MEMORY_OPTIMIZER_STATE,
    SHARD_MEMORY_ACTIVATIONS, /* every other tensor: inputs, results, what backward needs of them; shard_allocate_host's
                                 of the CPU, while a GPU's, which is not on it, is not counted */
    SHARD_MEMORY_BUCKETS,     /* parameters and gradients on their way between ranks */
    SHARD_MEMORY_WORKSPACE,   /* of one operation while it runs */
    SHARD_MEMORY_KINDS
} shard_memory_kind;

/* "parameters", "optimizer state"; static. NULL for a number that is no kind. */
SHARD_API const char *shard_memory_kind_name(shard_memory_kind kind);

/* The same of one kind; the kinds' current are in all that of shard_get_memory_stats,
 * their peaks were at different times. reserved is 0: the pool keeps no kinds apart.
 * Memory that several tensors are views of has one kind. Not collective. */
SHARD_API shard_memory_stats shard_get_memory_by_kind(const shard_device *device, shard_memory_kind kind);

/* Prints a table of this process's memory on the device, by kind and in all, now and
 * at its peak, in MiB, with its rank in the title if there are several; as
 * torch.cuda.memory_summary. Errors: IO if the file takes no more. Not collective. */
SHARD_API shard_status shard_memory_report(const shard_device *device, FILE *file);

/* Sets all peaks to current, as torch.cuda.reset_peak_memory_stats. */
SHARD_API void shard_reset_peak_memory(shard_device *device);

/* Gives memory that the pool keeps but nobody uses back to the system. Waits for the
 * device, and leaves the thread's error as shard_synchronize does. */
SHARD_API void shard_trim_memory(shard_device *device);

/* Host memory that the device copies from without the host waiting: pinned memory,
 * for batches that are loaded ahead; plain memory for the CPU. Aligned to 64
 * bytes, content undefined. What shard_copy_from_host or shard_from_host is given
 * from it may be overwritten after a later shard_item, shard_copy_to_host or
 * shard_synchronize of that device, or after the shard_event_synchronize of an event that
 * was recorded later; after nothing else, as a loss or a step waits for no GPU. NULL with
 * the error set (MEMORY). Given back with the same number of bytes, by any thread; NULL is
 * fine there. Not collective. */
SHARD_API void *shard_allocate_host(shard_device *device, size_t bytes);
SHARD_API void shard_free_host(shard_device *device, void *memory, size_t bytes);

/* Waits until everything queued on the device is done. Errors: DEVICE, for what went
 * wrong in it; PEER or TIMEOUT, for a rank that a queued collective waits for; what a
 * queued operation found wrong in its data (op.h: labels, indices). Not collective. */
SHARD_API shard_status shard_synchronize(shard_device *device);

/* A mark in what is queued on a device, to wait for that much of it and no more: as
 * torch.cuda.Event. NULL with the error set. Destroyed by the caller; NULL is fine there.
 * None of these is collective. */
typedef struct shard_event shard_event;
SHARD_API shard_event *shard_event_create(shard_device *device);
SHARD_API void shard_event_destroy(shard_event *event);
/* Sets the mark (anew) behind what was queued so far, by any thread. DEVICE. */
SHARD_API shard_status shard_event_record(shard_event *event);
/* Waits until what was queued before the mark is done; an event that was never recorded
 * has nothing to wait for. Errors as of shard_synchronize. */
SHARD_API shard_status shard_event_synchronize(shard_event *event);

SHARD_END_C

#endif
