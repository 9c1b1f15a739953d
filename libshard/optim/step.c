/* The joint step: all local ranges in a list of runs. */
#include "optim/optimizer.h"

#include "base/hash.h"
#include "comm/function.h"
#include "device/graph.h"

#include <shard/autograd.h>
#include <shard/distributed.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool shard_slot_has_gradient(const shard_slot *slot)
{
    return slot->parameter->requires_grad && shard_has_grad(slot->range.tensor);
}

bool shard_slot_counts(const shard_slot *slot)
{
    bool is_partitioned = slot->range.tensor != slot->parameter; /* no other rank has the range */
    return is_partitioned || shard_group_rank(shard_parameter_group(slot->parameter)) == 0;
}

/* The device of all parameters, or of other ranks' parameters if this rank has none; NULL with the error set if there
 * are several. */
static shard_device *one_device(const shard_optimizer *optimizer)
{
    shard_device *device = optimizer->count ? shard_device_of(optimizer->slots[0].range.tensor) : shard_default_device();
    for (int64_t i = 1; i < optimizer->count; i++) {
        const shard_device *other = shard_device_of(optimizer->slots[i].range.tensor);
        if (other != device)
            return shard_fail_null(SHARD_ERROR_UNSUPPORTED,
                                   "%s: parameters are on two devices, \"%s\" on %s and \"%s\" on %s: norms and factors are of "
                                   "one",
                                   optimizer->ops->name, optimizer->slots[0].name, device->name, optimizer->slots[i].name,
                                   other->name);
    }
    return device;
}

double *shard_optimizer_grad_scale(shard_optimizer *optimizer)
{
    shard_device *device = shard_optimizer_follow(optimizer) == SHARD_OK ? one_device(optimizer) : NULL;
    if (!device)
        return NULL;
    if (!optimizer->grad_scale && shard_graph_refuse("the first clipping or scaling of an optimizer's gradients") != SHARD_OK)
        return NULL;
    if (!optimizer->grad_scale)
        optimizer->grad_scale = shard_keep(shard_empty(SHARD_SCALAR, .dtype = SHARD_FLOAT64, .device = device));
    double *scale = optimizer->grad_scale ? shard_tensor_memory_to_write(optimizer->grad_scale) : NULL;
    if (scale && !optimizer->scaled)
        optimizer->scaled = device->ops->fill(device, 1, 1.0, scale, SHARD_FLOAT64) == SHARD_OK;
    return optimizer->scaled ? scale : NULL;
}

void shard_optimizer_choose_settings(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update)
{
    const shard_param_group_options *group = &optimizer->groups[slot->group];
    const shard_optimizer_defaults *defaults = &optimizer->defaults;
    bool decay_1d = group->decay_1d < 0 ? defaults->decay_1d : group->decay_1d;
    update->lr = defaults->lr * group->lr_scale;
    if (slot->parameter->shape.ndim > 1 || decay_1d)
        update->weight_decay = group->weight_decay < 0 ? defaults->weight_decay : group->weight_decay;
}

/* Calls step or prepare for each list of the runs, which are sorted. */
static shard_status call_by_lists(const shard_optimizer *optimizer, shard_optimizer_step *call, const shard_run *all,
                                  int64_t count)
{
    shard_update *updates = optimizer->updates;
    shard_status status = SHARD_OK;
    for (int64_t i = 0, end; i < count && status == SHARD_OK; i = end) {
        for (end = i; end < count && shard_runs_same_list(&all[i], &all[end]); end++)
            updates[end - i] = all[end].update;
        const shard_tensor *value = all[i].array[0];
        status = call(optimizer, shard_device_of(value), end - i, updates, shard_optimizer_types(optimizer, value->dtype));
    }
    return status;
}

static shard_status step_runs(const shard_optimizer *optimizer, shard_run *all, int64_t count)
{
    return call_by_lists(optimizer, optimizer->ops->step, all, shard_runs_join(all, count));
}

/* ---- by layers ---- */

static bool adapts(const shard_optimizer *optimizer, const shard_slot *slot)
{
    return slot->parameter->shape.ndim > 1 || optimizer->defaults.adapt_1d;
}

static size_t bytes_of_squares(const shard_optimizer *optimizer)
{
    return (size_t)(3 * optimizer->count) * sizeof(double);
}

/* The values that replace the gradients include weight decay and the gradients' scale. The runs are not joined: the
 * gradients' gaps stay zeros, where LAMB's update with eps 0 is NaN. */
