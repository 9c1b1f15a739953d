#include "parallel/bucket.h"
#include "parallel/row_blocks.h"
#include "parallel/unshard.h"

#include "base/hash.h"

#include <shard/distributed.h>

#include <stdlib.h>
#include <string.h>

size_t shard_bucket_bytes(double mib)
{
    size_t bytes = (size_t)((mib > 0 ? mib : 25.0) * 1048576.0);
    return bytes ? bytes : 1;
}

/* A part that nobody said who else has is this rank's alone. */
shard_group *shard_parameter_group(const shard_tensor *parameter)
{
    bool known = parameter->replicas || parameter->placement.kind == SHARD_SPLIT;
    shard_group *group = known ? parameter->replicas : shard_world();
    return shard_group_size(group) > 1 ? group : NULL;
}

shard_bucket_member shard_bucket_candidate(shard_tensor *parameter, const char *name, int64_t index)
{
    const char *dot = strrchr(name, '.');
    uint64_t module = shard_hash_bytes(SHARD_HASH_START, name, dot ? (int64_t)(dot - name) : (int64_t)strlen(name));
    return (shard_bucket_member){.parameter = parameter, .module = module, .index = index, .size = shard_numel(parameter)};
}

static int64_t round_up(int64_t size, int64_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* Elements that SHARD_FLAT_ALIGNMENT is. */
static int64_t unit_of(shard_dtype dtype)
{
    return SHARD_FLAT_ALIGNMENT / (int64_t)shard_dtype_size(dtype);
}

int64_t shard_share_of(const shard_tensor *parameter)
{
    if (parameter->placement.kind != SHARD_SPLIT)
        return shard_numel(parameter);
    shard_shape whole = shard_tensor_whole_shape(parameter);
    int members = shard_group_size(parameter->placement.group);
    return round_up(shard_shape_product(&whole, 0, whole.ndim), members) / members;
}

/* ---- which parameters go together ---- */

static int largest_first(const void *a, const void *b)
{
    const shard_bucket_member *x = *(shard_bucket_member *const *)a, *y = *(shard_bucket_member *const *)b;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* What each rank of a group has so far: of earlier buckets, and of the first `count` sorted. */
static void add_loads(const shard_buckets *buckets, shard_bucket_member *const *sorted, int64_t count, const shard_group *group,
                      int64_t *load)
{
    for (int64_t b = 0; b < buckets->count; b++)
        for (int64_t i = 0; i < buckets->all[b]->count && buckets->all[b]->group == group; i++)
            load[buckets->all[b]->members[i].owner] += buckets->all[b]->members[i].size;
    for (int64_t i = 0; i < count; i++)
        if (shard_parameter_group(sorted[i]->parameter) == group)
            load[sorted[i]->owner] += sorted[i]->size;
}

/* Each to the rank of its group that has the least so far, the lowest of several; large
 * ones first. */
static shard_status choose_owners(const shard_buckets *buckets, shard_bucket_member *candidates, int64_t count)
{
    shard_bucket_member **sorted = shard_calloc((size_t)count, sizeof *sorted);
    if (!sorted)
        return shard_last_status();
    for (int64_t i = 0; i < count; i++)
        sorted[i] = &candidates[i];
    if (count)
        qsort(sorted, (size_t)count, sizeof *sorted, largest_first);
    for (int64_t i = 0; i < count; i++) {
        shard_group *group = shard_parameter_group(sorted[i]->parameter);
        int64_t load[shard_group_size(group)];
        memset(load, 0, sizeof load);
        add_loads(buckets, sorted, i, group, load);
        for (int member = 1; member < shard_group_size(group); member++)
            sorted[i]->owner = load[member] < load[sorted[i]->owner] ? member : sorted[i]->owner;
    }
    free(sorted);
    return SHARD_OK;
}

/* Full ones end where a module does, unless that is far. The same on all ranks that have one
 * of the parts, so that these start their reductions in one order. */
static bool is_full(const shard_bucket *bucket, const shard_bucket_member *next, size_t bytes)
{
    size_t size = 0;
    for (int64_t i = 0; i < bucket->count; i++)
        size += (size_t)shard_share_of(bucket->members[i].parameter) * shard_dtype_size(bucket->dtype);
    bool ends = bucket->members[bucket->count - 1].module != next->module;
    return size >= (ends ? bytes : 2 * bytes);
}

/* Whether it gets a bucket of its own, through which its rows pass in blocks. */
static bool goes_alone(const shard_bucket_member *member, const shard_bucket_options *options)
{
    return options->level >= SHARD_PARTITION_GRADIENTS && shard_row_blocks_suit(member->parameter, options->bytes);
}

static shard_bucket *find_or_add(shard_buckets *buckets, int64_t from, const shard_bucket_member *candidate,
                                 const shard_bucket_options *options)
{
    shard_group *group = shard_parameter_group(candidate->parameter);
    shard_device *device = shard_device_of(candidate->parameter);
    shard_dtype dtype = candidate->parameter->dtype;
    for (int64_t i = buckets->count - 1; i >= from && !goes_alone(candidate, options); i--) {
        shard_bucket *bucket = buckets->all[i];
        if (bucket->group != group || bucket->device != device || bucket->dtype != dtype ||
            goes_alone(&bucket->members[0], options))
            continue;
        if (!is_full(bucket, candidate, options->bytes))
            return bucket;
        break;
    }
    shard_bucket *bucket = shard_calloc(1, sizeof *bucket);
    if (!bucket || shard_grow(&buckets->all, &buckets->capacity, buckets->count + 1, sizeof *buckets->all) != SHARD_OK) {
        free(bucket);
        return NULL;
    }
    *bucket = (shard_bucket){.group = group, .device = device, .dtype = dtype};
    return buckets->all[buckets->count++] = bucket;
}

static int by_turn(const void *a, const void *b)
{
    const shard_bucket *x = *(shard_bucket *const *)a, *y = *(shard_bucket *const *)b;
    return (x->turn < y->turn) - (x->turn > y->turn);
}

/* A bucket is complete when its last member is; but a weight that passes by in blocks does so while its
 * layer's backward runs, before the bias behind it is. */
static int64_t turn_of(const shard_bucket_member *member, const shard_bucket_member *next, const shard_bucket_options *options)
{
    if (!goes_alone(member, options))
        return 2 * member->index;
    bool bias = next && next->parameter->shape.ndim == 1 && next->parameter->shape.dim[0] == member->parameter->shape.dim[0];
    return 2 * (bias ? next->index : member->index) + 1;
}

/* From the last candidate to the first. */
static shard_status cut(shard_buckets *buckets, shard_bucket_member *candidates, int64_t count,
                        const shard_bucket_options *options)
{
    int64_t from = buckets->count;
    for (int64_t i = count - 1; i >= 0; i--) {
        shard_bucket *bucket = find_or_add(buckets, from, &candidates[i], options);
        if (!bucket)
            return shard_last_status();
        SHARD_TRY(shard_grow(&bucket->members, &bucket->capacity, bucket->count + 1, sizeof *bucket->members));
        shard_bucket_member *member = &bucket->members[bucket->count++];
        *member = candidates[i];
        shard_tensor_ref(member->parameter);
        bucket->turn = turn_of(member, i + 1 < count ? &candidates[i + 1] : NULL, options);
    }
    if (buckets->count > from)
        qsort(buckets->all + from, (size_t)(buckets->count - from), sizeof *buckets->all, by_turn);
    return SHARD_OK;
}

/* ---- where they lie ---- */

static int by_owner(const void *a, const void *b)
{
    const shard_bucket_member *x = a, *y = b;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    return (x->index < y->index) - (x->index > y->index);
}

static shard_status lay_out(shard_bucket *bucket, const shard_bucket_options *options)
{
    int64_t unit = unit_of(bucket->dtype);
    int ranks = shard_group_size(bucket->group), rank = shard_group_rank(bucket->group);
    bucket->parts = options->level ? shard_calloc((size_t)ranks, sizeof *bucket->parts) : NULL;
    if (options->level && !bucket->parts)
        return shard_last_status();
    if (options->level && options->whole_parameters)
        qsort(bucket->members, (size_t)bucket->count, sizeof *bucket->members, by_owner);
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_bucket_member *member = &bucket->members[i];
        member->bucket = bucket;
        member->start = bucket->size;
        bucket->size += round_up(member->size, unit);
        if (bucket->parts)
            bucket->parts[member->owner] += round_up(member->size, unit);
    }
    if (bucket->parts && !options->whole_parameters) {
        bucket->size = round_up(bucket->size, ranks * unit);
        for (int member = 0; member < ranks; member++)
            bucket->parts[member] = bucket->size / ranks;
    }
    for (int member = 0; member < rank && bucket->parts; member++)
        bucket->local_start += bucket->parts[member];
    bucket->own = bucket->parts ? bucket->parts[rank] : 0;
    return SHARD_OK;
}

/* ---- memory ---- */

static size_t bytes_of(const shard_bucket *bucket, int64_t elements)
{
    return (size_t)elements * shard_dtype_size(bucket->dtype);
}

shard_status shard_bucket_zero_gaps(const shard_bucket *bucket, void *memory)
{
    for (int64_t i = 0; i < bucket->count; i++) {
        const shard_bucket_member *member = &bucket->members[i];
        int64_t from = member->start + member->size, to = i + 1 < bucket->count ? member[1].start : bucket->size;
        if (from < to)
            SHARD_TRY(
                bucket->device->ops->zero(bucket->device, (char *)memory + bytes_of(bucket, from), bytes_of(bucket, to - from)));
    }
    return SHARD_OK;
}

/* Moves the parameters into the bucket. */
static shard_status move_values(shard_bucket *bucket, bool broadcast)
{
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < bucket->count && status == SHARD_OK; i++) {
        shard_tensor *parameter = bucket->members[i].parameter;
        status = shard_tensor_move(parameter, bucket->values, bytes_of(bucket, bucket->members[i].start));
        shard_tensor_unref(parameter->kept);
        parameter->kept = NULL;
    }
    if (status == SHARD_OK)
        status = shard_bucket_zero_gaps(bucket, bucket->values->memory);
    if (!broadcast)
        return status;
    bucket->values->version++;
    return shard_group_broadcast(bucket->group, bucket->device, bucket->values->memory, bucket->size, bucket->dtype, 0);
}

