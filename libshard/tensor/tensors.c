/* Named lists of tensors, with a hash table over the names. */
#include "tensor/tensor.h"

#include "base/hash.h"
#include "base/random.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct named_tensor {
    char *name;
    shard_tensor *tensor;
} named_tensor;

struct shard_tensors {
    named_tensor *items;
    int64_t count, capacity;
    int64_t *slots; /* item index + 1; a power of two of them, at most half full */
    int64_t slot_count;
};

static uint64_t hash_start;

static void make_hash_start(void)
{
    hash_start = shard_random_secret();
}

/* The slot of a name if no other one has taken it. Names may come from a file that was made so that they share one slot: the
 * hash begins with a secret, and all of its bits count. */
static int64_t home_of(const shard_tensors *list, const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_hash_start);
    uint64_t hash = shard_hash_element(0, (int64_t)shard_hash_text(hash_start, name));
    return (int64_t)(hash & (uint64_t)(list->slot_count - 1));
}

/* The slot that has the name, or the empty slot for it. */
static int64_t *find_slot(const shard_tensors *list, const char *name)
{
    int64_t at = home_of(list, name);
    while (list->slots[at] && strcmp(list->items[list->slots[at] - 1].name, name) != 0)
        at = (at + 1) & (list->slot_count - 1);
    return &list->slots[at];
}

shard_tensors *shard_tensors_create(void)
{
    return shard_calloc(1, sizeof(shard_tensors));
}

void shard_tensors_destroy(shard_tensors *list)
{
    if (!list)
        return;
    for (int64_t i = 0; i < list->count; i++) {
        free(list->items[i].name);
        shard_tensor_unref(list->items[i].tensor);
    }
    free(list->items);
    free(list->slots);
    free(list);
}

/* Empties the slot of a name: those behind it that their names could not have move up, so that none is behind an empty one. */
static void empty_slot(shard_tensors *list, const char *name)
{
    int64_t hole = find_slot(list, name) - list->slots, mask = list->slot_count - 1;
    list->slots[hole] = 0;
    for (int64_t at = (hole + 1) & mask; list->slots[at]; at = (at + 1) & mask) {
        int64_t home = home_of(list, list->items[list->slots[at] - 1].name);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        list->slots[hole] = list->slots[at];
        list->slots[hole = at] = 0;
    }
}

static shard_status grow_slots(shard_tensors *list)
{
    if (2 * (list->count + 1) <= list->slot_count)
        return SHARD_OK;
    int64_t slot_count = list->slot_count ? 2 * list->slot_count : 32;
    int64_t *slots = shard_calloc((size_t)slot_count, sizeof *slots);
    if (!slots)
        return shard_last_status();
    free(list->slots);
    list->slots = slots;
    list->slot_count = slot_count;
    for (int64_t i = 0; i < list->count; i++)
        *find_slot(list, list->items[i].name) = i + 1;
    return SHARD_OK;
}

static shard_status add(const char *function, shard_tensors *list, const char *name, shard_tensor *tensor)
{
    SHARD_TRY(grow_slots(list));
    int64_t *slot = find_slot(list, name);
    if (*slot)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: the list has a tensor \"%.100s\" already: each needs a name of its own (shard_tensors_rename)",
                           function, name);
    SHARD_TRY(shard_grow(&list->items, &list->capacity, list->count + 1, sizeof *list->items));
    char *copy = shard_strdup(name);
    if (!copy)
        return shard_last_status();
    list->items[list->count++] = (named_tensor){copy, shard_tensor_ref(tensor)};
    *slot = list->count;
    return SHARD_OK;
}

shard_status shard_tensors_add(shard_tensors *list, const char *name, shard_tensor *tensor)
{
    if (!list || !name || !tensor)
        return shard_null_argument("shard_tensors_add", !list ? "list" : !name ? "name" : "tensor");
    return add("shard_tensors_add", list, name, tensor);
}

void shard_tensors_truncate(shard_tensors *list, int64_t count)
{
    while (list && list->count > count) {
        const named_tensor *last = &list->items[list->count - 1];
        empty_slot(list, last->name);
        list->count--;
        free(last->name);
        shard_tensor_unref(last->tensor);
    }
}

