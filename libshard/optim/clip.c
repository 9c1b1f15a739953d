/* Clipping of gradients, on pieces: by their norm, each element counted once, and by value. */
#include "optim/optimizer.h"

#include <shard/dist.h>

#include <math.h>

static bool clips(const shard_slot *slot)
{
    return shard_slot_has_gradient(slot) && shard_numel(slot->piece.tensor) > 0;
}

/* sums [slots + 1]: what this rank's pieces add, then all of that together. */
static shard_status sum_pieces(const shard_optimizer *optimizer, shard_device *device, double power, double *sums)
{
    SHARD_TRY(device->ops->zero(device, sums, (size_t)optimizer->count * sizeof *sums));
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (!clips(slot) || !shard_slot_counts(slot))
            continue;
        shard_tensor *gradient = slot->piece.tensor->grad;
        void *memory = shard_tensor_memory(gradient);
        if (!memory)
            return shard_last_status();
        SHARD_TRY(device->ops->power_sum(device, shard_numel(gradient), power, memory, sums + i, gradient->dtype));
    }
    return device->ops->power_sum(device, optimizer->count, power == INFINITY ? INFINITY : 1.0, sums, sums + optimizer->count,
                                  SHARD_FLOAT64);
}

/* memory [slots + 2]: the pieces' sums, their sum, the norm. Entered by all ranks. */
static shard_status clip(shard_optimizer *optimizer, shard_device *device, double power, double max_norm, double *scale,
                         double *memory)
{
    double *sum = memory ? memory + optimizer->count : NULL;
    if (memory)
        sum_pieces(optimizer, device, power, memory);
    SHARD_TRY(shard_group_all_reduce(shard_world(), device, sum, 1, SHARD_FLOAT64, power == INFINITY ? SHARD_MAX : SHARD_SUM));
    return device->ops->clip_scale(device, power, max_norm, sum, sum + 1, scale);
}

shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, double *norm, shard_clip_options options)
{
    if (!optimizer)
        shard_null_argument("shard_clip_grad_norm", "optimizer");
    else if (!(max_norm >= 0) || !(options.norm_type >= 0))
        shard_error(SHARD_ERROR_ARGUMENT, "shard_clip_grad_norm: max_norm %g, norm_type %g: neither may be negative", max_norm,
                    options.norm_type);
    double *scale = optimizer && shard_last_status() == SHARD_OK ? shard_optimizer_grad_scale(optimizer) : NULL;
    if (!scale)
        return shard_group_fail(shard_world());
    shard_device *device = shard_device_of(optimizer->grad_scale);
    size_t bytes = (size_t)(optimizer->count + 2) * sizeof(double);
    double *memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes), norm_here = 0.0;
    shard_status status = clip(optimizer, device, options.norm_type == 0 ? 2.0 : options.norm_type, max_norm, scale, memory);
    if (status == SHARD_OK && (norm || options.error_if_nonfinite))
        status = device->ops->copy_out(device, &norm_here, memory + optimizer->count + 1, sizeof norm_here);
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
    const double *scale = optimizer->scaled ? shard_optimizer_grad_scale(optimizer) : NULL;
    for (int64_t i = 0; i < optimizer->count; i++) {
        if (!clips(&optimizer->slots[i]))
            continue;
        shard_tensor *gradient = optimizer->slots[i].piece.tensor->grad;
        void *memory = shard_tensor_memory_to_write(gradient);
        if (!memory)
            return shard_last_status();
        SHARD_TRY(shard_ops(gradient)->clip_value(shard_device_of(gradient), shard_numel(gradient), value, scale, memory,
                                                  gradient->dtype));
    }
    return SHARD_OK;
}
