#include "distributed/threads.h"

#include "base/env.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "device/device.h"

#include <stdlib.h>

int shard_fair_threads(const shard_seat *seats, int ranks, int rank)
{
    const shard_seat *own = &seats[rank];
    double share = 0;
    int payers = 0;
    for (int i = 0; i < ranks; i++)
        payers += seats[i].host == own->host && seats[i].quota.group == own->quota.group;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        int sharers = 0;
        for (int i = 0; i < ranks && CPU_ISSET(core, &own->cores); i++)
            sharers += seats[i].host == own->host && CPU_ISSET(core, &seats[i].cores);
        share += sharers > 0 ? 1.0 / sharers : 0;
    }
    int paid = own->quota.cores / payers;
    if (share > paid)
        share = paid;
    return share < 1 ? 1 : (int)(share + 1e-6); /* three thirds are one */
}

static shard_seat own_seat(void)
{
    shard_seat seat = {.host = shard_hash_machine(), .quota = shard_find_cpu_quota()};
    if (sched_getaffinity(0, sizeof seat.cores, &seat.cores) != 0) /* a machine with more processors than a mask has bits */
        CPU_ZERO(&seat.cores);
    return seat;
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
    shard_seat mine = own_seat();
    if (ranks == 1) { /* OpenMP knows the cores that a process is bound to */
        limit_threads(mine.quota.cores);
        return SHARD_OK;
    }
    shard_seat *seats = shard_calloc((size_t)ranks, sizeof *seats);
    shard_status status = shard_group_exchange(world, &mine, sizeof mine, seats);
    int here = 0;
    for (int i = 0; i < ranks && status == SHARD_OK; i++)
        here += seats[i].host == mine.host;
    if (status == SHARD_OK)
        limit_threads(CPU_COUNT(&mine.cores) ? shard_fair_threads(seats, ranks, rank)
                                             : (int)shard_max(shard_count_cores() / here, 1));
    free(seats);
    return status;
}
