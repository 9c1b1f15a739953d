/* Groups: what they are made of, how they come and go. */
#include "comm/comm.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/backends.h"
#include "comm/function.h"
#include "comm/preflight.h"
#include "comm/registry.h"
#include "comm/straggler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

bool shard_group_allocate(shard_group *group)
{
    group->world_ranks = shard_calloc((size_t)group->size, sizeof *group->world_ranks);
    group->peers = shard_calloc((size_t)group->size, SHARD_COMM_TEXT);
    group->parts = shard_calloc((size_t)group->size, sizeof *group->parts);
    group->counts = shard_calloc((size_t)group->size, sizeof *group->counts);
    group->stragglers = shard_stragglers_create(group->size);
    for (int rank = 0; rank < group->size && group->world_ranks; rank++)
        group->world_ranks[rank] = rank; /* of the world; other groups set theirs */
    return group->world_ranks && group->peers && group->parts && group->counts && group->stragglers;
}

/* After shard_finalize a pointer to the world that was kept is a group of this rank alone. */
static void end_world(shard_group *world)
{
    static shard_group *ended;
    if (ended)
        free(ended->world_ranks);
    free(ended);
    ended = world;
    *world = (shard_group){.transport = &shard_self_transport, .size = 1, .world_ranks = world->world_ranks, .is_world = true};
}

void shard_group_free(shard_group *group)
{
    if (!group)
        return;
    if (!shard_process.forked) { /* else the transport's part belongs to the rank */
        if (group->device_transport)
            group->device_transport->close(group);
        if (group->is_world)
            shard_device_transports_end();
        if (group->transport->close && group->state)
            group->transport->close(group);
    }
    free(group->peers);
    free(group->parts);
    free(group->counts);
    free(group->stragglers);
    if (group->is_world) {
        end_world(group);
        return;
    }
    free(group->world_ranks);
    free(group);
}

/* A group without a state. NULL with the error set. */
static shard_group *new_group(const shard_transport *transport, int size)
{
    shard_group *group = shard_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    *group = (shard_group){.transport = transport, .size = size};
    if (shard_group_allocate(group))
        return group;
    shard_group_free(group);
    return NULL;
}

shard_group *shard_group_alone(int world_rank)
{
    shard_group *group = new_group(&shard_self_transport, 1);
    if (group)
        group->world_ranks[0] = world_rank;
    return group;
}

/* ---- ranks ---- */

int shard_group_common(const shard_group *a, const shard_group *b)
{
    if (!a || !b)
        return 1;
    int common = 0;
    for (int i = 0, j = 0; i < a->size && j < b->size;) { /* both ascend */
        int x = a->world_ranks[i], y = b->world_ranks[j];
        common += x == y;
        i += x <= y;
        j += y <= x;
    }
    return common;
}

bool shard_group_same(const shard_group *a, const shard_group *b)
{
    int size = shard_group_size(a);
    return a == b || (size == shard_group_size(b) && shard_group_common(a, b) == size);
}

shard_range shard_split_range(int64_t size, int ranks, int rank)
{
    if (size < 0 || rank < 0 || rank >= ranks) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_split_range: %" PRId64
                    " elements, rank %d of %d: at least 0 elements are needed, and ranks count from 0",
                    size, rank, ranks);
        return (shard_range){0, 0};
    }
    int64_t part = size / ranks, larger = size % ranks;
    return (shard_range){.start = rank * part + shard_min(rank, larger), .size = part + (rank < larger)};
}

/* ---- new groups ---- */

shard_group *shard_group_make(shard_group *parent, const int *ranks, int size)
{
    if (size == 1)
        return shard_group_alone(parent->world_ranks[ranks[0]]);
    shard_group *group = shard_refuse_outsider(parent) == SHARD_OK ? new_group(parent->transport, size) : NULL;
    if (!group)
        return NULL;
    for (int i = 0; i < size; i++) {
        group->world_ranks[i] = parent->world_ranks[ranks[i]];
        group->rank = ranks[i] == parent->rank ? i : group->rank;
    }
    if (group->transport->split(parent, group) == SHARD_OK &&
        shard_preflight_only(group, SHARD_COLLECTIVE_GROUP_CREATE) == SHARD_OK)
        return group;
    shard_group_free(group);
    return NULL;
}

/* The color of ranks that get no group. */
enum { NO_COLOR = -1 };

