#include "autograd/contribution.h"

static int find(const shard_contribution *contribution, const shard_group *group)
{
    for (int i = 0; i < contribution->count; i++)
        if (shard_group_same(contribution->group[i], group))
            return i;
    return -1;
}

bool shard_contribution_has(const shard_contribution *contribution, const shard_group *group)
{
    return find(contribution, group) >= 0;
}

bool shard_contribution_equal(const shard_contribution *a, const shard_contribution *b)
{
    bool equal = a->count == b->count;
    for (int i = 0; i < b->count && equal; i++)
        equal = shard_contribution_has(a, b->group[i]);
    return equal;
}

shard_status shard_contribution_check(const char *what, const shard_contribution *contribution, const shard_group *group)
{
    for (int i = 0; i < contribution->count; i++) {
        const shard_group *other = contribution->group[i];
        int common = shard_group_common(other, group);
        if (common > 1 && !shard_group_same(other, group))
            return shard_error(
                SHARD_ERROR_UNSUPPORTED,
                "%s: rows or summands of %d ranks and of %d ranks are combined, and %d ranks are in both groups; gather and "
                "sum over groups that have the same ranks or this rank alone in common",
                what, shard_group_size(other), shard_group_size(group), common);
    }
    return SHARD_OK;
}

shard_status shard_contribution_add(shard_contribution *contribution, shard_group *group)
{
    if (shard_contribution_has(contribution, group))
        return SHARD_OK;
    SHARD_TRY(shard_contribution_check("backward", contribution, group));
    if (contribution->count == SHARD_CONTRIBUTION_GROUPS)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "backward: rows or summands of more than %d groups are combined",
                           SHARD_CONTRIBUTION_GROUPS);
    contribution->group[contribution->count++] = group;
    return SHARD_OK;
}

shard_status shard_contribution_join(shard_contribution *contribution, const shard_contribution *other)
{
    for (int i = 0; i < other->count; i++)
        SHARD_TRY(shard_contribution_add(contribution, other->group[i]));
    return SHARD_OK;
}

void shard_contribution_remove(shard_contribution *contribution, const shard_group *group)
{
    int kept = 0;
    for (int i = 0; i < contribution->count; i++)
        if (shard_group_common(contribution->group[i], group) < shard_group_size(contribution->group[i]))
            contribution->group[kept++] = contribution->group[i];
    contribution->count = kept;
}

int64_t shard_contribution_members(const shard_contribution *contribution, const shard_group *group)
{
    int64_t members = 1;
    for (int i = 0; i < contribution->count; i++)
        members *= group ? shard_group_common(contribution->group[i], group) : shard_group_size(contribution->group[i]);
    return members;
}
