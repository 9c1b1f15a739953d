#include "containers.h"

#include "array.h"
#include "hash.h"
#include "random.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static uint64_t secret;

static void make_secret(void)
{
    if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) != sizeof secret)
        secret = (uint64_t)clock() ^ (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid() << 40; /* early in the system's start */
}

/* Where hashes begin. Keys may come from a file that was made so that they share a few slots: slots depend on a secret. */
static uint64_t hash_secret(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_secret);
    return secret;
}

/* ---- numbers by key: open addressing, at most half full ---- */

static int64_t number_slot(const number_map *map, uint64_t key)
{
    uint64_t slot = random_mix(key + hash_secret()) & (uint64_t)(map->room - 1);
    while (map->value[slot] >= 0 && map->key[slot] != key)
        slot = (slot + 1) & (uint64_t)(map->room - 1);
    return (int64_t)slot;
}

int64_t number_map_find(const number_map *map, uint64_t key)
{
    return map->room ? map->value[number_slot(map, key)] : -1;
}

static shard_status number_map_grow(number_map *map)
{
    number_map larger = {.room = map->room ? 2 * map->room : 64, .count = map->count};
    larger.key = calloc((size_t)larger.room, sizeof *larger.key);
    larger.value = malloc((size_t)larger.room * sizeof *larger.value);
    if (!larger.key || !larger.value) {
        number_map_free(&larger);
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " numbers", map->room);
    }
    memset(larger.value, 0xFF, (size_t)larger.room * sizeof *larger.value);
    for (int64_t i = 0; i < map->room; i++) {
        if (map->value[i] < 0)
            continue;
        int64_t slot = number_slot(&larger, map->key[i]);
        larger.key[slot] = map->key[i];
        larger.value[slot] = map->value[i];
    }
    number_map_free(map);
    *map = larger;
    return SHARD_OK;
}

shard_status number_map_set(number_map *map, uint64_t key, int64_t value)
{
    if (2 * (map->count + 1) > map->room && number_map_grow(map) != SHARD_OK)
        return shard_last_status();
    int64_t slot = number_slot(map, key);
    map->count += map->value[slot] < 0;
    map->key[slot] = key;
    map->value[slot] = value;
    return SHARD_OK;
}

void number_map_free(number_map *map)
{
    free(map->key);
    free(map->value);
    *map = (number_map){0};
}

/* ---- byte strings ---- */

static uint64_t hash_of(const char *bytes, int64_t size)
{
    return random_mix(hash_bytes(hash_secret(), bytes, size));
}

const char *string_set_at(const string_set *set, int64_t number, int64_t *size)
{
    *size = set->begin[number + 1] - set->begin[number];
    return set->bytes + set->begin[number];
}

static int64_t string_slot(const string_set *set, const char *bytes, int64_t size)
{
    uint64_t slot = hash_of(bytes, size) & (uint64_t)(set->slots - 1);
    for (; set->slot[slot] >= 0; slot = (slot + 1) & (uint64_t)(set->slots - 1)) {
        int64_t other;
        const char *found = string_set_at(set, set->slot[slot], &other);
        if (other == size && memcmp(found, bytes, (size_t)size) == 0)
            break;
    }
    return (int64_t)slot;
}

int64_t string_set_find(const string_set *set, const char *bytes, int64_t size)
{
    return set->slots ? set->slot[string_slot(set, bytes, size)] : -1;
}

static bool string_set_grow(string_set *set)
{
    int64_t slots = set->slots ? 2 * set->slots : 64, *slot = malloc((size_t)slots * sizeof *slot);
    if (!slot) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " texts", set->count);
        return false;
    }
    memset(slot, 0xFF, (size_t)slots * sizeof *slot);
    free(set->slot);
    set->slot = slot;
    set->slots = slots;
    for (int64_t i = 0; i < set->count; i++) {
        int64_t size;
        const char *bytes = string_set_at(set, i, &size);
        set->slot[string_slot(set, bytes, size)] = i;
    }
    return true;
}

int64_t string_set_add(string_set *set, const char *bytes, int64_t size)
{
    int64_t found = string_set_find(set, bytes, size), used = set->count ? set->begin[set->count] : 0;
    if (found >= 0)
        return found;
    if (2 * (set->count + 1) > set->slots && !string_set_grow(set))
        return -1;
    if (array_grow(&set->bytes, &set->bytes_room, used + size, 1) != SHARD_OK ||
        array_grow(&set->begin, &set->begin_room, set->count + 2, sizeof *set->begin) != SHARD_OK)
        return -1;
    set->slot[string_slot(set, bytes, size)] = set->count;
    memcpy(set->bytes + used, bytes, (size_t)size);
    set->begin[set->count] = used;
    set->begin[set->count + 1] = used + size;
    return set->count++;
}

void string_set_free(string_set *set)
{
    free(set->bytes);
    free(set->begin);
    free(set->slot);
    *set = (string_set){0};
}

/* ---- the queue: a binary heap ---- */

static bool is_before(queue_entry a, queue_entry b)
{
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

shard_status queue_push(queue *of, queue_entry entry)
{
    if (array_grow(&of->entry, &of->room, of->count + 1, sizeof *of->entry) != SHARD_OK)
        return shard_last_status();
    int64_t at = of->count++;
    for (; at > 0 && is_before(entry, of->entry[(at - 1) / 2]); at = (at - 1) / 2)
        of->entry[at] = of->entry[(at - 1) / 2];
    of->entry[at] = entry;
    return SHARD_OK;
}

bool queue_pop(queue *of, queue_entry *entry)
{
    if (of->count == 0)
        return false;
    *entry = of->entry[0];
    queue_entry moved = of->entry[--of->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child + 1 < of->count && is_before(of->entry[child + 1], of->entry[child]))
            child++;
        if (child >= of->count || !is_before(of->entry[child], moved))
            break;
        of->entry[at] = of->entry[child];
        at = child;
    }
    of->entry[at] = moved;
    return true;
}

void queue_free(queue *of)
{
    free(of->entry);
    *of = (queue){0};
}
