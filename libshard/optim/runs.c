/* Runs: local ranges that are adjacent in memory, so that a device updates or measures them in one call. */
#include "optim/optimizer.h"

bool shard_runs_same_list(const shard_run *a, const shard_run *b)
{
    return shard_device_of(a->array[0]) == shard_device_of(b->array[0]) && a->array[0]->dtype == b->array[0]->dtype;
}

/* Elements from one tensor to another one of its dtype and storage; large if that is first. */
static size_t distance_of(const shard_tensor *from, const shard_tensor *to)
{
    return (to->offset - from->offset) / shard_dtype_size(from->dtype);
}

/* Whether `next` follows `run` in each array, and has the same factors of a step. */
static bool follows(const shard_run *run, const shard_run *next)
{
    const shard_update *a = &run->update, *b = &next->update;
    bool same = a->lr == b->lr && a->factors == b->factors && a->weight_decay == b->weight_decay && a->step == b->step &&
                a->trust_ratio == b->trust_ratio && a->key == b->key && a->columns <= 1 && b->columns <= 1;
    size_t distance = distance_of(run->array[0], next->array[0]), size = shard_dtype_size(run->array[0]->dtype);
    bool adjacent = same && shard_runs_same_list(run, next) && next->array[0]->offset >= run->array[0]->offset &&
                    (distance - (size_t)a->size) * size < SHARD_FLAT_ALIGNMENT;
    for (int i = 0; i < SHARD_RUN_ARRAYS && run->array[i] && adjacent; i++)
        adjacent = run->array[i]->storage == next->array[i]->storage && distance_of(run->array[i], next->array[i]) == distance;
    return adjacent;
}

int64_t shard_runs_end(const shard_run *all, int64_t first, int64_t count)
{
    int64_t end = first + 1;
    while (end < count && follows(&all[end - 1], &all[end]))
        end++;
    return end;
}

int64_t shard_runs_join(shard_run *all, int64_t count)
{
    int64_t joined = 0;
    for (int64_t i = 0; i < count; i++) {
        shard_run *whole = joined ? &all[joined - 1] : NULL;
        if (!whole || !follows(whole, &all[i])) {
            all[joined++] = all[i];
            continue;
        }
        size_t distance = all[i].array[0]->offset - whole->array[0]->offset;
        whole->update.size = (int64_t)(distance / shard_dtype_size(whole->array[0]->dtype)) + all[i].update.size;
    }
    return joined;
}
