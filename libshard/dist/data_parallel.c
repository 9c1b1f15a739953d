/*
 * Data parallel: gradients averaged over replica groups while backward runs.
 *
 * Each flat buffer is cut into buckets. A parameter whose gradient is complete is
 * scaled in place, so that the bucket only needs a sum; a full bucket's reduction
 * is started once those before it were, so that all ranks start them in one order.
 */
#include "dist/dist.h"
#include "dist/flat.h"

#include <stdlib.h>

typedef struct bucket {
    shard_flat *flat;
    int64_t first, count; /* parameters of the flat buffer */
    int64_t waiting;      /* those whose gradient is not complete yet */
    shard_request *request;
} bucket;

typedef struct member {
    shard_tensor *parameter;
    struct shard_data_parallel *owner;
    int64_t bucket;
    bool ready;
} member;

struct shard_data_parallel {
    shard_flat *flats;
    bucket *buckets;
    int64_t bucket_count;
    member *members; /* in the order of buckets and, in each, of its parameters */
    int64_t member_count;
    int64_t started; /* buckets whose reduction was started in this backward */
    bool local;      /* sync is off */
};

/* ---- one backward ---- */

/* What a gradient is multiplied by so that a sum over the replicas is the average
 * over different batches: contributions to one batch count in full. Groups of ranks
 * that have no replica of it stay. */
static shard_status plan_sum(shard_tensor *parameter, const shard_flat *flat, double *scale)
{
    shard_contribution *contribution = &parameter->grad->contribution;
    int64_t one_batch = shard_contribution_members(contribution, flat->group);
    *scale = (double)one_batch / shard_group_size(flat->group);
    shard_contribution_remove(contribution, flat->group);
    if (shard_contribution_members(contribution, flat->group) == 1)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "data parallel: the gradient of a parameter of shape %s is to be summed over ranks of which some, but not "
                       "all, are among the %d that have replicas of it (shard_set_replica_group)",
                       shard_shape_text(&parameter->shape), shard_group_size(flat->group));
}

static shard_status scale_gradient(shard_tensor *parameter, const shard_flat *flat)
{
    void *memory = shard_tensor_memory_to_write(parameter->grad);
    if (!memory)
        return shard_last_status();
    if (!parameter->has_grad) { /* backward did not come by: others' may still count */
        parameter->has_grad = true;
        return SHARD_RUN(parameter, zero, memory, (size_t)shard_numel(parameter) * shard_dtype_size(parameter->dtype));
    }
    double scale;
    SHARD_TRY(plan_sum(parameter, flat, &scale));
    if (scale == 1.0)
        return SHARD_OK;
    return SHARD_RUN(parameter, axpby, shard_numel(parameter), scale, memory, 0.0, memory, parameter->dtype);
}

static void start(bucket *b)
{
    const shard_flat *flat = b->flat;
    const shard_flat_parameter *last = &flat->parameters[b->first + b->count - 1];
    int64_t from = flat->parameters[b->first].start, to = last->start + last->size;
    char *memory = (char *)flat->gradients->memory + (size_t)from * shard_dtype_size(flat->dtype);
    b->request = shard_group_all_reduce_start(flat->group, flat->gradients->device, memory, to - from, flat->dtype, SHARD_SUM);
}

static void start_full_buckets(shard_data_parallel *dp)
{
    while (dp->started < dp->bucket_count && dp->buckets[dp->started].waiting == 0)
        start(&dp->buckets[dp->started++]);
}

static void rearm(shard_data_parallel *dp)
{
    dp->started = 0;
    for (int64_t i = 0; i < dp->bucket_count; i++)
        dp->buckets[i].waiting = dp->buckets[i].count;
    for (int64_t i = 0; i < dp->member_count; i++)
        dp->members[i].ready = false;
}

static shard_status make_ready(member *m)
{
    bucket *b = &m->owner->buckets[m->bucket];
    m->ready = true;
    b->waiting--;
    return scale_gradient(m->parameter, b->flat);
}

