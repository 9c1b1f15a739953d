/*
 * Which area of the segment belongs to which group. The ranks of a new group
 * have no way to talk yet, so each looks in the segment's list for a group of
 * just these ranks that it has not joined, the oldest first, and makes one
 * if there is none: as all ranks make their groups in the same order, they
 * join the same one. The last to leave gives the area back. A group that one has
 * left before all have joined is not joined any more: its making has failed.
 */
#include "comm/shm/shm.h"

#include "base/error.h"
#include "base/file_limit.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define AREA_ALIGNMENT (2 << 20)

/* Memory for chunks that a group should stay within, and the chunks' bounds. */
#define CHUNKS_TOTAL (4 << 20)
#define CHUNK_LEAST (32 << 10)
#define CHUNK_MOST (512 << 10)

/* A lock of a file description is that of all its threads: they need one of their own. */
static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;

#define LOCK_MICROSECONDS 100

static shard_status fail_locked(const shm_world *world)
{
    char text[SHARD_COMM_TEXT] = "";
    bool holder[SHARD_SEGMENT_RANKS] = {false};
    int32_t number = atomic_load(&world->segment->list_holder);
    if (number > 0)
        holder[number - 1] = true;
    shard_group_name_ranks(&(shard_group){.size = world->segment->world_size}, holder, text, sizeof text);
    return shard_error(SHARD_ERROR_TIMEOUT, "%s did not end the making of a group within %.0f s (SHARD_TIMEOUT)",
                       number > 0 ? text : "a rank", shard_comm_timeout());
}

/* A rank holds the lock for microseconds, unless it is stopped meanwhile. */
static shard_status lock_list(const shm_world *world)
{
    double deadline = shard_own_seconds() + shard_comm_timeout();
    while (!shm_lock(world, F_WRLCK, SHARD_SEGMENT_RANKS)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return shard_error(SHARD_ERROR_IO, "shm: no lock on the segment: %s", strerror(errno));
        if (shard_own_seconds() > deadline)
            return fail_locked(world);
        usleep(LOCK_MICROSECONDS);
    }
    atomic_store(&world->segment->list_holder, world->rank + 1);
    return SHARD_OK;
}

static void unlock_list(const shm_world *world)
{
    atomic_store(&world->segment->list_holder, 0);
    shm_lock(world, F_UNLCK, SHARD_SEGMENT_RANKS);
}

/* Where the parts of the area begin; its size. */
static int64_t lay_out(shm_group *state, int size)
{
    int64_t chunk = CHUNKS_TOTAL / (2 * size);
    state->chunk = shard_round_up(chunk < CHUNK_LEAST ? CHUNK_LEAST : chunk > CHUNK_MOST ? CHUNK_MOST : chunk, 4096);
    int64_t head = shard_round_up((int64_t)sizeof(shm_area) + size * (int64_t)sizeof(shm_place), 4096);
    int64_t exchange = shard_round_up(2 * (int64_t)size * SHARD_EXCHANGE_BYTES, 4096);
    char *area = (char *)state->area;
    state->exchange = area ? area + head : NULL;
    state->chunks = area ? area + head + exchange : NULL;
    state->results = area ? area + head + exchange + 2 * size * state->chunk : NULL;
    return shard_round_up(head + exchange + 2 * (size + 1) * state->chunk, AREA_ALIGNMENT);
}

static bool overlaps(const shard_segment_group *entry, int64_t offset, int64_t bytes)
{
    return entry->bytes && offset < entry->offset + entry->bytes && entry->offset < offset + bytes;
}

/* The first place behind the head where no group lies. */
static int64_t find_place(const shard_segment *segment, int64_t bytes)
{
    int64_t offset = shard_round_up(sizeof *segment, AREA_ALIGNMENT);
    for (int i = 0; i < SHARD_SEGMENT_GROUPS; i++)
        if (overlaps(&segment->groups[i], offset, bytes)) {
            offset = segment->groups[i].offset + segment->groups[i].bytes;
            i = -1;
        }
    return offset;
}