/* Gives the parameters gradients in the bucket; one that is there already moves too. */
static shard_status place_gradients(shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_tensor *parameter = bucket->members[i].parameter;
        size_t offset = bytes_of(bucket, bucket->members[i].start);
        if (parameter->has_grad) {
            SHARD_TRY(shard_tensor_move(parameter->grad, bucket->gradients, offset));
            continue;
        }
        shard_tensor *gradient = shard_tensor_on(bucket->gradients, offset, parameter->shape, parameter->dtype);
        if (!gradient)
            return shard_last_status();
        gradient->placement = parameter->placement;
        shard_tensor_unref(parameter->grad);
        parameter->grad = gradient;
    }
    return SHARD_OK;
}

/* The range of the member that is in the own part, as a leaf with its gradient. */
static shard_status make_part(shard_bucket *bucket, shard_bucket_member *member)
{
    int64_t from = member->start, to = member->start + member->size, own_end = bucket->local_start + bucket->own;
    from = from > bucket->local_start ? from : bucket->local_start;
    to = to < own_end ? to : own_end;
    if (to <= from)
        from = to = member->start; /* nothing of it */
    member->part_start = from - member->start;
    shard_storage *values = bucket->local_values ? bucket->local_values : bucket->values;
    shard_storage *gradients = bucket->local_gradients ? bucket->local_gradients : bucket->gradients;
    bool has_any = to > from;
    size_t at = bytes_of(bucket, has_any ? from : 0), at_own = bytes_of(bucket, has_any ? from - bucket->local_start : 0);
    shard_shape shape = SHARD_SHAPE(to - from);
    member->part = shard_tensor_on(values, bucket->local_values ? at_own : at, shape, bucket->dtype);
    if (!member->part)
        return shard_last_status();
    member->part->requires_grad = true;
    SHARD_TRY(shard_tensor_set_slice(member->part, &(shard_flat_range){.group = bucket->group,
                                                                  .start = member->part_start,
                                                                  .shape = member->parameter->shape,
                                                                  .placement = member->parameter->placement}));
    member->part->grad = shard_tensor_on(gradients, bucket->local_gradients ? at_own : at, shape, bucket->dtype);
    if (bucket->local_values)
        member->parameter->kept = shard_tensor_ref(member->part);
    return member->part->grad ? SHARD_OK : shard_last_status();
}