static shard_status prepare(const shard_optimizer *optimizer, shard_run *all, int64_t count)
{
    if (!optimizer->ops->prepare)
        return SHARD_OK;
    shard_status status = call_by_lists(optimizer, optimizer->ops->prepare, all, count);
    for (int64_t i = 0; i < count; i++) {
        all[i].update.weight_decay = 0;
        all[i].update.grad_scale = NULL;
    }
    return status;
}

/* squares[layer][2]: this rank's summands for values and gradients, in calls by dtype. */
static shard_status measure(const shard_optimizer *optimizer, shard_device *device, shard_run *all, int64_t count)
{
    shard_square_sum *arrays = optimizer->square_sums;
    SHARD_TRY(shard_last_status());
    SHARD_TRY(device->ops->zero(device, optimizer->squares, bytes_of_squares(optimizer)));
    shard_status status = prepare(optimizer, all, count);
    for (int64_t i = 0, listed, first; i < count && status == SHARD_OK;) {
        for (first = i, listed = 0; i < count && shard_runs_same_list(&all[first], &all[i]); i++) {
            const shard_update *update = &all[i].update;
            double *sum = optimizer->squares + 2 * (all[i].slot - optimizer->slots);
            if (!adapts(optimizer, all[i].slot) || !shard_slot_counts(all[i].slot))
                continue;
            arrays[listed++] = (shard_square_sum){update->size, update->value, sum};
            arrays[listed++] = (shard_square_sum){update->size, update->gradient, sum + 1};
        }
        status = device->ops->square_sums(device, listed, arrays, all[first].array[0]->dtype);
    }
    return status;
}

static bool same_trust(shard_trust_options a, shard_trust_options b)
{
    return a.trust_coefficient == b.trust_coefficient && a.weight_decay == b.weight_decay && a.eps == b.eps &&
           a.grad_scale == b.grad_scale;
}

static shard_trust_options trust_of(const shard_optimizer *optimizer, const shard_slot *slot)
{
    shard_update update = {.grad_scale = optimizer->scaled ? shard_tensor_memory(optimizer->grad_scale) : NULL};
    shard_optimizer_choose_settings(optimizer, slot, &update);
    return optimizer->ops->trust(optimizer, &update);
}

/* Finds the ratios of layers, also of those without a gradient, and sets them in the runs' updates. Neighbours with the same
 * rule, and the memory between them, take one call. */
static shard_status find_ratios(const shard_optimizer *optimizer, shard_device *device, shard_run *all, int64_t count)
{
    const shard_slot *slots = optimizer->slots;
    double *squares = optimizer->squares, *ratio = squares + 2 * optimizer->count;
    for (int64_t i = 0, end; i < optimizer->count; i = end) {
        end = i + 1;
        if (!adapts(optimizer, &slots[i]))
            continue;
        const shard_trust_options trust = trust_of(optimizer, &slots[i]);
        while (end < optimizer->count && (!adapts(optimizer, &slots[end]) || same_trust(trust, trust_of(optimizer, &slots[end]))))
            end++;
        SHARD_TRY(device->ops->trust_ratio(device, end - i, &trust, squares + 2 * i, ratio + i));
    }
    for (int64_t i = 0; i < count; i++)
        if (adapts(optimizer, all[i].slot))
            all[i].update.trust_ratio = ratio + (all[i].slot - slots);
    return SHARD_OK;
}

/* The memory of step_layers. */
static void take_squares(shard_optimizer *optimizer)
{
    shard_device *device = one_device(optimizer);
    if (device && optimizer->count && !optimizer->squares)
        optimizer->squares = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes_of_squares(optimizer));
}

static void release_squares(shard_optimizer *optimizer)
{
    if (optimizer->squares)
        shard_device_release(one_device(optimizer), SHARD_MEMORY_WORKSPACE, optimizer->squares, bytes_of_squares(optimizer));
    optimizer->squares = NULL;
}

/* The sums of squares of all layers over the world in one all-reduce, which every rank
 * enters, also with an error. The same slots are the same layers on all ranks. */
static shard_status step_layers(shard_optimizer *optimizer, shard_run *all, int64_t count)
{
    shard_device *device = one_device(optimizer);
    double *squares = optimizer->squares; /* NULL: this rank has no parameters */
    if (squares)
        measure(optimizer, device, all, count);
    SHARD_TRY(shard_group_all_reduce(shard_world(), device, squares, 2 * optimizer->count, SHARD_FLOAT64, SHARD_SUM));
    if (squares)
        SHARD_TRY(find_ratios(optimizer, device, all, count));
    return step_runs(optimizer, all, count);
}

