/* Groups: what they are made of, how they come and go. */
#include "comm/comm.h"

#include "base/error.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/backends.h"
#include "comm/device_transport.h"
#include "comm/preflight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

shard_group *shard_group_allocate(shard_group *group)
{
    group->world_ranks = shard_calloc((size_t)group->size, sizeof *group->world_ranks);
    group->peers = shard_calloc((size_t)group->size, SHARD_COMM_TEXT);
    group->parts = shard_calloc((size_t)group->size, sizeof *group->parts);
    return group->world_ranks && group->peers && group->parts ? group : NULL;
}

/* After shard_finalize a pointer to the world that was kept is a group of this rank alone. */
static void end_world(shard_group *world)
{
    static shard_group *ended;
    if (ended)
        free(ended->world_ranks);
    free(ended);
    ended = world;
    *world = (shard_group){.transport = &shard_self_transport, .size = 1, .world_ranks = world->world_ranks};
}

static void free_group(shard_group *group)
{
    free(group->peers);
    free(group->parts);
    if (group->is_world) {
        end_world(group);
        return;
    }
    free(group->world_ranks);
    free(group);
}

void shard_group_destroy(shard_group *group)
{
    if (!group)
        return;
    if (!shard_comm_forked()) { /* else the transport's part belongs to the rank */
        if (group->device_transport)
            group->device_transport->close(group);
        if (group->transport->close && group->state)
            group->transport->close(group);
    }
    free_group(group);
}

shard_group *shard_group_alone(int world_rank)
{
    shard_group *group = shard_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    *group = (shard_group){.transport = &shard_self_transport, .size = 1};
    if (!shard_group_allocate(group)) {
        free_group(group);
        return NULL;
    }
    group->world_ranks[0] = world_rank;
    return group;
}

/* ---- members ---- */

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

shard_range shard_split_range(int64_t size, int members, int member)
{
    if (size < 0 || member < 0 || member >= members) {
        shard_error(SHARD_ERROR_ARGUMENT, "shard_split_range: %" PRId64 " elements, member %d of %d", size, member, members);
        return (shard_range){0, 0};
    }
    int64_t part = size / members, larger = size % members;
    return (shard_range){.start = member * part + shard_min(member, larger), .size = part + (member < larger)};
}

static shard_status check_members(const shard_group *parent, const int *members, int size)
{
    if (!members)
        return shard_null_argument("shard_group_create", "members");
    if (size < 1 || size > parent->size)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_group_create: %d members of a group of %d ranks", size, parent->size);
    bool inside = false;
    for (int i = 0; i < size; i++) {
        if (members[i] < 0 || members[i] >= parent->size || (i > 0 && members[i] <= members[i - 1]))
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "shard_group_create: members must ascend and be ranks of the parent, which has %d; member %d is %d", parent->size,
                i, members[i]);
        inside |= members[i] == parent->rank;
    }
    if (!inside)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_group_create: called by rank %d, which is not among the members",
                           parent->rank);
    return SHARD_OK;
}

/* ---- new groups ---- */

shard_group *shard_group_start(shard_group *group, shard_collective_kind kind)
{
    if (shard_preflight_only(group, kind) == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}

shard_group *shard_group_create(shard_group *parent, const int *members, int size)
{
    if (!parent) {
        shard_null_argument("shard_group_create", "parent");
        return NULL;
    }
    if (check_members(parent, members, size) != SHARD_OK)
        return NULL;
    if (size == 1)
        return shard_group_alone(parent->world_ranks[members[0]]);
    shard_group *group = shard_refuse_fork(parent) == SHARD_OK ? shard_calloc(1, sizeof *group) : NULL;
    if (!group)
        return NULL;
    *group = (shard_group){.transport = parent->transport, .size = size};
    if (!shard_group_allocate(group)) {
        shard_group_destroy(group);
        return NULL;
    }
    for (int i = 0; i < size; i++) {
        group->world_ranks[i] = parent->world_ranks[members[i]];
        group->rank = members[i] == parent->rank ? i : group->rank;
    }
    if (group->transport->split(parent, group, 0) != SHARD_OK) {
        shard_group_destroy(group);
        return NULL;
    }
    return shard_group_start(group, SHARD_COLLECTIVE_GROUP_CREATE);
}

/* The word that each rank sends before a split. */
typedef struct split_word {
    int32_t color;
    int32_t reaches; /* it has a device whose memory the host does not reach */
} split_word;

/* The group of those that said this rank's color. */
static shard_group *create_of_color(shard_group *parent, const split_word *words)
{
    int *members = shard_calloc((size_t)parent->size, sizeof *members), size = 0;
    if (!members) {
        shard_preflight_only(parent, SHARD_COLLECTIVE_FAIL);
        return NULL;
    }
    for (int member = 0; member < parent->size; member++)
        if (words[member].color == words[parent->rank].color)
            members[size++] = member;
    shard_group *group = shard_group_create(parent, members, size);
    free(members);
    return group;
}

/* The split of the host transport; *all_reach: every rank has a device whose memory the host does not
 * reach. */
static shard_group *split_host(shard_group *parent, int color, bool reaches, bool *all_reach)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_GROUP_SPLIT};
    split_word mine = {.color = color, .reaches = reaches};
    split_word *words = shard_calloc((size_t)parent->size, sizeof *words);
    shard_group *group = NULL;
    parent->call = &call;
    shard_status status = shard_preflight(parent, &call, &mine, sizeof mine);
    parent->call = NULL;
    for (int member = 0; member < parent->size && status == SHARD_OK; member++) {
        memcpy(&words[member], shard_received(parent)[member].data, sizeof mine);
        *all_reach &= words[member].reaches != 0;
    }
    if (status == SHARD_OK) {
        group = create_of_color(parent, words);
        status = shard_preflight_only(parent, SHARD_COLLECTIVE_AGREE);
    }
    free(words);
    if (status == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}

shard_group *shard_group_split(shard_group *parent, int color)
{
    if (!parent) {
        shard_null_argument("shard_group_split", "parent");
        return NULL;
    }
    if (color < 0)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_group_split: color %d; colors are 0 or more", color);
    if (parent->size == 1)
        return color < 0 ? NULL : shard_group_alone(parent->world_ranks[0]);
    shard_device *device = shard_accelerator();
    bool all_reach = true;
    shard_group *group = split_host(parent, color, device != NULL, &all_reach);
    if (!group || !all_reach)
        return group;
    if (shard_group_choose_device_transport(parent, device) == SHARD_OK &&
        shard_device_transport_split(parent, group->size > 1 ? group : NULL, color) == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}

shard_status shard_group_choose_device_transport(shard_group *group, shard_device *device)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_GROUP_SPLIT, .device = device};
    return group->device_transport ? SHARD_OK : shard_device_transport_choose(group, &call);
}

shard_status shard_group_fail(shard_group *group)
{
    if (shard_last_status() == SHARD_OK)
        shard_error(SHARD_ERROR_INTERNAL, "shard_group_fail: called without an error");
    return shard_preflight_only(group, SHARD_COLLECTIVE_FAIL);
}

bool shard_group_failure_is_joint(const shard_group *group)
{
    return shard_error_is_joint(group->size);
}