static shard_storage *make_storage(const shard_bucket *bucket, int64_t elements, shard_memory_kind kind)
{
    shard_storage *storage = shard_storage_make(bucket->device, bytes_of(bucket, elements));
    if (storage)
        shard_storage_set_kind(storage, kind);
    return storage;
}

/* Whole gradients, if they are kept, have memory from the start. */
static shard_status make_gradients(shard_bucket *bucket, const shard_bucket_options *options)
{
    bool kept = options->level < SHARD_PARTITION_GRADIENTS;
    bucket->gradients = make_storage(bucket, bucket->size, kept ? SHARD_MEMORY_GRADIENTS : SHARD_MEMORY_BUCKETS);
    if (!bucket->gradients)
        return shard_last_status();
    if (kept)
        return shard_storage_zero(bucket->gradients);
    bucket->local_gradients = make_storage(bucket, bucket->own, SHARD_MEMORY_GRADIENTS);
    return bucket->local_gradients ? SHARD_OK : shard_last_status();
}

static shard_status build(shard_bucket *bucket, const shard_bucket_options *options)
{
    bucket->values = make_storage(bucket, bucket->size, SHARD_MEMORY_PARAMETERS);
    if (!bucket->values)
        return shard_last_status();
    bool dealt = options->level >= SHARD_PARTITION_PARAMETERS, alone = goes_alone(&bucket->members[0], options);
    if (!dealt || !alone)
        SHARD_TRY(move_values(bucket, options->broadcast));
    if (dealt)
        SHARD_TRY(shard_unshard_begin(bucket));
    if (alone && !(bucket->row_blocks = shard_row_blocks_create(bucket, options->bytes)))
        return shard_last_status();
    if (dealt && alone)
        SHARD_TRY(shard_row_blocks_move_values(bucket->row_blocks, options->broadcast));
    SHARD_TRY(make_gradients(bucket, options));
    SHARD_TRY(place_gradients(bucket));
    for (int64_t i = 0; i < bucket->count && bucket->parts; i++)
        SHARD_TRY(make_part(bucket, &bucket->members[i]));
    return SHARD_OK;
}

shard_status shard_buckets_add(shard_buckets *buckets, shard_bucket_member *candidates, int64_t count,
                               const shard_bucket_options *options)
{
    int64_t from = buckets->count;
    if (options->level && options->whole_parameters)
        SHARD_TRY(choose_owners(buckets, candidates, count));
    SHARD_TRY(cut(buckets, candidates, count, options));
    shard_status status = SHARD_OK;
    for (int64_t i = from; i < buckets->count && status == SHARD_OK; i++) {
        status = lay_out(buckets->all[i], options);
        if (status == SHARD_OK)
            status = build(buckets->all[i], options);
    }
    return status;
}

void shard_bucket_destroy(shard_bucket *bucket)
{
    if (!bucket)
        return;
    shard_row_blocks_destroy(bucket->row_blocks);
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_tensor_unref(bucket->members[i].parameter);
        shard_tensor_unref(bucket->members[i].part);
    }
    shard_storage_unref(bucket->values);
    shard_storage_unref(bucket->gradients);
    shard_storage_unref(bucket->local_values);
    shard_storage_unref(bucket->local_gradients);
    free(bucket->members);
    free(bucket->parts);
    free(bucket);
}
