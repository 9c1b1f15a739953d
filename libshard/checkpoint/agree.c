/* Whether all ranks mean the same: a hash shows it; only where it differs is rank 0's
 * list sent to the others, so that the text names the first difference. */
#include "base/hash.h"
#include "checkpoint/part.h"
#include "checkpoint/safetensors.h"

#include <shard/dist.h>

#include <stdlib.h>
#include <string.h>

/* A string for the argument and for each tensor. */
typedef struct agreement {
    char *text;
    int64_t bytes, capacity;
} agreement;

typedef struct summary {
    uint64_t hash;
    int64_t bytes;
} summary;

static shard_status add_line(agreement *a, char *line)
{
    size_t bytes = line ? strlen(line) + 1 : 0;
    shard_status status = line ? shard_grow(&a->text, &a->capacity, a->bytes + (int64_t)bytes, 1) : shard_last_status();
    if (status == SHARD_OK) {
        memcpy(a->text + a->bytes, line, bytes);
        a->bytes += (int64_t)bytes;
    }
    free(line);
    return status;
}

static shard_status describe(agreement *a, const char *function, const shard_tensors *tensors, const char *argument)
{
    if (!tensors)
        return shard_null_argument(function, "tensors");
    SHARD_TRY(add_line(a, shard_strdup(argument)));
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(tensors, i);
        const char *name = shard_tensors_name(tensors, i);
        shard_shape shape = shard_tensor_whole_shape(tensor);
        SHARD_TRY(shard_part_check(function, name, tensor));
        SHARD_TRY(add_line(a, shard_format("\"%s\" %s %s %s", name, shard_dtype_name(tensor->dtype), shard_shape_text(&shape),
                                           shard_placement_text(&tensor->placement))));
    }
    return SHARD_OK;
}

static void report_difference(const char *function, const agreement *mine, const char *first, int64_t first_bytes)
{
    int64_t at = 0;
    while (at < mine->bytes && at < first_bytes && strcmp(mine->text + at, first + at) == 0)
        at += (int64_t)strlen(first + at) + 1;
    if (at < mine->bytes || at < first_bytes)
        shard_error(SHARD_ERROR_MISMATCH, "%s: the ranks do not mean the same: here it is %.150s, on rank 0 %.150s", function,
                    at < mine->bytes ? mine->text + at : "nothing more", at < first_bytes ? first + at : "nothing more");
}

static shard_status find_difference(const char *function, const agreement *mine, int64_t first_bytes)
{
    shard_group *world = shard_world();
    bool first = shard_group_rank(world) == 0;
    char *text = first ? mine->text : shard_calloc((size_t)first_bytes, 1);
    if (shard_group_broadcast(world, NULL, text, first_bytes, SHARD_UINT8, 0) == SHARD_OK && !first)
        report_difference(function, mine, text, first_bytes);
    if (!first)
        free(text);
    return shard_agree(world);
}

shard_status shard_tensors_agree(const char *function, const shard_tensors *tensors, const char *argument)
{
    shard_group *world = shard_world();
    int size = shard_group_size(world);
    agreement mine = {0};
    summary told = {0}, *all = shard_calloc((size_t)size, sizeof *all);
    if (shard_last_status() == SHARD_OK)
        describe(&mine, function, tensors, argument);
    told.hash = shard_hash_bytes(SHARD_HASH_START, mine.text, mine.bytes);
    told.bytes = mine.bytes;
    shard_status status = shard_group_exchange(world, &told, sizeof told, all);
    bool same = true;
    for (int rank = 0; rank < size && status == SHARD_OK; rank++)
        same &= all[rank].hash == all[0].hash && all[rank].bytes == all[0].bytes;
    if (status == SHARD_OK && !same)
        status = find_difference(function, &mine, all[0].bytes);
    free(all);
    free(mine.text);
    return status;
}
