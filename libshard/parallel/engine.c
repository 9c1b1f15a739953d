/*
 * The engine of data parallel training and of ZeRO, which differ in the partition level.
 *
 * The gradients of a full bucket are scaled in place, so that it only needs a sum. Its
 * reduction is started once those before it were, so that all ranks start them in one
 * order.
 */
#include "parallel/engine.h"
#include "parallel/row_blocks.h"
#include "parallel/unshard.h"

#include "autograd/deferred.h"
#include "base/hash.h"
#include "device/graph.h"
#include "op/op.h"

#include <stdlib.h>

struct shard_engine {
    int refs;
    shard_bucket_options options;
    shard_buckets buckets;
    int64_t next_index;     /* the index of the next parameter that is added */
    int64_t started, ended; /* numbers of buckets whose reduction was started and ended in this backward */
    bool local;             /* sync is off */
    bool walking;           /* a backward has reached a parameter */
    void (*reduced)(const shard_bucket *, void *);
    void *reduced_context;
};

/* ---- one backward ---- */

/* The factor of a gradient, with which a sum over the replicas is the average over different batches: summands of
 * one batch's gradient count in full. Groups of ranks without a replica of the parameter stay pending. */
static shard_status plan_sum(const shard_tensor *parameter, shard_pending_sums *pending, const shard_bucket *bucket,
                             double *scale)
{
    int64_t one_batch = shard_pending_sums_ranks(pending, bucket->unit->group);
    *scale = (double)one_batch / shard_group_size(bucket->unit->group);
    shard_pending_sums_remove(pending, bucket->unit->group);
    if (shard_pending_sums_ranks(pending, bucket->unit->group) == 1)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "data parallel: the gradient of a parameter of shape %s is to be summed over ranks of which some, but not "
                       "all, are among the %d that have replicas of it (shard_tensor_set_replica_group)",
                       shard_shape_text(&parameter->shape), shard_group_size(bucket->unit->group));
}

static shard_gradient_source *source_of(const shard_bucket_entry *entry)
{
    const shard_leaf *leaf = entry->parameter->leaf;
    return leaf->has_grad ? shard_source_of(leaf->grad) : NULL;
}

/* Of a gradient that this rank's backward has not reached the factor does not matter: that of the one before. */
static void plan_sums(shard_bucket *bucket)
{
    double factor = 1.0;
    for (int64_t i = 0; i < bucket->count; i++) {
        const shard_tensor *parameter = bucket->entries[i].parameter;
        if (parameter->leaf->has_grad)
            plan_sum(parameter, &parameter->leaf->grad->pending, bucket, &factor);
        bucket->entries[i].factor = factor;
    }
}

/* Makes the gradients this rank's summands: of those that its backward has not reached, while another one's may have, zeros; the
 * others times their factors, in one call where neighbours have the same. Returns their memory; NULL with the error set. */
static char *make_summands(const shard_bucket *bucket)
{
    const shard_unit *unit = bucket->unit;
    shard_device *device = unit->device;
    char *all = shard_storage_memory(unit->gradients);
    if (!all)
        return NULL;
    unit->gradients->version++;
    if (bucket->defers || unit->local_gradients) /* else the gaps have been zeros from the start */
        shard_bucket_zero_gaps(bucket, all);
    for (int64_t i = 0, from = 0; i < bucket->count; i++) {
        const shard_bucket_entry *entry = &bucket->entries[i];
        char *memory = all + shard_unit_bytes(unit, entry->start);
        if (!entry->parameter->leaf->has_grad)
            device->ops->zero(device, memory, shard_unit_bytes(unit, entry->size));
        entry->parameter->leaf->has_grad = true;
        if (i + 1 < bucket->count && entry[1].factor == entry->factor)
            continue;
        memory = all + shard_unit_bytes(unit, from);
        if (entry->factor != 1.0)
            device->ops->axpby(device, entry->start + entry->size - from, entry->factor, memory, 0.0, memory, unit->dtype);
        from = i + 1 < bucket->count ? entry[1].start : 0;
    }
    return all;
}

/* Starts to gather the values that the ranks have updated. Partitioned values are not gathered here, but at their next
 * use. */
static void publish(shard_bucket *bucket)
{
    shard_unit *unit = bucket->unit;
    bucket->updated = false;
    unit->values->version++;
    if (unit->local_values)
        shard_storage_release(unit->values);
    else if (unit->counts)
        bucket->publishing = shard_unit_gather(unit, shard_unit_whole(unit), shard_storage_memory(unit->values));
}

