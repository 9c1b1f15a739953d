#include "parallel/unit.h"

#include "base/hash.h"
#include "base/math.h"

#include <shard/distributed.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranges ---- */

static shard_range overlap_of(int64_t start, int64_t size, shard_range range)
{
    int64_t from = shard_max(start, range.start);
    int64_t end = start + size, range_end = range.start + range.size, to = shard_min(end, range_end);
    return (shard_range){.start = from, .size = to > from ? to - from : 0};
}

shard_range shard_unit_local(const shard_unit *unit, shard_range range)
{
    return overlap_of(unit->local_start, unit->local_size, range);
}

static const int64_t *count(shard_unit *unit, shard_range range)
{
    int64_t start = 0;
    for (int rank = 0; rank < shard_group_size(unit->group); start += unit->counts[rank++])
        unit->range_counts[rank] = overlap_of(start, unit->counts[rank], range).size;
    return unit->range_counts;
}

/* The address of a range's local elements in the memory of the range. */
static char *local_in_range(const shard_unit *unit, shard_range range, void *memory)
{
    shard_range local = shard_unit_local(unit, range);
    return memory && local.size ? (char *)memory + shard_unit_bytes(unit, local.start - range.start) : memory;
}

/* Their address in the memory of the local range, or `none` if it has no such elements. */
static char *local_in_storage(const shard_unit *unit, shard_range range, shard_storage *storage, void *none)
{
    shard_range local = shard_unit_local(unit, range);
    char *memory = local.size ? shard_storage_memory(storage) : NULL;
    return memory ? memory + shard_unit_bytes(unit, local.start - unit->local_start) : none;
}

/* ---- collectives ---- */

static shard_request *post(shard_unit *unit, shard_collective_kind kind, shard_range range, const void *send, void *receive)
{
    const shard_collective call = {.kind = kind,
                                   .send = send,
                                   .receive = receive,
                                   .count = range.size,
                                   .counts = kind == SHARD_COLLECTIVE_ALL_REDUCE ? NULL : count(unit, range),
                                   .dtype = unit->dtype,
                                   .op = SHARD_SUM,
                                   .device = unit->device,
                                   .identity = shard_hash_word(unit->identity, (uint64_t)range.start),
                                   .name = unit->name};
    return shard_group_post(unit->group, &call);
}

shard_request *shard_unit_gather(shard_unit *unit, shard_range range, void *to)
{
    const char *local =
        unit->local_values ? local_in_storage(unit, range, unit->local_values, to) : local_in_range(unit, range, to);
    return post(unit, SHARD_COLLECTIVE_ALL_GATHER, range, local, to);
}

shard_status shard_unit_wait(shard_unit *unit, shard_request *request)
{
    return shard_group_wait(unit->group, unit->device, request);
}

void shard_unit_reduce(shard_unit *unit, shard_unit_sum *sum)
{
    char *gradient = sum->gradient;
    shard_range range = sum->range;
    if (!unit->local_gradients) {
        sum->request = post(unit, SHARD_COLLECTIVE_ALL_REDUCE, range, gradient, gradient);
        return;
    }
    char *local =
        unit->adds ? local_in_range(unit, range, gradient) : local_in_storage(unit, range, unit->local_gradients, gradient);
    sum->request = post(unit, SHARD_COLLECTIVE_REDUCE_SCATTER, range, gradient, local);
}

shard_status shard_unit_end_reduce(shard_unit *unit, shard_unit_sum *sum)
{
    const shard_unit_sum done = *sum;
    shard_range local = shard_unit_local(unit, done.range);
    *sum = (shard_unit_sum){0};
    SHARD_TRY(shard_unit_wait(unit, done.request));
    if (!unit->local_gradients || !unit->adds || local.size == 0)
        return SHARD_OK;
    return unit->device->ops->axpby(unit->device, local.size, 1.0, local_in_range(unit, done.range, done.gradient), 1.0,
                                    local_in_storage(unit, done.range, unit->local_gradients, NULL), unit->dtype);
}

shard_status shard_unit_keep(shard_unit *unit, shard_range range, const void *from)
{
    size_t bytes = shard_unit_bytes(unit, shard_unit_local(unit, range).size);
    char *to = local_in_storage(unit, range, unit->local_values, NULL);
    if (!to || !from)
        return shard_last_status();
    return unit->device->ops->copy_rows(unit->device, to, bytes, local_in_range(unit, range, (void *)from), bytes, bytes, 1);
}

/* ---- creation and destruction ---- */

shard_unit *shard_unit_create(shard_group *group, shard_device *device, shard_dtype dtype)
{
    shard_unit *unit = shard_calloc(1, sizeof *unit);
    if (unit)
        *unit = (shard_unit){.refs = 1, .group = group, .device = device, .dtype = dtype};
    return unit;
}

void shard_unit_copy_name(char name[SHARD_UNIT_NAME], const char *from)
{
    size_t length = strlen(from), most = SHARD_UNIT_NAME - 1;
    snprintf(name, SHARD_UNIT_NAME, "%s", length > most ? from + length - most : from);
}

shard_status shard_unit_partition(shard_unit *unit, int64_t *counts)
{
    int rank = shard_group_rank(unit->group);
    unit->counts = counts;
    unit->range_counts = shard_calloc((size_t)shard_group_size(unit->group), sizeof *unit->range_counts);
    unit->local_start = shard_count_before(counts, rank);
    unit->local_size = counts[rank];
    return unit->range_counts ? SHARD_OK : shard_last_status();
}

void shard_unit_unref(shard_unit *unit)
{
    if (!unit || --unit->refs)
        return;
    shard_storage_unref(unit->local_values);
    free(unit->range_counts);
    free(unit->counts);
    free(unit);
}

void shard_unit_close(shard_unit *unit)
{
    if (!unit)
        return;
    shard_storage_unref(unit->gradients);
    shard_storage_unref(unit->local_gradients);
    shard_storage *values = unit->values;
    unit->values = unit->gradients = unit->local_gradients = NULL;
    shard_storage_unref(values); /* its materializer may have the only other reference */
    shard_unit_unref(unit);
}

shard_storage *shard_unit_storage(const shard_unit *unit, int64_t elements, shard_memory_kind kind)
{
    shard_storage *storage = shard_storage_make(unit->device, shard_unit_bytes(unit, elements));
    if (storage)
        shard_storage_set_kind(storage, kind);
    return storage;
}

/* ---- parameters ---- */

/* A shard without a replica group has no other replica. */
shard_group *shard_parameter_group(const shard_tensor *parameter)
{
    bool known = shard_leaf_of(parameter)->replicas || parameter->placement.kind == SHARD_SPLIT;
    shard_group *group = known ? shard_leaf_of(parameter)->replicas : shard_world();
    return shard_group_size(group) > 1 ? group : NULL;
}

shard_group *shard_new_parameter_group(const shard_tensors *list, int64_t index)
{
    shard_group *group = shard_parameter_group(shard_tensors_at(list, index));
    for (int64_t i = 0; i < index && group; i++)
        if (shard_parameter_group(shard_tensors_at(list, i)) == group)
            return NULL;
    return group;
}

int64_t shard_parameter_even_size(const shard_tensor *parameter)
{
    if (parameter->placement.kind != SHARD_SPLIT)
        return shard_numel(parameter);
    shard_shape whole = shard_tensor_whole_shape(parameter);
    int64_t ranks = shard_group_size(parameter->placement.group);
    return shard_divide_up(shard_shape_product(&whole, 0, whole.ndim), ranks);
}
