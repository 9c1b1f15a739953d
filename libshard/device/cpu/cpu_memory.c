/*
 * The CPU device's pool. Touching fresh memory costs about twenty times what rewriting it does, so released blocks
 * are kept and reused.
 *
 * A block belongs to the size class of the requested bytes: classes are multiples of 64 bytes, sixteen from one
 * power of two to the next, so that less than 1/16 is lost. Release gets the same bytes, so blocks need no header; a
 * free block's first word links it to the next of its class. Large blocks are mapped one by one, in huge pages from
 * 2 MiB on. Small ones are cut from chunks, which are found from a block's address and count the blocks in use.
 */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif

/* Under AddressSanitizer all memory that is not in use is poisoned, each block ends in a red zone, and new blocks
 * are full of NaNs. The sanitizer does not see what oneDNN's generated code writes: the red zone has marks, which a release
 * checks. */
#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#define RED_ZONE 64
#define POISON(memory, size) ASAN_POISON_MEMORY_REGION(memory, size)
#define UNPOISON(memory, size) ASAN_UNPOISON_MEMORY_REGION(memory, size)
#else
#define RED_ZONE 0
#define POISON(memory, size) ((void)(memory), (void)(size))
#define UNPOISON(memory, size) ((void)(memory), (void)(size))
#endif

#define UNIT ((size_t)64)
#define STEPS 16 /* classes from one power of two to the next */
#define CLASSES (STEPS * 48)
#define LARGEST ((size_t)1 << 50)
#define LARGE ((size_t)256 << 10) /* mapped one by one from here on */
#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK ((size_t)4 << 20)
#define CHUNK_HEADER UNIT
#define SLACK ((int64_t)64 << 20) /* bytes that the pool always may keep */

typedef struct block {
    struct block *next;
} block;

typedef struct chunk {
    struct chunk *next;
    size_t used; /* bytes that are cut into blocks, with this header */
    int64_t live;
} chunk;

