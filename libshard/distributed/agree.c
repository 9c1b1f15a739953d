#include "distributed/agree.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

typedef struct summary {
    uint64_t hash;
    int64_t bytes;
} summary;

shard_status shard_agreement_add(shard_agreement *agreement, char *line)
{
    size_t bytes = line ? strlen(line) + 1 : 0;
    shard_status status =
        line ? shard_grow(&agreement->text, &agreement->capacity, agreement->bytes + (int64_t)bytes, 1) : shard_last_status();
    if (status == SHARD_OK) {
        memcpy(agreement->text + agreement->bytes, line, bytes);
        agreement->bytes += (int64_t)bytes;
    }
    free(line);
    return status;
}

static void report_difference(const shard_agreement *mine, const char *first, int64_t first_bytes, int rank, const char *what)
{
    int64_t at = 0;
    while (at < mine->bytes && at < first_bytes && strcmp(mine->text + at, first + at) == 0)
        at += (int64_t)strlen(first + at) + 1;
    if (at < mine->bytes || at < first_bytes)
        shard_error(SHARD_ERROR_MISMATCH, "%s: here it is %.150s, on rank %d %.150s", what,
                    at < mine->bytes ? mine->text + at : "nothing more", rank, at < first_bytes ? first + at : "nothing more");
}

static shard_status find_difference(const shard_agreement *mine, int64_t first_bytes, shard_group *group, const char *what)
{
    bool first = shard_group_rank(group) == 0;
    char *text = first ? mine->text : shard_calloc((size_t)first_bytes, 1);
    if (shard_group_broadcast(group, NULL, text, first_bytes, SHARD_UINT8, 0) == SHARD_OK && !first)
        report_difference(mine, text, first_bytes, shard_group_world_rank(group, 0), what);
    if (!first)
        free(text);
    return shard_agree(group);
}

shard_status shard_agreement_check(shard_agreement *agreement, shard_group *group, const char *what)
{
    int size = shard_group_size(group);
    summary mine = {.hash = shard_hash_bytes(SHARD_HASH_START, agreement->text, agreement->bytes), .bytes = agreement->bytes};
    summary *all = shard_calloc((size_t)size, sizeof *all);
    shard_status status = shard_group_exchange(group, &mine, sizeof mine, all);
    bool same = true;
    for (int member = 0; member < size && status == SHARD_OK; member++)
        same &= all[member].hash == all[0].hash && all[member].bytes == all[0].bytes;
    if (status == SHARD_OK && !same)
        status = find_difference(agreement, all[0].bytes, group, what);
    free(all);
    free(agreement->text);
    *agreement = (shard_agreement){0};
    return status;
}
