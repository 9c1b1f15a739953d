/*
 * Memory as the streams' work runs, and the calls that ask for it. Arenas (arena.cpp)
 * say which addresses are handed out, as the calls come; `alive` says what is allocated
 * at the present point of the streams. A fresh allocation is full of NaNs, and so is the
 * guard behind it.
 */
#include "memory.h"

#include "arena.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define UNPOISON(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#define LOWEST ((uintptr_t)1 << 44) /* below is its shadow: addresses that a flag beside a number looks like */
#else
#define POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#define LOWEST ((uintptr_t)1 << 20)
#endif

using namespace emulation;

namespace emulation
{

enum { FRESH = 0xff /* NaN in every type */ };

struct Pinned {
    size_t size;
    bool registered;
    int device;
};

static auto &pinned = *new std::map<char *, Pinned>;

bool is_allocated(const void *memory, size_t bytes)
{
    auto holds = [=](const char *start, size_t size) {
        return (const char *)memory >= start && (const char *)memory + bytes <= start + size;
    };
    if (Arena *arena = find_arena(memory)) {
        auto block = find_holder(arena->blocks, memory);
        return block != arena->blocks.end() && block->second.kind == USED && holds(block->first, block->second.payload);
    }
    auto range = find_holder(pinned, memory);
    return range != pinned.end() && holds(range->first, range->second.size);
}

bool is_device_memory(const void *memory, int *device)
{
    Arena *arena = find_arena(memory);
    if (arena && device)
        *device = arena->pool.device;
    return arena != nullptr;
}

bool is_pinned_memory(const void *memory)
{
    auto range = find_holder(pinned, memory);
    return range != pinned.end() && (const char *)memory < range->first + range->second.size;
}

/* ---- as the streams' work runs ---- */

static void check_guard(const char *memory, size_t payload)
{
#ifndef WITH_ASAN
    size_t end = (payload + ALIGN - 1) / ALIGN * ALIGN + GUARD;
    for (size_t i = payload; i < end; i++)
        if ((unsigned char)memory[i] != FRESH)
            die("%s wrote beyond the end of an allocation of %zu bytes, at byte %zu", running().c_str(), payload, i);
#else
    (void)memory, (void)payload;
#endif
}

static void begin_life(Arena &arena, char *memory, size_t payload)
{
    size_t end = (payload + ALIGN - 1) / ALIGN * ALIGN + GUARD;
    UNPOISON(memory, end);
    memset(memory, FRESH, end);
    POISON(memory + payload, end - payload);
    arena.alive[memory] = payload;
}

static void end_life(Arena &arena, char *memory)
{
    auto found = arena.alive.find(memory);
    if (found == arena.alive.end())
        die("%s: memory is freed before its allocation in the order of its stream, or twice", running().c_str());
    check_guard(memory, found->second);
    POISON(memory, found->second);
    arena.alive.erase(found);
}

void check_guards()
{
    for (auto &arena : arenas)
        if (arena)
            for (auto &[memory, payload] : arena->alive)
                check_guard(memory, payload);
}

void check_range(const void *memory, size_t bytes)
{
    if (bytes == 0)
        return;
    Arena *arena = find_arena(memory);
    if (!arena) {
        if (!is_allocated(memory, bytes))
            die("%s uses %zu bytes at %p, which is no memory that the device reaches", running().c_str(), bytes, memory);
        return;
    }
    auto life = find_holder(arena->alive, memory);
    if (life == arena->alive.end() || (const char *)memory >= life->first + life->second)
        die("%s uses device memory at %p that is not allocated at this point of its stream", running().c_str(), memory);
    if ((const char *)memory + bytes > life->first + life->second)
        die("%s uses %zu bytes from byte %zd of an allocation of %zu bytes", running().c_str(), bytes,
            (const char *)memory - life->first, life->second);
}

/* A number, the end of an array: what a kernel does not follow is right. Any other is
 * taken for a pointer if there is memory; a word of two numbers, one of them small, is not. */
void check_pointer(const void *pointer)
{
    if (Arena *arena = find_arena(pointer)) {
        auto life = find_holder(arena->alive, pointer);
        if ((const char *)pointer < arena->base || (const char *)pointer >= arena->base + arena->high)
            return;
        if (life == arena->alive.end() || (const char *)pointer > life->first + life->second)
            die("%s takes device memory at %p that is not allocated at this point of its stream", running().c_str(), pointer);
        return;
    }
    auto range = find_holder(pinned, pointer);
    if (range != pinned.end() && (const char *)pointer <= range->first + range->second.size)
        return;
    unsigned char resident;
    void *page = (void *)((uintptr_t)pointer & ~(uintptr_t)4095);
    if ((uint32_t)(uintptr_t)pointer >= 1 << 20 && (uintptr_t)pointer >= LOWEST && (uintptr_t)pointer < (uintptr_t)1 << 47 &&
        mincore(page, 1, &resident) == 0)
        die("%s takes a pointer %p to memory that is the host's alone", running().c_str(), pointer);
}

} // namespace emulation