shard_status shard_tensors_extend(shard_tensors *list, const char *prefix, const shard_tensors *from)
{
    if (!list || !prefix || !from)
        return shard_null_argument("shard_tensors_extend", !list ? "list" : !prefix ? "prefix" : "from");
    int64_t count = list->count, added = from->count; /* `from` may be the list itself */
    for (int64_t i = 0; i < added; i++) {
        char *name = shard_format("%s%s", prefix, from->items[i].name);
        shard_status status = name ? add("shard_tensors_extend", list, name, from->items[i].tensor) : shard_last_status();
        free(name);
        if (status != SHARD_OK) {
            shard_tensors_truncate(list, count);
            return status;
        }
    }
    return SHARD_OK;
}

shard_tensors *shard_tensors_subset(const shard_tensors *list, const char *prefix)
{
    if (!list || !prefix) {
        shard_null_argument("shard_tensors_subset", list ? "prefix" : "list");
        return NULL;
    }
    shard_tensors *subset = shard_tensors_create();
    size_t length = strlen(prefix);
    shard_status status = subset ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < list->count && status == SHARD_OK; i++)
        if (strncmp(list->items[i].name, prefix, length) == 0)
            status = shard_tensors_add(subset, list->items[i].name + length, list->items[i].tensor);
    if (status == SHARD_OK)
        return subset;
    shard_tensors_destroy(subset);
    return NULL;
}

/* The item with the name; NULL with the error set. */
static named_tensor *find_item(const char *function, const shard_tensors *list, const char *name)
{
    int64_t item = list->slot_count ? *find_slot(list, name) : 0;
    return item ? &list->items[item - 1]
                : shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: there is no tensor \"%.100s\"", function, name);
}

shard_status shard_tensors_rename(shard_tensors *list, const char *name, const char *to)
{
    if (!list || !name || !to)
        return shard_null_argument("shard_tensors_rename", !list ? "list" : !name ? "name" : "to");
    named_tensor *item = find_item("shard_tensors_rename", list, name);
    if (!item || strcmp(name, to) == 0)
        return item ? SHARD_OK : shard_last_status();
    if (*find_slot(list, to))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_tensors_rename: \"%.100s\" to \"%.100s\", which there is already", name,
                           to);
    char *copy = shard_strdup(to);
    if (!copy)
        return shard_last_status();
    empty_slot(list, item->name);
    free(item->name);
    item->name = copy;
    *find_slot(list, copy) = item - list->items + 1;
    return SHARD_OK;
}

shard_status shard_tensors_remove(shard_tensors *list, const char *name)
{
    if (!list || !name)
        return shard_null_argument("shard_tensors_remove", list ? "name" : "list");
    named_tensor *item = find_item("shard_tensors_remove", list, name);
    if (!item)
        return shard_last_status();
    empty_slot(list, name);
    free(item->name); /* `name` may be the item's own string */
    shard_tensor_unref(item->tensor);
    int64_t index = item - list->items;
    memmove(item, item + 1, (size_t)(--list->count - index) * sizeof *item);
    for (int64_t i = 0; i < list->slot_count; i++)
        list->slots[i] -= list->slots[i] > index + 1;
    return SHARD_OK;
}

int64_t shard_tensors_count(const shard_tensors *list)
{
    return list ? list->count : 0;
}

const char *shard_tensors_name(const shard_tensors *list, int64_t index)
{
    return list && index >= 0 && index < list->count ? list->items[index].name : NULL;
}

shard_tensor *shard_tensors_at(const shard_tensors *list, int64_t index)
{
    return list && index >= 0 && index < list->count ? list->items[index].tensor : NULL;
}

int64_t shard_tensors_index(const shard_tensors *list, const shard_tensor *tensor)
{
    for (int64_t i = 0; i < shard_tensors_count(list); i++)
        if (list->items[i].tensor == tensor)
            return i;
    return -1;
}

shard_tensor *shard_tensors_find(const shard_tensors *list, const char *name)
{
    if (!list || !name || !list->slot_count)
        return NULL;
    int64_t item = *find_slot(list, name);
    return item ? list->items[item - 1].tensor : NULL;
}
