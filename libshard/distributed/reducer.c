/*
 * A parameter whose gradient is complete is scaled in place, so that its bucket only
 * needs a sum; a full bucket's reduction is started once those before it were, so that
 * all ranks start them in one order.
 */
#include "distributed/reducer.h"
#include "distributed/distributed.h"
#include "distributed/gathered.h"
#include "distributed/row_blocks.h"

#include <stdlib.h>

struct shard_reducer {
    int references; /* its owner's, and those of reducers that remember it */
    shard_bucket_options options;
    shard_buckets buckets;
    int64_t next_index;            /* of the next parameter that is added */
    int64_t started, ended;        /* buckets whose reduction was, in this backward */
    bool local;                    /* sync is off */
    bool walking;                  /* a backward has come by */
    struct shard_reducer **others; /* shares: that have parameters of this one's list */
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
    int64_t one_batch = shard_contribution_members(contribution, bucket->group);
    *scale = (double)one_batch / shard_group_size(bucket->group);
    shard_contribution_remove(contribution, bucket->group);
    if (shard_contribution_members(contribution, bucket->group) == 1)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "data parallel: the gradient of a parameter of shape %s is to be summed over ranks of which some, but not "
                       "all, are among the %d that have replicas of it (shard_set_replica_group)",
                       shard_shape_text(&parameter->shape), shard_group_size(bucket->group));
}

static shard_status scale_gradient(shard_bucket_member *member)
{
    shard_tensor *parameter = member->parameter;
    const shard_bucket *bucket = member->bucket;
    member->scaled = true;
    if (bucket->row_blocks && shard_row_blocks_passed(bucket->row_blocks))
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

/* Whether the part has a gradient already, of an earlier backward. */
static bool accumulates(const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++)
        if (bucket->members[i].part->has_grad)
            return true;
    return false;
}

/* Where the own part is in memory of all elements. */
static char *own_of(const shard_bucket *bucket, char *all)
{
    return all ? all + (size_t)bucket->own_start * shard_dtype_size(bucket->dtype) : NULL;
}

/* What has not passed by in blocks of rows does now, from the whole. */
static void start_rows(shard_bucket *bucket)
{
    if (shard_row_blocks_passed(bucket->row_blocks))
        return;
    char *all = shard_storage_memory(bucket->gradients);
    if (all)
        shard_bucket_zero_gaps(bucket, all);
    bucket->adds = accumulates(bucket);
    shard_row_blocks_take_whole(bucket->row_blocks, all);
}

/* After an error the others are told. What only backward needed of the bucket goes. */
static void start(shard_bucket *bucket)
{
    if (bucket->own_values)
        shard_storage_release(bucket->values);
    for (int64_t i = 0; i < bucket->count; i++)
        if (!bucket->members[i].scaled)
            scale_gradient(&bucket->members[i]);
    if (bucket->row_blocks) {
        start_rows(bucket);
        return;
    }
    char *all = shard_storage_memory(bucket->gradients);
    if (!bucket->own_gradients) {
        bucket->request =
            shard_group_all_reduce_start(bucket->group, bucket->device, all, bucket->size, bucket->dtype, SHARD_SUM);
        return;
    }
    char *part = shard_storage_memory(bucket->own_gradients);
    if (all && part)
        shard_bucket_zero_gaps(bucket, all);
    bucket->adds = accumulates(bucket);
    bucket->request = shard_group_reduce_scatter_start(
        bucket->group, bucket->device, all, bucket->adds ? own_of(bucket, all) : part, bucket->parts, bucket->dtype, SHARD_SUM);
}

static shard_status wait(shard_bucket *bucket)
{
    SHARD_TRY(shard_group_wait(bucket->group, bucket->device, bucket->request));
    if (!bucket->own_gradients || bucket->row_blocks || !bucket->adds)
        return SHARD_OK;
    return bucket->device->ops->axpby(bucket->device, bucket->own, 1.0, own_of(bucket, bucket->gradients->memory), 1.0,
                                      bucket->own_gradients->memory, bucket->dtype);
}