/* ---- graphs' memory ---- */

namespace emulation
{

static auto &graph_memory = *new std::map<char *, GraphMemory *>; /* whose it is, by address */

/* What stands is ordinary memory from now on. */
GraphMemory::~GraphMemory()
{
    for (auto &[arena, memory] : all) {
        graph_memory.erase(memory);
        if (!standing.count(memory))
            give_back(*arena, memory, launched);
    }
}

cudaError_t free_later(const std::shared_ptr<Stream> &stream, char *memory)
{
    Arena *arena = find_arena(memory);
    return put(stream, {"cudaFreeAsync",
                        [=] {
                            end_life(*arena, memory);
                            return true;
                        },
                        {}});
}

/* Memory that a capture allocated is freed in it, or, if a launch has left it allocated, anywhere else. */
static cudaError_t free_of_graph(const std::shared_ptr<Stream> &stream, char *memory)
{
    auto found = graph_memory.find(memory);
    GraphMemory *owner = found == graph_memory.end() ? nullptr : found->second;
    if (stream->capture && (owner != stream->capture->memory.get() || !owner->unfreed.erase(memory))) {
        stream->capture->invalid = true;
        return cudaErrorInvalidValue;
    }
    if (!stream->capture && !owner->standing.erase(memory))
        return cudaErrorInvalidValue;
    return free_later(stream, memory);
}

} // namespace emulation

/* ---- device memory ---- */

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    return run_call([=] {
        cudaError_t error = refuse_in_capture();
        *devPtr = nullptr;
        if (error != cudaSuccess || size == 0)
            return error;
        Arena &arena = arena_of(current_device());
        char *memory = take(arena, size, nullptr);
        if (!memory)
            return cudaErrorMemoryAllocation;
        OpenMemory open;
        begin_life(arena, memory, size);
        *devPtr = memory;
        return cudaSuccess;
    });
}

cudaError_t cudaFree(void *devPtr)
{
    return run_call([=] {
        cudaError_t error = refuse_in_capture();
        if (error != cudaSuccess || !devPtr)
            return error;
        Arena *arena = find_arena(devPtr);
        if (!arena || find_used(*arena, devPtr) == arena->blocks.end())
            return cudaErrorInvalidValue;
        run_device(arena->pool.device);
        OpenMemory open;
        set_running("cudaFree", nullptr);
        end_life(*arena, (char *)devPtr);
        give_back(*arena, (char *)devPtr, Place());
        return cudaSuccess;
    });
}

cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t handle)
{
    return run_call([=] {
        *ptr = nullptr;
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!memPool || size == 0)
            return size == 0 && memPool ? cudaSuccess : cudaErrorInvalidValue;
        Arena &arena = arena_of(memPool->device);
        /* A graph's allocation has the same address at each launch, which stays the graph's. */
        char *memory = take(arena, size, stream);
        if (!memory)
            return cudaErrorMemoryAllocation;
        cudaError_t error = enqueue(handle, "cudaMallocAsync", [=, &arena] { begin_life(arena, memory, size); });
        if (error != cudaSuccess)
            give_back(arena, memory, Place());
        else
            *ptr = memory;
        if (error == cudaSuccess && stream->capture) {
            GraphMemory &own = *stream->capture->memory;
            become_graphs(arena, memory);
            graph_memory[memory] = &own;
            own.all.emplace_back(&arena, memory);
            own.unfreed.insert(memory);
        }
        return error;
    });
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream)
{
    cudaMemPool_t pool;
    cudaError_t error = cudaDeviceGetDefaultMemPool(&pool, current_device());
    return error == cudaSuccess ? cudaMallocFromPoolAsync(devPtr, size, pool, hStream) : error;
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t handle)
{
    return run_call([=] {
        Arena *arena = find_arena(devPtr);
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!arena || find_used(*arena, devPtr) == arena->blocks.end())
            return cudaErrorInvalidValue;
        if (is_capturing(*stream) || graph_memory.count((char *)devPtr))
            return free_of_graph(stream, (char *)devPtr);
        cudaError_t error = free_later(stream, (char *)devPtr);
        if (error == cudaSuccess)
            give_back(*arena, (char *)devPtr, end_of(stream));
        return error;
    });
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    return run_call([=] {
        Arena &arena = arena_of(current_device());
        *total = arena.limit;
        *free = arena.limit - arena.plain - reserved(arena);
        return cudaSuccess;
    });
}

namespace emulation
{

bool LibraryMemory::take(size_t bytes)
{
    cudaError_t error = run_call([=] {
        memory = memory ? memory : emulation::take(arena_of(current_device()), bytes, nullptr);
        return memory ? cudaSuccess : cudaErrorMemoryAllocation;
    });
    return error == cudaSuccess;
}

LibraryMemory::~LibraryMemory()
{
    std::lock_guard<std::recursive_mutex> locked(mutex());
    if (memory)
        give_back(*find_arena(memory), (char *)memory, Place());
}

} // namespace emulation