/* Waits for the collectives that were started. */
static void end(shard_bucket *bucket)
{
    shard_engine *engine = bucket->engine;
    shard_unit *unit = bucket->unit;
    shard_status status = shard_unit_end_reduce(unit, &bucket->sum);
    for (int64_t i = 0; i < bucket->count && unit->counts; i++) {
        shard_bucket_entry *entry = &bucket->entries[i];
        if (unit->local_gradients)
            shard_zero_grad(entry->parameter);
        entry->local->leaf->has_grad = status == SHARD_OK;
    }
    if (unit->local_gradients)
        shard_storage_release(unit->gradients);
    bool stays = bucket->defers && source_of(&bucket->entries[0]); /* until the optimizer's step */
    if (status != SHARD_OK || !engine->reduced || engine->local || stays)
        return;
    engine->reduced(bucket, engine->reduced_context); /* while backward computes the gradients of the buckets before this one */
    if (bucket->updated)
        publish(bucket);
}

/* Whether the gradient stays deferred: the replicas have gathered what it is computed from, each rank's times its factor. A
 * bias, whose source is that of the matrix in the bucket before, follows this; it is not compared. True after an error, which
 * all ranks have. */
static bool gather_source(shard_bucket_entry *entry)
{
    const shard_tensor *parameter = entry->parameter;
    shard_engine *engine = entry->bucket->engine;
    shard_gradient_source *source = shard_last_status() == SHARD_OK ? source_of(entry) : NULL;
    bool gathered = source && source->gathered;
    if (shard_is_capturing() || parameter->shape.ndim != 2)
        return gathered;
    while (engine->ended < engine->started - 1) /* collectives end in the order of their starts */
        end(engine->buckets.all[engine->ended++]);
    size_t bytes = shard_tensor_bytes(parameter);
    return shard_source_gather(source, entry->bucket->unit->group, bytes, entry->factor, &gathered) != SHARD_OK || gathered;
}

/* Whether a local range has a gradient of an earlier backward. */
static bool accumulates(const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count && bucket->unit->counts; i++)
        if (bucket->entries[i].local->leaf->has_grad)
            return true;
    return false;
}

/* The bucket's sum is added to all of its local gradients or to none. If it is added, those that an optimizer has cleared
 * since, while another one has not, become zeros. */
static void begin_adding(shard_bucket *bucket)
{
    shard_unit *unit = bucket->unit;
    unit->adds = accumulates(bucket);
    for (int64_t i = 0; i < bucket->count && unit->adds && unit->local_gradients; i++) {
        const shard_tensor *local = bucket->entries[i].local;
        void *memory = local->leaf->has_grad ? NULL : shard_tensor_memory_to_write(local->leaf->grad);
        if (memory)
            unit->device->ops->zero(unit->device, memory, shard_tensor_bytes(local));
    }
}

/* Starts to sum the gradients, or what of them has not been streamed; after an error the other ranks learn of it.
 * Values that only backward needed are evicted. */
static void start(shard_bucket *bucket)
{
    shard_unit *unit = bucket->unit;
    if (unit->local_values)
        shard_storage_release(unit->values);
    if (bucket->row_blocks && shard_row_blocks_streamed(bucket->row_blocks))
        return;
    plan_sums(bucket);
    if (bucket->defers && gather_source(&bucket->entries[0]))
        return;
    char *all = make_summands(bucket);
    begin_adding(bucket);
    if (bucket->row_blocks) {
        shard_row_blocks_stream_rest(bucket->row_blocks, all);
        return;
    }
    bucket->sum = (shard_unit_sum){.range = shard_unit_whole(unit), .gradient = all};
    shard_unit_reduce(unit, &bucket->sum);
}

/* If something follows each reduction, at most one is under way when the next one is started; else all may be. */
static void start_full_buckets(shard_engine *engine)
{
    const shard_buckets *buckets = &engine->buckets;
    bool follows = engine->reduced || engine->options.level >= SHARD_PARTITION_GRADIENTS;
    while (engine->started < buckets->count && buckets->all[engine->started]->waiting == 0) {
        shard_bucket *bucket = buckets->all[engine->started++];
        start(bucket);
        int64_t under_way = bucket->sum.request ? 1 : 0;
        while (follows && engine->ended < engine->started - under_way)
            end(buckets->all[engine->ended++]);
    }
}

static void rearm(shard_engine *engine)
{
    engine->started = engine->ended = 0;
    engine->walking = false;
    for (int64_t i = 0; i < engine->buckets.count; i++) {
        shard_bucket *bucket = engine->buckets.all[i];
        bucket->waiting = bucket->count;
        for (int64_t j = 0; j < bucket->count; j++)
            bucket->entries[j].ready = false;
        if (bucket->row_blocks)
            shard_row_blocks_rearm(bucket->row_blocks);
    }
}

static void make_ready(shard_bucket_entry *entry)
{
    if (!entry->ready)
        entry->bucket->waiting--;
    entry->ready = true;
}

