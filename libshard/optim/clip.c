/* Clipping of gradients, on local ranges: by their norm, each element counted once, and by value. */
#include "optim/optimizer.h"

#include "base/options.h"
#include "comm/function.h"

#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>

/* The runs of this rank's gradients, or of those that count, with or without deferred ones: an array with room for every
 * slot, of which *count are used. NULL with the error set. */
static shard_run *list_gradients(const shard_optimizer *optimizer, bool counted, bool deferred, int64_t *count)
{
    shard_run *all = shard_calloc((size_t)optimizer->count, sizeof *all);
    *count = 0;
    for (int64_t i = 0; i < optimizer->count && all; i++) {
        shard_slot *slot = &optimizer->slots[i];
        if (!shard_slot_has_gradient(slot) || !shard_numel(slot->range.tensor) || (counted && !shard_slot_counts(slot)))
            continue;
        if (!deferred && shard_slot_is_deferred(optimizer, slot))
            continue;
        shard_tensor *gradient = slot->range.tensor->leaf->grad;
        shard_run *run = &all[(*count)++];
        *run = (shard_run){.slot = slot, .array = {gradient}, .update.size = shard_numel(gradient)};
        if (!(run->update.gradient = shard_tensor_memory_to_write(gradient))) {
            free(all);
            return NULL;
        }
    }
    if (all)
        *count = shard_runs_join(all, *count);
    return all;
}

/* Writes the sum of each deferred matrix, and has the gradients of their biases computed. */
static shard_status sum_deferred(const shard_optimizer *optimizer, double power, bool counted, double *sums, int64_t *count)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (shard_slot_is_deferred(optimizer, slot) && (!counted || shard_slot_counts(slot)))
            SHARD_TRY(shard_slot_deferred_power_sum(slot, power, sums + (*count)++));
    }
    for (int64_t i = 0; i < optimizer->count; i++)
        if (!counted || shard_slot_counts(&optimizer->slots[i]))
            SHARD_TRY(shard_slot_compute_vector(optimizer, &optimizer->slots[i]));
    return SHARD_OK;
}

shard_status shard_optimizer_power_sum(const shard_optimizer *optimizer, shard_device *device, double power, bool counted,
                                       double *sum)
{
    size_t bytes = (size_t)(optimizer->count + 1) * sizeof *sum;
    double *sums = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    int64_t count = 0, runs = 0;
    shard_status status = sums ? sum_deferred(optimizer, power, counted, sums, &count) : shard_last_status();
    shard_run *all = status == SHARD_OK ? list_gradients(optimizer, counted, false, &runs) : NULL;
    if (status == SHARD_OK && !all)
        status = shard_last_status();
    for (int64_t i = 0; i < runs && status == SHARD_OK; i++) {
        const shard_update *run = &all[i].update;
        status = device->ops->power_sum(device, run->size, power, run->gradient, sums + count++, all[i].array[0]->dtype);
    }
    if (status == SHARD_OK)
        status = device->ops->power_sum(device, count, power == INFINITY ? INFINITY : 1.0, sums, sum, SHARD_FLOAT64);
    for (int64_t i = 0; i < optimizer->count; i++)
        shard_slot_evict_gradient(&optimizer->slots[i]);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, sums, bytes);
    free(all);
    return status;
}

/* memory [2 + ranks]: the sum, the norm, and the ranks' sums. Called by all ranks. Each rank's
 * maximum has a separate element: SHARD_MAX may lose a NaN. */
static shard_status clip(const shard_optimizer *optimizer, shard_device *device, double power, double max_norm, double *scale,
                         double *memory)
{
    bool maximum = power == INFINITY;
    int64_t places = maximum ? shard_group_size(shard_world()) : 1;
    double *sums = memory ? memory + 2 : NULL;
    if (sums && device->ops->zero(device, sums, (size_t)places * sizeof *sums) == SHARD_OK)
        shard_optimizer_power_sum(optimizer, device, power, true, sums + (maximum ? shard_group_rank(shard_world()) : 0));
    SHARD_TRY(shard_group_all_reduce(shard_world(), device, sums, places, SHARD_FLOAT64, SHARD_SUM));
    SHARD_TRY(device->ops->power_sum(device, places, maximum ? INFINITY : 1.0, sums, memory, SHARD_FLOAT64));
    return device->ops->clip_scale(device, power, max_norm, memory, memory + 1, scale);
}

shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, const shard_clip_options *given, double *norm)
{
    SHARD_FUNCTION("shard_clip_grad_norm");
    SHARD_READ_OPTIONS(shard_clip_options, SHARD_CLIP_OPTIONS_INIT, options, given);
    if (!optimizer)
        shard_null_argument("shard_clip_grad_norm", "optimizer");
    else if (!(max_norm >= 0) || !(options.norm_type > 0))
        shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_clip_grad_norm: max_norm %g, norm_type %g: a max_norm that is not negative and a norm_type above 0 are needed",
            max_norm, options.norm_type);
    else
        shard_optimizer_refuse_overlap(optimizer, "shard_clip_grad_norm");
    shard_agree_on("max_norm %.7g", max_norm);
    shard_agree_on("norm_type %.7g", options.norm_type);
    double *scale = optimizer && shard_last_status() == SHARD_OK ? shard_optimizer_grad_scale(optimizer) : NULL;
    if (!scale)
        return shard_group_fail(shard_world());
    shard_device *device = shard_device_of(optimizer->grad_scale);
    size_t bytes = (2 + (size_t)shard_group_size(shard_world())) * sizeof(double);
    double *memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes), norm_here = 0.0;
    shard_status status = clip(optimizer, device, options.norm_type, max_norm, scale, memory);
    if (status == SHARD_OK && (norm || options.error_if_nonfinite))
        status = device->ops->copy_out(device, &norm_here, memory + 1, sizeof norm_here);
    if (norm)
        *norm = norm_here;
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, memory, bytes);
    if (status == SHARD_OK && options.error_if_nonfinite && !isfinite(norm_here))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_clip_grad_norm: the norm of all gradients is %g: it cannot be scaled down", norm_here);
    return status;
}

shard_status shard_clip_grad_value(shard_optimizer *optimizer, double value)
{
    if (!optimizer)
        return shard_null_argument("shard_clip_grad_value", "optimizer");
    if (!(value >= 0))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_clip_grad_value: the value is %g: it may not be negative", value);
    SHARD_TRY(shard_last_status());
    SHARD_TRY(shard_optimizer_follow(optimizer));
    optimizer->clip_value = value;
    SHARD_TRY(shard_optimizer_refuse_overlap(optimizer, "shard_clip_grad_value"));
    const double *scale = optimizer->scaled ? shard_optimizer_grad_scale(optimizer) : NULL;
    int64_t count;
    shard_run *all = list_gradients(optimizer, false, true, &count);
    shard_status status = shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        const shard_update *run = &all[i].update;
        shard_device *device = shard_device_of(all[i].array[0]);
        status = device->ops->clip_value(device, run->size, value, scale, run->gradient, all[i].array[0]->dtype);
    }
    free(all);
    return status;
}