/* ---- pools ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *memPool, int device)
{
    return run_call([=] {
        if (device < 0 || device >= device_count())
            return cudaErrorInvalidDevice;
        if (!has_pools())
            return cudaErrorNotSupported;
        *memPool = &arena_of(device).pool;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *memPool, int device)
{
    return cudaDeviceGetDefaultMemPool(memPool, device);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value)
{
    return run_call([=] {
        const Arena &arena = arena_of(memPool->device);
        uint64_t found;
        switch (attr) {
        case cudaMemPoolAttrReleaseThreshold:
            found = memPool->threshold;
            break;
        case cudaMemPoolAttrReservedMemCurrent:
            found = reserved(arena);
            break;
        case cudaMemPoolAttrReservedMemHigh:
            found = memPool->most_reserved;
            break;
        case cudaMemPoolAttrUsedMemCurrent:
            found = memPool->used;
            break;
        case cudaMemPoolAttrUsedMemHigh:
            found = memPool->most_used;
            break;
        default:
            *(int *)value = 1;
            return cudaSuccess;
        }
        *(uint64_t *)value = found;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr, void *value)
{
    return run_call([=] {
        if (attr != cudaGraphMemAttrReservedMemCurrent)
            return cudaErrorInvalidValue;
        *(uint64_t *)value = arena_of(device).graphs;
        return cudaSuccess;
    });
}

/* Addresses are a graph's as long as it is there: nothing is kept beside. */
cudaError_t cudaDeviceGraphMemTrim(int device)
{
    return run_call([=] { return device >= 0 && device < device_count() ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value)
{
    return run_call([=] {
        switch (attr) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies: /* no stream ever waits for memory here */
            return *(const int *)value == 0 || *(const int *)value == 1 ? cudaSuccess : cudaErrorInvalidValue;
        default:
            break;
        }
        const uint64_t number = *(const uint64_t *)value;
        switch (attr) {
        case cudaMemPoolAttrReleaseThreshold:
            memPool->threshold = number;
            return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh:
        case cudaMemPoolAttrUsedMemHigh: /* to nothing but 0: from now on */
            if (number)
                return cudaErrorInvalidValue;
            memPool->most_reserved = reserved(arena_of(memPool->device));
            memPool->most_used = memPool->used;
            return cudaSuccess;
        default:
            return cudaErrorInvalidValue;
        }
    });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep)
{
    return run_call([=] {
        trim(arena_of(memPool->device), minBytesToKeep);
        return cudaSuccess;
    });
}

/* ---- pinned memory ---- */

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    return run_call([=] {
        (void)flags;
        *pHost = nullptr;
        cudaError_t error = refuse_in_capture();
        if (error != cudaSuccess)
            return error;
        if (size == 0)
            return cudaSuccess;
        void *memory = aligned_alloc(ALIGN, (size + ALIGN - 1) / ALIGN * ALIGN);
        if (!memory)
            return cudaErrorMemoryAllocation;
        memset(memory, FRESH, size);
        POISON((char *)memory + size, (ALIGN - size % ALIGN) % ALIGN);
        pinned[(char *)memory] = {size, false, current_device()};
        *pHost = memory;
        return cudaSuccess;
    });
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *ptr)
{
    return run_call([=] {
        auto range = pinned.find((char *)ptr);
        cudaError_t error = refuse_in_capture();
        if (!ptr || error != cudaSuccess)
            return error;
        if (range == pinned.end() || range->second.registered)
            return cudaErrorInvalidValue;
        run_device(range->second.device);
        UNPOISON(ptr, (range->second.size + ALIGN - 1) / ALIGN * ALIGN);
        pinned.erase(range);
        free(ptr);
        return cudaSuccess;
    });
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    return run_call([=] {
        (void)flags;
        if (!ptr || size == 0 || find_arena(ptr))
            return cudaErrorInvalidValue;
        auto range = find_holder(pinned, (char *)ptr + size - 1);
        if (range != pinned.end() && range->first + range->second.size > (char *)ptr)
            return cudaErrorHostMemoryAlreadyRegistered;
        pinned[(char *)ptr] = {size, true, current_device()};
        return cudaSuccess;
    });
}

cudaError_t cudaHostUnregister(void *ptr)
{
    return run_call([=] {
        auto range = pinned.find((char *)ptr);
        if (range == pinned.end() || !range->second.registered)
            return cudaErrorHostMemoryNotRegistered;
        run_device(range->second.device);
        pinned.erase(range);
        return cudaSuccess;
    });
}

cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags)
{
    return run_call([=] {
        if (flags || !is_pinned_memory(pHost))
            return cudaErrorInvalidValue;
        *pDevice = pHost;
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    return run_call([=] {
        void *memory = (void *)ptr;
        int device;
        if (is_device_memory(ptr, &device))
            *attributes = {cudaMemoryTypeDevice, device, memory, nullptr};
        else if (is_pinned_memory(ptr))
            *attributes = {cudaMemoryTypeHost, find_holder(pinned, ptr)->second.device, memory, memory};
        else
            *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, memory};
        return cudaSuccess;
    });
}
