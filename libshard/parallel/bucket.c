#include "parallel/bucket.h"

#include "base/hash.h"
#include "base/math.h"

#include <stdlib.h>
#include <string.h>

size_t shard_bucket_bytes(double mib)
{
    double bytes = mib * 1048576.0; /* it is checked later whether there is such a size */
    return bytes >= 0x1p62 ? (size_t)1 << 62 : bytes >= 1 ? (size_t)bytes : 1;
}

shard_status shard_bucket_options_set(shard_bucket_options *options, const char *function, shard_partition_level least, int stage,
                                      shard_zero_partition partition, double bucket_mib)
{
    const double most = 1e9;
    if (stage < (int)least || stage > SHARD_PARTITION_PARAMETERS)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no stage %d; there are %d to %d", function, stage, (int)least,
                           SHARD_PARTITION_PARAMETERS);
    if (partition != SHARD_ZERO_EVEN && partition != SHARD_ZERO_WHOLE)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no partition %d", function, (int)partition);
    if (!(bucket_mib >= 0 && bucket_mib <= most))
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: bucket_mib %g is not in [0, %g]", function, bucket_mib, most);
    options->level = (shard_partition_level)stage;
    options->whole_parameters = partition == SHARD_ZERO_WHOLE;
    options->bytes = shard_bucket_bytes(bucket_mib);
    return SHARD_OK;
}

shard_bucket_entry shard_bucket_candidate(shard_tensor *parameter, const char *name, int64_t index)
{
    const char *dot = strrchr(name, '.');
    uint64_t prefix = shard_hash_bytes(SHARD_HASH_START, name, dot ? (int64_t)(dot - name) : (int64_t)strlen(name));
    shard_bucket_entry entry = {.parameter = parameter, .prefix = prefix, .index = index, .size = shard_numel(parameter)};
    shard_unit_copy_name(entry.name, name);
    return entry;
}

/* ---- the parameters of each bucket ---- */

