/*
 * A bucket's values are gathered by all ranks of its group when the first of them needs
 * one, which is when all do, as they run the same program. They rest from the end of
 * their module's forward on, and go when others come: so the next module finds them
 * still there if it is in the same bucket. Backward gives them back by itself, once their
 * gradients are complete.
 *
 * Where a gather can be under way while others compute, the one that came next the last
 * time is started as soon as one is needed.
 */
#include "dist/gathered.h"

#include <stdlib.h>
#include <string.h>

typedef struct gathered {
    shard_filler filler; /* first: a storage's filler is this */
    shard_storage *storage;
    shard_group *group;
    shard_device *device;
    shard_dtype dtype;
    int64_t *parts; /* [members of group] */
    shard_storage *own;
    bool arriving; /* was started, and nobody has needed it yet */
    shard_request *request;
    struct gathered *next; /* of those that have memory */
} gathered;

/* What came next the last time that `at` was needed after `before`: in forward and in
 * backward the same one stands between others. */
typedef struct follower {
    const gathered *before, *at;
    gathered *next;
} follower;

static _Thread_local gathered *present;
static _Thread_local struct {
    follower *all;
    int64_t count, capacity;
} followers;
static _Thread_local const gathered *before, *latest; /* the last two that were needed */

static follower *find_follower(void)
{
    for (int64_t i = 0; i < followers.count; i++)
        if (followers.all[i].before == before && followers.all[i].at == latest)
            return &followers.all[i];
    return NULL;
}

void shard_gathered_end_pass(void)
{
    follower *last = find_follower();
    if (last)
        last->next = NULL;
    before = latest = NULL;
}

/* Notes that g is needed now; what comes after it, if that is known, or NULL. */
static gathered *note(gathered *g)
{
    follower *known = find_follower();
    if (known) {
        known->next = g;
    } else {
        if (shard_grow(&followers.all, &followers.capacity, followers.count + 1, sizeof *followers.all) != SHARD_OK)
            return NULL;
        followers.all[followers.count++] = (follower){before, latest, g};
    }
    before = latest;
    latest = g;
    known = find_follower();
    return known ? known->next : NULL;
}

static void forget(const gathered *g)
{
    int64_t left = 0;
    for (int64_t i = 0; i < followers.count; i++) {
        const follower *f = &followers.all[i];
        if (f->before != g && f->at != g && f->next != g)
            followers.all[left++] = *f;
    }
    followers.count = left;
    if (before == g || latest == g)
        before = latest = NULL;
}

static void remove_present(const gathered *g)
{
    gathered **at = &present;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = (*at)->next;
}

/* Of those that rest. */
static void release_others(const gathered *g)
{
    for (gathered *other = present, *next; other; other = next) {
        next = other->next;
        if (other != g && other->filler.rests)
            shard_storage_release(other->storage);
    }
}

void shard_gathered_release_resting(void)
{
    release_others(NULL);
}

static shard_status start(shard_filler *filler)
{
    gathered *g = (gathered *)filler;
    release_others(g);
    g->next = present;
    present = g;
    g->arriving = true;
    void *all = shard_storage_allocate(g->storage);
    g->request = shard_group_all_gather_start(g->group, g->device, g->own->memory, all, g->parts, g->dtype);
    return shard_last_status();
}

static shard_status settle(shard_filler *filler)
{
    gathered *g = (gathered *)filler;
    if (!g->arriving)
        return SHARD_OK;
    shard_request *request = g->request;
    g->arriving = false;
    g->request = NULL;
    SHARD_TRY(shard_group_wait(g->group, g->device, request));
    release_others(g);
    gathered *next = note(g);
    if (next && request && !next->storage->memory && shard_storage_begin(next->storage))
        next->filler.rests = true;
    return shard_last_status();
}

static void leave(shard_filler *filler)
{
    gathered *g = (gathered *)filler;
    remove_present(g);
    if (g->request)
        shard_group_wait(g->group, g->device, g->request);
    g->request = NULL;
    g->arriving = false;
}

static void drop(shard_filler *filler)
{
    gathered *g = (gathered *)filler;
    forget(g);
    shard_storage_drop(g->own);
    free(g->parts);
    free(g);
}

/* The own part's values, in memory of their own. */
static shard_status copy_own(const shard_bucket *bucket)
{
    size_t element = shard_dtype_size(bucket->dtype), bytes = (size_t)bucket->own * element;
    char *own = shard_storage_memory(bucket->own_values);
    const char *from = (char *)bucket->values->memory + (size_t)bucket->own_start * element;
    if (!own || bytes == 0)
        return shard_last_status();
    return bucket->device->ops->copy_rows(bucket->device, own, bytes, from, bytes, bytes, 1);
}

shard_status shard_gathered_begin(shard_bucket *bucket)
{
    size_t bytes = (size_t)bucket->own * shard_dtype_size(bucket->dtype);
    int ranks = shard_group_size(bucket->group);
    bucket->own_values = shard_storage_make(bucket->device, bytes);
    gathered *g = bucket->own_values ? shard_calloc(1, sizeof *g) : NULL;
    int64_t *parts = g ? shard_calloc((size_t)ranks, sizeof *parts) : NULL;
    if (!parts) {
        free(g);
        return shard_last_status();
    }
    shard_storage_set_kind(bucket->own_values, SHARD_MEMORY_PARAMETERS);
    shard_status status = copy_own(bucket);
    memcpy(parts, bucket->parts, (size_t)ranks * sizeof *parts);
    bucket->own_values->shares++;
    *g = (gathered){.filler = {.start = start, .settle = settle, .leave = leave, .drop = drop},
                    .storage = bucket->values,
                    .group = bucket->group,
                    .device = bucket->device,
                    .dtype = bucket->dtype,
                    .parts = parts,
                    .own = bucket->own_values};
    shard_storage_release(bucket->values);
    shard_storage_set_kind(bucket->values, SHARD_MEMORY_BUCKETS);
    bucket->values->filler = &g->filler;
    return status;
}
