/*
 * A parameter whose gradient is complete is scaled in place, so that its bucket only
 * needs a sum; a full bucket's reduction is started once those before it were, so that
 * all ranks start them in one order.
 */
#include "parallel/engine.h"
#include "parallel/row_blocks.h"
#include "parallel/unshard.h"

#include "op/op.h"

#include <stdlib.h>

struct shard_engine {
    int shares; /* its owner's, and those of reducers that remember it */
    shard_bucket_options options;
    shard_buckets buckets;
    int64_t next_index;            /* of the next parameter that is added */
    int64_t started, ended;        /* buckets whose reduction was, in this backward */
    bool local;                    /* sync is off */
    bool walking;                  /* a backward has come by */
    struct shard_engine **others;  /* shares: that have parameters of this one's list */
    int64_t other_count, other_capacity;
    void (*reduced)(shard_bucket *, void *);
    void *reduced_context;
};

/* ---- one backward ---- */

/* What a gradient is multiplied by so that a sum over the replicas is the average
 * over different batches: contributions to one batch count in full. Groups of ranks
 * that have no replica of it stay. */
static shard_status plan_sum(const shard_tensor *parameter, shard_contribution *contribution, const shard_bucket *bucket,
                             double *scale)
{
    int64_t one_batch = shard_contribution_members(contribution, bucket->unit->group);
    *scale = (double)one_batch / shard_group_size(bucket->unit->group);
    shard_contribution_remove(contribution, bucket->unit->group);
    if (shard_contribution_members(contribution, bucket->unit->group) == 1)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "data parallel: the gradient of a parameter of shape %s is to be summed over ranks of which some, but not "
                       "all, are among the %d that have replicas of it (shard_set_replica_group)",
                       shard_shape_text(&parameter->shape), shard_group_size(bucket->unit->group));
}

static shard_status scale_gradient(shard_bucket_entry *entry)
{
    shard_tensor *parameter = entry->parameter;
    const shard_bucket *bucket = entry->bucket;
    entry->scaled = true;
    if (bucket->row_blocks && shard_row_blocks_streamed(bucket->row_blocks))
        return SHARD_OK;
    void *memory = shard_tensor_memory_to_write(parameter->grad);
    if (!memory)
        return shard_last_status();
    if (!parameter->has_grad) { /* backward did not come by: others' may still count */
        parameter->has_grad = true;
        return SHARD_RUN(parameter, zero, memory, (size_t)shard_numel(parameter) * shard_dtype_size(parameter->dtype));
    }
    double scale;
    SHARD_TRY(plan_sum(parameter, &parameter->grad->contribution, bucket, &scale));
    if (scale == 1.0)
        return SHARD_OK;
    return SHARD_RUN(parameter, axpby, shard_numel(parameter), scale, memory, 0.0, memory, parameter->dtype);
}

/* Whether a local range has a gradient already, of an earlier backward. */
static bool accumulates(const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count && bucket->unit->counts; i++)
        if (bucket->entries[i].local->has_grad)
            return true;
    return false;
}

/* Starts to sum the gradients, or what of them has not been streamed; after an error the other ranks learn of it.
 * Values that only backward needed are evicted. */
static void start(shard_bucket *bucket)
{
    shard_unit *unit = bucket->unit;
    if (unit->local_values)
        shard_storage_release(unit->values);
    for (int64_t i = 0; i < bucket->count; i++)
        if (!bucket->entries[i].scaled)
            scale_gradient(&bucket->entries[i]);
    if (bucket->row_blocks && shard_row_blocks_streamed(bucket->row_blocks))
        return;
    char *all = shard_storage_memory(unit->gradients);
    if (all && unit->local_gradients)
        shard_bucket_zero_gaps(bucket, all);
    unit->adds = accumulates(bucket);
    if (bucket->row_blocks) {
        shard_row_blocks_stream_rest(bucket->row_blocks, all);
        return;
    }
    bucket->sum = (shard_unit_sum){.range = shard_unit_whole(unit), .gradient = all};
    shard_unit_reduce(unit, &bucket->sum);
}

/* Waits for what was started. */
static shard_status end(shard_bucket *bucket)
{
    shard_engine *engine = bucket->engine;
    shard_unit *unit = bucket->unit;
    shard_status status = shard_unit_end_reduce(unit, &bucket->sum);
    for (int64_t i = 0; i < bucket->count && unit->counts; i++) {
        shard_bucket_entry *entry = &bucket->entries[i];
        entry->local->has_grad = status == SHARD_OK;
        if (unit->local_gradients)
            shard_zero_grad(entry->parameter);
    }
    if (unit->local_gradients)
        shard_storage_release(unit->gradients);
    if (status == SHARD_OK && engine->reduced && !engine->local)
        engine->reduced(bucket, engine->reduced_context);
    return shard_last_status();
}

