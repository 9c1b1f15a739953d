/* Groups: what they are made of, what they answer, how they come and go. */
#include "comm/device_transport.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

shard_group *shard_group_make(const shard_group_ops *ops, int rank, int size, const int *world_ranks, void *state)
{
    shard_group *group = shard_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    *group = (shard_group){.ops = ops, .rank = rank, .size = size, .state = state};
    group->world_ranks = shard_calloc((size_t)size, sizeof *group->world_ranks);
    group->peers = shard_calloc((size_t)size, SHARD_COMM_TEXT);
    if (!group->world_ranks || !group->peers) {
        shard_group_free(group);
        return NULL;
    }
    memcpy(group->world_ranks, world_ranks, (size_t)size * sizeof *world_ranks);
    return group;
}

/* After shard_finalize a pointer to the world that was kept is a group of this rank alone. */
static void end_world(shard_group *world)
{
    static shard_group *ended;
    if (ended)
        free(ended->world_ranks);
    free(ended);
    ended = world;
    *world = (shard_group){.ops = &shard_self_ops, .size = 1, .world_ranks = world->world_ranks};
}

void shard_group_free(shard_group *group)
{
    if (!group)
        return;
    free(group->peers);
    if (group->is_world) {
        end_world(group);
        return;
    }
    free(group->world_ranks);
    free(group);
}

int shard_group_rank(const shard_group *group)
{
    return group ? group->rank : 0;
}

int shard_group_size(const shard_group *group)
{
    return group ? group->size : 1;
}

int shard_group_world_rank(const shard_group *group, int member)
{
    return group && member >= 0 && member < group->size ? group->world_ranks[member] : 0;
}

const char *shard_group_transport(const shard_group *group)
{
    return group ? group->ops->name : "self";
}

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
    return (shard_range){.start = member * part + (member < larger ? member : larger), .size = part + (member < larger)};
}

/* numbers NULL: they are 0 ... size - 1. */
static void name_ranks(int size, const int *numbers, const bool *marked, char *text, size_t bytes)
{
    int number = 0, named = 0;
    for (int i = 0; i < size; i++)
        number += marked[i];
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, bytes - used, number == 1 ? "rank" : "ranks");
    for (int i = 0; i < size && used < bytes; i++) {
        if (!marked[i])
            continue;
        const char *before = named == 0 ? " " : named == number - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", before, numbers ? numbers[i] : i);
        named++;
    }
}

void shard_group_name_ranks(const shard_group *group, const bool *marked, char *text, size_t bytes)
{
    name_ranks(group->size, group->world_ranks, marked, text, bytes);
}

void shard_name_world_ranks(int size, const bool *marked, char *text, size_t bytes)
{
    name_ranks(size, NULL, marked, text, bytes);
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

shard_group *shard_group_create(shard_group *parent, const int *members, int size)
{
    if (!parent) {
        shard_null_argument("shard_group_create", "parent");
        return NULL;
    }
    if (check_members(parent, members, size) != SHARD_OK)
        return NULL;
    if (size == 1)
        return shard_self_make(parent->world_ranks[members[0]]);
    if (shard_refuse_fork(parent) != SHARD_OK)
        return NULL;
    return shard_group_start(parent->ops->subgroup(parent, members, size), "group_create");
}

/* What a member says before a split. */
typedef struct split_word {
    int32_t color;
    int32_t reaches; /* it has a device whose memory the host does not reach */
} split_word;

/* The group of those that said this rank's color. */
static shard_group *create_of_color(shard_group *parent, const split_word *words)
{
    int *members = shard_calloc((size_t)parent->size, sizeof *members), size = 0;
    if (!members) {
        shard_group_fail(parent);
        return NULL;
    }
    for (int member = 0; member < parent->size; member++)
        if (words[member].color == words[parent->rank].color)
            members[size++] = member;
    shard_group *group = shard_group_create(parent, members, size);
    free(members);
    return group;
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
        return color < 0 ? NULL : shard_self_make(parent->world_ranks[0]);
    shard_device *device = shard_accelerator();
    split_word mine = {.color = color, .reaches = device != NULL}, *words = shard_calloc((size_t)parent->size, sizeof *words);
    shard_group *group = NULL;
    bool all_reach = true;
    shard_status status = shard_group_exchange(parent, &mine, sizeof mine, words);
    if (status == SHARD_OK) {
        for (int member = 0; member < parent->size; member++)
            all_reach &= words[member].reaches != 0;
        group = create_of_color(parent, words);
        status = shard_agree(parent);
    }
    free(words);
    if (status == SHARD_OK && all_reach)
        status = shard_group_choose_device_transport(parent, device);
    if (status == SHARD_OK && all_reach)
        status = shard_device_transport_split(parent, group->size > 1 ? group : NULL, color);
    if (status == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}

void shard_group_destroy(shard_group *group)
{
    if (!group)
        return;
    if (shard_comm_forked()) { /* the transport's part belongs to the rank */
        shard_group_free(group);
        return;
    }
    if (group->device_transport)
        group->device_transport->leave(group);
    group->ops->destroy(group);
}
