/* The CPU's pool: alignment, reuse, counting, trimming, threads, fork, failure; and copies. */
#include "support/check.h"

#include "device/device.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif

static void *get(size_t bytes)
{
    void *memory = shard_cpu()->ops->allocate(shard_cpu(), bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void put(void *memory, size_t bytes)
{
    shard_cpu()->ops->release(shard_cpu(), memory, bytes);
}

static shard_memory_stats stats(void)
{
    return shard_get_memory_stats(shard_cpu());
}

START_TEST(counts_requested_bytes)
{
    void *a = get(1000), *b = get(3000001);
    ck_assert_int_eq(stats().current, 3001001);
    put(b, 3000001);
    ck_assert_int_eq(stats().current, 1000);
    ck_assert_int_eq(stats().peak, 3001001);
    shard_reset_peak_memory(shard_cpu());
    ck_assert_int_eq(stats().peak, 1000);
    put(a, 1000);
    ck_assert_int_eq(stats().current, 0);
    ck_assert_int_eq(stats().peak, 1000);
}
END_TEST

START_TEST(aligns_and_keeps_apart)
{
    enum { COUNT = 400 };
    static unsigned char *memory[COUNT];
    static size_t bytes[COUNT];
    size_t size = 1;
    for (int i = 0; i < COUNT; i++) {
        bytes[i] = size;
        memory[i] = get(size);
        ck_assert_uint_eq((uintptr_t)memory[i] % 64, 0);
        if (size >= (size_t)2 << 20)
            ck_assert_uint_eq((uintptr_t)memory[i] % ((size_t)2 << 20), 0);
        memset(memory[i], i & 0xff, size);
        size += 1 + size / 29;
        if (size > (size_t)12 << 20)
            size = 1 + (size_t)i;
    }
    for (int i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(memory[i][0], (unsigned)i & 0xff);
        ck_assert_uint_eq(memory[i][bytes[i] / 2], (unsigned)i & 0xff);
        ck_assert_uint_eq(memory[i][bytes[i] - 1], (unsigned)i & 0xff);
        put(memory[i], bytes[i]);
    }
    ck_assert_int_eq(stats().current, 0);
}
END_TEST

/* Whether the flags of the mapping that has this address are known, and hg, for huge pages, is one of them. */
static bool has_flags(const void *memory, bool *huge)
{
    char line[512];
    bool mapped = false, known = false;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (smaps && !known && fgets(line, sizeof line, smaps)) {
        unsigned long long start, end;
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            mapped = start <= (uintptr_t)memory && (uintptr_t)memory < end;
        known = mapped && strncmp(line, "VmFlags:", 8) == 0;
    }
    *huge = known && strstr(line, " hg") != NULL;
    if (smaps)
        fclose(smaps);
    return known;
}

START_TEST(asks_for_huge_pages)
{
    enum { HUGE_PAGE = 2 << 20, BYTES = 4 * HUGE_PAGE };
    char *memory = get(BYTES);
    bool huge = false;
    ck_assert_uint_eq((uintptr_t)memory % HUGE_PAGE, 0);
    bool known = access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0 && has_flags(memory, &huge);
    ck_assert(!known || huge);
    put(memory, BYTES);
}
END_TEST

/* Every size of a class comes out of the same block, and little is lost. */
START_TEST(reuses_blocks)
{
    static const size_t sizes[] = {1, 64, 65, 1000, 1025, 4097, 100000, 262144, 262145, 1000000, 2097153, 50000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *first = get(sizes[i]);
        put(first, sizes[i]);
        int64_t reserved = stats().reserved;
        void *second = get(sizes[i]);
        ck_assert_ptr_eq(first, second);
        ck_assert_int_eq(stats().reserved, reserved);
        put(second, sizes[i]);
    }
}
END_TEST

START_TEST(wastes_little)
{
    size_t bytes = 2000000, total = 0;
    int64_t before = stats().reserved;
    for (int i = 0; i < 60; i++) {
        get(bytes);
        total += bytes;
        bytes += bytes / 50;
    }
    int64_t reserved = stats().reserved - before;
    ck_assert_int_ge(reserved, (int64_t)total);
    ck_assert_int_le(reserved, (int64_t)(total + total / 16));
}
END_TEST

START_TEST(trims)
{
    void *small = get(100), *kept = get(300), *large = get(30000000);
    put(large, 30000000);
    ck_assert_int_ge(stats().reserved, 30000000);
    shard_trim_memory(shard_cpu());
    ck_assert_int_lt(stats().reserved, 30000000);
    ck_assert_int_gt(stats().reserved, 0);
    memset(kept, 1, 300); /* its chunk must still be there */
    put(small, 100);
    put(kept, 300);
    shard_trim_memory(shard_cpu());
    ck_assert_int_eq(stats().reserved, 0);
    memset(get(100), 1, 100);
}
END_TEST

/* Shapes that change from step to step must not add up. */
START_TEST(bounds_what_it_keeps)
{
    size_t bytes = (size_t)100 << 20;
    for (int i = 0; i < 40; i++) {
        put(get(bytes), bytes);
        bytes += (size_t)8 << 20;
    }
    ck_assert_int_le(stats().reserved, stats().peak + stats().peak / 4 + ((int64_t)64 << 20));
}
END_TEST

START_TEST(reports_failure)
{
    void *kept = get(10);
    ck_assert_ptr_null(shard_cpu()->ops->allocate(shard_cpu(), (size_t)1 << 47));
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_MEMORY);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "140737488355328 bytes"));
    shard_clear_error();
    ck_assert_ptr_null(shard_cpu()->ops->allocate(shard_cpu(), SIZE_MAX));
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_MEMORY);
    ck_assert_int_eq(stats().current, 10);
    put(kept, 10);
}
END_TEST

