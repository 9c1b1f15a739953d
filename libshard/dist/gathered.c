/*
 * A bucket's values are gathered by all ranks of its group when the first of them needs
 * one, which is when all do, as they run the same program. They rest from the end of
 * their module's forward on, and go when others come: so the next module finds them
 * still there if it is in the same bucket. Backward gives them back by itself, once their
 * gradients are complete.
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
    struct gathered *next; /* of those that have memory */
} gathered;

static _Thread_local gathered *present;

static void forget(const gathered *g)
{
    gathered **at = &present;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
}

/* Of those that rest. */
static void release_others(const gathered *g)
{
    for (gathered **at = &present; *at;) {
        gathered *other = *at;
        if (other != g && other->filler.rests) {
            *at = other->next;
            shard_storage_release(other->storage);
        } else {
            at = &other->next;
        }
    }
}

static shard_status fill(shard_filler *filler, shard_storage *storage)
{
    gathered *g = (gathered *)filler;
    forget(g);
    release_others(g);
    g->next = present;
    present = g;
    return shard_group_all_gather(g->group, g->device, g->own->memory, storage->memory, g->parts, g->dtype);
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
    *g = (gathered){.filler = {.fill = fill, .drop = drop},
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