/* Where something is to follow each reduction, one at most is under way when the next
 * one is started; else all may be. */
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
            bucket->entries[j].ready = bucket->entries[j].scaled = false;
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

shard_status shard_engine_await_values(shard_engine *engine)
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
    for (int64_t i = 0; i < buckets->count; i++) {
        for (int64_t j = 0; j < buckets->all[i]->count; j++)
            make_ready(&buckets->all[i]->entries[j]);
        start_full_buckets(engine);
    }
    while (engine->ended < buckets->count)
        end(buckets->all[engine->ended++]);
    shard_engine_await_values(engine);
    rearm(engine);
    if (engine->options.level == SHARD_PARTITION_PARAMETERS)
        shard_unshard_end_pass(engine->options.order);
    return shard_last_status();
}

/* Before the first gradient of a backward, which has counted by then where it will come by:
 * those that it will not reach are not waited for, unless they are updated then, as it may
 * need their values. */
static shard_status begin_walk(shard_engine *engine)
{
    if (engine->walking)
        return SHARD_OK;
    SHARD_TRY(shard_at_backward_end(finish, engine));
    engine->walking = true;
    for (int64_t i = 0; i < engine->buckets.count && !engine->reduced; i++) {
        const shard_bucket *bucket = engine->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++)
            if (bucket->entries[j].parameter->grad_pending == 0)
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
            entry->local->has_grad = false; /* it is of a sum to which this rank alone has added */
        return;
    }
    if (begin_walk(engine) != SHARD_OK || scale_gradient(entry) != SHARD_OK)
        return;
    make_ready(entry);
    start_full_buckets(engine);
}

/* Of a bucket's only parameter: once all that comes before it was reduced. */
static bool begin_rows(void *context, const shard_contribution *contribution, double *scale)
{
    shard_bucket *bucket = context;
    shard_engine *engine = bucket->engine;
    shard_tensor *parameter = bucket->entries[0].parameter;
    shard_contribution of_rows = *contribution;
    if (parameter->has_grad || parameter->grad_pending != 1)
        return false;
    shard_call_watches(parameter);
    if (begin_walk(engine) != SHARD_OK)
        return false;
    start_full_buckets(engine);
    bool is_next = engine->started < engine->buckets.count && engine->buckets.all[engine->started] == bucket;
    bucket->unit->adds = accumulates(bucket);
    return is_next && plan_sum(parameter, &of_rows, bucket, scale) == SHARD_OK;
}

/* ---- whose parameter it is ---- */

static shard_engine *reducer_of(const shard_tensor *parameter)
{
    if (parameter->grad_ready != gradient_ready)
        return NULL;
    return ((shard_bucket_entry *)parameter->grad_ready_context)->bucket->engine;
}

/* From now on what is set of `engine` is set of `other`. */
static shard_status remember(shard_engine *engine, shard_engine *other)
{
    for (int64_t i = 0; i < engine->other_count; i++)
        if (engine->others[i] == other)
            return SHARD_OK;
    SHARD_TRY(shard_grow(&engine->others, &engine->other_capacity, engine->other_count + 1, sizeof *engine->others));
    other->shares++;
    engine->others[engine->other_count++] = other;
    return SHARD_OK;
}

/* Adds buckets of candidates, whose gradients are this engine's then. */
static shard_status take(shard_engine *engine, shard_bucket_entry *candidates, int64_t count)
{
    shard_buckets *buckets = &engine->buckets;
    int64_t from = buckets->count;
    SHARD_TRY(shard_buckets_add(buckets, candidates, count, &engine->options));
    for (int64_t i = from; i < buckets->count; i++) {
        buckets->all[i]->engine = engine;
        for (int64_t j = 0; j < buckets->all[i]->count; j++) {
            shard_bucket_entry *entry = &buckets->all[i]->entries[j];
            entry->parameter->grad_ready = gradient_ready;
            entry->parameter->grad_ready_context = entry;
        }
    }
    rearm(engine);
    return SHARD_OK;
}

static int by_index(const void *a, const void *b)
{
    const shard_bucket_entry *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Takes a bucket apart: those of its parameters that are still this engine's. */
static int64_t dissolve(shard_engine *engine, shard_bucket *bucket, shard_bucket_entry *left)
{
    int64_t count = 0;
    for (int64_t i = 0; i < bucket->count; i++) {
        const shard_bucket_entry *entry = &bucket->entries[i];
        if (reducer_of(entry->parameter) != engine)
            continue;
        entry->parameter->grad_ready = NULL; /* nobody's, until it is in a bucket again */
        left[count++] = (shard_bucket_entry){
            .parameter = shard_tensor_ref(entry->parameter), .prefix = entry->prefix, .index = entry->index, .size = entry->size};
    }
    shard_bucket_destroy(bucket);
    return count;
}

static bool is_intact(const shard_engine *engine, const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++)
        if (reducer_of(bucket->entries[i].parameter) != engine)
            return false;
    return true;
}

