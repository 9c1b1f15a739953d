/* Joining the world of the segment, its groups, and leaving it. */
#include "comm/shm/shm.h"

#include "base/env.h"
#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const shard_group_ops shm_ops;
static void close_world(shm_world *world);

/* The group of these world ranks, of which this process is members[rank]. */
static shard_group *open_group(shm_world *world, const int *members, int size, int rank)
{
    shm_group *state = shard_calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->world = world;
    shard_group *group = NULL;
    if (shm_join(state, members, size, rank) == SHARD_OK) {
        group = shard_group_make(&shm_ops, rank, size, members, state);
        if (!group)
            shm_leave(state);
    }
    if (!group)
        free(state);
    else
        world->references++;
    return group;
}

static shard_group *shm_subgroup(shard_group *parent, const int *members, int size)
{
    int *world_ranks = shard_calloc((size_t)size, sizeof *world_ranks);
    if (!world_ranks)
        return NULL;
    int rank = 0;
    for (int i = 0; i < size; i++) {
        world_ranks[i] = parent->world_ranks[members[i]];
        rank = members[i] == parent->rank ? i : rank;
    }
    shard_group *group = open_group(((shm_group *)parent->state)->world, world_ranks, size, rank);
    free(world_ranks);
    return group;
}

static shard_segment_rank *own_entry(const shard_group *group)
{
    const shm_group *state = group->state;
    return &state->world->segment->ranks[group->world_ranks[group->rank]];
}

static void shm_post(shard_group *world, const char *text)
{
    shard_segment_rank *entry = own_entry(world);
    snprintf(entry->text, sizeof entry->text, "%s", text);
    atomic_store(&entry->state, SHARD_RANK_FAILED);
}

static void shm_send_abort_notice(shard_group *group, const char *text)
{
    shard_segment_rank *entry = own_entry(group);
    if (text)
        snprintf(entry->text, sizeof entry->text, "%s", text);
    atomic_store(&entry->failed_since, text ? shm_now() : 0);
}

static void shm_notify_abort(shard_group *group, shard_status status, const char *text)
{
    shard_segment_rank *entry = own_entry(group);
    snprintf(entry->abort_text, sizeof entry->abort_text, "%s", text);
    atomic_store(&entry->aborted, status);
}

/* The world stays mapped until the last of its groups goes; leaving it is told at once. */
static void shm_destroy(shard_group *group)
{
    shm_group *state = group->state;
    shm_world *world = state->world;
    uint32_t joined = SHARD_RANK_JOINED;
    if (state->whole)
        atomic_compare_exchange_strong(&own_entry(group)->state, &joined, SHARD_RANK_LEFT);
    shm_leave(state);
    free(state);
    shard_group_free(group);
    if (--world->references == 0)
        close_world(world);
}

static const shard_group_ops shm_ops = {
    .name = "shm",
    .exchange = shm_exchange,
    .all_reduce = shm_all_reduce,
    .all_gather = shm_all_gather,
    .reduce_scatter = shm_reduce_scatter,
    .broadcast = shm_broadcast,
    .subgroup = shm_subgroup,
    .post = shm_post,
    .abort_notice = shm_send_abort_notice,
    .notify_abort = shm_notify_abort,
    .probe = shm_probe,
    .destroy = shm_destroy,
};

bool shm_lock(const shm_world *world, short type, int byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(world->locks, F_OFD_SETLK, &lock) == 0;
}

/* Takes the rank's place in the segment; it is held until the process ends. */
static shard_status take_place(const shm_world *world, int rank)
{
    if (!shm_lock(world, F_WRLCK, rank))
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shm: another process is rank %d already", rank);
    shard_segment_rank *entry = &world->segment->ranks[rank];
    uint32_t absent = SHARD_RANK_ABSENT;
    entry->process = (int32_t)getpid();
    if (!atomic_compare_exchange_strong(&entry->state, &absent, SHARD_RANK_JOINED))
        return shard_error(SHARD_ERROR_UNAVAILABLE,
                           "shm: rank %d has been in this world before; a job's world can be joined once", rank);
    return SHARD_OK;
}

/* What a forked child closes, so that it does not keep this rank's locks. */
static int locks_of_process = -1;

static void close_in_child(void)
{
    if (locks_of_process >= 0)
        close(locks_of_process);
    locks_of_process = -1;
}

/* The inherited file once more, with an open file description of this process alone. */
static int open_own(int inherited)
{
    static bool registered;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", inherited);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shm: %s cannot be opened: %s", path, strerror(errno)), -1;
    int higher = fcntl(file, F_DUPFD_CLOEXEC, inherited); /* where programs do not close what is not theirs */
    if (higher >= 0) {
        close(file);
        file = higher;
    }
    fcntl(inherited, F_SETFD, FD_CLOEXEC);
    locks_of_process = file;
    if (!registered)
        pthread_atfork(NULL, NULL, close_in_child);
    registered = true;
    return file;
}

static void close_world(shm_world *world)
{
    shm_stop_watching(world);
    shard_segment_close(world->segment, world->file);
    close(world->locks);
    locks_of_process = -1;
    free(world);
}

static shm_world *map_world(int64_t inherited, int64_t size, int64_t rank)
{
    shard_segment *segment = shard_segment_map((int)inherited);
    if (!segment)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE,
                               "shm: SHARD_SHM_FD is %lld, which is no segment of this version's shardrun: %s",
                               (long long)inherited, strerror(errno));
    if (segment->world_size != size)
        shard_error(SHARD_ERROR_UNAVAILABLE, "shm: WORLD_SIZE is %lld, but shardrun started %d ranks", (long long)size,
                    segment->world_size);
    shm_world *world = shard_last_status() == SHARD_OK ? shard_calloc(1, sizeof *world) : NULL;
    int locks = world ? open_own((int)inherited) : -1;
    if (locks < 0) {
        free(world);
        shard_segment_close(segment, (int)inherited);
        return NULL;
    }
    *world = (shm_world){.segment = segment, .file = (int)inherited, .locks = locks, .rank = (int)rank};
    shm_set_patience(world);
    return world;
}

shard_group *shard_shm_open(void)
{
    int64_t file, size, rank;
    if (shard_env_integer("SHARD_SHM_FD", -1, 0, 1 << 30, &file) != SHARD_OK ||
        shard_env_integer("WORLD_SIZE", 1, 1, SHARD_SEGMENT_RANKS, &size) != SHARD_OK ||
        shard_env_integer("RANK", 0, 0, size - 1, &rank) != SHARD_OK)
        return NULL;
    if (file < 0)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "shm: SHARD_SHM_FD is not set; start the program with shardrun");
    shm_world *world = map_world(file, size, rank);
    if (!world)
        return NULL;
    int everybody[SHARD_SEGMENT_RANKS];
    for (int i = 0; i < size; i++)
        everybody[i] = i;
    shard_group *group = NULL;
    if (take_place(world, (int)rank) == SHARD_OK)
        group = open_group(world, everybody, (int)size, (int)rank);
    if (!group) {
        close_world(world);
        return NULL;
    }
    ((shm_group *)group->state)->whole = true;
    shm_watch_launcher(world);
    return group;
}
