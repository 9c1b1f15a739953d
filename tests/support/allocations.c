#include "support/allocations.h"

#include "base/error.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- what is live: a table of addresses ---- */

enum { SLOTS = 1 << 17 };
#define GONE ((void *)1)
static void *slots[SLOTS];
static int64_t live;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t slot_of(const void *memory)
{
    return (size_t)(((uintptr_t)memory >> 4) * 0x9e3779b97f4a7c15u >> 47);
}

static void *remember(void *memory)
{
    if (!memory)
        return NULL;
    pthread_mutex_lock(&lock);
    size_t at = slot_of(memory) % SLOTS;
    while (slots[at] && slots[at] != GONE)
        at = (at + 1) % SLOTS;
    slots[at] = memory;
    live++;
    pthread_mutex_unlock(&lock);
    return memory;
}

/* Any memory that is freed; most is not in the table. */
static void forget(const void *memory)
{
    if (!memory || live == 0)
        return;
    pthread_mutex_lock(&lock);
    size_t at = slot_of(memory) % SLOTS;
    while (slots[at] && slots[at] != memory)
        at = (at + 1) % SLOTS;
    if (slots[at]) {
        slots[at] = slots[(at + 1) % SLOTS] ? GONE : NULL;
        live--;
    }
    pthread_mutex_unlock(&lock);
}

/* The library frees by free(). */
#ifdef __SANITIZE_ADDRESS__
/* As in sanitizer/allocator_interface.h, which gcc does not install. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_allocation)(const volatile void *memory, size_t bytes),
                                              void (*on_free)(const volatile void *memory));

static void on_allocation(const volatile void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
}

static void on_free(const volatile void *memory)
{
    forget((const void *)memory);
}

static void follow_free(void)
{
    static bool installed;
    if (!installed)
        __sanitizer_install_malloc_and_free_hooks(on_allocation, on_free);
    installed = true;
}
#else
void __libc_free(void *memory);

void free(void *memory)
{
    forget(memory);
    __libc_free(memory);
}

static void follow_free(void)
{
}
#endif

/* ---- failing ---- */

static _Atomic int64_t left; /* until one fails; 0 or less: none does */
static _Atomic bool failed;

traced_function *traced_functions;
static _Thread_local int inside[32], depth;

void traced_enter(int function)
{
    if (depth < 32)
        inside[depth] = function;
    depth++;
    if (traced_functions)
        traced_functions[function].called = 1;
}

void traced_leave(void)
{
    depth--;
}

/* Whether this one fails. */
static bool count(void)
{
    bool armed = atomic_load(&left) > 0, fails = armed && atomic_fetch_sub(&left, 1) == 1;
    for (int i = 0; i < depth && i < 32 && traced_functions && armed; i++) {
        traced_functions[inside[i]].allocated = 1;
        if (fails)
            traced_functions[inside[i]].failed = 1;
    }
    if (fails)
        atomic_store(&failed, true);
    return fails;
}

static void *counted_calloc(size_t number, size_t size)
{
    return count() ? NULL : remember(calloc(number, size));
}

static void *counted_realloc(void *memory, size_t bytes)
{
    if (count())
        return NULL;
    forget(memory);
    return remember(realloc(memory, bytes));
}

static void *counted_allocate(shard_device *device, size_t bytes);

static struct {
    shard_device *device;
    const shard_device_ops *ops;
    shard_device_ops counted;
} devices[2];

static void *counted_allocate(shard_device *device, size_t bytes)
{
    if (count())
        return shard_fail_null(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes", device->name, bytes);
    return devices[device == devices[1].device].ops->allocate(device, bytes);
}

static void *counted_allocate_host(shard_device *device, size_t bytes)
{
    if (count())
        return shard_fail_null(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes", device->name, bytes);
    return devices[device == devices[1].device].ops->allocate_host(device, bytes);
}

static void watch_device(int i, shard_device *device)
{
    devices[i].device = device;
    devices[i].ops = device->ops;
    devices[i].counted = *device->ops;
    devices[i].counted.allocate = counted_allocate;
    devices[i].counted.allocate_host = counted_allocate_host;
    device->ops = &devices[i].counted;
}

void allocations_watch(shard_device *device)
{
    static const shard_memory_calls calls = {counted_calloc, counted_realloc};
    watch_device(0, shard_cpu());
    if (device != shard_cpu())
        watch_device(1, device);
    follow_free();
    shard_memory_calls_used = &calls;
}

void allocations_fail_at(int64_t number)
{
    atomic_store(&failed, false);
    atomic_store(&left, number);
}

bool allocations_failed(void)
{
    return atomic_load(&failed);
}

allocations_live allocations_now(void)
{
    allocations_live now = {.count = live};
    for (int i = 0; i < 2 && devices[i].device; i++)
        for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++)
            now.device_bytes += devices[i].device->memory[kind].current;
    return now;
}