/* ---- the step ---- */

/* Counts a step of the slot, and adds a run of its range unless this rank has no element of it. */
static shard_status begin(shard_optimizer *optimizer, shard_slot *slot, int64_t *count)
{
    shard_tensor *tensor = slot->range.tensor, *gradient = tensor->leaf->grad;
    int states = shard_slot_states(optimizer, slot);
    bool captures = shard_is_capturing();
    int64_t *step = shard_tensor_memory_to_write(slot->step);
    if (captures)
        SHARD_TRY(shard_optimizer_capture_step(optimizer, slot));
    else
        ++*step;
    for (int s = 0; s < states && shard_numel(tensor) == 0; s++)
        shard_tensor_count_write(slot->range.state[s]); /* as on the ranks that have elements of it */
    if (shard_numel(tensor) == 0)
        return SHARD_OK;
    shard_run *run = &optimizer->runs[(*count)++];
    *run = (shard_run){.slot = slot, .array = {tensor, gradient}};
    for (int s = 0; s < states; s++)
        run->array[2 + s] = slot->range.state[s];
    SHARD_TRY(shard_optimizer_make_update(optimizer, slot, *step + captures, &run->update));
    run->update.gradient = shard_tensor_memory(gradient);
    run->update.value = run->update.gradient ? shard_tensor_memory_to_write(tensor) : NULL;
    if (!run->update.value)
        return shard_last_status();
    return captures ? shard_optimizer_capture_factors(optimizer, optimizer->runs, *count - 1) : SHARD_OK;
}

/* Deferred gradients are first, as others may be computed with them. A matrix that was stepped stays deferred. */
shard_status shard_optimizer_step_slots(shard_optimizer *optimizer, int64_t first, int64_t slots)
{
    int64_t count = 0;
    shard_status status = SHARD_OK;
    for (int64_t i = first; i < first + slots && status == SHARD_OK; i++)
        if (shard_slot_is_deferred(optimizer, optimizer->order[i]))
            status = shard_optimizer_step_deferred(optimizer, optimizer->order[i]);
    for (int64_t i = first; i < first + slots && status == SHARD_OK; i++) {
        shard_slot *slot = optimizer->order[i];
        if (shard_slot_has_gradient(slot) && !shard_slot_is_deferred(optimizer, slot))
            status = begin(optimizer, slot, &count);
    }
    if (optimizer->ops->trust)
        return step_layers(optimizer, optimizer->runs, count);
    return status == SHARD_OK ? step_runs(optimizer, optimizer->runs, count) : status;
}

/* The memory of a step: of what is lacking on one rank the others learn before any rank has moved a parameter. */
static void prepare_memory(shard_optimizer *optimizer)
{
    if (shard_optimizer_make_state(optimizer, false) == SHARD_OK && optimizer->ops->trust)
        take_squares(optimizer);
}

/* Whether engines partition any of the optimizer's parameters. */
static bool is_partitioned(const shard_optimizer *optimizer)
{
    for (int64_t i = 0; i < optimizer->count; i++)
        if (optimizer->slots[i].range.engine)
            return true;
    return false;
}

/* Refuses a gradient that was not averaged: of a parameter that was frozen or left out when others were partitioned, or that a
 * backward with its sync off has added to since it was averaged. */
static shard_status check_averaged(const shard_optimizer *optimizer)
{
    bool partitioned = is_partitioned(optimizer) || optimizer->zero;
    for (int64_t i = 0; i < optimizer->count && partitioned; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (shard_has_grad(slot->parameter) && !shard_has_grad(slot->range.tensor))
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "shard_step: \"%s\" has a gradient that no rank has averaged, of a backward that failed, or with "
                               "shard_data_parallel_set_sync off: it must be on in the last backward before a step; "
                               "shard_optimizer_zero_grad clears what a failed one has left",
                               slot->name);
        if (shard_slot_has_gradient(slot) && shard_parameter_group(slot->parameter) && !shard_engine_of(slot->parameter))
            return shard_error(
                SHARD_ERROR_ARGUMENT, "shard_step: \"%s\" has a gradient that no rank averages: it was %s before the backward",
                slot->name,
                optimizer->zero
                    ? "frozen when shard_zero_optimizer partitioned the optimizer's parameters; let it require a gradient "
                      "before, or call shard_optimizer_add_param_group with an empty list"
                    : "frozen or not in the list when shard_data_parallel_create partitioned others; let it require a gradient "
                      "before, or call shard_data_parallel_create for it, with the same .stage,");
    }
    return SHARD_OK;
}