static shard_status finish(void *context)
{
    shard_data_parallel *dp = context;
    for (int64_t i = 0; i < dp->member_count; i++)
        if (!dp->members[i].ready)
            make_ready(&dp->members[i]);
    start_full_buckets(dp);
    shard_status status = shard_last_status();
    for (int64_t i = 0; i < dp->bucket_count; i++) {
        const shard_flat *flat = dp->buckets[i].flat;
        shard_status waited = shard_group_wait(flat->group, flat->gradients->device, dp->buckets[i].request);
        dp->buckets[i].request = NULL;
        status = status == SHARD_OK ? waited : status;
    }
    rearm(dp);
    return status;
}

static void gradient_ready(shard_tensor *parameter, void *context)
{
    (void)parameter;
    member *m = context;
    shard_data_parallel *dp = m->owner;
    if (dp->local)
        return;
    if (shard_at_backward_end(finish, dp) == SHARD_OK && make_ready(m) == SHARD_OK)
        start_full_buckets(dp);
}

/* ---- making ---- */

static void cut_into_buckets(shard_data_parallel *dp, size_t bucket_bytes)
{
    for (shard_flat *flat = dp->flats; flat; flat = flat->next) {
        size_t bytes = bucket_bytes; /* a new buffer begins a new bucket */
        for (int64_t i = 0; i < flat->count; i++) {
            if (bytes >= bucket_bytes) {
                dp->buckets[dp->bucket_count++] = (bucket){.flat = flat, .first = i};
                bytes = 0;
            }
            bytes += (size_t)flat->parameters[i].size * shard_dtype_size(flat->dtype);
            dp->buckets[dp->bucket_count - 1].count++;
            dp->members[dp->member_count++] =
                (member){.parameter = flat->parameters[i].tensor, .owner = dp, .bucket = dp->bucket_count - 1};
        }
    }
    rearm(dp);
}

static shard_status share_values(const shard_flat *flats)
{
    for (const shard_flat *flat = flats; flat; flat = flat->next) {
        flat->values->version++;
        SHARD_TRY(shard_group_broadcast(flat->group, flat->values->device, flat->values->memory, flat->size, flat->dtype, 0));
    }
    return SHARD_OK;
}

shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters, shard_data_parallel_options options)
{
    if (!parameters) {
        shard_null_argument("shard_data_parallel_create", "parameters");
        shard_group_fail(shard_world());
        return NULL;
    }
    size_t bucket_bytes = (size_t)((options.bucket_mib > 0 ? options.bucket_mib : 25.0) * 1048576.0);
    int64_t count = shard_tensors_count(parameters);
    shard_data_parallel *dp = shard_calloc(1, sizeof *dp);
    shard_status status = dp ? SHARD_OK : shard_last_status();
    if (dp) {
        dp->buckets = shard_calloc((size_t)count, sizeof *dp->buckets);
        dp->members = shard_calloc((size_t)count, sizeof *dp->members);
        dp->flats = shard_flat_create(parameters, &status);
    }
    if (status == SHARD_OK && dp->buckets && dp->members && !options.no_broadcast)
        status = share_values(dp->flats);
    if (status != SHARD_OK || !dp->buckets || !dp->members) {
        shard_group_fail(shard_world());
        shard_data_parallel_destroy(dp);
        return NULL;
    }
    cut_into_buckets(dp, bucket_bytes ? bucket_bytes : 1);
    for (int64_t i = 0; i < dp->member_count; i++) {
        dp->members[i].parameter->grad_ready = gradient_ready;
        dp->members[i].parameter->grad_ready_context = &dp->members[i];
    }
    return dp;
}

void shard_data_parallel_destroy(shard_data_parallel *dp)
{
    if (!dp)
        return;
    for (int64_t i = 0; i < dp->member_count; i++)
        dp->members[i].parameter->grad_ready = NULL;
    shard_flat_destroy(dp->flats);
    free(dp->buckets);
    free(dp->members);
    free(dp);
}

void shard_data_parallel_set_sync(shard_data_parallel *dp, bool sync)
{
    if (dp)
        dp->local = !sync;
}