static int by_index(const void *a, const void *b)
{
    const shard_bucket_entry *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* By groups, in any order, as ranks have loads for each; large ones first in a group. */
static int largest_first(const void *a, const void *b)
{
    const shard_bucket_entry *x = a, *y = b;
    uintptr_t group = (uintptr_t)shard_parameter_group(x->parameter), other = (uintptr_t)shard_parameter_group(y->parameter);
    if (group != other)
        return group < other ? -1 : 1;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    return by_index(a, b);
}

/* load [ranks of group] = the number of elements that each rank has in earlier buckets. */
static void count_loads(const shard_buckets *buckets, const shard_group *group, int64_t *load)
{
    memset(load, 0, (size_t)shard_group_size(group) * sizeof *load);
    for (int64_t b = 0; b < buckets->count; b++)
        for (int64_t i = 0; i < buckets->all[b]->count && buckets->all[b]->unit->group == group; i++)
            load[buckets->all[b]->entries[i].owner] += buckets->all[b]->entries[i].size;
}

/* Whether the entry may be the bias of the matrix. */
static bool is_bias(const shard_bucket_entry *matrix, const shard_bucket_entry *entry)
{
    const shard_tensor *a = matrix->parameter, *b = entry->parameter;
    return a->shape.ndim == 2 && b->shape.ndim == 1 && b->shape.dim[0] == a->shape.dim[0];
}

static bool defers(const shard_bucket_entry *entry, const shard_bucket_options *options)
{
    return shard_leaf_of(entry->parameter)->defers_grad && options->level <= SHARD_PARTITION_OPTIMIZER;
}

/* Whether both gradients can be gathered together, and no other is gathered with the matrix's. */
static bool fits(const shard_bucket_entry *matrix, const shard_bucket_entry *entry, const shard_bucket_entry *candidates,
                 int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (candidates[i].deferred_with == matrix->parameter && &candidates[i] != matrix)
            return false;
    return matrix->deferred_with == matrix->parameter && is_bias(matrix, entry) &&
           matrix->parameter->dtype == entry->parameter->dtype &&
           shard_parameter_group(matrix->parameter) == shard_parameter_group(entry->parameter);
}

/* Finds the biases whose gradients are deferred with those of their matrices: of the same module, or next to each other. */
static void pair_biases(shard_bucket_entry *candidates, int64_t count, const shard_bucket_options *options, bool of_module)
{
    for (int64_t i = 0; i < count; i++) {
        shard_bucket_entry *bias = &candidates[i];
        for (int64_t j = 0; j < count && defers(bias, options) && !bias->deferred_with; j++) {
            bool pairs = of_module ? candidates[j].prefix == bias->prefix : j + 1 == i;
            if (pairs && fits(&candidates[j], bias, candidates, count))
                bias->deferred_with = candidates[j].parameter;
        }
    }
}

static void choose_deferred(shard_bucket_entry *candidates, int64_t count, const shard_bucket_options *options)
{
    for (int64_t i = 0; i < count; i++)
        if (defers(&candidates[i], options) && candidates[i].parameter->shape.ndim == 2)
            candidates[i].deferred_with = candidates[i].parameter;
    pair_biases(candidates, count, options, true);
    pair_biases(candidates, count, options, false);
}

/* Assigns each parameter, large ones first, to the rank of its group that has the fewest elements so far; of several the
 * lowest rank. */
static shard_status choose_owners(const shard_buckets *buckets, shard_bucket_entry *candidates, int64_t count)
{
    int64_t *load = shard_calloc((size_t)shard_group_size(shard_world()), sizeof *load);
    const shard_group *before = NULL;
    if (!load)
        return shard_last_status();
    qsort(candidates, (size_t)count, sizeof *candidates, largest_first);
    for (int64_t i = 0; i < count; i++) {
        shard_bucket_entry *entry = &candidates[i];
        const shard_group *group = shard_parameter_group(entry->parameter);
        if (group != before)
            count_loads(buckets, group, load);
        before = group;
        for (int rank = 1; rank < shard_group_size(group); rank++)
            entry->owner = load[rank] < load[entry->owner] ? rank : entry->owner;
        load[entry->owner] += entry->size;
    }
    free(load);
    qsort(candidates, (size_t)count, sizeof *candidates, by_index);
    for (int64_t i = 0; i < count; i++) /* deferred gradients of both are computed on one rank */
        for (int64_t j = 0; j < count && candidates[i].deferred_with; j++)
            if (candidates[j].parameter == candidates[i].deferred_with)
                candidates[i].owner = candidates[j].owner;
    return SHARD_OK;
}

/* A full bucket ends at the end of a module, unless that is far. The result is the same on all ranks that have a shard of
 * its parameters, so that they start their reductions in one order. */
static bool is_full(const shard_bucket *bucket, const shard_bucket_entry *next, size_t bytes)
{
    bool ends = bucket->entries[bucket->count - 1].prefix != next->prefix;
    return bucket->even_bytes >= (ends ? bytes : 2 * bytes);
}

/* Whether the parameter gets a separate bucket, which is streamed in row blocks. */
static bool is_streamed(const shard_bucket_entry *entry, const shard_bucket_options *options)
{
    return options->level >= SHARD_PARTITION_GRADIENTS && shard_row_blocks_suit(entry->parameter, options->bytes);
}

/* Whether the parameter has a bucket of its own. */
static bool is_alone(const shard_bucket_entry *entry, const shard_bucket_options *options)
{
    return is_streamed(entry, options) || entry->deferred_with;
}

static shard_bucket *find_or_add(shard_buckets *buckets, int64_t from, const shard_bucket_entry *candidate,
                                 const shard_bucket_options *options)
{
    shard_group *group = shard_parameter_group(candidate->parameter);
    shard_device *device = shard_device_of(candidate->parameter);
    shard_dtype dtype = candidate->parameter->dtype;
    for (int64_t i = buckets->count - 1; i >= from && !is_alone(candidate, options); i--) {
        shard_bucket *bucket = buckets->all[i];
        if (bucket->unit->group != group || bucket->unit->device != device || bucket->unit->dtype != dtype ||
            is_alone(&bucket->entries[0], options))
            continue;
        if (!is_full(bucket, candidate, options->bytes))
            return bucket;
        break;
    }
    shard_unit *unit = shard_unit_create(group, device, dtype);
    shard_bucket *bucket = unit ? shard_calloc(1, sizeof *bucket) : NULL;
    if (!bucket || shard_grow(&buckets->all, &buckets->capacity, buckets->count + 1, sizeof *buckets->all) != SHARD_OK) {
        shard_unit_close(unit);
        free(bucket);
        return NULL;
    }
    shard_unit_copy_name(unit->name, candidate->name);
    *bucket = (shard_bucket){.unit = unit, .defers = candidate->deferred_with != NULL};
    return buckets->all[buckets->count++] = bucket;
}

static int by_turn(const void *a, const void *b)
{
    const shard_bucket *x = *(shard_bucket *const *)a, *y = *(shard_bucket *const *)b;
    return (x->turn < y->turn) - (x->turn > y->turn);
}

/* A bucket is complete when its last entry is. A matrix that is streamed or deferred is complete while its layer's
 * backward runs, before its bias: the next one, or one that is deferred with it. */
static int64_t turn_of(const shard_bucket_entry *candidates, int64_t count, int64_t at, const shard_bucket_options *options)
{
    const shard_bucket_entry *entry = &candidates[at];
    int64_t index = entry->index;
    bool is_first = is_streamed(entry, options) || entry->deferred_with == entry->parameter;
    for (int64_t i = 0; i < count && entry->deferred_with; i++)
        if (candidates[i].deferred_with == entry->deferred_with)
            index = shard_max(index, candidates[i].index);
    if (is_streamed(entry, options) && at + 1 < count && is_bias(entry, entry + 1))
        index = entry[1].index;
    return 2 * index + is_first;
}

/* From the last candidate to the first. */
static shard_status cut(shard_buckets *buckets, shard_bucket_entry *candidates, int64_t count,
                        const shard_bucket_options *options)
{
    int64_t from = buckets->count;
    for (int64_t i = count - 1; i >= 0; i--) {
        shard_bucket *bucket = find_or_add(buckets, from, &candidates[i], options);
        if (!bucket)
            return shard_last_status();
        SHARD_TRY(shard_grow(&bucket->entries, &bucket->capacity, bucket->count + 1, sizeof *bucket->entries));
        shard_bucket_entry *entry = &bucket->entries[bucket->count++];
        *entry = candidates[i];
        bucket->even_bytes += (size_t)shard_parameter_even_size(entry->parameter) * shard_dtype_size(bucket->unit->dtype);
        shard_tensor_ref(entry->parameter);
        bucket->turn = turn_of(candidates, count, i, options);
    }
    if (buckets->count > from)
        qsort(buckets->all + from, (size_t)(buckets->count - from), sizeof *buckets->all, by_turn);
    return SHARD_OK;
}

/* ---- positions in the unit ---- */

static int by_owner(const void *a, const void *b)
{
    const shard_bucket_entry *x = a, *y = b;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    return (x->index < y->index) - (x->index > y->index);
}

/* Whole rows for each rank, as even as the alignment lets them be; the last one that has any has the padding. */
static void count_rows(const shard_unit *unit, const shard_tensor *parameter, int64_t aligned, int64_t *counts)
{
    int ranks = shard_group_size(unit->group);
    int64_t rows = parameter->shape.dim[0], columns = rows ? shard_numel(parameter) / rows : 1;
    int64_t each = shard_round_up(shard_divide_up(rows, ranks), aligned) * columns, rest = unit->size;
    for (int rank = 0; rank < ranks; rest -= counts[rank++])
        counts[rank] = rank + 1 < ranks ? shard_min(each, rest) : rest;
}

static shard_status lay_out(shard_bucket *bucket, const shard_bucket_options *options)
{
    shard_unit *unit = bucket->unit;
    int64_t aligned = SHARD_FLAT_ALIGNMENT / (int64_t)shard_dtype_size(unit->dtype);
    int ranks = shard_group_size(unit->group);
    int64_t *counts = options->level ? shard_calloc((size_t)ranks, sizeof *counts) : NULL;
    if (options->level && !counts)
        return shard_last_status();
    if (counts && options->whole_parameters)
        qsort(bucket->entries, (size_t)bucket->count, sizeof *bucket->entries, by_owner);
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_bucket_entry *entry = &bucket->entries[i];
        entry->bucket = bucket;
        entry->start = unit->size;
        unit->size += shard_round_up(entry->size, aligned);
        if (counts)
            counts[entry->owner] += shard_round_up(entry->size, aligned);
    }
    if (!counts)
        return SHARD_OK;
    if (!options->whole_parameters && bucket->defers) {
        count_rows(unit, bucket->entries[0].parameter, aligned, counts);
    } else if (!options->whole_parameters) {
        unit->size = shard_round_up(unit->size, ranks * aligned);
        for (int rank = 0; rank < ranks; rank++)
            counts[rank] = unit->size / ranks;
    }
    return shard_unit_partition(unit, counts);
}

