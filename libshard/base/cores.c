/* Uses nothing else of the library, as it is a part of shardrun, too. */
#include "base/cores.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *shard_cores_root = "";

/* Up to two numbers of the file's first line; how many there are. */
static int read_numbers(const char *folder, const char *name, double *first, double *second)
{
    char path[PATH_MAX], line[128], *end, *rest;
    FILE *file = snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return 0;
    const char *numbers = fgets(line, sizeof line, file);
    fclose(file);
    if (!numbers)
        return 0;
    *first = strtod(numbers, &end);
    if (end == numbers)
        return 0;
    *second = strtod(end, &rest);
    return rest == end ? 1 : 2;
}

/* Of version 2 ("max" in place of the first number: no limit) or of version 1 (-1: no limit). */
static void take_limit(const char *folder, shard_cpu_quota *least)
{
    struct stat status;
    double quota, period, unused;
    bool limited = read_numbers(folder, "cpu.max", &quota, &period) == 2 ||
                   (read_numbers(folder, "cpu.cfs_quota_us", &quota, &unused) == 1 &&
                    read_numbers(folder, "cpu.cfs_period_us", &period, &unused) == 1);
    if (!limited || !(quota > 0) || !(period > 0) || quota / period >= least->cores || stat(folder, &status) != 0)
        return;
    int whole = (int)(quota / period);
    int cores = whole + (whole < quota / period);
    if (cores < least->cores)
        *least = (shard_cpu_quota){cores, status.st_ino};
}

/* Those of the group and of all that it lies in. In a container the path may be that of the host, and the mounted folder the
 * group. */
static void take_limits(const char *mounted, const char *path, shard_cpu_quota *least)
{
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", shard_cores_root, mounted, path);
    if (length >= (int)sizeof folder)
        return;
    take_limit(folder, least);
    for (char *end = folder + length, *top = end - strlen(path); end > top;)
        if (*--end == '/') {
            *end = '\0';
            take_limit(folder, least);
        }
}

/* Whether a list with commas has the name of the controller of processor time. */
static bool has_cpu(const char *controllers)
{
    for (const char *name = controllers; name; name = strchr(name, ',')) {
        name += *name == ',';
        if (strncmp(name, "cpu", 3) == 0 && (name[3] == ',' || name[3] == '\0'))
            return true;
    }
    return false;
}

shard_cpu_quota shard_find_cpu_quota(void)
{
    shard_cpu_quota least = {INT_MAX, 0};
    char path[PATH_MAX], *line = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", shard_cores_root);
    FILE *file = fopen(path, "re");
    while (file && getline(&line, &bytes, file) > 0) { /* "number:controllers:path"; of version 2 without controllers */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (controllers[1] == '\0')
            take_limits("", group, &least);
        else if (has_cpu(controllers + 1))
            take_limits("/cpu", group, &least);
    }
    free(line);
    if (file)
        fclose(file);
    return least;
}

/* The cores that the process is bound to. The kernel refuses a mask that is smaller than its own. */
static int count_bound_cores(void)
{
    for (size_t bits = CPU_SETSIZE; bits <= 1 << 16; bits *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(bits);
        cpu_set_t *cores = calloc(1, bytes);
        bool known = cores && sched_getaffinity(0, bytes, cores) == 0;
        int count = known ? CPU_COUNT_S(bytes, cores) : 1;
        bool larger = cores && !known && errno == EINVAL;
        free(cores);
        if (!larger)
            return count;
    }
    return 1;
}

int shard_count_cores(void)
{
    int bound = count_bound_cores();
    int paid = shard_find_cpu_quota().cores;
    return bound < paid ? bound : paid;
}
