/*
 * The emulation of CUDA behind the stand-ins for its headers: one shared library,
 * so that every module of a process sees the same devices.
 *
 * It is as unkind as CUDA's rules allow, so that host code that breaks them fails
 * here and not on a GPU one day:
 * - Streams queue their work, which runs when something waits for it; streams that
 *   no event joins run in the order opposite to that of the calls (stream.cpp).
 * - Device memory cannot be touched by the host, is NaN when fresh, and is checked
 *   for writes beyond its ends (arena.cpp, memory.cpp).
 * - Threads of a block run one by one, each as far as it can (launch.cpp).
 * A breach that CUDA reports is reported alike; one that it leaves undefined ends
 * the process with a message.
 *
 * SHARD_CUDA_EMULATION_DEVICES  number of GPUs: 1; 0: no GPU; -1: no driver
 * SHARD_CUDA_EMULATION_MEMORY   bytes of each, for the pool and all that is outside it: 64G
 * SHARD_CUDA_EMULATION_POOLS    0: GPUs without memory pools
 * SHARD_CUDA_EMULATION_ORDER    of threads and blocks: forward, reverse, shuffled
 * SHARD_CUDA_EMULATION_PRODUCTS loose: sums of products in an order that depends on addresses; same
 * SHARD_CUDA_EMULATION_QUEUE    late; others: a wait runs the other streams first;
 *                               eager: work runs at the call
 * SHARD_CUDA_EMULATION_ENGINES  cuDNN's engines that fail, and how (cudnn.cpp): none
 */
#ifndef CUDA_EMULATION_H
#define CUDA_EMULATION_H

#include "cuda_runtime_api.h"

#include <stdint.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#ifdef __SANITIZE_ADDRESS__
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif

namespace emulation
{

/* ---- for the stand-ins of CUDA's libraries ---- */

/* Queues work on a stream (captured, where it is being captured). It runs once, or
 * with polled, until it returns true: for what waits for other processes. */
cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> work);
cudaError_t enqueue_polled(cudaStream_t stream, const char *what, std::function<bool()> work);

/* Ends the process: "cuda emulation: ...". */
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What runs now: the kernel's name, or the call that queued it. */
std::string running();

/* In queued work: ends the process unless [memory, memory + bytes) is memory that the device
 * reaches and that is allocated at this point of the stream. NULL with 0 bytes is right. */
void check_range(const void *memory, size_t bytes);

/* Whether the device reaches it: device memory (of which device), or pinned. */
bool is_device_memory(const void *memory, int *device = nullptr);
bool is_pinned_memory(const void *memory);

/* Memory of the current device that a library takes for itself, outside the pool; nobody touches it. */
class LibraryMemory
{
  public:
    LibraryMemory() = default;
    LibraryMemory(const LibraryMemory &) = delete;
    ~LibraryMemory();
    bool take(size_t bytes); /* at its first call; false where there is none */

  private:
    void *memory = nullptr;
};

/* ---- among its own files ---- */

/* Runs the body of an API call under the lock, with a working driver; keeps its error. */
cudaError_t run_call(const std::function<cudaError_t()> &body, bool needs_device = true);
std::recursive_mutex &mutex();
int device_count(); /* as SHARD_CUDA_EMULATION_DEVICES */
bool has_pools();
bool reads_pageable(); /* SHARD_CUDA_EMULATION_PAGEABLE: copies read the host's memory at their turn, as they may on a GH200 */
int current_device();

/* A place in a stream's queue: when `done` of it passes the number, all up to there has run. */
struct Stream;
struct Place {
    std::shared_ptr<Stream> stream;
    uint64_t number = 0;
    bool passed() const;
    bool seen() const; /* the host has synchronized with it */
};
/* The stream of a handle, NULL if it is none; where its queue ends now. */
std::shared_ptr<Stream> find_stream(cudaStream_t handle);
int device_of(const Stream &stream);
Place end_of(const std::shared_ptr<Stream> &stream);
void run_up_to(const Place &place);
void synchronize(const Place &place); /* runs up to it, and the host has seen it */
void run_device(int device);
/* An error while a stream is being captured that such a call would disturb; the captures are then spoilt. */
cudaError_t refuse_in_capture(const std::shared_ptr<Stream> &stream = nullptr);
bool is_capturing(const Stream &stream);

/* Device memory is open to the process while one of these lives. */
struct OpenMemory {
    OpenMemory();
    ~OpenMemory();
};
/* In queued work: the ends of all allocations are untouched; a word of a kernel's arguments, if it
 * is a pointer, is to memory that the device reaches. */
void check_guards();
void check_pointer(const void *pointer);
/* Gives memory beyond the pools' thresholds back, as a wait does. */
void keep_to_thresholds();

/* For running(): the kernel that a piece of work is. */
void set_running(const char *what, const void *function);

/* SHARD_CUDA_EMULATION_<name>, or fallback. */
std::string setting(const char *name, const char *fallback);

} // namespace emulation

#endif
