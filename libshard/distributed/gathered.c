/*
 * A bucket's values are gathered by all ranks of its group when the first of them needs
 * one, which is when all do, as they run the same program. They rest from the end of
 * their module's forward on, and go when others come: so the next module finds them
 * still there if it is in the same bucket. Backward gives them back by itself, once their
 * gradients are complete.
 *
 * Where a gather can be under way while others compute, the one that came next the last
 * time is started as soon as one is needed.
 *
 * One thread at a time uses values. But any may destroy a model that nobody uses any more,
 * as a language's finalizer does, while others are used: what the buckets know of each other
 * is under a lock.
 */
#include "distributed/gathered.h"

#include <pthread.h>
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static gathered *present;
static struct {
    follower *all;
    int64_t count, capacity;
} followers;
static const gathered *before, *latest; /* the last two that were needed */

static follower *find_follower(void)
{
    for (int64_t i = 0; i < followers.count; i++)
        if (followers.all[i].before == before && followers.all[i].at == latest)
            return &followers.all[i];
    return NULL;
}

void shard_gathered_end_pass(void)
{
    pthread_mutex_lock(&lock);
    follower *last = find_follower();
    if (last)
        last->next = NULL;
    before = latest = NULL;
    pthread_mutex_unlock(&lock);
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

static void let_go(gathered *g)
{
    remove_present(g);
    if (g->request)
        shard_group_wait(g->group, g->device, g->request);
    g->request = NULL;
    g->arriving = false;
    shard_storage_give_back(g->storage);
}

/* Of those that rest. */
static void release_others(const gathered *g, bool arriving)
{
    for (gathered *other = present, *next; other; other = next) {
        next = other->next;
        if (other != g && other->filler.rests && (arriving || !other->arriving))
            let_go(other);
    }
}

void shard_gathered_release_resting(void)
{
    pthread_mutex_lock(&lock);
    release_others(NULL, false);
    pthread_mutex_unlock(&lock);
}

void shard_gathered_forget(void)
{
    pthread_mutex_lock(&lock);
    while (present)
        let_go(present);
    followers.count = 0;
    before = latest = NULL;
    pthread_mutex_unlock(&lock);
}

static shard_status begin(gathered *g)
{
    release_others(g, true);
    g->next = present;
    present = g;
    g->arriving = true;
    void *all = shard_storage_allocate(g->storage);
    g->request = shard_group_all_gather_start(g->group, g->device, g->own->memory, all, g->parts, g->dtype);
    return shard_last_status();
}

static shard_status start(shard_filler *filler)
{
    pthread_mutex_lock(&lock);
    shard_status status = begin((gathered *)filler);
    pthread_mutex_unlock(&lock);
    return status;
}

/* What follows g begins to arrive, if others can compute meanwhile; it rests until it is needed. */
static void look_ahead(gathered *g, bool goes_on)
{
    release_others(g, true);
    gathered *next = note(g);
    if (!next || !goes_on || next->storage->memory)
        return;
    if (begin(next) == SHARD_OK)
        next->filler.rests = true;
    else
        let_go(next);
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
    pthread_mutex_lock(&lock);
    look_ahead(g, request != NULL);
    pthread_mutex_unlock(&lock);
    return shard_last_status();
}

static void release(shard_filler *filler)
{
    pthread_mutex_lock(&lock);
    let_go((gathered *)filler);
    pthread_mutex_unlock(&lock);
}

static void drop(shard_filler *filler)
{
    gathered *g = (gathered *)filler;
    pthread_mutex_lock(&lock); /* once: in between it might be foreseen, and begun anew */
    let_go(g);
    forget(g);
    pthread_mutex_unlock(&lock);
    shard_storage_unref(g->own);
    free(g->parts);
    free(g);
}

/* The own part's values, in memory of their own: those of the bucket, if it has any. */
static shard_status copy_own(const shard_bucket *bucket)
{
    size_t element = shard_dtype_size(bucket->dtype), bytes = (size_t)bucket->own * element;
    char *own = shard_storage_memory(bucket->own_values);
    const char *from = (char *)bucket->values->memory + (size_t)bucket->own_start * element;
    if (!own || bytes == 0 || !bucket->values->memory)
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
    bucket->own_values->references++;
    *g = (gathered){.filler = {.start = start, .settle = settle, .release = release, .drop = drop},
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
