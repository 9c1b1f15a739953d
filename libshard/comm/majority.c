#include "comm/majority.h"

#include "base/majority.h"

#include <stdio.h>

/* In a text: more are only counted. */
enum { NAMED = 8 };

typedef struct values {
    const void *values;
    size_t bytes, stride;
} values;

/* The ranks that have the value of rank `usual`, or those that have not. */
static void name_ranks(const shard_group *group, const values *v, int usual, bool same, char *text, size_t bytes)
{
    int number = 0, named = 0;
    for (int member = 0; member < group->size; member++)
        number += shard_same_value(v->values, v->bytes, v->stride, usual, member) == same;
    size_t used = (size_t)snprintf(text, bytes, number == 1 ? "rank" : "ranks");
    for (int member = 0; member < group->size && named < NAMED && used < bytes; member++) {
        if (shard_same_value(v->values, v->bytes, v->stride, usual, member) != same)
            continue;
        const char *before = named == 0 ? " " : named == number - 1 ? " and " : ", ";
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%d", before, group->world_ranks ? group->world_ranks[member] : member);
        named++;
    }
    if (named < number && used < bytes)
        snprintf(text + used, bytes - used, " and %d more", number - named);
}

bool shard_find_majority(const shard_group *group, const void *all, size_t bytes, size_t stride, shard_majority *found)
{
    const values v = {all, bytes, stride};
    if (!group || shard_first_other(all, bytes, stride, group->size, 0) == group->size)
        return false;
    found->usual = (int)shard_first_usual(all, bytes, stride, group->size);
    found->odd = (int)shard_first_other(all, bytes, stride, group->size, found->usual);
    name_ranks(group, &v, found->usual, false, found->differ, sizeof found->differ);
    name_ranks(group, &v, found->usual, true, found->agree, sizeof found->agree);
    return true;
}
