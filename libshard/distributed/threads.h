/* How many threads a rank computes with on the CPU. */
#ifndef SHARD_DIST_THREADS_H
#define SHARD_DIST_THREADS_H

#include "base/cores.h"

#include <shard/comm.h>

#include <sched.h>

/* Where a rank runs. */
typedef struct shard_rank_cores {
    uint64_t host;   /* shard_hash_machine() */
    cpu_set_t cores; /* that it may run on */
    shard_cpu_quota quota;
} shard_rank_cores;

/* This rank's even share, rounded down, of the cores that it may run on, or of its quota if that is less; at least 1. */
int shard_fair_threads(const shard_rank_cores *all, int ranks, int rank);

/* shardrun says OMP_NUM_THREADS, an mpirun often nothing: then each rank would take all cores,
 * which all of its machine share. Nor does OpenMP know a quota. Collective over the world. */
shard_status shard_share_cores(shard_group *world);

#endif
