/*
 * ZeRO: a reducer that deals out what the optimizer works on. Each slot's piece becomes
 * the part of the parameter that is this rank's; the optimizer does not see more of it.
 */
#include "optim/zero.h"

#include "comm/function.h"
#include "distributed/agree.h"
#include "distributed/reducer.h"
#include "distributed/replicas.h"

#include <shard/distributed.h>

#include <stdlib.h>

struct shard_zero_optimizer {
    shard_zero_optimizer_options options;
    shard_reducer *reducer;
    shard_replicas *replicas;
};

/* ---- what is to be the same ---- */

static void describe(const shard_optimizer *optimizer, shard_agreement *mine)
{
    const shard_zero_optimizer_options *options = &optimizer->zero->options;
    const shard_optimizer_defaults *defaults = &optimizer->defaults;
    shard_agreement_add(mine, shard_format("stage %d", options->stage));
    shard_agreement_add(mine, shard_format("partition %s", options->partition ? "SHARD_ZERO_WHOLE" : "SHARD_ZERO_EVEN"));
    shard_agreement_add(mine, shard_format("bucket_mib %.9g", (double)shard_bucket_bytes(options->bucket_mib) / 1048576.0));
    shard_agreement_add(mine, shard_format("overlap %s", shard_word(options->overlap)));
    shard_agreement_add(mine, shard_format("%s", optimizer->ops->name));
    shard_agreement_add(mine, shard_format("lr %.15g", defaults->lr));
    shard_agreement_add(mine, shard_format("weight_decay %.15g, no_decay_1d %s, adapt_all %s", defaults->weight_decay,
                                           shard_word(defaults->no_decay_1d), shard_word(defaults->adapt_all)));
    shard_agreement_add(mine, optimizer->ops->describe(optimizer->settings));
    for (int64_t i = 1; i < optimizer->group_count; i++) {
        const shard_param_group_options *group = &optimizer->groups[i];
        shard_agreement_add(mine,
                            shard_format("param group %lld: lr_scale %.15g, weight_decay %.15g, no_weight_decay %s, decay_all %s, "
                                         "no_decay_1d %s",
                                         (long long)i, group->lr_scale, group->weight_decay, shard_word(group->no_weight_decay),
                                         shard_word(group->decay_all), shard_word(group->no_decay_1d)));
    }
}

/* Each part is stepped by its owner's rule alone, and dealt out by everybody's. Collective over the
 * world, also for a rank that has failed. */
static shard_status compare_settings(const shard_optimizer *optimizer)
{
    shard_agreement mine = {0};
    if (shard_last_status() == SHARD_OK)
        describe(optimizer, &mine);
    return shard_agreement_check(&mine, shard_world(), "shard_zero_optimizer: the ranks' settings differ");
}

/* ---- sharing out ---- */

/* Whether others have its state: a state dict, which would go on with what is nobody's then. */
static bool is_listed(const shard_slot *slot)
{
    for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
        if (slot->piece.state[s] && slot->piece.state[s]->references > 1)
            return true;
    return false;
}

static shard_status check_slot(const struct shard_zero_optimizer *zero, const shard_slot *slot)
{
    shard_group *replicas = shard_parameter_group(slot->parameter), *group = zero->options.group;
    bool is_new = replicas && slot->parameter->requires_grad && !shard_reducer_find(zero->reducer, slot->parameter);
    if (is_new && is_listed(slot))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_zero_optimizer: the state of \"%s\" is in a state dict, which would be of it no more: call "
                           "shard_zero_optimizer "
                           "before shard_optimizer_state_dict, or destroy that first",
                           slot->name);
    if (is_new && shard_slot_has_gradient(slot))
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_zero_optimizer: \"%s\" has a gradient already, which would be lost: share it out before backward or "
            "after shard_step",
            slot->name);
    if (!group || !replicas || shard_group_common(group, replicas) == shard_group_size(replicas))
        return SHARD_OK;
    return shard_error(
        SHARD_ERROR_UNSUPPORTED,
        "shard_zero_optimizer: \"%s\" is replicated on %d ranks, of which %d are in the group of %d: what is shared out over "
        "fewer than all replicas would have to be averaged over the others besides; leave .group NULL: each parameter's own "
        "replicas",
        slot->name, shard_group_size(replicas), shard_group_common(group, replicas), shard_group_size(group));
}

