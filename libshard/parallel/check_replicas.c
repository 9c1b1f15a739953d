/*
 * shard_check_replicas: whether tensors that are replicated have the same bits on all ranks of their replica groups. Ranks
 * exchange a hash of each tensor. As check_param_hashes_across_dp_replicas in Megatron-LM.
 */
#include "parallel/replicas.h"

#include "base/hash.h"
#include "base/math.h"
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

enum { BLOCK = 1 << 20 };

/* A device's memory is copied block by block. */
static shard_status hash_memory(const shard_tensor *tensor, const char *memory, size_t bytes, uint64_t *hash)
{
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

/* A matrix that is made only in parts later, when ranks partition it, has no memory for the whole here either. */
static shard_status hash_recipe(shard_tensor *matrix, uint64_t *hash)
{
    enum { WHOLE_WORDS = sizeof(uint64_t) }; /* rows of any dtype that fill words: the hash is that of all rows at once */
    shard_device *device = shard_device_of(matrix);
    int64_t rows = matrix->shape.dim[0], row = (int64_t)shard_tensor_bytes(matrix) / rows;
    int64_t most = shard_max(BLOCK / row / WHOLE_WORDS, 1) * WHOLE_WORDS;
    size_t bytes = (size_t)(shard_min(most, rows) * row);
    void *made = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = made ? SHARD_OK : shard_last_status();
    for (int64_t first = 0; first < rows && status == SHARD_OK; first += most) {
        int64_t count = shard_min(most, rows - first);
        status = shard_tensor_copy_rows(matrix, first, count, made);
        if (status == SHARD_OK)
            status = hash_memory(matrix, made, (size_t)(count * row), hash);
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, made, bytes);
    return status;
}

shard_status shard_replica_hash(shard_tensor *tensor, uint64_t *hash)
{
    *hash = SHARD_HASH_START;
    if (shard_has_recipe(tensor) && tensor->shape.ndim == 2 && shard_numel(tensor) > 0)
        return hash_recipe(tensor, hash);
    const char *memory = shard_tensor_memory(tensor);
    return memory ? hash_memory(tensor, memory, shard_tensor_bytes(tensor), hash) : shard_last_status();
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
