/*
 * The end of a job. A rank that leaves waits for the others, so that it learns of one that dies or hangs in its last
 * steps: it is LEAVING until all are, and LEFT from then on. The process of a rank that is LEAVING has not ended well.
 */
#include "comm/shm/shm.h"

#include "base/error.h"

#include <stdio.h>
#include <unistd.h>

static const char doing[] = "shard_finalize";

enum { POLLS = 100, POLL_MICROSECONDS = 100, POLITE_MICROSECONDS = 5000 };

/* Whether the rank is not going to leave well, and why. Those that have left with an error count only where `failed`. One that
 * lives may still recover from an error. */
static bool is_missing(const shm_world *world, int rank, bool failed, char *text, size_t bytes)
{
    bool alive = shm_is_alive(world, rank); /* before the state, which is the last one of a process that has ended */
    uint32_t state = atomic_load(&world->segment->ranks[rank].state);
    if (state == SHARD_RANK_LEFT || (state == SHARD_RANK_FAILED ? !failed : alive))
        return false;
    if (state != SHARD_RANK_LEAVING) {
        bool gone = shm_waits_with_error(world, rank, NULL, text, bytes) || shm_is_gone(world, rank, doing, text, bytes);
        state = atomic_load(&world->segment->ranks[rank].state);
        return gone && state != SHARD_RANK_LEAVING && state != SHARD_RANK_LEFT; /* it may have come meanwhile */
    }
    snprintf(text, bytes, "rank %d died in %s", rank, doing);
    return true;
}

/* The ranks that do not leave yet, as bits. PEER if one will never do. */
static shard_status find_present(const shard_group *group, uint64_t *present, bool *some)
{
    const shm_world *world = ((const shm_group *)group->state)->world;
    char text[SHARD_COMM_TEXT];
    *some = false;
    for (int word = 0; word < SHARD_SEGMENT_RANKS / 64; word++)
        present[word] = 0;
    for (int i = 0; i < 2 * group->size; i++) /* a rank that died is the cause of others' errors */
        if (i % group->size != world->rank && is_missing(world, i % group->size, i >= group->size, text, sizeof text))
            return shard_error(SHARD_ERROR_PEER, "%s", text);
    for (int rank = 0; rank < group->size; rank++) {
        if (rank == world->rank)
            continue;
        uint32_t state = atomic_load(&world->segment->ranks[rank].state);
        if (state == SHARD_RANK_LEAVING || state == SHARD_RANK_LEFT)
            continue;
        present[rank / 64] |= (uint64_t)1 << rank % 64;
        *some = true;
    }
    return SHARD_OK;
}

shard_status shm_wait_for_end(shard_group *group)
{
    char text[SHARD_COMM_TEXT];
    uint64_t present[SHARD_SEGMENT_RANKS / 64];
    bool some;
    double deadline = shard_seconds() + shard_comm_timeout();
    atomic_store(&shm_own_entry(group)->state, SHARD_RANK_LEAVING);
    for (int polls = 0;; polls++) {
        SHARD_TRY(find_present(group, present, &some));
        if (!some)
            break;
        shm_say_waiting(group, present, doing);
        if (shard_seconds() > deadline && shm_find_late(group, text, sizeof text))
            return shard_error(SHARD_ERROR_TIMEOUT, "%s", text);
        usleep(polls < POLLS ? POLL_MICROSECONDS : POLITE_MICROSECONDS);
    }
    atomic_store(&shm_own_entry(group)->state, SHARD_RANK_LEFT);
    return SHARD_OK;
}