shard_status shard_optimizer_check_summed(const shard_optimizer *optimizer, const char *function)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (!shard_slot_has_gradient(slot) || shard_engine_of(slot->parameter))
            continue;
        const shard_pending_sums *pending = &slot->range.tensor->leaf->grad->pending;
        int64_t ranks = shard_pending_sums_ranks(pending, shard_leaf_of(slot->parameter)->replicas);
        if (ranks > 1)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "%s: the gradient of \"%s\" is a pending sum over %lld ranks, of which this rank has its summand: "
                               "shard_data_parallel_create makes training take the sum, or call "
                               "shard_all_reduce(shard_grad(parameter), SHARD_SUM, group) before clipping and the step",
                               function, slot->name, (long long)ranks);
    }
    return SHARD_OK;
}

shard_status shard_optimizer_refuse_swapped(const shard_optimizer *optimizer, const char *function)
{
    if (!optimizer->swapped)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: averages are in the parameters' place, which a step would change: shard_ema_swap them back first",
                       function);
}

/* Parameters would differ after a step with settings that differ between ranks. Seven digits: machines may differ in the
 * last bits of a schedule's result. */
static void require_identical_settings(const shard_optimizer *optimizer)
{
    shard_identical_lines mine = {0};
    shard_optimizer_describe(optimizer, 7, &mine);
    for (int64_t at = 0; at < mine.bytes; at += (int64_t)strlen(mine.text + at) + 1)
        shard_require_identical("%s", mine.text + at);
    if (optimizer->clip_value == SHARD_NO_CLIP_VALUE)
        shard_require_identical("no clip value");
    else
        shard_require_identical("clip value %.7g", optimizer->clip_value);
    free(mine.text);
}

void shard_optimizer_require_identical_gradients(const shard_optimizer *optimizer)
{
    int64_t replicated = 0, count = 0;
    uint64_t which = 0, identity;
    const char *first = NULL, *missing = NULL;
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (shard_parameter_group(slot->parameter) != shard_world() || !shard_engine_averages(slot->parameter, &identity))
            continue;
        bool has = shard_slot_has_gradient(slot);
        which += shard_hash_element((int64_t)identity, has);
        first = first ? first : slot->name;
        missing = has || missing ? missing : slot->name;
        replicated++;
        count += has;
    }
    shard_require_identical_hash(which);
    if (missing)
        shard_require_identical("gradients of %" PRId64 " of %" PRId64 " parameters, not of \"%.40s\"", count, replicated,
                                missing);
    else if (replicated)
        shard_require_identical("gradients of all %" PRId64 " parameters from \"%.40s\" on", replicated, first);
}

shard_status shard_step(shard_optimizer *optimizer)
{
    SHARD_FUNCTION("shard_step");
    if (optimizer) {
        optimizer->skipped = false;
        if (shard_optimizer_follow(optimizer) == SHARD_OK && is_partitioned(optimizer))
            shard_graph_refuse("the step of an optimizer whose parameters are partitioned");
        if (shard_optimizer_refuse_swapped(optimizer, "shard_step") == SHARD_OK && check_averaged(optimizer) == SHARD_OK &&
            shard_optimizer_check_summed(optimizer, "shard_step") == SHARD_OK &&
            shard_optimizer_check_deferred(optimizer) == SHARD_OK && shard_last_status() == SHARD_OK)
            prepare_memory(optimizer);
        shard_optimizer_require_identical_gradients(optimizer);
        require_identical_settings(optimizer);
    } else
        shard_null_argument("shard_step", "optimizer");
    shard_status status = shard_agree(shard_world());
    if (status == SHARD_OK) {
        shard_optimizer_step_slots(optimizer, 0, optimizer->count);
        status = shard_optimizer_publish(optimizer, false);
    }
    if (optimizer)
        release_squares(optimizer);
    if (status == SHARD_OK)
        shard_optimizer_zero_grad(optimizer);
    return status;
}

void shard_optimizer_zero_grad(shard_optimizer *optimizer)
{
    if (!optimizer)
        return;
    for (int64_t i = 0; i < optimizer->count; i++)
        shard_zero_grad(optimizer->slots[i].parameter);
    optimizer->scaled = optimizer->unscaled = false;
    optimizer->clip_value = SHARD_NO_CLIP_VALUE;
}