/* The range of a whole state that the new piece has of it. */
static shard_status keep_part(const shard_optimizer *optimizer, shard_piece *piece, const shard_piece *whole)
{
    shard_device *device = shard_device_of(piece->tensor);
    size_t element = shard_dtype_size(piece->tensor->dtype), bytes = (size_t)shard_numel(piece->tensor) * element;
    for (int s = 0; s < optimizer->ops->states && bytes; s++) {
        const char *from = shard_tensor_memory(whole->state[s]);
        char *to = from ? shard_tensor_memory_to_write(piece->state[s]) : NULL;
        if (!to)
            return shard_last_status();
        SHARD_TRY(device->ops->copy_rows(device, to, bytes, from + (size_t)piece->start * element, bytes, bytes, 1));
    }
    return SHARD_OK;
}

static void drop_piece(shard_piece *piece)
{
    shard_tensor_unref(piece->tensor);
    for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
        shard_tensor_unref(piece->state[s]);
}

/* Pieces that are dealt out by now become their parts; state that there is goes along. */
static shard_status take_parts(shard_optimizer *optimizer, shard_piece *whole)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = &optimizer->slots[i];
        const shard_bucket_member *member = shard_reducer_find(optimizer->zero->reducer, slot->parameter);
        if (!member || slot->piece.tensor == member->part)
            continue;
        whole[i] = slot->piece;
        slot->piece = (shard_piece){.tensor = shard_tensor_ref(member->part), .start = member->part_start};
    }
    bool any = false;
    for (int64_t i = 0; i < optimizer->count; i++)
        any |= whole[i].state[0] != NULL;
    if (any)
        SHARD_TRY(shard_optimizer_make_state(optimizer, true));
    for (int64_t i = 0; i < optimizer->count; i++)
        if (whole[i].state[0])
            SHARD_TRY(keep_part(optimizer, &optimizer->slots[i].piece, &whole[i]));
    return SHARD_OK;
}

shard_status shard_zero_take(shard_optimizer *optimizer)
{
    SHARD_TRY(compare_settings(optimizer));
    struct shard_zero_optimizer *zero = optimizer->zero;
    for (int64_t i = 0; i < optimizer->count && shard_last_status() == SHARD_OK; i++)
        check_slot(zero, &optimizer->slots[i]);
    SHARD_TRY(shard_agree(shard_world()));
    shard_replicas *replicas = shard_replicas_create(optimizer->parameters, &(shard_data_parallel_options){0},
                                                     "shard_zero_optimizer: the replicas differ");
    shard_piece *whole = shard_calloc((size_t)optimizer->count, sizeof *whole);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = shard_reducer_add(zero->reducer, optimizer->parameters);
    if (status == SHARD_OK)
        status = take_parts(optimizer, whole);
    for (int64_t i = 0; i < optimizer->count && whole; i++)
        drop_piece(&whole[i]);
    free(whole);
    shard_replicas_destroy(status == SHARD_OK ? zero->replicas : replicas);
    if (status == SHARD_OK)
        zero->replicas = replicas;
    return status;
}

/* ---- a step ---- */

static bool has_gradient(const shard_bucket *bucket)
{
    for (int64_t i = 0; i < bucket->count; i++)
        if (bucket->members[i].part->has_grad)
            return true;
    return false;
}

/* Starts to give all ranks each other's part. Parts that are all that is kept stay where
 * they are; the next use gathers them. */
