/*
 * shard/device.h: the devices of tensors and their memory.
 *
 * A device is opened by name and stays open until the process ends; opening it again returns the same pointer. "cpu"
 * is always available. Other devices are plugins that are loaded when they are first opened.
 */
#ifndef SHARD_DEVICE_H
#define SHARD_DEVICE_H

#include <shard/base.h>

#include <stdio.h>

SHARD_BEGIN_C

typedef struct shard_device shard_device;

/* Opens a device: "cpu"; "cuda:1", the GPU of that number; "cuda", this rank's GPU (its local rank, from the
 * launcher, modulo the number of GPUs). NULL opens the default device: the one of shard_set_default_device, else the
 * one that SHARD_DEVICE names, else the CPU. NULL with the error set: UNAVAILABLE, no such device, as of a malformed
 * name, or no plugin, with what is missing; UNSUPPORTED, a GPU without memory pools, or a SHARD_CPU_ISA that this machine does
 * not run; ARGUMENT, a malformed SHARD_TF32, SHARD_PLUGIN_PATH or local rank; DEVICE; MEMORY. The library owns the device. Not
 * collective. */
SHARD_API shard_device *shard_device_open(const char *name);

/* Sets the device of this thread's tensors whose options name none, as torch.set_default_device. NULL: the device of
 * SHARD_DEVICE again. Cannot fail. Not collective. */
SHARD_API void shard_set_default_device(shard_device *device);

/* "cpu", "cuda:0"; "none" for NULL; static. */
SHARD_API const char *shard_device_name(const shard_device *device);

/* Allows products and convolutions of float32 to round their operands to 10 bits of mantissa (TF32), which GPUs with
 * TF32 compute many times as fast. Off at first, unless SHARD_TF32=1 is set when the GPU is opened. The CPU ignores
 * it. Cannot fail; false for NULL. Not collective: ranks with different settings compute different values. As
 * torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32. */
SHARD_API void shard_set_allow_tf32(shard_device *device, bool allow);
SHARD_API bool shard_allow_tf32(const shard_device *device);

/* Bytes of this process's tensors on one device. */
typedef struct shard_memory_stats {
    int64_t current;  /* in use by tensors and workspaces now */
    int64_t peak;     /* the maximum of current since the start or the last reset */
    int64_t reserved; /* held by the pool, in use or kept for reuse */
} shard_memory_stats;

/* Of the device; zeros for NULL. Not collective. */
SHARD_API shard_memory_stats shard_get_memory_stats(const shard_device *device);

/* The purpose of memory. */
typedef enum shard_memory_kind {
    SHARD_MEMORY_PARAMETERS = 0, /* parameters and buffers of modules, leaves that require a gradient */
    SHARD_MEMORY_GRADIENTS,      /* of leaves */
    SHARD_MEMORY_OPTIMIZER_STATE,
    SHARD_MEMORY_ACTIVATIONS, /* all other tensors: inputs, results, saved tensors; host memory of the CPU's
                                 shard_device_allocate_host (not of a GPU's, as it is not on the GPU) */
    SHARD_MEMORY_BUCKETS,     /* parameters and gradients that are communicated */
    SHARD_MEMORY_WORKSPACE,   /* of one operation while it runs */
    SHARD_MEMORY_KINDS
} shard_memory_kind;

/* "parameters", "optimizer state", ...; static. NULL for a number that is not a kind. */
SHARD_API const char *shard_memory_kind_name(shard_memory_kind kind);

/* As shard_get_memory_stats for one kind. The kinds' current add up to that of shard_get_memory_stats; their peaks
 * were at different times. reserved is 0, as the pool does not separate kinds. Memory that several tensors are views
 * of has one kind. Not collective. */
SHARD_API shard_memory_stats shard_get_memory_by_kind(const shard_device *device, shard_memory_kind kind);

/* Prints a table of this process's memory on the device, by kind and in total, now and at its peak, in MiB; the
 * title names the rank if there are several. Errors: IO, the file cannot be written. Not collective. As
 * torch.cuda.memory_summary. */
SHARD_API SHARD_CHECKED shard_status shard_memory_report(const shard_device *device, FILE *file);

/* Sets all peaks to current, as torch.cuda.reset_peak_memory_stats. Not collective. */
SHARD_API void shard_reset_peak_memory(shard_device *device);

/* Returns the pool's free memory to the system, as torch.cuda.empty_cache. Waits for the device; an error, as
 * UNSUPPORTED while a graph is captured, is the thread's. Wrong labels and indices that kernels have found stay for the next call
 * that reports them, as shard_synchronize. Not collective. */
SHARD_API void shard_trim_memory(shard_device *device);

/* Host memory that the device copies from without making the host wait: pinned memory, for batches that are loaded
 * ahead; plain memory for the CPU. Aligned to 64 bytes, content undefined. A source of shard_copy_from_host or
 * shard_from_host in it may be overwritten after a later shard_item, shard_copy_to_host or shard_synchronize of that
 * device, or after the shard_event_synchronize of an event that was recorded later; no other call waits for the
 * copy. NULL with the error set (MEMORY; DEVICE; UNSUPPORTED, a capture of the device). 0 bytes give a pointer, too. Any thread
 * may free it, with the same number of bytes; freeing NULL is fine. To free a GPU's waits for the GPU; an error is the thread's.
 * Not collective. */
SHARD_API void *shard_device_allocate_host(shard_device *device, size_t bytes);
SHARD_API void shard_device_free_host(shard_device *device, void *memory, size_t bytes);

/* Waits until all work queued on the device is done, as torch.cuda.synchronize. Errors: DEVICE, a failure in it;
 * PEER or TIMEOUT, of a rank that a queued collective waits for; faults in the data of a queued operation (op.h:
 * labels, indices); UNSUPPORTED, while a graph is captured. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_synchronize(shard_device *device);

/* Runs the device's operations on the caller's CUDA stream (a cudaStream_t, or its number in other languages:
 * torch.cuda.Stream.cuda_stream) from here on, in all threads. NULL: on the device's own stream again, on which they run at
 * first. Operations that were queued so far come before those on the new stream. The stream belongs to the device, and lives
 * until another one is in its place. No other thread calls a function of the device at the same time. docs/gpu.md ("Streams")
 * has the order with other work.
 * Errors: ARGUMENT, a stream that is not the device's, 2 (cudaStreamPerThread), or any but NULL for the CPU; UNSUPPORTED, while
 * a graph is captured; DEVICE. After an error the earlier stream stays. Not collective. As torch.cuda.set_stream. */
SHARD_API SHARD_CHECKED shard_status shard_device_use_stream(shard_device *device, void *stream);

/* An event marks a place in a device's queue. Waiting for it waits for earlier work only. As torch.cuda.Event. The caller
 * destroys it; destroying NULL is fine. NULL with the error set. None of these functions is collective. */
typedef struct shard_event shard_event;
SHARD_API shard_event *shard_event_create(shard_device *device);
SHARD_API void shard_event_destroy(shard_event *event);
/* Moves the mark behind the work that any thread has queued so far. Errors: DEVICE; UNSUPPORTED, while a graph is captured. */
SHARD_API SHARD_CHECKED shard_status shard_event_record(shard_event *event);
/* Waits until the work before the mark is done; returns at once for an event that was never recorded. Errors as of
 * shard_synchronize. */
SHARD_API SHARD_CHECKED shard_status shard_event_synchronize(shard_event *event);

SHARD_END_C

#endif
