/*
 * Device memory: for each device a range of addresses that the host can't touch but
 * while work runs. There are two views of it. Blocks say which addresses are handed
 * out, as the calls come; `alive` says what is allocated at the present point of the
 * streams, as their work runs. Memory that a stream has freed is handed out again at
 * once to the same stream, to others when the stream has got there.
 *
 * A fresh allocation is full of NaNs, and so is the guard behind it, where nobody may write.
 */
#include "memory.h"

#include <list>
#include <map>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define UNPOISON(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#else
#define POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

using namespace emulation;

enum { ALIGN = 256, GUARD = 256, HUGE = 2 << 20, FRESH = 0xff /* NaN in every type */ };
enum Kind { FREE, USED, FREED /* in a stream's order */ };

struct Block {
    size_t size; /* with its guard */
    size_t payload;
    Kind kind;
    bool pooled;
    Place freed;
};

struct CUmemPoolHandle_st {
    int device;
    uint64_t threshold = 0, used = 0, most_used = 0, most_reserved = 0;
};

namespace emulation
{

struct Arena {
    CUmemPoolHandle_st pool;
    char *reserved, *base;          /* where the reserved addresses begin, and those that are used */
    size_t limit, extent;           /* bytes there may be; bytes of addresses */
    size_t high = 0;                /* addresses below base + high have been used */
    size_t plain = 0, kept = 0;     /* bytes outside the pool; bytes that nobody uses but the pool keeps */
    std::map<char *, Block> blocks; /* all below base + high */
    std::list<char *> freed;        /* those that are FREED */
    std::map<char *, size_t> alive; /* payloads */
};

struct Pinned {
    size_t size;
    bool registered;
    int device;
};

static auto &arenas = *new std::vector<std::unique_ptr<Arena>>;
static auto &pinned = *new std::map<char *, Pinned>;
static int opened;

/* ---- arenas ---- */

static size_t memory_limit()
{
    static const std::string text = setting("MEMORY", "64G");
    char *end;
    unsigned long long bytes = strtoull(text.c_str(), &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end) : nullptr;
    if (end == text.c_str() || (*end && !unit))
        die("SHARD_CUDA_EMULATION_MEMORY is a number of bytes, or with K, M or G, not %s", text.c_str());
    return (size_t)bytes << (unit ? 10 * (unit - units + 1) : 0);
}

static Arena *find_arena(const void *memory)
{
    for (auto &arena : arenas)
        if (arena && (const char *)memory >= arena->reserved && (const char *)memory < arena->base + arena->extent)
            return arena.get();
    return nullptr;
}

/* Says why, where the host touches device memory; the access then ends the process. */
static void explain_fault(int signal, siginfo_t *info, void *)
{
    static const char text[] = "cuda emulation: the host touches device memory\n";
    if (find_arena(info->si_addr) && write(STDERR_FILENO, text, sizeof text - 1) < 0)
        abort();
    ::signal(signal, SIG_DFL);
}

static Arena &arena_of(int device)
{
    if (arenas.empty()) {
        arenas.resize((size_t)device_count());
        struct sigaction before, explain = {};
        explain.sa_sigaction = explain_fault;
        explain.sa_flags = SA_SIGINFO;
        if (sigaction(SIGSEGV, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(SIGSEGV, &explain, nullptr);
    }
    auto &arena = arenas[(size_t)device];
    if (!arena) {
        arena = std::make_unique<Arena>();
        arena->pool.device = device;
        arena->limit = memory_limit();
        arena->extent = arena->limit / HUGE * HUGE * 2 + HUGE; /* twice, for memory in pieces */
        const size_t step = (size_t)4 << 30;
        arena->reserved =
            (char *)mmap(nullptr, arena->extent + 2 * step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena->reserved == MAP_FAILED)
            die("no addresses for %zu bytes of device memory", arena->extent);
        arena->base =
            (char *)(((uintptr_t)arena->reserved / step + 1) * step + step / 2); /* small numbers are not its lower halves */
        madvise(arena->base, arena->extent, MADV_HUGEPAGE);                      /* large pages are opened and closed fast */
    }
    return *arena;
}

static void protect(const Arena &arena, int protection)
{
    size_t used = (arena.high + HUGE - 1) / HUGE * HUGE;
    if (used && mprotect(arena.base, used, protection) != 0)
        die("mprotect of device memory failed");
}

static void protect_all(int protection)
{
    for (auto &arena : arenas)
        if (arena)
            protect(*arena, protection);
}

OpenMemory::OpenMemory()
{
    if (opened++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory()
{
    if (--opened == 0)
        protect_all(PROT_NONE);
}

/* The entry of a map by address that holds the address, its end included. */
template <class Map> static auto find_holder(Map &map, const void *memory)
{
    auto found = map.upper_bound((char *)memory);
    return found == map.begin() ? map.end() : std::prev(found);
}

/* ---- handing out ---- */

static uint64_t reserved(const Arena &arena)
{
    return arena.pool.used + arena.kept;
}

/* Frees a block for everybody, joined to its neighbours. */
static void make_free(Arena &arena, std::map<char *, Block>::iterator block)
{
    block->second.kind = FREE;
    auto next = std::next(block);
    if (next != arena.blocks.end() && next->second.kind == FREE) {
        block->second.size += next->second.size;
        arena.blocks.erase(next);
    }
    if (block != arena.blocks.begin()) {
        auto before = std::prev(block);
        if (before->second.kind == FREE) {
            before->second.size += block->second.size;
            arena.blocks.erase(block);
        }
    }
}

/* Blocks whose stream has got to their end are free for all. */
static void sweep(Arena &arena)
{
    arena.freed.remove_if([&](char *memory) {
        auto block = arena.blocks.find(memory);
        if (!block->second.freed.passed())
            return false;
        block->second.freed = Place();
        make_free(arena, block);
        return true;
    });
}

static void trim(Arena &arena, size_t keep)
{
    sweep(arena);
    if (reserved(arena) <= keep)
        return;
    arena.kept = 0;
    for (auto &[memory, block] : arena.blocks) {
        if (block.kind == FREE)
            madvise(memory, block.size, MADV_DONTNEED);
        else if (block.kind == FREED)
            arena.kept += block.size;
    }
}

void keep_to_thresholds()
{
    for (auto &arena : arenas)
        if (arena && reserved(*arena) > arena->pool.threshold)
            trim(*arena, arena->pool.threshold);
}

static std::map<char *, Block>::iterator best_fit(Arena &arena, size_t size, const std::shared_ptr<Stream> &stream)
{
    auto best = arena.blocks.end();
    for (auto block = arena.blocks.begin(); block != arena.blocks.end(); ++block) {
        const Block &b = block->second;
        bool reusable = b.kind == FREE || (b.kind == FREED && stream && b.freed.stream == stream && b.size < 2 * size);
        if (reusable && b.size >= size && (best == arena.blocks.end() || b.size < best->second.size))
            best = block;
    }
    return best;
}

/* Addresses for an allocation in the order of a stream, or without one, of everybody. */
static char *take(Arena &arena, size_t bytes, const std::shared_ptr<Stream> &stream)
{
    size_t size = (bytes + ALIGN - 1) / ALIGN * ALIGN + GUARD;
    if (bytes > arena.limit || size > arena.limit)
        return nullptr;
    sweep(arena);
    auto block = best_fit(arena, size, stream);
    bool fresh = block == arena.blocks.end();
    if (fresh) {
        if (arena.plain + reserved(arena) + size > arena.limit)
            trim(arena, 0);
        if (arena.plain + reserved(arena) + size > arena.limit || arena.high + size > arena.extent)
            return nullptr;
        block = arena.blocks.emplace(arena.base + arena.high, Block{size, 0, FREE, false, {}}).first;
        arena.high += size;
        if (opened)
            protect(arena, PROT_READ | PROT_WRITE);
    } else if (arena.plain + arena.pool.used + size > arena.limit)
        return nullptr;
    if (block->second.kind == FREED)
        arena.freed.remove(block->first);
    else if (block->second.size > size) {
        arena.blocks.emplace(block->first + size, Block{block->second.size - size, 0, FREE, false, {}});
        block->second.size = size;
    }
    if (!fresh)
        arena.kept -= arena.kept < block->second.size ? arena.kept : block->second.size;
    block->second = Block{block->second.size, bytes, USED, stream != nullptr, {}};
    (stream ? arena.pool.used : arena.plain) += block->second.size;
    if (arena.pool.used > arena.pool.most_used)
        arena.pool.most_used = arena.pool.used;
    if (reserved(arena) > arena.pool.most_reserved)
        arena.pool.most_reserved = reserved(arena);
    return block->first;
}

static void give_back(Arena &arena, char *memory, Place freed)
{
    auto block = arena.blocks.find(memory);
    size_t size = block->second.size;
    (block->second.pooled ? arena.pool.used : arena.plain) -= size;
    if (block->second.pooled)
        arena.kept += size;
    block->second.kind = FREED;
    block->second.freed = freed;
    arena.freed.push_back(memory);
    sweep(arena);
}

static std::map<char *, Block>::iterator find_used(Arena &arena, const void *memory)
{
    auto block = arena.blocks.find((char *)memory);
    return block != arena.blocks.end() && block->second.kind == USED ? block : arena.blocks.end();
}

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
    if ((uint32_t)(uintptr_t)pointer >= 1 << 20 && (uintptr_t)pointer < (uintptr_t)1 << 47 && mincore(page, 1, &resident) == 0)
        die("%s takes a pointer %p to memory that is the host's alone", running().c_str(), pointer);
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
        cudaError_t error = enqueue(handle, "cudaFreeAsync", [=] { end_life(*arena, (char *)devPtr); });
        if (error == cudaSuccess && !is_capturing(*stream))
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

/* ---- pools ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *memPool, int device)
{
    return run_call([=] {
        if (device < 0 || device >= device_count())
            return cudaErrorInvalidDevice;
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

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value)
{
    return run_call([=] {
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
        if (!ptr)
            return cudaSuccess;
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
