/*
 * Compares texts over ranks by hashes. If these differ, the ranks halve the list until they find the first text that
 * differs, and exchange it.
 */
#include "identical.h"

#include "hash.h"

#include <shard/distributed.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES 160 /* bytes of a text in the error */
#define START_BYTES 40  /* of them the start of a longer text, */
#define BEFORE_BYTES 60 /* and what is before the first difference */

/* FNV-1a of the texts [begin, end), each with its 0. */
static int64_t hash_texts(const identical_list *list, int64_t begin, int64_t end)
{
    char text[IDENTICAL_BYTES];
    uint64_t hash = HASH_START;
    for (int64_t i = begin; i < end; i++) {
        list->write(list->of, i, text);
        hash = hash_bytes(hash, text, (int64_t)strlen(text) + 1);
    }
    return (int64_t)hash;
}

/* Gathers the ranks' bytes, [ranks, bytes], into `all`. */
static shard_status gather_bytes(const void *mine, int64_t bytes, void *all)
{
    shard_group *world = shard_world();
    shard_status status = SHARD_OK;
    SHARD_SCOPE {
        shard_tensor *row = shard_from_host(mine, SHARD_SHAPE(1, bytes), .dtype = SHARD_UINT8, .device = shard_device_open("cpu"));
        status = shard_copy_to_host(shard_gather_from_group(row, 0, world), all, (size_t)(shard_group_size(world) * bytes));
    }
    return status;
}

/* Whether all ranks have the same number; *least is the smallest. `all` has room for one number of each rank. */
static shard_status compare(int64_t mine, int64_t *all, bool *equal, int64_t *least)
{
    shard_status status = gather_bytes(&mine, sizeof mine, all);
    *equal = true;
    *least = mine;
    for (int i = 0; i < shard_group_size(shard_world()) && status == SHARD_OK; i++) {
        *equal &= all[i] == mine;
        *least = all[i] < *least ? all[i] : *least;
    }
    return status;
}

/* The text as it is, or its start and the bytes around the first difference, which is at byte `at`. */
static const char *show(char *shown, const char *text, size_t at)
{
    if (at < SHOWN_BYTES - START_BYTES)
        snprintf(shown, SHOWN_BYTES, "%s", text);
    else
        snprintf(shown, SHOWN_BYTES, "%.*s...%s", START_BYTES, text, text + at - BEFORE_BYTES);
    return shown;
}

/* Sets the same error on all ranks. A text past the end of a list is empty. */
static shard_status report_difference(const char *what, const char *advice, const identical_list *list, int64_t index)
{
    int ranks = shard_group_size(shard_world()), other = 0;
    char own[IDENTICAL_BYTES] = "no more", shown[2][SHOWN_BYTES], (*all)[IDENTICAL_BYTES] = calloc((size_t)ranks, sizeof *all);
    if (!all)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the texts of %d ranks", ranks);
    if (index < list->count)
        list->write(list->of, index, own);
    shard_status status = gather_bytes(own, IDENTICAL_BYTES, all);
    while (status == SHARD_OK && other < ranks - 1 && strcmp(all[other], all[0]) == 0)
        other++;
    size_t at = 0;
    while (all[0][at] && all[0][at] == all[other][at])
        at++;
    if (status == SHARD_OK)
        status = shard_error(SHARD_ERROR_MISMATCH, "%s differ between ranks: rank 0 has %s, rank %d has %s; %s", what,
                             show(shown[0], all[0], at), other, show(shown[1], all[other], at), advice);
    free(all);
    return status;
}

shard_status check_identical(const char *what, const char *advice, identical_list list)
{
    int ranks = shard_group_size(shard_world());
    if (ranks == 1)
        return SHARD_OK;
    int64_t *all = calloc((size_t)ranks, sizeof *all), low = 0, high, least;
    if (!all)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the numbers of %d ranks", ranks);
    bool counts = true, texts = true, equal;
    shard_status status = compare(list.count, all, &counts, &high);
    if (status == SHARD_OK)
        status = compare(hash_texts(&list, 0, high), all, &texts, &least);
    if (texts)
        low = high;
    while (status == SHARD_OK && low < high) { /* the texts before low are equal, some of those before high differ */
        int64_t middle = low + (high - low) / 2;
        status = compare(hash_texts(&list, low, middle + 1), all, &equal, &least);
        if (equal)
            low = middle + 1;
        else
            high = middle;
    }
    free(all);
    if (status != SHARD_OK || (counts && texts))
        return status;
    return report_difference(what, advice, &list, low);
}