static void publish(shard_bucket *bucket)
{
    bucket->values->version++;
    if (bucket->own_values) {
        shard_storage_release(bucket->values);
        return;
    }
    char *all = shard_storage_memory(bucket->values);
    bucket->publishing = shard_group_all_gather_start(
        bucket->group, bucket->device, all ? all + (size_t)bucket->own_start * shard_dtype_size(bucket->dtype) : NULL, all,
        bucket->parts, bucket->dtype);
}

shard_status shard_zero_publish(shard_optimizer *optimizer, bool all)
{
    const shard_buckets *buckets = shard_reducer_buckets(optimizer->zero->reducer);
    for (int64_t i = 0; i < buckets->count; i++)
        if (all || has_gradient(buckets->all[i]))
            publish(buckets->all[i]);
    return shard_reducer_await_values(optimizer->zero->reducer);
}

static bool is_in(const shard_slot *slot, const void *bucket)
{
    const shard_bucket_member *members = ((const shard_bucket *)bucket)->members;
    for (int64_t i = 0; i < ((const shard_bucket *)bucket)->count; i++)
        if (members[i].part == slot->piece.tensor)
            return true;
    return false;
}

/* While backward goes on with the buckets before it. */
static void step_bucket(shard_bucket *bucket, void *context)
{
    shard_optimizer_step_where(context, is_in, bucket);
    publish(bucket);
    for (int64_t i = 0; i < bucket->count; i++) {
        shard_zero_grad(bucket->members[i].parameter);
        shard_zero_grad(bucket->members[i].part);
    }
}

/* ---- making ---- */

static shard_status check(const shard_optimizer *optimizer, const shard_zero_optimizer_options *options)
{
    if (!optimizer)
        return shard_null_argument("shard_zero_optimizer", "optimizer");
    if (options->stage < 0 || options->stage > 3)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_zero_optimizer: there is no stage %d; there are 1, 2 and 3",
                           options->stage);
    if (options->partition != SHARD_ZERO_EVEN && options->partition != SHARD_ZERO_WHOLE)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_zero_optimizer: there is no partition %d", (int)options->partition);
    if (optimizer->zero)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_zero_optimizer: the optimizer is shared out already");
    if (options->overlap && optimizer->ops->trust)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_zero_optimizer: %s takes norms of whole layers first: it cannot step during backward (overlap)",
                           optimizer->ops->name);
    return SHARD_OK;
}

static struct shard_zero_optimizer *make(const shard_zero_optimizer_options *options)
{
    struct shard_zero_optimizer *zero = shard_calloc(1, sizeof *zero);
    shard_tensors *none = shard_tensors_create();
    if (zero && none) {
        zero->options = *options;
        zero->reducer =
            shard_reducer_create(none, (shard_bucket_options){.dealing = (shard_dealing)options->stage,
                                                              .whole_parameters = options->partition == SHARD_ZERO_WHOLE,
                                                              .broadcast = true,
                                                              .bytes = shard_bucket_bytes(options->bucket_mib)});
    }
    shard_tensors_destroy(none);
    if (zero && zero->reducer)
        return zero;
    shard_zero_destroy(zero);
    return NULL;
}

shard_optimizer *shard_zero_optimizer_with(shard_optimizer *optimizer, shard_zero_optimizer_options options)
{
    SHARD_FUNCTION("shard_zero_optimizer");
    options.stage = options.stage ? options.stage : 1;
    if (check(optimizer, &options) == SHARD_OK)
        optimizer->zero = make(&options);
    if (shard_zero_take(optimizer) == SHARD_OK && options.overlap)
        shard_reducer_on_reduced(optimizer->zero->reducer, step_bucket, optimizer);
    return shard_agree(shard_world()) == SHARD_OK ? optimizer : NULL;
}

bool shard_zero_overlaps(const shard_optimizer *optimizer)
{
    return optimizer->zero && optimizer->zero->options.overlap;
}

void shard_zero_destroy(struct shard_zero_optimizer *zero)
{
    if (!zero)
        return;
    shard_replicas_destroy(zero->replicas);
    shard_reducer_destroy(zero->reducer);
    free(zero);
}
