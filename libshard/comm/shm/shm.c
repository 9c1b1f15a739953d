/* Joining the world of the segment, its groups, and leaving it. */
#include "comm/backends.h"
#include "comm/shm/shm.h"

#include "base/env.h"
#include "base/error.h"
#include "base/kept_error.h"
#include "base/memory.h"
#include "comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void close_world(shm_world *world);

/* The state of the group of these world ranks, of which this process is ranks[rank]. */
static shm_group *join_group(shm_world *world, const int *ranks, int size, int rank)
{
    shm_group *state = shard_calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->world = world;
    if (shm_join(state, ranks, size, rank) != SHARD_OK) {
        free(state);
        return NULL;
    }
    world->references++;
    return state;
}

static shard_status shm_split(shard_group *parent, shard_group *group)
{
    group->state = join_group(((shm_group *)parent->state)->world, group->world_ranks, group->size, group->rank);
    return group->state ? SHARD_OK : shard_last_status();
}

static void shm_abort(shard_group *group, shard_abort_notice notice, shard_status status, const char *text)
{
    shard_segment_rank *entry = shm_own_entry(group);
    bool device = notice == SHARD_ABORT_DEVICE;
    atomic_thread_fence(memory_order_release); /* a reader that sees the new text sees the old one's withdrawal */
    if (text)
        snprintf(device ? entry->abort_text : entry->text, SHARD_SEGMENT_TEXT, "%s", text);
    if (device)
        atomic_store(&entry->aborted, status);
    else if (notice == SHARD_ABORT_LEAVING)
        atomic_store(&entry->state, SHARD_RANK_FAILED);
    else if (notice == SHARD_ABORT_WAITING) {
        atomic_store(&entry->failed_in, ((const shm_group *)group->state)->entry->birth);
        atomic_store(&entry->failed_status, status);
        atomic_store(&entry->failed_since, shard_nanoseconds());
    } else
        atomic_store(&entry->failed_since, 0);
}

/* The world stays mapped until the last of its groups goes; the others see at once that this rank leaves. */
static void shm_close(shard_group *group)
{
    shm_group *state = group->state;
    shm_world *world = state->world;
    if (state->whole && atomic_load(&shm_own_entry(group)->state) != SHARD_RANK_FAILED)
        atomic_store(&shm_own_entry(group)->state, SHARD_RANK_LEFT);
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
    bool locked = shm_lock(world, F_WRLCK, rank);
    if (!locked && (errno == EAGAIN || errno == EACCES))
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shm: another process is rank %d already", rank);
    if (!locked)
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shm: rank %d cannot lock its place in the segment: %s", rank,
                           strerror(errno));
    shard_segment_rank *entry = &world->segment->ranks[rank];
    uint32_t state = atomic_load(&entry->state);
    if (state != SHARD_RANK_ABSENT && state != SHARD_RANK_CALLED)
        return shard_error(SHARD_ERROR_UNAVAILABLE,
                           "shm: rank %d has been in this world before; a job's world can be joined once", rank);
    atomic_store(&entry->failed_since, 0); /* of a call before */
    atomic_store(&entry->state, SHARD_RANK_JOINED);
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

/* Says by errno why the inherited file is not mapped. NULL. */
static void *fail_to_map(long long inherited)
{
    if (errno == EBADF)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE,
                               "shm: SHARD_SHM_FD is %lld, a file that this process has not inherited: what started it has "
                               "closed it (Python's subprocess does without close_fds=False), or it is a program that a rank has "
                               "started, which is no rank (start it by env -u SHARD_SHM_FD -u WORLD_SIZE)",
                               inherited);
    if (errno == EPROTO)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE,
                               "shm: SHARD_SHM_FD is %lld, which is no segment of this version's shardrun: start the program "
                               "with the shardrun of its libshard",
                               inherited);
    return shard_fail_null(SHARD_ERROR_MEMORY, "shm: cannot map the segment of the job: %s", strerror(errno));
}

/* A thread with an error of an earlier call joins as well: the first collective sends that to the others. */
static shm_world *map_world(int64_t inherited, int64_t size, int64_t rank)
{
    shard_segment *segment = shard_segment_map((int)inherited);
    if (!segment)
        return fail_to_map((long long)inherited);
    bool fits = segment->world_size == size;
    if (!fits)
        shard_error(SHARD_ERROR_UNAVAILABLE, "shm: WORLD_SIZE is %lld, but shardrun started %d ranks", (long long)size,
                    segment->world_size);
    shm_world *world = fits ? shard_calloc(1, sizeof *world) : NULL;
    int locks = world ? open_own((int)inherited) : -1;
    if (locks < 0) {
        free(world);
        munmap(segment, sizeof *segment);
        return NULL;
    }
    *world = (shm_world){.segment = segment, .file = (int)inherited, .locks = locks, .rank = (int)rank};
    shm_set_patience(world);
    return world;
}