static struct {
    pthread_mutex_t lock;
    block *free[CLASSES];
    chunk *chunks; /* blocks are cut from the first */
    int64_t current, peak, reserved;
    int64_t high; /* as peak, never reset */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

#ifdef ADDRESS_SANITIZER
enum { MARK = 0x5a, MOST_MARKS = 4096 };

static size_t count_marks(size_t bytes, size_t size)
{
    return size - bytes < MOST_MARKS ? size - bytes : MOST_MARKS;
}

static void mark_red_zone(char *memory, size_t bytes, size_t size)
{
    UNPOISON(memory, size);
    memset(memory + bytes, MARK, count_marks(bytes, size));
}

/* The block's memory is not poisoned. */
static void check_red_zone(const char *memory, size_t bytes, size_t size)
{
    for (size_t i = 0; i < count_marks(bytes, size); i++) {
        if (memory[bytes + i] == MARK)
            continue;
        fprintf(stderr, "cpu: byte %zu behind a block of %zu bytes was written to\n", i, bytes);
        abort();
    }
}
#else
static void mark_red_zone(char *memory, size_t bytes, size_t size)
{
    (void)memory, (void)bytes, (void)size;
}

static void check_red_zone(const char *memory, size_t bytes, size_t size)
{
    (void)memory, (void)bytes, (void)size;
}
#endif

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void lock_pool(void)
{
    pthread_mutex_lock(&pool.lock);
}

static void unlock_pool(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* A child must not inherit a lock that another thread holds. */
static void survive_fork(void)
{
    pthread_atfork(lock_pool, unlock_pool, unlock_pool);
}

/* The class of a size, and the class's own size. */
static int size_class(size_t bytes, size_t *size)
{
    size_t units = (bytes + RED_ZONE + UNIT - 1) / UNIT;
    if (units <= STEPS) {
        *size = units * UNIT;
        return (int)units - 1;
    }
    int shift = 63 - __builtin_clzll((unsigned long long)units - 1) - 4;
    size_t steps = (units + ((size_t)1 << shift) - 1) >> shift; /* STEPS + 1 ... 2 * STEPS */
    *size = (steps << shift) * UNIT;
    return STEPS * shift + (int)steps - 1;
}

static void push(int class, void *memory, size_t size)
{
    block *b = memory;
    b->next = pool.free[class];
    pool.free[class] = b;
    POISON(memory, size);
}

static void *pop(int class)
{
    block *b = pool.free[class];
    if (!b)
        return NULL;
    UNPOISON(b, sizeof *b);
    pool.free[class] = b->next;
    return b;
}

static chunk *chunk_of(const void *memory)
{
    return (chunk *)((uintptr_t)memory & ~(uintptr_t)(CHUNK - 1));
}

/* Fresh memory of the system; NULL if it gives none. */
static void *map(size_t size, size_t alignment)
{
    size_t extra = alignment > UNIT ? alignment : 0;
    char *start = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    if (extra) {
        size_t before = (size_t)(-(uintptr_t)start & (alignment - 1));
        if (before)
            munmap(start, before);
        start += before;
        munmap(start + size, extra - before);
        madvise(start, size, MADV_HUGEPAGE);
    }
    pool.reserved += (int64_t)size;
    return start;
}

static void unmap(void *memory, size_t size)
{
    UNPOISON(memory, size);
    munmap(memory, size);
    pool.reserved -= (int64_t)size;
}

/* Frees large blocks of the pool, the largest first, until no more than `target` bytes are reserved. */
static void free_large(int64_t target)
{
    size_t size;
    int lowest = size_class(LARGE - RED_ZONE, &size);
    for (int class = CLASSES - 1; class >= lowest && pool.reserved > target; class --) {
        size = (size_t)(class % STEPS + STEPS + 1) << (class / STEPS - 1);
        for (void *memory; pool.reserved > target && (memory = pop(class));)
            unmap(memory, size * UNIT);
    }
}

/* Frees the chunks without a block in use. */
static void free_chunks(void)
{
    size_t size;
    int end = size_class(LARGE - RED_ZONE, &size);
    for (int class = 0; class < end; class ++) {
        for (block **link = &pool.free[class]; *link;) {
            block *b = *link;
            UNPOISON(b, sizeof *b);
            if (chunk_of(b)->live == 0) {
                *link = b->next;
            } else {
                link = &b->next;
            }
        }
        for (block *b = pool.free[class], *next; b; b = next) {
            next = b->next;
            POISON(b, sizeof *b);
        }
    }
    for (chunk **link = &pool.chunks; *link;) {
        chunk *c = *link;
        if (c->live == 0) {
            *link = c->next;
            unmap(c, CHUNK);
        } else {
            link = &c->next;
        }
    }
}

static void *cut(size_t size)
{
    chunk *c = pool.chunks;
    if (!c || c->used + size > CHUNK) {
        c = map(CHUNK, CHUNK);
        if (!c)
            return NULL;
        *c = (chunk){.next = pool.chunks, .used = CHUNK_HEADER};
        pool.chunks = c;
        POISON((char *)c + CHUNK_HEADER, CHUNK - CHUNK_HEADER);
    }
    void *memory = (char *)c + c->used;
    c->used += size;
    return memory;
}

/* A new large block. The pool keeps at most a quarter of the peak in use, so that shapes that change from step to
 * step do not add up. */
static void *map_large(size_t size, size_t bytes)
{
    int64_t high = pool.current + (int64_t)bytes > pool.high ? pool.current + (int64_t)bytes : pool.high;
    int64_t bound = high + high / 4 + SLACK;
    if (pool.reserved + (int64_t)size > bound)
        free_large(bound - (int64_t)size);
    return map(size, size >= HUGE_PAGE ? HUGE_PAGE : UNIT);
}

static void *take(size_t bytes)
{
    size_t size;
    int class = size_class(bytes, &size);
    void *memory = pop(class);
    for (int attempt = 0; !memory && attempt < 2; attempt++) {
        if (attempt > 0) {
            free_large(0);
            free_chunks();
        }
        memory = size >= LARGE ? map_large(size, bytes) : cut(size);
    }
    if (!memory)
        return NULL;
    if (size < LARGE)
        chunk_of(memory)->live++;
    pool.current += (int64_t)bytes;
    if (pool.current > pool.peak)
        pool.peak = pool.current;
    if (pool.current > pool.high)
        pool.high = pool.current;
    mark_red_zone(memory, bytes, size);
    POISON(memory, size);
    UNPOISON(memory, bytes);
    return memory;
}

void *shard_cpu_allocate(shard_device *device, size_t bytes)
{
    (void)device;
    pthread_once(&fork_once, survive_fork);
    lock_pool();
    void *memory = bytes <= LARGEST ? take(bytes) : NULL;
    long long current = pool.current;
    unlock_pool();
    if (!memory)
        return shard_fail_null(
            SHARD_ERROR_MEMORY,
            "cpu: the system gives no memory for %zu bytes more; %lld are in use: take a smaller batch or more ranks", bytes,
            current);
#ifdef ADDRESS_SANITIZER
    memset(memory, 0xff, bytes);
#endif
    return memory;
}

void shard_cpu_release(shard_device *device, void *memory, size_t bytes)
{
    (void)device;
    if (!memory)
        return;
#ifdef ADDRESS_SANITIZER
    (void)*(volatile char *)memory; /* poisoned if it was released already */
#endif
    size_t size;
    int class = size_class(bytes, &size);
    lock_pool();
    UNPOISON(memory, size);
    check_red_zone(memory, bytes, size);
    if (size < LARGE)
        chunk_of(memory)->live--;
    push(class, memory, size);
    pool.current -= (int64_t)bytes;
    unlock_pool();
}

void *shard_cpu_scratch(shard_device *device, size_t bytes)
{
    return shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
}

void shard_cpu_scratch_release(shard_device *device, void *memory, size_t bytes)
{
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, memory, bytes);
}

/* Inputs are not copied: the CPU reads them at their address. */
void *shard_cpu_allocate_host(shard_device *device, size_t bytes)
{
    return shard_device_allocate(device, SHARD_MEMORY_ACTIVATIONS, bytes);
}

void shard_cpu_release_host(shard_device *device, void *memory, size_t bytes)
{
    shard_device_release(device, SHARD_MEMORY_ACTIVATIONS, memory, bytes);
}

void shard_cpu_memory_stats(const shard_device *device, shard_memory_stats *stats)
{
    (void)device;
    lock_pool();
    *stats = (shard_memory_stats){.current = pool.current, .peak = pool.peak, .reserved = pool.reserved};
    unlock_pool();
}

void shard_cpu_reset_peak(shard_device *device)
{
    (void)device;
    lock_pool();
    pool.peak = pool.current;
    unlock_pool();
}

void shard_cpu_trim(shard_device *device)
{
    (void)device;
    lock_pool();
    free_large(0);
    free_chunks();
    unlock_pool();
}
