/*
 * The barrier of a group. The last rank that enters completes the round and wakes
 * the others. A waiting rank spins a little, yields a little (with more ranks than
 * cores the others need the core), then sleeps. From time to time it checks that
 * the ranks it waits for are alive and that its deadline has not passed.
 */
#include "comm/shm/shm.h"

#include "base/cores.h"
#include "base/error.h"
#include "comm/culprits.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spinning pays while the others run; as long as they do not, because this rank has their
 * core, it is lost time: a few microseconds at most. */
#define SPINS 100
#define SPINS_CROWDED 5
#define YIELDS 50

#define PROBE_NANOSECONDS (50 * 1000 * 1000)

/* Ranks that have come to the round are probed so much more rarely: one that dies then is seldom missed in it. */
#define PROBES_OF_COME 10

/* A rank with an error that has waited elsewhere for so long does not just pass by. */
#define ABORT_NOTICE_NANOSECONDS (200 * 1000 * 1000)

#if defined(__x86_64__) || defined(__i386__)
#define SPIN_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define SPIN_PAUSE() __asm__ volatile("yield")
#else
#define SPIN_PAUSE() ((void)0)
#endif

void shm_set_patience(shm_world *world)
{
    world->spins = world->segment->world_size > shard_count_cores() ? SPINS_CROWDED : SPINS;
}

