#include "support/heap.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>

static atomic_llong now, peak;
static _Thread_local int allocations_left = -1;

static void count(long long bytes)
{
    long long sum = atomic_fetch_add(&now, bytes) + bytes, before = atomic_load(&peak);
    while (sum > before && !atomic_compare_exchange_weak(&peak, &before, sum))
        ;
}

void heap_start(void)
{
    atomic_store(&now, 0);
    atomic_store(&peak, 0);
}

size_t heap_peak(void)
{
    return (size_t)atomic_load(&peak);
}

void heap_fail_after(int number)
{
    allocations_left = number;
}

#ifdef __has_feature /* clang */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef __SANITIZE_ADDRESS__

/* Of sanitizer/allocator_interface.h, which gcc does not install. */
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *memory, size_t bytes),
                                              void (*free_hook)(const volatile void *memory));
size_t __sanitizer_get_allocated_size(const volatile void *memory);

static void allocated(const volatile void *memory, size_t bytes)
{
    (void)memory;
    count((long long)bytes);
}

static void freed(const volatile void *memory)
{
    if (memory)
        count(-(long long)__sanitizer_get_allocated_size(memory));
}

__attribute__((constructor)) static void install(void)
{
    __sanitizer_install_malloc_and_free_hooks(allocated, freed);
}

bool heap_can_fail(void)
{
    return false;
}

#else

/* Of the GNU C library. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t number, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

static bool fails(void)
{
    if (allocations_left > 0)
        allocations_left--;
    else if (allocations_left == 0)
        return true;
    return false;
}

static void *counted(void *memory)
{
    if (memory)
        count((long long)malloc_usable_size(memory));
    return memory;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t number, size_t bytes)
{
    return fails() ? NULL : counted(__libc_calloc(number, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    long long before = memory ? (long long)malloc_usable_size(memory) : 0;
    void *moved = fails() ? NULL : counted(__libc_realloc(memory, bytes));
    if (moved)
        count(-before);
    return moved;
}

void free(void *memory)
{
    if (memory)
        count(-(long long)malloc_usable_size(memory));
    __libc_free(memory);
}

bool heap_can_fail(void)
{
    return true;
}

#endif
