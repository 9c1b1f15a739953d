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

/* Whether processes live is asked after so many polls: that takes a call of the system for each rank. */
enum { POLLS_BETWEEN_PROBES = 10 };

/* Whether the rank's process has ended before it has left, and why. */
static bool is_missing(const shm_world *world, int rank, char *text, size_t bytes)
{
    shard_segment_rank *entry = &world->segment->ranks[rank];
    uint32_t state = atomic_load(&entry->state);
    if (state == SHARD_RANK_LEFT || state == SHARD_RANK_FAILED || shm_is_alive(world, rank))
        return false;
    state = atomic_load(&entry->state); /* the last one of a process that has ended */
    if (state == SHARD_RANK_LEAVING)
        snprintf(text, bytes, "rank %d died in %s", rank, doing);
    else if (state == SHARD_RANK_LEFT || state == SHARD_RANK_FAILED)
        return false;
    else
        return shm_waits_with_error(world, rank, NULL, text, bytes) || shm_is_gone(world, rank, doing, text, bytes);
    return true;
}

/* PEER if a rank is not going to leave well. One that lives may still recover from an error. */
static shard_status probe_ranks(const shard_group *group)
{
    const shm_world *world = ((const shm_group *)group->state)->world;
    char text[SHARD_COMM_TEXT];
    for (int rank = 0; rank < group->size; rank++) /* a rank that died is the cause of others' errors */
        if (rank != world->rank && is_missing(world, rank, text, sizeof text))
            return shard_error(SHARD_ERROR_PEER, "%s", text);
    for (int rank = 0; rank < group->size; rank++)
        if (rank != world->rank && atomic_load(&world->segment->ranks[rank].state) == SHARD_RANK_FAILED &&
            shm_is_gone(world, rank, doing, text, sizeof text))
            return shard_error(SHARD_ERROR_PEER, "%s", text);
    return SHARD_OK;
}

/* Whether there are ranks that do not leave yet: as bits. */
static bool find_present(const shard_group *group, uint64_t *present)
{
    const shm_world *world = ((const shm_group *)group->state)->world;
    bool some = false;
    for (int word = 0; word < SHARD_SEGMENT_RANKS / 64; word++)
        present[word] = 0;
    for (int rank = 0; rank < group->size; rank++) {
        uint32_t state = atomic_load(&world->segment->ranks[rank].state);
        if (rank == world->rank || state == SHARD_RANK_LEAVING || state == SHARD_RANK_LEFT)
            continue;
        present[rank / 64] |= (uint64_t)1 << rank % 64;
        some = true;
    }
    return some;
}

shard_status shm_wait_for_end(shard_group *group)
{
    char text[SHARD_COMM_TEXT];
    uint64_t present[SHARD_SEGMENT_RANKS / 64];
    double deadline = shard_own_seconds() + shard_comm_timeout();
    atomic_store(&shm_own_entry(group)->state, SHARD_RANK_LEAVING);
    for (int polls = 0;; polls++) {
        bool some = find_present(group, present);
        if (!some || polls % POLLS_BETWEEN_PROBES == 0)
            SHARD_TRY(probe_ranks(group));
        if (!some)
            break;
        shm_say_waiting(group, present, doing);
        if (shard_own_seconds() > deadline && shm_find_late(group, text, sizeof text))
            return shard_error(SHARD_ERROR_TIMEOUT, "%s", text);
        usleep(polls < POLLS ? POLL_MICROSECONDS : POLITE_MICROSECONDS);
    }
    atomic_store(&shm_own_entry(group)->state, SHARD_RANK_LEFT);
    return SHARD_OK;
}
