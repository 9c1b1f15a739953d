/* How many cores a process may use: the quotas of control groups, in folders that stand in for / */
#include "support/ranks.h"
#include "support/scratch.h"

#include "base/cores.h"
#include "comm/comm.h"
#include "comm/shm/shm.h"
#include "device/device.h"
#include "distributed/threads.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct quota_case {
    const char *files[8]; /* a path and what the file holds, in turns */
    int cores;
    const char *group; /* the folder whose limit it is; NULL: none has one */
} quota_case;

/* Version 1's file of the period is added to each that has a quota. */
static const quota_case cases[] = {
    {{NULL}, INT_MAX, NULL},
    {{"proc/self/cgroup", "0::/\n"}, INT_MAX, NULL},
    /* a container of version 2, with a limit, a part of a core, without one */
    {{"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "200000 100000\n"}, 2, "sys/fs/cgroup"},
    {{"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "210000 100000\n"}, 3, "sys/fs/cgroup"},
    {{"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "1000 100000\n"}, 1, "sys/fs/cgroup"},
    {{"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n"}, INT_MAX, NULL},
    /* groups in groups: the least */
    {{"proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "800000 100000\n", "sys/fs/cgroup/a/cpu.max",
      "50000 10000\n"},
     5,
     "sys/fs/cgroup/a"},
    {{"proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n", "sys/fs/cgroup/a/cpu.max",
      "50000 10000\n"},
     4,
     "sys/fs/cgroup/a/b"},
    {{"proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "max 100000\n", "sys/fs/cgroup/a/cpu.max", "50000 10000\n"},
     5,
     "sys/fs/cgroup/a"},
    /* version 1, on the host, and in a container, which has the host's path */
    {{"proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "600000\n"},
     6,
     "sys/fs/cgroup/cpu/a"},
    {{"proc/self/cgroup", "3:cpuacct,cpu:/docker/17\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
     2,
     "sys/fs/cgroup/cpu"},
    {{"proc/self/cgroup", "3:cpu:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n"}, INT_MAX, NULL},
    {{"proc/self/cgroup", "3:cpuset:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000\n"}, INT_MAX, NULL},
    /* what no kernel writes */
    {{"proc/self/cgroup", "cpu\n:\n0::\n", "sys/fs/cgroup/cpu.max", "0 0\n"}, INT_MAX, NULL},
    {{"proc/self/cgroup", "0::/", "sys/fs/cgroup/cpu.max", "nan nan\n"}, INT_MAX, NULL},
    {{"proc/self/cgroup", "0::/", "sys/fs/cgroup/cpu.max", ""}, INT_MAX, NULL},
};

static void write_below(const char *root, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *end = path + strlen(root); end; end = strchr(end + 1, '/')) {
        *end = '\0';
        mkdir(path, 0777);
        *end = '/';
    }
    write_file(path, text, strlen(text));
}

/* The root of a machine with these files. */
static const char *make_root(const char *name, const char *const *files)
{
    static char root[PATH_MAX];
    snprintf(root, sizeof root, "%s", scratch_path(name));
    mkdir(root, 0777);
    for (; *files; files += 2) {
        char period[PATH_MAX], *quota;
        write_below(root, files[0], files[1]);
        snprintf(period, sizeof period, "%s", files[0]);
        if ((quota = strstr(period, "quota")) != NULL) {
            strcpy(quota, "period_us");
            write_below(root, period, "100000\n");
        }
    }
    return root;
}

START_TEST(test_quota)
{
    const quota_case *c = &cases[_i];
    char name[16], path[PATH_MAX];
    struct stat group = {0};
    snprintf(name, sizeof name, "root%d", _i);
    shard_cores_root = make_root(name, c->files);
    shard_cpu_quota quota = shard_find_cpu_quota();
    if (c->group) {
        snprintf(path, sizeof path, "%s/%s", shard_cores_root, c->group);
        ck_assert_int_eq(stat(path, &group), 0);
    }
    ck_assert_int_eq(quota.cores, c->cores);
    ck_assert_uint_eq(quota.group, group.st_ino);
}
END_TEST

static const char *const one_core[] = {"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "100000 100000\n", NULL};
static const char *const three_cores[] = {"proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "300000 100000\n", NULL};
static const char *const no_quota[] = {NULL};

START_TEST(test_count)
{
    cpu_set_t bound;
    ck_assert_int_eq(sched_getaffinity(0, sizeof bound, &bound), 0);
    shard_cores_root = make_root("free", no_quota);
    ck_assert_int_eq(shard_count_cores(), CPU_COUNT(&bound));
    shard_cores_root = make_root("one", one_core);
    ck_assert_int_eq(shard_count_cores(), 1);
}
END_TEST

/* Ranks that have no core each do not spin for long. */
static void waits(shard_group *world, void *context)
{
    (void)context;
    shm_world *shm = ((shm_group *)world->state)->world;
    cpu_set_t bound;
    sched_getaffinity(0, sizeof bound, &bound);
    shard_cores_root = make_root("spinning", no_quota);
    shm_set_patience(shm);
    int spins = shm->spins;
    shard_cores_root = make_root("yielding", one_core);
    shm_set_patience(shm);
    ck_assert(CPU_COUNT(&bound) < 2 || shm->spins < spins);
}

START_TEST(test_waits)
{
    run_ranks(2, waits);
}
END_TEST

#ifdef _OPENMP
#define WITH_OPENMP(threads) (threads)
#else
#define WITH_OPENMP(threads) 1
#endif

/* A single rank's threads, too, which OpenMP would make as many as it is bound to cores. */
static void computes(shard_group *world, void *context)
{
    (void)context;
    unsetenv("OMP_NUM_THREADS");
    shard_cpu_set_threads(7);
    shard_cores_root = make_root("computing", no_quota);
    check_ok(shard_share_cores(world));
    ck_assert_int_eq(shard_cpu_threads(), WITH_OPENMP(7));
    shard_cores_root = make_root("limited", three_cores);
    setenv("OMP_NUM_THREADS", "7", 1);
    check_ok(shard_share_cores(world));
    ck_assert_int_eq(shard_cpu_threads(), WITH_OPENMP(7));
    unsetenv("OMP_NUM_THREADS");
    check_ok(shard_share_cores(world));
    ck_assert_int_eq(shard_cpu_threads(), WITH_OPENMP(3));
}

START_TEST(test_computes)
{
    run_ranks(1, computes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cores");
    TCase *tcase = test_case(suite, "cores");
    tcase_add_loop_test(tcase, test_quota, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tcase, test_count);
    tcase_add_test(tcase, test_waits);
    tcase_add_test(tcase, test_computes);
    scratch_open();
    int failures = test_run(suite);
    scratch_close();
    return failures;
}