static void *churn(void *argument)
{
    uint32_t state = (uint32_t)(uintptr_t)argument * 2654435761u + 1;
    unsigned char *held[32] = {0}, mark[32];
    size_t bytes[32];
    for (int i = 0; i < 20000; i++) {
        state = state * 1664525u + 1013904223u;
        int slot = (int)(state >> 27);
        if (held[slot]) {
            if (held[slot][0] != mark[slot] || held[slot][bytes[slot] - 1] != mark[slot])
                return "another thread wrote here";
            put(held[slot], bytes[slot]);
        }
        bytes[slot] = 1 + (state >> 8) % (i % 50 ? 5000 : 600000);
        mark[slot] = (unsigned char)state;
        held[slot] = get(bytes[slot]);
        held[slot][0] = held[slot][bytes[slot] - 1] = mark[slot];
    }
    for (int slot = 0; slot < 32; slot++) {
        if (held[slot])
            put(held[slot], bytes[slot]);
    }
    return NULL;
}

START_TEST(serves_threads)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
    for (int i = 0; i < 4; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        ck_assert_msg(!problem, "%s", (const char *)problem);
    }
    ck_assert_int_eq(stats().current, 0);
}
END_TEST

static void *churn_for_ever(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
        put(get(100), 100);
    return NULL;
}

