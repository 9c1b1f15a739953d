#include "distributed/threads.h"

#include "base/env.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "device/device.h"

#include <stdlib.h>

int shard_fair_threads(const shard_rank_cores *all, int ranks, int rank)
{
    const shard_rank_cores *own = &all[rank];
    double share = 0;
    int payers = 0;
    for (int i = 0; i < ranks; i++)
        payers += all[i].host == own->host && all[i].quota.group == own->quota.group;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        int sharers = 0;
        for (int i = 0; i < ranks && CPU_ISSET(core, &own->cores); i++)
            sharers += all[i].host == own->host && CPU_ISSET(core, &all[i].cores);
        share += sharers > 0 ? 1.0 / sharers : 0;
    }
    int paid = own->quota.cores / payers;
    if (share > paid)
        share = paid;
    return share < 1 ? 1 : (int)(share + 1e-6); /* three thirds are one */
}

static shard_rank_cores own_rank_cores(void)
{
    shard_rank_cores made = {.host = shard_hash_machine(), .quota = shard_find_cpu_quota()};
    if (sched_getaffinity(0, sizeof made.cores, &made.cores) != 0) /* a machine with more processors than a mask has bits */
        CPU_ZERO(&made.cores);
    return made;
}

static void limit_threads(int threads)
{
    if (shard_env_string("OMP_NUM_THREADS", NULL) || threads >= shard_cpu_threads())
        return;
    shard_log_message(SHARD_LOG_INFO, "OMP_NUM_THREADS is not set: %d threads, this rank's share of its cores", threads);
    shard_cpu_set_threads(threads);
}

shard_status shard_share_cores(shard_group *world)
{
    int ranks = shard_group_size(world), rank = shard_group_rank(world);
    shard_rank_cores mine = own_rank_cores();
    if (ranks == 1) { /* OpenMP knows the cores that a process is bound to */
        limit_threads(mine.quota.cores);
        return SHARD_OK;
    }
    shard_rank_cores *all = shard_calloc((size_t)ranks, sizeof *all);
    shard_status status = shard_group_exchange(world, &mine, sizeof mine, all);
    int here = 0;
    for (int i = 0; i < ranks && status == SHARD_OK; i++)
        here += all[i].host == mine.host;
    if (status == SHARD_OK)
        limit_threads(CPU_COUNT(&mine.cores) ? shard_fair_threads(all, ranks, rank)
                                             : (int)shard_max(shard_count_cores() / here, 1));
    free(all);
    return status;
}
