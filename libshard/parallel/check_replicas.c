/*
 * shard_check_replicas: whether tensors that are replicated have the same bits on all ranks of their replica groups. Ranks
 * exchange a hash of each tensor. As check_param_hashes_across_dp_replicas in Megatron-LM.
 */
#include "parallel/replicas.h"

#include "base/hash.h"
#include "base/memory.h"
#include "comm/function.h"
#include "comm/majority.h"
#include "op/op.h"
#include "parallel/unit.h"

#include <stdlib.h>
#include <string.h>

/* ---- one tensor ---- */

/* Name, dtype and shape of a list's tensor; the caller frees it. NULL with the error set. */
static char *describe(const shard_tensors *list, int64_t index)
{
    const shard_tensor *tensor = shard_tensors_at(list, index);
    shard_shape shape = shard_tensor_whole_shape(tensor);
    return shard_format("\"%s\" %s %s", shard_tensors_name(list, index), shard_dtype_name(tensor->dtype),
                        shard_shape_text(&shape));
}

static uint64_t hash_block(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        hash = shard_hash_word(hash, word);
        hash ^= hash >> 32; /* else a change of the signs of two elements could keep the hash */
    }
    return hash;
}

/* A device's memory is copied block by block. */
shard_status shard_replica_hash(shard_tensor *tensor, uint64_t *hash)
{
    enum { BLOCK = 1 << 20 };
    size_t bytes = shard_tensor_bytes(tensor);
    const char *memory = shard_tensor_memory(tensor);
    *hash = SHARD_HASH_START;
    if (!memory)
        return shard_last_status();
    bool host = shard_ops(tensor)->host_memory;
    char *block = host ? NULL : shard_calloc(BLOCK, 1);
    shard_status status = shard_last_status();
    for (size_t at = 0; at < bytes && status == SHARD_OK; at += BLOCK) {
        size_t part = bytes - at < BLOCK ? bytes - at : BLOCK;
        if (!host)
            status = SHARD_RUN(tensor, copy_out, block, memory + at, part);
        *hash = hash_block(*hash, host ? memory + at : block, part);
    }
    free(block);
    return status;
}

/* ---- a list ---- */

/* The first tensor of a list whose replicas differ. */
typedef struct difference {
    int64_t index; /* INT64_MAX: none */
    shard_majority ranks;
} difference;

/* The ranks over which a tensor is replicated; NULL: it has no replicas, or ranks partition it. */
static shard_group *replicated_over(const shard_tensor *tensor)
{
    bool partitioned = tensor->storage->materializer || shard_flat_range_of(tensor);
    return partitioned ? NULL : shard_parameter_group(tensor);
}

/* Of the values, and of name, dtype and shape. Zeros that were never written to stay without memory. */
static shard_status hash_tensor(const shard_tensors *list, int64_t index, uint64_t *hash)
{
    shard_tensor *tensor = shard_tensors_at(list, index);
    *hash = SHARD_HASH_START;
    if (!shard_tensor_is_idle(tensor))
        SHARD_TRY(shard_replica_hash(tensor, hash));
    char *text = describe(list, index);
    if (!text)
        return shard_last_status();
    *hash = shard_hash_text(*hash, text);
    free(text);
    return SHARD_OK;
}

/* Hashes the `count` tensors of the list that are replicated over one group, at index [count], and exchanges the hashes. */
static void compare_over(shard_group *group, const shard_tensors *list, const int64_t *index, int64_t count, difference *found)
{
    int ranks = shard_group_size(group);
    int64_t *mine = shard_calloc((size_t)count, sizeof *mine), *all = shard_calloc((size_t)(count * ranks), sizeof *all);
    shard_status status = shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        status = hash_tensor(list, index[i], (uint64_t *)&mine[i]);
    status =
        status == SHARD_OK ? shard_group_all_gather_equal(group, NULL, mine, all, count, SHARD_INT64) : shard_group_fail(group);
    for (int64_t i = 0; i < count && status == SHARD_OK && index[i] < found->index; i++)
        if (shard_find_majority(group, &all[i], sizeof *all, (size_t)count * sizeof *all, &found->ranks))
            found->index = index[i];
    free(mine);
    free(all);
}

/* One exchange for each replica group, in the order in which the list has them first, also after an error. */
static shard_status compare(const shard_tensors *list, difference *found)
{
    int64_t size = shard_tensors_count(list), *index = shard_calloc((size_t)size, sizeof *index);
    for (int64_t i = 0; i < size; i++) {
        shard_group *group = replicated_over(shard_tensors_at(list, i));
        bool done = !group;
        for (int64_t j = 0; j < i && !done; j++)
            done = replicated_over(shard_tensors_at(list, j)) == group;
        int64_t count = 0;
        for (int64_t j = i; j < size && !done && index; j++)
            if (replicated_over(shard_tensors_at(list, j)) == group)
                index[count++] = j;
        if (!done)
            compare_over(group, list, index, count, found);
    }
    free(index);
    return shard_last_status();
}

shard_status shard_check_replicas(const shard_tensors *tensors)
{
    SHARD_FUNCTION("shard_check_replicas");
    difference found = {.index = INT64_MAX};
    shard_status status = tensors ? compare(tensors, &found) : shard_null_argument("shard_check_replicas", "tensors");
    if (status == SHARD_OK && found.index < INT64_MAX) {
        char *text = describe(tensors, found.index);
        if (text)
            shard_error(SHARD_ERROR_MISMATCH, "shard_check_replicas: %.200s: the bits on %s are not those on %s", text,
                        found.ranks.odd_ranks, found.ranks.usual_ranks);
        free(text);
    }
    return shard_agree(shard_world());
}