/* The world of a mapped segment; state NULL and the world closed with the error set. */
static shard_status enter_world(shard_group *group, shm_world *world, int size)
{
    int all[SHARD_SEGMENT_RANKS];
    for (int i = 0; i < size; i++)
        all[i] = i;
    bool placed = take_place(world, world->rank) == SHARD_OK;
    shm_group *state = placed ? join_group(world, all, size, world->rank) : NULL;
    if (placed && !state)
        atomic_store(&world->segment->ranks[world->rank].state, SHARD_RANK_CALLED);
    if (!state) {
        close_world(world);
        return shard_last_status();
    }
    state->whole = true;
    group->rank = world->rank;
    group->size = size;
    group->state = state;
    return SHARD_OK;
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
    SHARD_TRY(enter_world(group, world, (int)size));
    shm_watch_launcher(world);
    return SHARD_OK;
}

/* ---- without a launcher ---- */

/* First of rank 0, where it has the segment that it made; then of each rank, whether it has entered that. */
typedef struct entry_report {
    int32_t process, file; /* file -1: it could not, and the error is why */
    char error[SHARD_COMM_TEXT / 4];
} entry_report;

/* The segment's file, which other ranks open by the number that it has in this process; -1. */
static int make_segment(int size, entry_report *place)
{
    shard_segment *segment;
    int file = shard_segment_create(size, &segment);
    if (file < 0) {
        snprintf(place->error, sizeof place->error, "rank 0 cannot make the memory: %s", strerror(errno));
        return -1;
    }
    munmap(segment, sizeof *segment);
    *place = (entry_report){.process = (int32_t)getpid(), .file = file};
    return file;
}

static int open_segment(const entry_report *place)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->process, (int)place->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        shard_error(SHARD_ERROR_UNAVAILABLE, "it cannot open %s: %s", path, strerror(errno));
    return file;
}

/* Between the two exchanges: joins the segment. An error of it is taken from the thread into the report. own_file is rank 0's,
 * and is closed if it cannot join. */
static entry_report try_to_enter(shard_group *group, const shard_rendezvous *rendezvous, const entry_report *place, int own_file)
{
    shard_kept_error earlier;
    shard_keep_error(&earlier);
    int file = rendezvous->rank == 0 ? own_file : open_segment(place);
    shm_world *world = file >= 0 ? map_world(file, rendezvous->size, rendezvous->rank) : NULL;
    if (file >= 0 && !world)
        close(file);
    entry_report report = {.file = world && enter_world(group, world, rendezvous->size) == SHARD_OK ? 0 : -1};
    if (report.file < 0)
        snprintf(report.error, sizeof report.error, "rank %d: %.100s", rendezvous->rank, shard_last_error());
    shard_put_back_error(&earlier);
    return report;
}

/* The first rank's reason; false if all could. */
static bool has_refusal(const entry_report *reports, int size, char *refusal, size_t bytes)
{
    for (int rank = 0; rank < size; rank++)
        if (reports[rank].file < 0) {
            snprintf(refusal, bytes, "%.*s", (int)sizeof reports->error - 1, reports[rank].error);
            return true;
        }
    return false;
}

static shard_status shm_join_world(shard_group *group, shard_rendezvous *rendezvous, char *refusal, size_t bytes)
{
    int size = rendezvous->size;
    if (!rendezvous->one_host)
        snprintf(refusal, bytes, "the ranks are on several hosts, or in several containers");
    else if (size > SHARD_SEGMENT_RANKS)
        snprintf(refusal, bytes, "shared memory takes at most %d ranks", SHARD_SEGMENT_RANKS);
    if (refusal[0])
        return SHARD_OK;
    entry_report mine = {.file = -1}, *all = shard_calloc((size_t)size, sizeof *all);
    int file = rendezvous->rank == 0 ? make_segment(size, &mine) : -1;
    shard_status status = all ? shard_rendezvous_exchange_all(rendezvous, &mine, all, sizeof mine) : shard_last_status();
    if (status != SHARD_OK && file >= 0)
        close(file);
    if (status == SHARD_OK && !has_refusal(all, 1, refusal, bytes)) {
        mine = try_to_enter(group, rendezvous, &all[0], file);
        status = shard_rendezvous_exchange_all(rendezvous, &mine, all, sizeof mine);
        bool all_entered = status == SHARD_OK && !has_refusal(all, size, refusal, bytes);
        if (group->state && !all_entered) {
            shm_close(group);
            group->state = NULL;
        }
    }
    free(all);
    return status;
}

const shard_transport shard_shm_transport = {
    .name = "shm",
    .open = shm_open_world,
    .join = shm_join_world,
    .split = shm_split,
    .post = shm_post,
    .probe = shm_probe,
    .abort = shm_abort,
    .leave = shm_wait_for_end,
    .close = shm_close,
};