/* Waits for what was started. */
static shard_status end(shard_bucket *bucket)
{
    shard_reducer *reducer = bucket->reducer;
    shard_status status = wait(bucket);
    bucket->request = NULL;
    for (int64_t i = 0; i < bucket->count && bucket->parts; i++) {
        shard_bucket_member *member = &bucket->members[i];
        member->part->has_grad = status == SHARD_OK;
        if (bucket->own_gradients)
            shard_zero_grad(member->parameter);
    }
    if (bucket->own_gradients)
        shard_storage_release(bucket->gradients);
    if (status == SHARD_OK && reducer->reduced && !reducer->local)
        reducer->reduced(bucket, reducer->reduced_context);
    return shard_last_status();
}

/* Where something is to follow each reduction, one at most is under way when the next
 * one is started; else all may be. */
static void start_full_buckets(shard_reducer *reducer)
{
    const shard_buckets *buckets = &reducer->buckets;
    bool follows = reducer->reduced || reducer->options.dealing >= SHARD_DEAL_GRADIENTS;
    while (reducer->started < buckets->count && buckets->all[reducer->started]->waiting == 0) {
        shard_bucket *bucket = buckets->all[reducer->started++];
        start(bucket);
        int64_t under_way = bucket->request ? 1 : 0;
        while (follows && reducer->ended < reducer->started - under_way)
            end(buckets->all[reducer->ended++]);
    }
}

static void rearm(shard_reducer *reducer)
{
    reducer->started = reducer->ended = 0;
    reducer->walking = false;
    for (int64_t i = 0; i < reducer->buckets.count; i++) {
        shard_bucket *bucket = reducer->buckets.all[i];
        bucket->waiting = bucket->count;
        for (int64_t j = 0; j < bucket->count; j++)
            bucket->members[j].ready = bucket->members[j].scaled = false;
        if (bucket->row_blocks)
            shard_row_blocks_rearm(bucket->row_blocks);
    }
}

static void make_ready(shard_bucket_member *member)
{
    if (!member->ready)
        member->bucket->waiting--;
    member->ready = true;
}

shard_status shard_reducer_await_values(shard_reducer *reducer)
{
    for (int64_t i = 0; i < reducer->buckets.count; i++) {
        shard_bucket *bucket = reducer->buckets.all[i];
        shard_group_wait(bucket->group, bucket->device, bucket->publishing);
        bucket->publishing = NULL;
    }
    return shard_last_status();
}

static shard_status finish(void *context)
{
    shard_reducer *reducer = context;
    const shard_buckets *buckets = &reducer->buckets;
    for (int64_t i = 0; i < buckets->count; i++) {
        for (int64_t j = 0; j < buckets->all[i]->count; j++)
            make_ready(&buckets->all[i]->members[j]);
        start_full_buckets(reducer);
    }
    while (reducer->ended < buckets->count)
        end(buckets->all[reducer->ended++]);
    shard_reducer_await_values(reducer);
    rearm(reducer);
    if (reducer->options.dealing == SHARD_DEAL_VALUES)
        shard_gathered_end_pass();
    return shard_last_status();
}

/* Before the first gradient of a backward, which has counted by then where it will come by:
 * those that it will not reach are not waited for, unless they are updated then, as it may
 * need their values. */
static shard_status begin_walk(shard_reducer *reducer)
{
    if (reducer->walking)
        return SHARD_OK;
    SHARD_TRY(shard_at_backward_end(finish, reducer));
    reducer->walking = true;
    for (int64_t i = 0; i < reducer->buckets.count && !reducer->reduced; i++) {
        const shard_bucket *bucket = reducer->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++)
            if (bucket->members[j].parameter->grad_pending == 0)
                make_ready(&bucket->members[j]);
    }
    return SHARD_OK;
}

static void gradient_ready(shard_tensor *parameter, void *context)
{
    (void)parameter;
    shard_bucket_member *member = context;
    shard_reducer *reducer = member->bucket->reducer;
    if (reducer->local && !member->bucket->own_gradients) {
        if (member->part)
            member->part->has_grad = false; /* it is of a sum to which this rank alone has added */
        return;
    }
    if (begin_walk(reducer) != SHARD_OK || scale_gradient(member) != SHARD_OK)
        return;
    make_ready(member);
    start_full_buckets(reducer);
}

