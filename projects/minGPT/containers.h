/* A map of numbers, a set of byte strings, and a queue, as the byte-pair encoding needs them. */
#ifndef MINGPT_CONTAINERS_H
#define MINGPT_CONTAINERS_H

#include <shard/base.h>

/* ---- numbers by key ---- */

typedef struct number_map {
    uint64_t *key;
    int64_t *value; /* [room], -1: empty */
    int64_t room, count;
} number_map;

/* The value of the key, at least 0; -1 if there is none. */
int64_t number_map_find(const number_map *map, uint64_t key);
/* Sets the value of the key. */
shard_status number_map_set(number_map *map, uint64_t key, int64_t value);
void number_map_free(number_map *map);

/* ---- byte strings, numbered from 0 in the order in which they were added ---- */

typedef struct string_set {
    char *bytes;
    int64_t *begin; /* [count + 1] */
    int64_t *slot;  /* [slots]: numbers, -1: empty */
    int64_t count, slots, begin_room, bytes_room;
} string_set;

/* The number of a string; -1 if it is not in the set. */
int64_t string_set_find(const string_set *set, const char *bytes, int64_t size);
/* Its number, a new one if it is not in the set; -1 with the error set. */
int64_t string_set_add(string_set *set, const char *bytes, int64_t size);
const char *string_set_at(const string_set *set, int64_t number, int64_t *size);
void string_set_free(string_set *set);

/* ---- a queue: the smallest entry first, by `first` and then by `second` ---- */

typedef struct queue_entry {
    uint64_t first, second;
} queue_entry;

typedef struct queue {
    queue_entry *entry;
    int64_t count, room;
} queue;

shard_status queue_push(queue *of, queue_entry entry);
/* False if it is empty. */
bool queue_pop(queue *of, queue_entry *entry);
void queue_free(queue *of);

#endif