/* ---- memory ---- */

shard_status shard_bucket_zero_gaps(const shard_bucket *bucket, void *memory)
{
    const shard_unit *unit = bucket->unit;
    for (int64_t i = 0; i < bucket->count; i++) {
        const shard_bucket_entry *entry = &bucket->entries[i];
        int64_t from = entry->start + entry->size, to = i + 1 < bucket->count ? entry[1].start : unit->size;
        if (from < to)
            SHARD_TRY(unit->device->ops->zero(unit->device, (char *)memory + shard_unit_bytes(unit, from),
                                              shard_unit_bytes(unit, to - from)));
    }
    return SHARD_OK;
}

/* Evicts the partitioned values that were materialized for the entry before `next`, unless that entry has them, too. */
static void evict_before(const shard_bucket *bucket, int64_t next)
{
    shard_storage *storage = bucket->entries[next - 1].parameter->storage;
    bool needed = next < bucket->count && bucket->entries[next].parameter->storage == storage;
    if (storage->materializer && !storage->materializer->local && !needed)
        shard_storage_release(storage);
}

/* Moves the parameters into the bucket: on all ranks or, where one has failed, on none, as they may be partitioned until then. */
static shard_status move_values(shard_bucket *bucket, bool broadcast)
{
    const shard_unit *unit = bucket->unit;
    shard_storage *values = unit->values;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < bucket->count && status == SHARD_OK; i++) {
        shard_bucket_entry *entry = &bucket->entries[i];
        status = shard_tensor_prepare_move(entry->parameter, values, shard_unit_bytes(unit, entry->start), &entry->writes);
        evict_before(bucket, i + 1);
    }
    if (status == SHARD_OK)
        shard_bucket_zero_gaps(bucket, values->memory);
    values->version += broadcast;
    SHARD_TRY(broadcast ? shard_group_broadcast(unit->group, unit->device, values->memory, unit->size, unit->dtype, 0)
                        : shard_agree(unit->group));
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_bucket_entry *entry = &bucket->entries[i];
        shard_tensor_put(entry->parameter, values, shard_unit_bytes(unit, entry->start), entry->writes);
        entry->writes = NULL;
        shard_tensor_unref(entry->parameter->leaf->local_range);
        entry->parameter->leaf->local_range = NULL;
    }
    return SHARD_OK;
}

