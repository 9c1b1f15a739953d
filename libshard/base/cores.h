/* How many cores this process may use. */
#ifndef SHARD_BASE_CORES_H
#define SHARD_BASE_CORES_H

#include <stdint.h>

/* The processor time of control groups (cgroups, versions 1 and 2), as of a container's --cpus. */
typedef struct shard_cpu_quota {
    int cores;      /* that run all the time use it up; rounded up. INT_MAX without a limit */
    uint64_t group; /* the same number for the processes of the machine that share it; 0 without a limit */
} shard_cpu_quota;

/* The least of the groups that this process belongs to. */
shard_cpu_quota shard_find_cpu_quota(void);

/* Cores that this process is bound to, or that its quota pays for if these are fewer; at least 1. */
int shard_count_cores(void);

/* A folder that is read in place of / by tests. */
extern const char *shard_cores_root;

#endif