static bool has_ranks(const shard_segment_group *entry, const int *ranks, int size)
{
    if (entry->bytes == 0 || entry->size != size)
        return false;
    for (int i = 0; i < size; i++)
        if (entry->world_ranks[i] != ranks[i])
            return false;
    return true;
}

static shard_segment_group *find_group(shard_segment *segment, const int *ranks, int size, int rank)
{
    shard_segment_group *oldest = NULL;
    for (int i = 0; i < SHARD_SEGMENT_GROUPS; i++) {
        shard_segment_group *entry = &segment->groups[i];
        if (has_ranks(entry, ranks, size) && !entry->left && !entry->joined[rank] && (!oldest || entry->birth < oldest->birth))
            oldest = entry;
    }
    return oldest;
}

/* A new entry, whose area has a head of zeros: what stood there before is of a group
 * that is no more. */
static shard_segment_group *add_group(shm_group *state, const int *ranks, int size)
{
    shard_segment *segment = state->world->segment;
    shard_segment_group *entry = NULL;
    for (int i = 0; i < SHARD_SEGMENT_GROUPS && !entry; i++)
        if (segment->groups[i].bytes == 0)
            entry = &segment->groups[i];
    if (!entry)
        return shard_fail_null(SHARD_ERROR_MEMORY, "shm: %d groups are open at once, which is the most", SHARD_SEGMENT_GROUPS);
    int64_t offset = find_place(segment, state->bytes);
    size_t head = sizeof(shm_area) + (size_t)size * sizeof(shm_place);
    void *zeros = shard_calloc(1, head);
    struct stat file;
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    bool ready = zeros && fstat(state->world->file, &file) == 0 &&
                 (file.st_size >= offset + state->bytes || ftruncate(state->world->file, offset + state->bytes) == 0) &&
                 pwrite(state->world->file, zeros, head, offset) == (ssize_t)head;
    int error = errno;
    shard_file_limit_release(&limit);
    free(zeros);
    if (!ready)
        return shard_fail_null(SHARD_ERROR_MEMORY, "shm: no memory for a group of %d ranks: %s%s", size, strerror(error),
                               error == EFBIG ? "; ulimit -f limits it, too" : "");
    entry->size = size;
    entry->left = 0;
    for (int i = 0; i < size; i++) {
        entry->world_ranks[i] = (uint16_t)ranks[i];
        entry->joined[i] = 0;
    }
    entry->birth = segment->births++;
    entry->offset = offset;
    entry->bytes = state->bytes;
    return entry;
}

shard_status shm_join(shm_group *state, const int *ranks, int size, int rank)
{
    shm_world *world = state->world;
    state->bytes = lay_out(state, size);
    pthread_mutex_lock(&thread_lock);
    if (lock_list(world) == SHARD_OK) {
        state->entry = find_group(world->segment, ranks, size, rank);
        if (!state->entry)
            state->entry = add_group(state, ranks, size);
        if (state->entry)
            state->entry->joined[rank] = 1;
        unlock_list(world);
    }
    pthread_mutex_unlock(&thread_lock);
    if (!state->entry)
        return shard_last_status();
    void *area = mmap(NULL, (size_t)state->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, world->file, state->entry->offset);
    if (area == MAP_FAILED) {
        shard_error(SHARD_ERROR_MEMORY, "shm: cannot map the %lld bytes of a group of %d ranks: %s", (long long)state->bytes,
                    size, strerror(errno));
        shm_leave(state);
        return shard_last_status();
    }
    state->area = area;
    lay_out(state, size);
    return SHARD_OK;
}

void shm_leave(shm_group *state)
{
    if (state->area)
        munmap(state->area, (size_t)state->bytes);
    if (!state->entry)
        return;
    SHARD_HOLD(&thread_lock);
    if (lock_list(state->world) == SHARD_OK) {
        int joined = 0;
        for (int i = 0; i < state->entry->size; i++)
            joined += state->entry->joined[i];
        if (++state->entry->left == joined)
            state->entry->bytes = 0;
        unlock_list(state->world);
    }
}
