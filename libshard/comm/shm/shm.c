/* Joining the world of the segment, its groups, and leaving it. */
#include "comm/backends.h"
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

static void close_world(shm_world *world);

/* The state of the group of these world ranks, of which this process is members[rank]. */
static shm_group *join_group(shm_world *world, const int *members, int size, int rank)
{
    shm_group *state = shard_calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->world = world;
    if (shm_join(state, members, size, rank) != SHARD_OK) {
        free(state);
        return NULL;
    }
    world->references++;
    return state;
}

static shard_status shm_split(shard_group *parent, shard_group *group, int color)
{
    (void)color;
    group->state = join_group(((shm_group *)parent->state)->world, group->world_ranks, group->size, group->rank);
    return group->state ? SHARD_OK : shard_last_status();
}

static shard_segment_rank *own_entry(const shard_group *group)
{
    const shm_world *world = ((const shm_group *)group->state)->world;
    return &world->segment->ranks[world->rank];
}

static void shm_abort(shard_group *group, shard_abort_notice notice, shard_status status, const char *text)
{
    shard_segment_rank *entry = own_entry(group);
    bool device = notice == SHARD_ABORT_DEVICE;
    if (text)
        snprintf(device ? entry->abort_text : entry->text, SHARD_SEGMENT_TEXT, "%s", text);
    if (device)
        atomic_store(&entry->aborted, status);
    else if (notice == SHARD_ABORT_LEAVING)
        atomic_store(&entry->state, SHARD_RANK_FAILED);
    else
        atomic_store(&entry->failed_since, notice == SHARD_ABORT_WAITING ? shm_now() : 0);
}

/* The world stays mapped until the last of its groups goes; the others see at once that this rank leaves. */
static void shm_close(shard_group *group)
{
    shm_group *state = group->state;
    shm_world *world = state->world;
    uint32_t joined = SHARD_RANK_JOINED;
    if (state->whole)
        atomic_compare_exchange_strong(&own_entry(group)->state, &joined, SHARD_RANK_LEFT);
    shm_leave(state);
    free(state);
    if (--world->references == 0)
        close_world(world);
}

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

/* The file that a forked child closes, so that it does not keep this rank's locks. */
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

static shard_status shm_open_world(shard_group *group, int *argc, char ***argv)
{
    (void)argc, (void)argv;
    int64_t file, size, rank;
    SHARD_TRY(shard_env_integer("SHARD_SHM_FD", -1, 0, 1 << 30, &file));
    SHARD_TRY(shard_env_integer("WORLD_SIZE", 1, 1, SHARD_SEGMENT_RANKS, &size));
    SHARD_TRY(shard_env_integer("RANK", 0, 0, size - 1, &rank));
    if (file < 0)
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shm: SHARD_SHM_FD is not set; start the program with shardrun");
    shm_world *world = map_world(file, size, rank);
    if (!world)
        return shard_last_status();
    int everybody[SHARD_SEGMENT_RANKS];
    for (int i = 0; i < size; i++)
        everybody[i] = i;
    shm_group *state = take_place(world, (int)rank) == SHARD_OK ? join_group(world, everybody, (int)size, (int)rank) : NULL;
    if (!state) {
        close_world(world);
        return shard_last_status();
    }
    state->whole = true;
    group->rank = (int)rank;
    group->size = (int)size;
    group->state = state;
    shm_watch_launcher(world);
    return SHARD_OK;
}

const shard_transport shard_shm_transport = {
    .name = "shm",
    .open = shm_open_world,
    .split = shm_split,
    .post = shm_post,
    .probe = shm_probe,
    .abort = shm_abort,
    .close = shm_close,
};