/* Makes buckets anew of which another engine has taken parameters. */
static shard_status give_up_taken(shard_engine *engine)
{
    shard_buckets *buckets = &engine->buckets;
    int64_t count = 0, kept = 0, most = 0;
    for (int64_t i = 0; i < buckets->count; i++)
        most += buckets->all[i]->count;
    shard_bucket_entry *left = shard_calloc((size_t)most, sizeof *left);
    if (!left)
        return shard_last_status();
    for (int64_t i = 0; i < buckets->count; i++) {
        if (is_intact(engine, buckets->all[i]))
            buckets->all[kept++] = buckets->all[i];
        else
            count += dissolve(engine, buckets->all[i], left + count);
    }
    buckets->count = kept;
    if (count)
        qsort(left, (size_t)count, sizeof *left, by_index);
    shard_status status = take(engine, left, count);
    for (int64_t i = 0; i < count; i++)
        shard_tensor_unref(left[i].parameter);
    free(left);
    return status;
}

static bool listed(const shard_bucket_entry *candidates, int64_t count, const shard_tensor *parameter)
{
    for (int64_t i = 0; i < count; i++)
        if (candidates[i].parameter == parameter)
            return true;
    return false;
}

/* Those of the list that are this engine's to take; *count of them. */
static shard_status choose(shard_engine *engine, const shard_tensors *parameters, shard_bucket_entry *candidates, int64_t *count)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (!parameter->requires_grad || !shard_parameter_group(parameter) || listed(candidates, *count, parameter))
            continue;
        shard_engine *other = reducer_of(parameter);
        if (other && other != engine && other->options.level && engine->options.level)
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "shard_zero_optimizer: \"%s\" is shared out with another optimizer already: each parameter can be with one "
                "alone",
                shard_tensors_name(parameters, i));
        if (other && other->options.level >= engine->options.level) {
            SHARD_TRY(other == engine ? SHARD_OK : remember(engine, other));
            continue;
        }
        if (other)
            SHARD_TRY(remember(other, engine));
        candidates[(*count)++] = shard_bucket_candidate(parameter, shard_tensors_name(parameters, i), engine->next_index++);
    }
    return SHARD_OK;
}

shard_status shard_engine_add(shard_engine *engine, const shard_tensors *parameters)
{
    int64_t count = 0;
    shard_bucket_entry *candidates = shard_calloc((size_t)shard_tensors_count(parameters), sizeof *candidates);
    shard_engine **from = shard_calloc((size_t)shard_tensors_count(parameters), sizeof *from);
    shard_status status = candidates && from ? choose(engine, parameters, candidates, &count) : shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        from[i] = reducer_of(candidates[i].parameter);
    if (status == SHARD_OK)
        status = take(engine, candidates, count);
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        if (from[i])
            status = give_up_taken(from[i]);
    free(from);
    free(candidates);
    return status;
}

/* ---- life ---- */

shard_engine *shard_engine_create(const shard_tensors *parameters, shard_bucket_options options)
{
    shard_engine *engine = shard_calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    *engine = (shard_engine){.shares = 1, .options = options};
    engine->options.begin_rows = begin_rows;
    engine->options.order = shard_unshard_order_create();
    if (engine->options.order && shard_engine_add(engine, parameters) == SHARD_OK)
        return engine;
    shard_engine_destroy(engine);
    return NULL;
}

static void drop(shard_engine *engine)
{
    if (--engine->shares)
        return;
    shard_unshard_order_unref(engine->options.order);
    free(engine->others);
    free(engine->buckets.all);
    free(engine);
}

void shard_engine_destroy(shard_engine *engine)
{
    if (!engine)
        return;
    shard_engine_set_sync(engine, true); /* of those that stay */
    for (int64_t i = 0; i < engine->buckets.count; i++) {
        shard_bucket *bucket = engine->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++)
            if (reducer_of(bucket->entries[j].parameter) == engine)
                bucket->entries[j].parameter->grad_ready = NULL;
        shard_bucket_destroy(bucket);
    }
    for (int64_t i = 0; i < engine->other_count; i++)
        drop(engine->others[i]);
    engine->buckets.count = engine->other_count = 0;
    drop(engine);
}

void shard_engine_set_sync(shard_engine *engine, bool sync)
{
    engine->local = !sync;
    for (int64_t i = 0; i < engine->other_count; i++)
        shard_engine_set_sync(engine->others[i], sync);
}

const shard_buckets *shard_engine_buckets(const shard_engine *engine)
{
    return &engine->buckets;
}

const shard_bucket_entry *shard_engine_find(const shard_engine *engine, const shard_tensor *parameter)
{
    return reducer_of(parameter) == engine ? parameter->grad_ready_context : NULL;
}

void shard_engine_on_reduced(shard_engine *engine, void (*function)(shard_bucket *, void *), void *context)
{
    engine->reduced = function;
    engine->reduced_context = context;
}
