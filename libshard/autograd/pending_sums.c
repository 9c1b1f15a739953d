#include "autograd/pending_sums.h"

bool shard_pending_sums_has(const shard_pending_sums *pending, const shard_group *group)
{
    bool has = false;
    for (int i = 0; i < pending->count && !has; i++)
        has = shard_group_same(pending->group[i], group);
    return has;
}

bool shard_pending_sums_equal(const shard_pending_sums *a, const shard_pending_sums *b)
{
    bool equal = a->count == b->count;
    for (int i = 0; i < b->count && equal; i++)
        equal = shard_pending_sums_has(a, b->group[i]);
    return equal;
}

shard_status shard_pending_sums_check(const char *what, const shard_pending_sums *pending, const shard_group *group)
{
    for (int i = 0; i < pending->count; i++) {
        const shard_group *other = pending->group[i];
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

shard_status shard_pending_sums_add(shard_pending_sums *pending, shard_group *group)
{
    if (shard_pending_sums_has(pending, group))
        return SHARD_OK;
    SHARD_TRY(shard_pending_sums_check("shard_backward", pending, group));
    if (pending->count == SHARD_PENDING_GROUPS)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "shard_backward: rows or summands of more than %d groups are combined",
                           SHARD_PENDING_GROUPS);
    pending->group[pending->count++] = group;
    return SHARD_OK;
}

shard_status shard_pending_sums_join(shard_pending_sums *pending, const shard_pending_sums *other)
{
    for (int i = 0; i < other->count; i++)
        SHARD_TRY(shard_pending_sums_add(pending, other->group[i]));
    return SHARD_OK;
}

void shard_pending_sums_remove(shard_pending_sums *pending, const shard_group *group)
{
    int kept = 0;
    for (int i = 0; i < pending->count; i++)
        if (shard_group_common(pending->group[i], group) < shard_group_size(pending->group[i]))
            pending->group[kept++] = pending->group[i];
    pending->count = kept;
}

int64_t shard_pending_sums_ranks(const shard_pending_sums *pending, const shard_group *group)
{
    int64_t ranks = 1;
    for (int i = 0; i < pending->count; i++)
        ranks *= group ? shard_group_common(pending->group[i], group) : shard_group_size(pending->group[i]);
    return ranks;
}