bool shard_reducer_begin_rows(shard_bucket *bucket, const shard_contribution *contribution, double *scale)
{
    shard_reducer *reducer = bucket->reducer;
    shard_tensor *parameter = bucket->members[0].parameter;
    shard_contribution of_rows = *contribution;
    if (parameter->has_grad || parameter->grad_pending != 1)
        return false;
    shard_call_watches(parameter);
    if (begin_walk(reducer) != SHARD_OK)
        return false;
    start_full_buckets(reducer);
    bool is_next = reducer->started < reducer->buckets.count && reducer->buckets.all[reducer->started] == bucket;
    bucket->adds = accumulates(bucket);
    return is_next && plan_sum(parameter, &of_rows, bucket, scale) == SHARD_OK;
}

/* ---- whose parameter it is ---- */

static shard_reducer *reducer_of(const shard_tensor *parameter)
{
    if (parameter->grad_ready != gradient_ready)
        return NULL;
    return ((shard_bucket_member *)parameter->grad_ready_context)->bucket->reducer;
}

/* From now on what is set of `reducer` is set of `other`. */
static shard_status remember(shard_reducer *reducer, shard_reducer *other)
{
    for (int64_t i = 0; i < reducer->other_count; i++)
        if (reducer->others[i] == other)
            return SHARD_OK;
    SHARD_TRY(shard_grow(&reducer->others, &reducer->other_capacity, reducer->other_count + 1, sizeof *reducer->others));
    other->references++;
    reducer->others[reducer->other_count++] = other;
    return SHARD_OK;
}

/* Adds buckets of candidates, whose gradients are this reducer's then. */
static shard_status take(shard_reducer *reducer, shard_bucket_member *candidates, int64_t count)
{
    shard_buckets *buckets = &reducer->buckets;
    int64_t from = buckets->count;
    SHARD_TRY(shard_buckets_add(buckets, candidates, count, &reducer->options));
    for (int64_t i = from; i < buckets->count; i++) {
        buckets->all[i]->reducer = reducer;
        for (int64_t j = 0; j < buckets->all[i]->count; j++) {
            shard_bucket_member *member = &buckets->all[i]->members[j];
            member->parameter->grad_ready = gradient_ready;
            member->parameter->grad_ready_context = member;
        }
    }
    rearm(reducer);
    return SHARD_OK;
}

static int by_index(const void *a, const void *b)
{
    const shard_bucket_member *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Takes a bucket apart: those of its parameters that are still this reducer's. */
static int64_t dissolve(shard_reducer *reducer, shard_bucket *bucket, shard_bucket_member *left)
{
    int64_t count = 0;
    for (int64_t i = 0; i < bucket->count; i++) {
        const shard_bucket_member *member = &bucket->members[i];
        if (reducer_of(member->parameter) != reducer)
            continue;
        member->parameter->grad_ready = NULL; /* nobody's, until it is in a bucket again */
        left[count++] = (shard_bucket_member){.parameter = shard_tensor_ref(member->parameter),
                                              .module = member->module,
                                              .index = member->index,
                                              .size = member->size};
    }
    shard_bucket_destroy(bucket);
    return count;
}

static bool is_intact(const shard_reducer *reducer, const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++)
        if (reducer_of(bucket->members[i].parameter) != reducer)
            return false;
    return true;
}

/* Makes buckets anew of which another reducer has taken parameters. */
static shard_status give_up_taken(shard_reducer *reducer)
{
    shard_buckets *buckets = &reducer->buckets;
    int64_t count = 0, kept = 0, most = 0;
    for (int64_t i = 0; i < buckets->count; i++)
        most += buckets->all[i]->count;
    shard_bucket_member *left = shard_calloc((size_t)most, sizeof *left);
    if (!left)
        return shard_last_status();
    for (int64_t i = 0; i < buckets->count; i++) {
        if (is_intact(reducer, buckets->all[i]))
            buckets->all[kept++] = buckets->all[i];
        else
            count += dissolve(reducer, buckets->all[i], left + count);
    }
    buckets->count = kept;
    if (count)
        qsort(left, (size_t)count, sizeof *left, by_index);
    shard_status status = take(reducer, left, count);
    for (int64_t i = 0; i < count; i++)
        shard_tensor_unref(left[i].parameter);
    free(left);
    return status;
}