/* Waits for the values of a step during backward, or after it. */
static shard_status await_values(shard_engine *engine)
{
    for (int64_t i = 0; i < engine->buckets.count; i++) {
        shard_bucket *bucket = engine->buckets.all[i];
        shard_unit_wait(bucket->unit, bucket->publishing);
        bucket->publishing = NULL;
    }
    return shard_last_status();
}

static shard_status finish(void *context)
{
    shard_engine *engine = context;
    const shard_buckets *buckets = &engine->buckets;
    for (int64_t i = 0; i < buckets->count; i++)
        buckets->all[i]->waiting = 0;
    start_full_buckets(engine);
    while (engine->ended < buckets->count)
        end(buckets->all[engine->ended++]);
    await_values(engine);
    rearm(engine);
    if (engine->options.level == SHARD_PARTITION_PARAMETERS)
        shard_unshard_end_pass(engine->options.order);
    return shard_last_status();
}

/* Before the first gradient of a backward, which has counted its uses of each leaf by then. Parameters that it will
 * not reach are not waited for, unless they are updated in backward, which may need their values, or those of a frozen one. */
static shard_status begin_walk(shard_engine *engine)
{
    if (engine->walking)
        return SHARD_OK;
    SHARD_TRY(shard_at_backward_end(finish, engine, false));
    engine->walking = true;
    for (int64_t i = 0; i < engine->buckets.count && !engine->reduced; i++) {
        const shard_bucket *bucket = engine->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++)
            if (bucket->entries[j].parameter->leaf->grad_uses == 0)
                make_ready(&bucket->entries[j]);
    }
    return SHARD_OK;
}

static void gradient_ready(shard_tensor *parameter, void *context)
{
    (void)parameter;
    shard_bucket_entry *entry = context;
    shard_engine *engine = entry->bucket->engine;
    if (engine->local && !entry->bucket->unit->local_gradients) {
        if (entry->local)
            entry->local->leaf->has_grad = false; /* this rank alone has added to the sum since */
        return;
    }
    if (begin_walk(engine) != SHARD_OK)
        return;
    make_ready(entry);
    start_full_buckets(engine);
}

/* Of a bucket's only parameter: once all that comes before it was reduced. */
static bool begin_rows(void *context, const shard_pending_sums *pending, double *scale)
{
    shard_bucket *bucket = context;
    shard_engine *engine = bucket->engine;
    shard_tensor *parameter = bucket->entries[0].parameter;
    shard_pending_sums of_rows = *pending;
    if (parameter->leaf->has_grad || parameter->leaf->grad_uses != 1)
        return false;
    shard_call_watches(parameter);
    if (begin_walk(engine) != SHARD_OK)
        return false;
    start_full_buckets(engine);
    bool is_next = engine->started < engine->buckets.count && engine->buckets.all[engine->started] == bucket;
    bucket->unit->adds = accumulates(bucket);
    return is_next && plan_sum(parameter, &of_rows, bucket, scale) == SHARD_OK;
}

shard_status shard_engine_publish(shard_engine *engine)
{
    for (int64_t i = 0; i < engine->buckets.count; i++)
        if (engine->buckets.all[i]->updated)
            publish(engine->buckets.all[i]);
    return await_values(engine);
}

/* ---- the engine of a parameter ---- */

static const shard_bucket_entry *entry_of(const shard_tensor *parameter)
{
    return shard_leaf_of(parameter)->grad_ready_context;
}

shard_engine *shard_engine_of(const shard_tensor *parameter)
{
    const shard_bucket_entry *entry = entry_of(parameter);
    return entry ? entry->bucket->engine : NULL;
}

void shard_engine_mark_updated(const shard_tensor *parameter)
{
    const shard_bucket_entry *entry = entry_of(parameter);
    if (entry)
        entry->bucket->updated = true;
}

bool shard_engine_averages(const shard_tensor *parameter, uint64_t *identity)
{
    const shard_bucket_entry *entry = entry_of(parameter);
    if (!entry || (entry->bucket->engine->local && !entry->bucket->unit->local_gradients))
        return false;
    *identity = shard_hash_word(entry->bucket->unit->identity, (uint64_t)entry->start);
    return true;
}

bool shard_engine_is_in(const shard_tensor *parameter, const shard_bucket *bucket)
{
    const shard_bucket_entry *entry = entry_of(parameter);
    return entry && entry->bucket == bucket;
}

int64_t shard_engine_buckets(const shard_engine *engine)
{
    return engine->buckets.count;
}

bool shard_engine_has_gradient(const shard_engine *engine)
{
    for (int64_t i = 0; i < engine->buckets.count; i++)
        for (int64_t j = 0; j < engine->buckets.all[i]->count; j++)
            if (shard_has_grad(engine->buckets.all[i]->entries[j].parameter))
                return true;
    return false;
}

