/*
 * The meeting point of a group. The last member to come completes the round
 * and wakes the others. Who waits spins a little, gives way a little (with
 * more ranks than cores the others need the core), then sleeps, and looks from
 * time to time whether those it waits for still live and whether it is too late.
 */
#include "comm/shm/shm.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Spinning pays while the others run; as long as they do not, because this rank has their
 * core, it is lost time: a few microseconds at most. */
#define SPINS 100
#define SPINS_CROWDED 5
#define YIELDS 50

#define LOOK_AROUND_NANOSECONDS (50 * 1000 * 1000)

/* A rank with an error that has waited elsewhere for so long does not just pass by. */
#define ALARM_NANOSECONDS (200 * 1000 * 1000)

#if defined(__x86_64__) || defined(__i386__)
#define SPIN_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define SPIN_PAUSE() __asm__ volatile("yield")
#else
#define SPIN_PAUSE() ((void)0)
#endif

void shm_set_patience(shm_world *world)
{
    cpu_set_t cores;
    int number = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    world->spins = world->segment->world_size > number ? SPINS_CROWDED : SPINS;
}

int64_t shm_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static double now(void)
{
    return 1e-9 * (double)shm_now();
}

static void wake_all(shm_area *area)
{
    syscall(SYS_futex, &area->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_a_while(shm_area *area, uint32_t round)
{
    struct timespec limit = {0, LOOK_AROUND_NANOSECONDS};
    atomic_fetch_add(&area->sleepers, 1);
    syscall(SYS_futex, &area->round, FUTEX_WAIT, round, &limit, NULL, 0);
    atomic_fetch_sub(&area->sleepers, 1);
}

/* The group's failure, which the first that notices writes down for all. */
static shard_status fail_broken(shm_area *area)
{
    double start = now();
    while (atomic_load(&area->broken) != 2 && now() - start < 1)
        sched_yield();
    return shard_error((shard_status)area->status, "%.*s", SHARD_COMM_TEXT - 1, area->text);
}

static shard_status break_group(shm_area *area, shard_status status, const char *text)
{
    uint32_t whole = 0;
    if (atomic_compare_exchange_strong(&area->broken, &whole, 1)) {
        area->status = (int32_t)status;
        snprintf(area->text, sizeof area->text, "%s", text);
        atomic_store(&area->broken, 2);
        wake_all(area);
    }
    return fail_broken(area);
}

static bool is_alive(const shm_world *world, int rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(world->file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Whether the rank will never come, and why. */
static bool is_gone(const shm_world *world, int rank, const char *doing, char *text, size_t bytes)
{
    shard_segment_rank *member = &world->segment->ranks[rank];
    bool ended = atomic_load(&member->ended);
    uint32_t state = atomic_load(&member->state);
    int64_t alarmed = atomic_load(&member->alarmed);
    if (state == SHARD_RANK_FAILED || (alarmed && shm_now() - alarmed > ALARM_NANOSECONDS))
        snprintf(text, bytes, "%.*s", SHARD_SEGMENT_TEXT - 1, member->text);
    else if (state == SHARD_RANK_LEFT)
        snprintf(text, bytes, "rank %d has left: it did not come to %s", rank, doing);
    else if (state == SHARD_RANK_JOINED && !is_alive(world, rank))
        snprintf(text, bytes, "rank %d died: it did not come to %s", rank, doing);
    else if (state == SHARD_RANK_ABSENT && ended)
        snprintf(text, bytes, "rank %d ended before it joined the others", rank);
    else
        return false;
    return true;
}

/* Whether one of those that have not come to the round will never do. */
static shard_status look_around(shard_group *group, uint32_t round, bool late)
{
    shm_group *state = group->state;
    bool *missing = shard_calloc((size_t)group->size, sizeof *missing);
    if (!missing)
        return shard_last_status();
    char doing[200], text[SHARD_COMM_TEXT] = "";
    shard_group_describe(group, doing, sizeof doing);
    shard_status status = SHARD_OK;
    for (int member = 0; member < group->size && status == SHARD_OK; member++) {
        missing[member] = (int32_t)(atomic_load(&state->area->places[member].round) - round) <= 0;
        if (missing[member] && is_gone(state->world, group->world_ranks[member], doing, text, sizeof text))
            status = SHARD_ERROR_PEER;
    }
    if (status == SHARD_OK && late) {
        shard_group_name_ranks(group, missing, text, sizeof text);
        size_t used = strlen(text);
        if (used < sizeof text)
            snprintf(text + used, sizeof text - used, " did not come to %s within %.0f s (SHARD_TIMEOUT)", doing,
                     shard_comm_timeout());
        status = SHARD_ERROR_TIMEOUT;
    }
    free(missing);
    /* It may have come after all. */
    if (status == SHARD_OK || atomic_load(&state->area->round) != round)
        return SHARD_OK;
    return break_group(state->area, status, text);
}

shard_status shm_look(shard_group *group, const char *doing)
{
    const shm_world *world = ((shm_group *)group->state)->world;
    char text[SHARD_COMM_TEXT];
    for (int member = 0; member < group->size; member++) {
        int rank = group->world_ranks[member];
        if (member == group->rank || atomic_load(&world->segment->ranks[rank].state) == SHARD_RANK_LEFT)
            continue;
        if (is_gone(world, rank, doing, text, sizeof text))
            return shard_error(SHARD_ERROR_PEER, "%s", text);
    }
    return SHARD_OK;
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
    double deadline = now() + shard_comm_timeout();
    for (bool slept = false;; slept = true) {
        if (atomic_load(&area->round) != round)
            return SHARD_OK;
        if (atomic_load(&area->broken))
            return fail_broken(area);
        if (slept)
            SHARD_TRY(look_around(group, round, now() > deadline));
        sleep_a_while(area, round);
    }
}

shard_status shm_meet(shard_group *group)
{
    shm_group *state = group->state;
    shm_area *area = state->area;
    if (atomic_load_explicit(&area->broken, memory_order_relaxed))
        return fail_broken(area);
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