static bool listed(const shard_bucket_member *candidates, int64_t count, const shard_tensor *parameter)
{
    for (int64_t i = 0; i < count; i++)
        if (candidates[i].parameter == parameter)
            return true;
    return false;
}

/* Those of the list that are this reducer's to take; *count of them. */
static shard_status choose(shard_reducer *reducer, const shard_tensors *parameters, shard_bucket_member *candidates,
                           int64_t *count)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (!parameter->requires_grad || !shard_parameter_group(parameter) || listed(candidates, *count, parameter))
            continue;
        shard_reducer *other = reducer_of(parameter);
        if (other && other != reducer && other->options.dealing && reducer->options.dealing)
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "shard_zero_optimizer: \"%s\" is shared out with another optimizer already: each parameter can be with one "
                "alone",
                shard_tensors_name(parameters, i));
        if (other && other->options.dealing >= reducer->options.dealing) {
            SHARD_TRY(other == reducer ? SHARD_OK : remember(reducer, other));
            continue;
        }
        if (other)
            SHARD_TRY(remember(other, reducer));
        candidates[(*count)++] = shard_bucket_candidate(parameter, shard_tensors_name(parameters, i), reducer->next_index++);
    }
    return SHARD_OK;
}

shard_status shard_reducer_add(shard_reducer *reducer, const shard_tensors *parameters)
{
    int64_t count = 0;
    shard_bucket_member *candidates = shard_calloc((size_t)shard_tensors_count(parameters), sizeof *candidates);
    shard_reducer **from = shard_calloc((size_t)shard_tensors_count(parameters), sizeof *from);
    shard_status status = candidates && from ? choose(reducer, parameters, candidates, &count) : shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        from[i] = reducer_of(candidates[i].parameter);
    if (status == SHARD_OK)
        status = take(reducer, candidates, count);
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        if (from[i])
            status = give_up_taken(from[i]);
    free(from);
    free(candidates);
    return status;
}

/* ---- life ---- */

shard_reducer *shard_reducer_create(const shard_tensors *parameters, shard_bucket_options options)
{
    shard_reducer *reducer = shard_calloc(1, sizeof *reducer);
    if (!reducer)
        return NULL;
    *reducer = (shard_reducer){.references = 1, .options = options};
    if (shard_reducer_add(reducer, parameters) == SHARD_OK)
        return reducer;
    shard_reducer_destroy(reducer);
    return NULL;
}

static void drop(shard_reducer *reducer)
{
    if (--reducer->references)
        return;
    free(reducer->others);
    free(reducer->buckets.all);
    free(reducer);
}

void shard_reducer_destroy(shard_reducer *reducer)
{
    if (!reducer)
        return;
    shard_reducer_set_sync(reducer, true); /* of those that stay */
    for (int64_t i = 0; i < reducer->buckets.count; i++) {
        shard_bucket *bucket = reducer->buckets.all[i];
        for (int64_t j = 0; j < bucket->count; j++)
            if (reducer_of(bucket->members[j].parameter) == reducer)
                bucket->members[j].parameter->grad_ready = NULL;
        shard_bucket_destroy(bucket);
    }
    for (int64_t i = 0; i < reducer->other_count; i++)
        drop(reducer->others[i]);
    reducer->buckets.count = reducer->other_count = 0;
    drop(reducer);
}

void shard_reducer_set_sync(shard_reducer *reducer, bool sync)
{
    reducer->local = !sync;
    for (int64_t i = 0; i < reducer->other_count; i++)
        shard_reducer_set_sync(reducer->others[i], sync);
}

const shard_buckets *shard_reducer_buckets(const shard_reducer *reducer)
{
    return &reducer->buckets;
}

const shard_bucket_member *shard_reducer_find(const shard_reducer *reducer, const shard_tensor *parameter)
{
    return reducer_of(parameter) == reducer ? parameter->grad_ready_context : NULL;
}

void shard_reducer_on_reduced(shard_reducer *reducer, void (*function)(shard_bucket *, void *), void *context)
{
    reducer->reduced = function;
    reducer->reduced_context = context;
}
