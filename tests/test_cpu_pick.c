/* The choice of the instruction set: SHARD_CPU_ISA, and that it starts no thread. */
#include "support/check.h"

#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/pick.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void add_line(shard_log_level level, int rank, const char *line, void *lines)
{
    (void)level, (void)rank;
    strncat(lines, line, 200);
}

/* The log names the set that is taken, and no other. */
START_TEST(takes_the_best)
{
    unsetenv("SHARD_CPU_ISA");
    setenv("SHARD_LOG", "debug", 1);
    const shard_device_ops *best = NULL, *kernels;
    const char *set;
    char lines[1000] = "", wanted[100] = "";
    bool runs;
    for (int i = 0; (kernels = shard_cpu_kernel_set(i, &set, &runs)); i++) {
        best = runs ? kernels : best;
        if (runs)
            snprintf(wanted, sizeof wanted, "cpu: kernels of instruction set %s", set);
    }
    ck_assert_ptr_nonnull(best);
    shard_set_log_function(add_line, lines);
    ck_assert_ptr_eq(shard_cpu_kernels(), best);
    shard_set_log_function(NULL, NULL);
    ck_assert_str_eq(lines, wanted);
    ck_assert_int_eq(threads(), 1);
}
END_TEST

START_TEST(takes_the_named)
{
    const shard_device_ops *kernels;
    const char *set;
    bool runs;
    kernels = shard_cpu_kernel_set(_i, &set, &runs);
    if (!kernels)
        return;
    setenv("SHARD_CPU_ISA", set, 1);
    shard_device *cpu = shard_cpu();
    if (!runs) {
        ck_assert_ptr_null(cpu);
        ck_assert_int_eq(shard_last_status(), SHARD_ERROR_UNSUPPORTED);
        return;
    }
    ck_assert_ptr_nonnull(cpu);
    ck_assert_ptr_eq(shard_cpu_kernels(), kernels);
#define SHARD_KERNEL_ENTRY(result, name, ...)                                                                                    \
    ck_assert_ptr_nonnull(kernels->name);                                                                                        \
    ck_assert(cpu->ops->name == kernels->name);                                                                                  \
    for (int other = 0; other < _i; other++)                                                                                     \
        ck_assert(shard_cpu_kernel_set(other, &set, &runs)->name != kernels->name);
#include "device/entries.h"
}
END_TEST

START_TEST(refuses_the_unknown)
{
    setenv("SHARD_CPU_ISA", "v9", 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(shard_device_open("cpu"));
        ck_assert_int_eq(shard_last_status(), SHARD_ERROR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(shard_last_error(), "SHARD_CPU_ISA is \"v9\""));
        shard_clear_error();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_pick");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, takes_the_best);
    tcase_add_loop_test(all, takes_the_named, 0, 3);
    tcase_add_test(all, refuses_the_unknown);
    return test_run_on_cpu(suite);
}