void shard_engine_remove_buckets(shard_engine *engine, int64_t count)
{
    while (engine->buckets.count > count) {
        shard_bucket *bucket = engine->buckets.all[--engine->buckets.count];
        for (int64_t i = 0; i < bucket->count; i++) {
            shard_leaf *leaf = bucket->entries[i].parameter->leaf;
            leaf->grad_ready = NULL;
            leaf->grad_ready_context = NULL;
            leaf->gathers_grad = NULL;
            leaf->grad_range = NULL;
        }
        shard_bucket_destroy(bucket);
    }
}

/* Makes buckets of the candidates, which then belong to this engine. */
static shard_status take(shard_engine *engine, shard_bucket_entry *candidates, int64_t count)
{
    shard_buckets *buckets = &engine->buckets;
    int64_t from = buckets->count;
    shard_status status = shard_buckets_add(buckets, candidates, count, &engine->options);
    if (status != SHARD_OK)
        shard_engine_remove_buckets(engine, from);
    for (int64_t i = from; i < buckets->count; i++) {
        buckets->all[i]->engine = engine;
        for (int64_t j = 0; j < buckets->all[i]->count; j++) {
            shard_bucket_entry *entry = &buckets->all[i]->entries[j];
            entry->parameter->leaf->grad_ready = gradient_ready;
            entry->parameter->leaf->grad_ready_context = entry;
            entry->parameter->leaf->gathers_grad = entry->deferred_with;
        }
    }
    rearm(engine);
    return status;
}

bool shard_engine_takes(const shard_tensor *parameter)
{
    return parameter->leaf && parameter->requires_grad && shard_parameter_group(parameter);
}

shard_status shard_engine_add(shard_engine *engine, const shard_tensors *parameters)
{
    int64_t count = 0;
    shard_bucket_entry *candidates = shard_calloc((size_t)shard_tensors_count(parameters), sizeof *candidates);
    if (!candidates)
        return shard_last_status();
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (shard_engine_takes(parameter) && !shard_engine_of(parameter) && shard_tensors_index(parameters, parameter) == i)
            candidates[count++] = shard_bucket_candidate(parameter, shard_tensors_name(parameters, i), engine->next_index++);
    }
    shard_status status = take(engine, candidates, count);
    free(candidates);
    return status;
}

/* Removes the parameters from all buckets, and returns *count of them. NULL with the error set. */
static shard_bucket_entry *empty_buckets(shard_engine *engine, int64_t *count)
{
    *count = 0;
    shard_bucket_entry *entries = shard_calloc((size_t)engine->next_index, sizeof *entries);
    if (!entries)
        return NULL;
    for (int64_t i = 0; i < engine->buckets.count; i++) {
        const shard_bucket *bucket = engine->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++) {
            const shard_bucket_entry *entry = &bucket->entries[j];
            shard_tensor_ref(entry->parameter);
            entries[*count] = shard_bucket_candidate(entry->parameter, entry->name, entry->index);
            entries[(*count)++].prefix = entry->prefix; /* of the whole name */
        }
    }
    shard_engine_remove_buckets(engine, 0);
    return entries;
}

static void set_options(shard_engine *engine, shard_bucket_options options)
{
    options.order = engine->options.order;
    options.begin_rows = begin_rows;
    engine->options = options;
}

shard_status shard_engine_partition(shard_engine *engine, shard_bucket_options options)
{
    int64_t count;
    shard_bucket_entry *entries = empty_buckets(engine, &count);
    if (!entries)
        return shard_last_status();
    set_options(engine, options);
    shard_status status = take(engine, entries, count);
    for (int64_t i = 0; i < count; i++)
        shard_tensor_unref(entries[i].parameter);
    free(entries);
    return status;
}

shard_partition_level shard_engine_level(const shard_engine *engine)
{
    return engine->options.level;
}

/* ---- creation and destruction ---- */

shard_engine *shard_engine_create(shard_bucket_options options)
{
    shard_engine *engine = shard_calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    *engine = (shard_engine){.refs = 1, .options.order = shard_unshard_order_create()};
    set_options(engine, options);
    if (engine->options.order)
        return engine;
    shard_engine_unref(engine);
    return NULL;
}

shard_engine *shard_engine_ref(shard_engine *engine)
{
    engine->refs++;
    return engine;
}

void shard_engine_unref(shard_engine *engine)
{
    if (!engine || --engine->refs)
        return;
    shard_engine_remove_buckets(engine, 0);
    shard_unshard_order_unref(engine->options.order);
    free(engine->buckets.all);
    free(engine);
}

void shard_engine_set_sync(shard_engine *engine, bool sync)
{
    engine->local = !sync;
}

void shard_engine_on_reduced(shard_engine *engine, void (*function)(const shard_bucket *, void *), void *context)
{
    engine->reduced = function;
    engine->reduced_context = context;
}