/* The group of the ranks with this rank's color. */
static shard_group *split_together(shard_group *parent, int32_t color)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_GROUP_SPLIT};
    int *ranks = shard_calloc((size_t)parent->size, sizeof *ranks), size = 0; /* an error reaches all ranks by the check */
    shard_group *group = NULL;
    parent->call = &call;
    shard_status status = shard_preflight(parent, &call, &color, sizeof color);
    parent->call = NULL;
    for (int rank = 0; rank < parent->size && status == SHARD_OK; rank++)
        if (memcmp(shard_received(parent)[rank].data, &color, sizeof color) == 0)
            ranks[size++] = rank;
    if (status == SHARD_OK) {
        if (color != NO_COLOR)
            group = shard_group_make(parent, ranks, size);
        status = shard_preflight_only(parent, SHARD_COLLECTIVE_AGREE);
    }
    free(ranks);
    if (status == SHARD_OK)
        return group;
    shard_group_free(group);
    return NULL;
}

/* NULL without an error for NO_COLOR. */
static shard_group *split_by_color(shard_group *parent, int color)
{
    if (parent->size == 1)
        return color == NO_COLOR || shard_last_status() != SHARD_OK ? NULL : shard_group_alone(parent->world_ranks[0]);
    shard_straggler_enter();
    shard_group *group = split_together(parent, color);
    shard_straggler_leave();
    return group;
}

shard_group *shard_group_split(shard_group *parent, int color)
{
    SHARD_FUNCTION("shard_group_split");
    if (!parent)
        return shard_null_argument("shard_group_split", "parent"), NULL;
    if (color < NO_COLOR)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_group_split: color %d; colors are 0 or more, -1 for no group", color);
    return split_by_color(parent, color);
}

/* Marks the ranks of the list; an error that is set here reaches the other ranks by the split. */
static void mark_ranks(const shard_group *parent, const int *ranks, int count, bool *marked)
{
    if (!ranks)
        shard_null_argument("shard_group_create", "ranks");
    else if (count < 1)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_group_create: a list of %d ranks; at least one is needed", count);
    for (int i = 0; marked && i < count && shard_last_status() == SHARD_OK; i++)
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            shard_error(SHARD_ERROR_ARGUMENT,
                        "shard_group_create: rank %d in a list for a parent of %d ranks, which count from 0", ranks[i],
                        parent->size);
        else if (marked[ranks[i]])
            shard_error(SHARD_ERROR_ARGUMENT, "shard_group_create: rank %d is twice in the list", ranks[i]);
        else
            marked[ranks[i]] = true;
}

/* All ranks of the parent need the same list. A message has its beginning. */
static void require_identical_ranks(const shard_group *parent, const bool *marked)
{
    char text[SHARD_FUNCTION_ARGUMENTS / 2] = "";
    uint64_t hash = SHARD_HASH_START;
    size_t used = 0;
    for (int rank = 0; rank < parent->size; rank++) {
        if (!marked[rank])
            continue;
        hash = shard_hash_word(hash, (uint64_t)rank);
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? ", " : "", rank);
    }
    shard_require_identical("ranks %s", text);
    shard_require_identical("list %016" PRIx64, hash);
}

shard_group *shard_group_create(shard_group *parent, const int *ranks, int count)
{
    SHARD_FUNCTION("shard_group_create");
    if (!parent)
        return shard_null_argument("shard_group_create", "parent"), NULL;
    bool *marked = shard_calloc((size_t)parent->size, sizeof *marked);
    mark_ranks(parent, ranks, count, marked);
    if (shard_last_status() == SHARD_OK)
        require_identical_ranks(parent, marked);
    shard_group *group = split_by_color(parent, marked && marked[parent->rank] ? 0 : NO_COLOR);
    free(marked);
    return group;
}

static bool is_caller_s(const char *function, const shard_group *group)
{
    if (!group->is_world && !group->is_owned)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: the group is %s; one of shard_group_create or shard_group_split is needed", function,
                group->is_world ? "the world" : "a mesh's");
    return false;
}

void shard_group_destroy(shard_group *group)
{
    if (group && is_caller_s("shard_group_destroy", group))
        shard_group_free(group);
}

shard_status shard_group_set_replicas(shard_group *group, shard_group *replicas)
{
    if (!group)
        return shard_null_argument("shard_group_set_replicas", "group");
    if (!is_caller_s("shard_group_set_replicas", group))
        return shard_last_status();
    if (shard_group_common(group, replicas) != 1)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_group_set_replicas: the groups have %d ranks in common; replicas have this rank alone in common "
            "with the group that a tensor is split over",
            shard_group_common(group, replicas));
    group->replicas = replicas;
    return SHARD_OK;
}

shard_status shard_group_fail(shard_group *group)
{
    if (shard_last_status() == SHARD_OK)
        shard_error(SHARD_ERROR_INTERNAL, "shard_group_fail: called without an error");
    return shard_preflight_only(group, SHARD_COLLECTIVE_FAIL);
}