static void wake_all(shm_area *area)
{
    syscall(SYS_futex, &area->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_a_while(shm_area *area, uint32_t round)
{
    struct timespec limit = {0, PROBE_NANOSECONDS};
    atomic_fetch_add(&area->sleepers, 1);
    syscall(SYS_futex, &area->round, FUTEX_WAIT, round, &limit, NULL, 0);
    atomic_fetch_sub(&area->sleepers, 1);
}

/* The group's failure, which the first that notices writes down for all. That one may die or stop before it has. */
static shard_status fail_broken(shm_group *state)
{
    shm_area *area = state->area;
    double start = shard_seconds();
    uint32_t broken = atomic_load(&area->broken);
    while (broken != SHM_BROKEN && shard_seconds() - start < 1) {
        sched_yield();
        broken = atomic_load(&area->broken);
    }
    if (broken != SHM_BROKEN)
        return shard_error(SHARD_ERROR_PEER, "rank %u died or stopped while it wrote an error of its group",
                           broken - SHM_BREAKING);
    return shard_error((shard_status)area->status, "%s%.*s", shard_group_broken_prefix(&state->broken_since), SHARD_COMM_TEXT - 1,
                       area->text);
}

static shard_status break_group(shm_group *state, shard_status status, const char *text)
{
    shm_area *area = state->area;
    uint32_t whole = SHM_WHOLE;
    if (atomic_compare_exchange_strong(&area->broken, &whole, SHM_BREAKING + (uint32_t)state->world->rank)) {
        area->status = (int32_t)status;
        snprintf(area->text, sizeof area->text, "%s", text);
        atomic_store(&area->broken, SHM_BROKEN);
        wake_all(area);
    }
    return fail_broken(state);
}

bool shm_is_alive(const shm_world *world, int rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(world->locks, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool shm_waits_with_error(const shm_world *world, int rank, const shm_group *except, char *text, size_t bytes)
{
    shard_segment_rank *entry = &world->segment->ranks[rank];
    int64_t since = atomic_load(&entry->failed_since);
    bool same = except && atomic_load(&entry->failed_in) == except->entry->birth;
    if (!since || same || shard_nanoseconds() - since <= ABORT_NOTICE_NANOSECONDS)
        return false;
    snprintf(text, bytes, "%.*s", SHARD_SEGMENT_TEXT - 1, entry->text);
    atomic_thread_fence(memory_order_acquire); /* the text is read before the time is read again */
    return atomic_load(&entry->failed_since) == since;
}

bool shm_is_gone(const shm_world *world, int rank, const char *doing, char *text, size_t bytes)
{
    shard_segment_rank *entry = &world->segment->ranks[rank];
    bool ended = atomic_load(&entry->ended);
    uint32_t state = atomic_load(&entry->state);
    bool died = state == SHARD_RANK_JOINED && !shm_is_alive(world, rank);
    if (died)
        state = atomic_load(&entry->state); /* the last one of a process that has ended */
    if (state == SHARD_RANK_FAILED)
        snprintf(text, bytes, "%.*s", SHARD_SEGMENT_TEXT - 1, entry->text);
    else if (state == SHARD_RANK_LEAVING || state == SHARD_RANK_LEFT)
        snprintf(text, bytes, "rank %d has left: it did not come to %s", rank, doing);
    else if (state == SHARD_RANK_JOINED && died)
        snprintf(text, bytes, "rank %d died: it did not come to %s", rank, doing);
    else if (state == SHARD_RANK_CALLED && ended && atomic_load(&entry->failed_since))
        snprintf(text, bytes, "%.*s", SHARD_SEGMENT_TEXT - 1, entry->text);
    else if ((state == SHARD_RANK_ABSENT || state == SHARD_RANK_CALLED) && ended)
        snprintf(text, bytes, "rank %d ended before it joined the others", rank);
    else
        return false;
    return true;
}

/* ---- the ranks that each rank waits for ---- */

static bool has_come(const shm_group *state, int rank, uint32_t round)
{
    return (int32_t)(atomic_load(&state->area->places[rank].round) - round) > 0;
}

void shm_say_waiting(const shard_group *group, const uint64_t *waits_for, const char *doing)
{
    shard_segment_rank *own = shm_own_entry(group);
    for (int word = 0; word < SHARD_SEGMENT_RANKS / 64; word++)
        atomic_store(&own->waits_for[word], waits_for[word]);
    snprintf(own->doing, sizeof own->doing, "%s", doing);
    atomic_store(&own->waits_at, shard_nanoseconds());
}

static bool all_have_come(const shard_group *group, uint32_t round)
{
    for (int rank = 0; rank < group->size; rank++)
        if (!has_come(group->state, rank, round))
            return false;
    return true;
}

static void say_working(const shard_group *group)
{
    atomic_store(&shm_own_entry(group)->waits_at, 0);
}

/* A rank that has not said so for a while is stopped, or computes. */
static bool answers(const void *context, int rank)
{
    const shard_segment_rank *entry = &((const shard_segment *)context)->ranks[rank];
    int64_t at = atomic_load(&entry->waits_at);
    return atomic_load(&entry->state) == SHARD_RANK_LEFT ||
           (at && 1e-9 * (double)(shard_nanoseconds() - at) < shard_silent_seconds(shard_comm_timeout()));
}

static bool waits_for(const void *context, int rank, int other)
{
    const shard_segment_rank *entry = &((const shard_segment *)context)->ranks[rank];
    return rank != other && atomic_load(&entry->waits_at) != 0 &&
           (atomic_load(&entry->waits_for[other / 64]) >> other % 64 & 1) != 0;
}

/* For those that have not come to the round. Where all have, and it does not end, one was lost between its own steps of the
 * barrier: for those that do not answer. */
static void say_waiting(const shard_group *group, uint32_t round, const char *doing)
{
    const shard_segment *segment = ((const shm_group *)group->state)->world->segment;
    uint64_t waits_for[SHARD_SEGMENT_RANKS / 64] = {0};
    bool all = all_have_come(group, round);
    for (int rank = 0; rank < group->size; rank++) {
        int world_rank = group->world_ranks[rank];
        if (all ? rank != group->rank && !answers(segment, world_rank) : !has_come(group->state, rank, round))
            waits_for[world_rank / 64] |= (uint64_t)1 << world_rank % 64;
    }
    shm_say_waiting(group, waits_for, doing);
}

/* The error that names the rank, if somebody has waited for it in vain. */
static bool was_given_up(const shm_world *world, int rank, char *text, size_t bytes)
{
    shard_segment_rank *entry = &world->segment->ranks[rank];
    double start = shard_seconds();
    if (atomic_load(&entry->given_up) == 0)
        return false;
    while (atomic_load(&entry->given_up) != 2 && shard_seconds() - start < 1)
        sched_yield();
    if (atomic_load(&entry->given_up) == 2)
        snprintf(text, bytes, "%.*s", SHARD_SEGMENT_TEXT - 1, entry->given_up_text);
    else /* the rank that writes the text is lost, too */
        snprintf(text, bytes, "rank %d does not answer", rank);
    return true;
}

bool shm_find_late(const shard_group *group, char *text, size_t bytes)
{
    const shm_world *world = ((shm_group *)group->state)->world;
    shard_segment_rank *ranks = world->segment->ranks;
    bool late[SHARD_SEGMENT_RANKS];
    char found[SHARD_SEGMENT_TEXT];
    shard_waits waits = {world->segment->world_size, world->segment, answers, waits_for};
    int witness = shard_find_culprits(&waits, world->rank, late), first = 0;
    if (witness < 0)
        return false;
    while (first < waits.size - 1 && !late[first])
        first++;
    bool waits_too = answers(world->segment, first) && atomic_load(&ranks[first].waits_at);
    shard_write_culprits(waits.size, late, ranks[witness].doing, waits_too ? ranks[first].doing : NULL, found, sizeof found);
    for (int rank = 0; rank < waits.size; rank++) {
        uint32_t none = 0;
        if (!late[rank] || !atomic_compare_exchange_strong(&ranks[rank].given_up, &none, 1))
            continue;
        memcpy(ranks[rank].given_up_text, found, sizeof found);
        atomic_store(&ranks[rank].given_up, 2);
    }
    snprintf(text, bytes, "%s", found);
    was_given_up(world, first, text, bytes);
    return true;
}

/* Whether a rank that has come to the round died in it. */
static bool died_in_round(const shm_world *world, int rank, const char *doing, char *text, size_t bytes)
{
    const _Atomic uint32_t *state = &world->segment->ranks[rank].state;
    if (atomic_load(state) != SHARD_RANK_JOINED || shm_is_alive(world, rank) ||
        atomic_load(state) != SHARD_RANK_JOINED) /* the last one of a process that has ended */
        return false;
    snprintf(text, bytes, "rank %d died in %s", rank, doing);
    return true;
}

/* Whether the round will never be complete: a rank will not come to it, or (in some of the probes) was lost in it. */
static shard_status probe_ranks(shard_group *group, uint32_t round, unsigned probe, double seconds_late)
{
    shm_group *state = group->state;
    char doing[SHARD_SEGMENT_DOING], text[SHARD_COMM_TEXT] = "";
    shard_group_describe(group, doing, sizeof doing);
    say_waiting(group, round, doing);
    shard_status status = was_given_up(state->world, state->world->rank, text, sizeof text) ? SHARD_ERROR_TIMEOUT : SHARD_OK;
    for (int rank = 0; rank < group->size && status == SHARD_OK; rank++) {
        int world_rank = group->world_ranks[rank];
        if (has_come(state, rank, round)) {
            if (probe % PROBES_OF_COME == 0 && rank != group->rank &&
                died_in_round(state->world, world_rank, doing, text, sizeof text))
                status = SHARD_ERROR_PEER;
        } else if (was_given_up(state->world, world_rank, text, sizeof text))
            status = SHARD_ERROR_TIMEOUT;
        else if (shm_waits_with_error(state->world, world_rank, state, text, sizeof text) ||
                 shm_is_gone(state->world, world_rank, doing, text, sizeof text))
            status = SHARD_ERROR_PEER;
    }
    if (status == SHARD_OK && seconds_late > 0 && shm_find_late(group, text, sizeof text))
        status = SHARD_ERROR_TIMEOUT;
    if (status == SHARD_OK && seconds_late > 1 && all_have_come(group, round)) {
        status = SHARD_ERROR_TIMEOUT;
        snprintf(text, sizeof text, "all ranks came to %s, which has not ended within %.0f s (SHARD_TIMEOUT)", doing,
                 shard_comm_timeout());
    }
    /* It may have come after all. */
    if (status == SHARD_OK || atomic_load(&state->area->round) != round)
        return SHARD_OK;
    return break_group(state, status, text);
}

shard_status shm_probe(shard_group *group, const char *doing)
{
    const shm_world *world = ((shm_group *)group->state)->world;
    char text[SHARD_COMM_TEXT];
    for (int rank = 0; rank < group->size; rank++) {
        int world_rank = group->world_ranks[rank];
        shard_segment_rank *entry = &world->segment->ranks[world_rank];
        if (rank == group->rank)
            continue;
        if (atomic_load(&entry->aborted))
            return shard_error((shard_status)atomic_load(&entry->aborted), "%.*s", SHARD_SEGMENT_TEXT - 1, entry->abort_text);
        uint32_t state = atomic_load(&entry->state);
        if (state == SHARD_RANK_LEAVING || state == SHARD_RANK_LEFT) /* it may have entered the round before */
            continue;
        bool failed = atomic_load(&entry->failed_status) == SHARD_ERROR_DEVICE &&
                      shm_waits_with_error(world, world_rank, NULL, text, sizeof text);
        if (failed || shm_is_gone(world, world_rank, doing, text, sizeof text))
            return shard_error(SHARD_ERROR_PEER, "%s", text);
        if (was_given_up(world, world_rank, text, sizeof text))
            return shard_error(SHARD_ERROR_TIMEOUT, "%s", text);
    }
    return SHARD_OK;
}

static shard_status sleep_for_round(shard_group *group, uint32_t round)
{
    shm_group *state = group->state;
    shm_area *area = state->area;
    double deadline = shard_own_seconds() + shard_group_patience(group, shard_comm_timeout());
    shard_status status = SHARD_OK;
    for (unsigned sleeps = 0; status == SHARD_OK && atomic_load(&area->round) == round; sleeps++) {
        if (atomic_load(&area->broken)) /* by ranks that have gone on, if the round is complete */
            status = atomic_load(&area->round) == round ? fail_broken(state) : SHARD_OK;
        else if (sleeps > 0)
            status = probe_ranks(group, round, sleeps, shard_own_seconds() - deadline);
        if (status == SHARD_OK)
            sleep_a_while(area, round);
    }
    if (status == SHARD_OK)
        say_working(group); /* after an error waits_at stays: the rank is no cause of other waits */
    return status;
}

static shard_status wait_for_round(shard_group *group, uint32_t round)
{
    shm_group *state = group->state;
    shm_area *area = state->area;
    for (int i = 0; i < state->world->spins; i++) {
        if (atomic_load_explicit(&area->round, memory_order_acquire) != round)
            return SHARD_OK;
        SPIN_PAUSE();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&area->round, memory_order_acquire) != round)
            return SHARD_OK;
        sched_yield();
    }
    return sleep_for_round(group, round);
}

shard_status shm_check_whole(const shard_group *group)
{
    shm_group *state = group->state;
    return atomic_load_explicit(&state->area->broken, memory_order_relaxed) ? fail_broken(state) : SHARD_OK;
}

shard_status shm_barrier(shard_group *group)
{
    shm_group *state = group->state;
    shm_area *area = state->area;
    SHARD_TRY(shm_check_whole(group));
    uint32_t round = state->round++;
    atomic_store_explicit(&area->places[group->rank].round, round + 1, memory_order_relaxed);
    if (atomic_fetch_add(&area->come, 1) + 1 != (uint32_t)group->size)
        return wait_for_round(group, round);
    atomic_store_explicit(&area->come, 0, memory_order_relaxed);
    atomic_store(&area->round, round + 1);
    if (atomic_load(&area->sleepers))
        wake_all(area);
    return SHARD_OK;
}