/* Gives the parameters gradients in the bucket, and copies existing gradients to it. */
static shard_status place_gradients(shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_tensor *parameter = bucket->entries[i].parameter;
        size_t offset = shard_unit_bytes(bucket->unit, bucket->entries[i].start);
        if (parameter->leaf->has_grad) {
            SHARD_TRY(shard_tensor_move(parameter->leaf->grad, bucket->unit->gradients, offset));
            continue;
        }
        shard_tensor *gradient = shard_tensor_on(bucket->unit->gradients, offset, parameter->shape, parameter->dtype);
        if (!gradient)
            return shard_last_status();
        gradient->placement = shard_gradient_placement(parameter);
        shard_tensor_unref(parameter->leaf->grad);
        parameter->leaf->grad = gradient;
    }
    return SHARD_OK;
}

/* A tensor of a range of the unit's elements, in the memory of the local range if `local` is not NULL. */
static shard_tensor *view_local(const shard_unit *unit, shard_storage *local, shard_storage *all, shard_range range)
{
    int64_t at = range.size == 0 ? 0 : local ? range.start - unit->local_start : range.start;
    return shard_tensor_on(local ? local : all, shard_unit_bytes(unit, at), SHARD_SHAPE(range.size), unit->dtype);
}

/* Makes the entry's local range, a leaf with its gradient. */
static shard_status make_local(const shard_unit *unit, shard_bucket_entry *entry)
{
    shard_range local = shard_unit_local(unit, (shard_range){.start = entry->start, .size = entry->size});
    int64_t start = local.size ? local.start - entry->start : 0;
    entry->local = view_local(unit, unit->local_values, unit->values, local);
    if (!entry->local)
        return shard_last_status();
    SHARD_TRY(shard_tensor_set_flat_range(entry->local, &(shard_flat_range){.group = unit->group,
                                                                            .start = start,
                                                                            .shape = entry->parameter->shape,
                                                                            .placement = entry->parameter->placement}));
    entry->local->requires_grad = true;
    entry->local->leaf->grad = view_local(unit, unit->local_gradients, unit->gradients, local);
    entry->parameter->leaf->grad_range = entry->local;
    return entry->local->leaf->grad ? SHARD_OK : shard_last_status();
}

/* Gradients that are not partitioned have memory from the start, unless they may be deferred. */
static shard_status make_gradients(shard_bucket *bucket, const shard_bucket_options *options)
{
    shard_unit *unit = bucket->unit;
    bool partitioned = options->level >= SHARD_PARTITION_GRADIENTS;
    unit->gradients = shard_unit_storage(unit, unit->size, partitioned ? SHARD_MEMORY_BUCKETS : SHARD_MEMORY_GRADIENTS);
    if (!unit->gradients)
        return shard_last_status();
    if (!partitioned)
        return bucket->defers ? SHARD_OK : shard_storage_zero(unit->gradients);
    unit->local_gradients = shard_unit_storage(unit, unit->local_size, SHARD_MEMORY_GRADIENTS);
    return unit->local_gradients ? SHARD_OK : shard_last_status();
}

