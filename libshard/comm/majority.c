#include "comm/majority.h"

#include "base/majority.h"

/* The ranks that have the value of rank `usual`, or those that have not. */
typedef struct part {
    const void *values;
    size_t bytes, stride;
    int usual;
    bool same;
} part;

static bool is_in(const void *context, int rank)
{
    const part *p = context;
    return shard_same_value(p->values, p->bytes, p->stride, p->usual, rank) == p->same;
}

static void name_part(const shard_group *group, const part *p, char *text, size_t bytes)
{
    text[0] = '\0';
    shard_name_ranks(group, is_in, p, text, bytes);
}

bool shard_find_majority(const shard_group *group, const void *all, size_t bytes, size_t stride, shard_majority *found)
{
    if (!group || shard_first_other(all, bytes, stride, group->size, 0) == group->size)
        return false;
    found->usual = (int)shard_first_usual(all, bytes, stride, group->size);
    found->odd = (int)shard_first_other(all, bytes, stride, group->size, found->usual);
    name_part(group, &(part){all, bytes, stride, found->usual, false}, found->odd_ranks, sizeof found->odd_ranks);
    name_part(group, &(part){all, bytes, stride, found->usual, true}, found->usual_ranks, sizeof found->usual_ranks);
    return true;
}