/* The lock may be held by another thread at the moment of the fork. */
START_TEST(survives_fork)
{
    int stop = 0;
    pthread_t thread;
    unsigned char *kept = get(1000);
    kept[0] = 7;
    ck_assert_int_eq(pthread_create(&thread, NULL, churn_for_ever, &stop), 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            unsigned char *fresh = shard_cpu()->ops->allocate(shard_cpu(), 100);
            _exit(fresh && kept[0] == 7 ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}
END_TEST

#ifdef ADDRESS_SANITIZER
static int touch_in_child(volatile char *memory)
{
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        *memory = 1;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return status;
}

START_TEST(poisons_what_is_free)
{
    char *memory = get(1000);
    ck_assert_int_eq(touch_in_child(memory + 999), 0);
    ck_assert_int_ne(touch_in_child(memory + 1000), 0);
    put(memory, 1000);
    ck_assert_int_ne(touch_in_child(memory), 0);
    ck_assert_int_ne(touch_in_child(memory + 500), 0);
}
END_TEST

/* As generated code does, which the sanitizer does not see. */
__attribute__((no_sanitize_address)) static void write_behind(char *memory, size_t at)
{
    ((volatile char *)memory)[at] = 0;
}

START_TEST(finds_what_generated_code_writes)
{
    static const size_t sizes[] = {1, 60, 1000, 300001, 3000000};
    char *memory = get(sizes[_i]);
    put(get(sizes[_i]), sizes[_i]);
    write_behind(memory, sizes[_i] + 3);
    put(memory, sizes[_i]);
}
END_TEST
#endif

static void fill_pattern(unsigned char *memory, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)((i * 167 + seed) >> 3);
}

START_TEST(copies)
{
    const shard_device_ops *ops = shard_cpu()->ops;
    static const size_t sizes[] = {0, 1, 1000, 5000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        unsigned char *host = malloc(bytes + 1), *back = calloc(bytes + 1, 1);
        unsigned char *device = get(bytes + 1);
        fill_pattern(host, bytes + 1, 5);
        device[bytes] = 99;
        ck_assert_int_eq(ops->copy_in(shard_cpu(), device, host, bytes), SHARD_OK);
        ck_assert_uint_eq(device[bytes], 99);
        ck_assert_int_eq(ops->copy_out(shard_cpu(), back, device, bytes), SHARD_OK);
        ck_assert_mem_eq(host, back, bytes);
        ck_assert_uint_eq(back[bytes], 0);
        ck_assert_int_eq(ops->zero(shard_cpu(), device, bytes), SHARD_OK);
        ck_assert_uint_eq(device[bytes], 99);
        for (size_t j = 0; j < bytes; j++)
            ck_assert_msg(device[j] == 0, "byte %zu is not zero", j);
        put(device, bytes + 1);
        free(host);
        free(back);
    }
}
END_TEST

START_TEST(copies_rows)
{
    static const struct {
        size_t width, rows, to_pitch, from_pitch;
    } cases[] = {{0, 5, 8, 8},
                 {7, 0, 8, 9},
                 {7, 9, 7, 7},
                 {7, 9, 8, 13},
                 {3000, 900, 3000, 5000},
                 {3000, 900, 5000, 3000},
                 {2500000, 3, 2600000, 2500001}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t width = cases[i].width, rows = cases[i].rows, to_pitch = cases[i].to_pitch, from_pitch = cases[i].from_pitch;
        unsigned char *from = get(from_pitch * rows + 1), *to = get(to_pitch * rows + 1);
        fill_pattern(from, from_pitch * rows, 3);
        memset(to, 77, to_pitch * rows + 1);
        ck_assert_int_eq(shard_cpu()->ops->copy_rows(shard_cpu(), to, to_pitch, from, from_pitch, width, rows), SHARD_OK);
        for (size_t r = 0; r < rows; r++) {
            ck_assert_mem_eq(to + r * to_pitch, from + r * from_pitch, width);
            for (size_t j = width; j < to_pitch; j++)
                ck_assert_uint_eq(to[r * to_pitch + j], 77);
        }
        ck_assert_uint_eq(to[to_pitch * rows], 77);
        put(from, from_pitch * rows + 1);
        put(to, to_pitch * rows + 1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory_pool");
    TCase *pool = test_case(suite, "pool");
    tcase_add_test(pool, counts_requested_bytes);
    tcase_add_test(pool, aligns_and_keeps_apart);
    tcase_add_test(pool, asks_for_huge_pages);
    tcase_add_test(pool, reuses_blocks);
    tcase_add_test(pool, wastes_little);
    tcase_add_test(pool, trims);
    tcase_add_test(pool, bounds_what_it_keeps);
    tcase_add_test(pool, reports_failure);
    tcase_add_test(pool, serves_threads);
    tcase_add_test(pool, survives_fork);
#ifdef ADDRESS_SANITIZER
    tcase_add_test(pool, poisons_what_is_free);
    tcase_add_loop_test_raise_signal(pool, finds_what_generated_code_writes, SIGABRT, 0, 5);
#endif
    TCase *copying = test_case(suite, "copies");
    tcase_add_test(copying, copies);
    tcase_add_test(copying, copies_rows);
    return test_run_on_cpu(suite);
}