static shard_status make_row_blocks(shard_bucket *bucket, const shard_bucket_options *options)
{
    const shard_row_blocks_options streaming = {
        .bytes = options->bytes, .order = options->order, .begin = options->begin_rows, .context = bucket};
    bucket->row_blocks = shard_row_blocks_create(bucket->unit, bucket->entries[0].parameter, &streaming);
    return bucket->row_blocks ? SHARD_OK : shard_last_status();
}

/* Moves the parameters, unless their values will be streamed, and makes all that the bucket needs. */
static shard_status make(shard_bucket *bucket, const shard_bucket_options *options)
{
    shard_unit *unit = bucket->unit;
    bool streamed = is_streamed(&bucket->entries[0], options), partitions = options->level == SHARD_PARTITION_PARAMETERS;
    unit->values = shard_unit_storage(unit, unit->size, SHARD_MEMORY_PARAMETERS);
    if (!unit->values)
        return shard_last_status();
    if (!streamed || !partitions)
        SHARD_TRY(move_values(bucket, options->broadcast));
    if (partitions && !(unit->local_values = shard_unit_storage(unit, unit->local_size, SHARD_MEMORY_PARAMETERS)))
        return shard_last_status();
    if (partitions)
        SHARD_TRY(shard_unit_keep(unit, shard_unit_whole(unit), unit->values->memory));
    if (streamed)
        SHARD_TRY(make_row_blocks(bucket, options));
    SHARD_TRY(make_gradients(bucket, options));
    SHARD_TRY(place_gradients(bucket));
    for (int64_t i = 0; i < bucket->count && unit->counts; i++)
        SHARD_TRY(make_local(unit, &bucket->entries[i]));
    return SHARD_OK;
}

/* From here on each rank has its local values alone: all ranks or, where one has failed, none. */
static shard_status partition_values(shard_bucket *bucket, const shard_bucket_options *options)
{
    SHARD_TRY(shard_unshard_attach(bucket->unit, options->order));
    if (bucket->row_blocks)
        SHARD_TRY(shard_row_blocks_move_values(bucket->row_blocks, options->broadcast));
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->entries[i].parameter->leaf->local_range = shard_tensor_ref(bucket->entries[i].local);
    return SHARD_OK;
}

/* Identifies the bucket's unit in its group, as on the group's other ranks: by the number of the group's last collective, and of
 * its buckets before. Ranks may have other numbers of buckets of other groups. */
static void identify(const shard_buckets *buckets, int64_t at)
{
    shard_unit *unit = buckets->all[at]->unit;
    int64_t place[] = {(int64_t)unit->group->sequence, 0};
    for (int64_t i = 0; i < at; i++)
        place[1] += buckets->all[i]->unit->group == unit->group;
    unit->identity = shard_hash_words(SHARD_HASH_START, place, 2);
}

shard_status shard_buckets_add(shard_buckets *buckets, shard_bucket_entry *candidates, int64_t count,
                               const shard_bucket_options *options)
{
    int64_t from = buckets->count;
    qsort(candidates, (size_t)count, sizeof *candidates, by_index);
    choose_deferred(candidates, count, options);
    if (options->level && options->whole_parameters)
        SHARD_TRY(choose_owners(buckets, candidates, count));
    SHARD_TRY(cut(buckets, candidates, count, options));
    shard_status status = SHARD_OK;
    for (int64_t i = from; i < buckets->count && status == SHARD_OK; i++) {
        identify(buckets, i); /* before values are partitioned, which outlast an error of a later bucket */
        status = lay_out(buckets->all[i], options);
        if (status == SHARD_OK)
            status = make(buckets->all[i], options);
        if (options->level == SHARD_PARTITION_PARAMETERS)
            status = partition_values(buckets->all[i], options);
    }
    return status;
}

void shard_bucket_destroy(shard_bucket *bucket)
{
    if (!bucket)
        return;
    shard_row_blocks_destroy(bucket->row_blocks);
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_tensor_unref(bucket->entries[i].parameter);
        shard_tensor_unref(bucket->entries[i].local);
        free(bucket->entries[i].writes);
    }
    shard_unit_close(bucket->unit);
    free(bucket->entries);
    free(bucket);
}
