/* Clipping of gradients, on local ranges: by their norm, each element counted once, and by value. */
#include "optim/optimizer.h"

#include "base/options.h"
#include "comm/function.h"
#include "device/expansion.h"
#include "device/graph.h"

#include <shard/distributed.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Whether the gradient is limited when it is computed, by shard_source_clip_value: then it has no values in memory yet. */
static bool clips_when_computed(const shard_slot *slot)
{
    const shard_tensor *range = slot->range.tensor;
    return shard_slot_has_gradient(slot) && shard_numel(range) && !shard_is_capturing() && shard_source_of(range->leaf->grad);
}

/* Makes the first runs of the optimizer's workspace those of this rank's gradients, or of those that count, to be read or to be
 * limited, without the deferred ones. A sum over them has the same bits in each run of a program, as their order is the same.
 * Returns their number; -1 with the error set. */
static int64_t list_gradients(const shard_optimizer *optimizer, bool counted, bool to_write)
{
    int64_t count = 0;
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = optimizer->order[i];
        if (!shard_slot_has_gradient(slot) || !shard_numel(slot->range.tensor) || (counted && !shard_slot_counts(slot)))
            continue;
        if (to_write ? clips_when_computed(slot) : shard_slot_is_deferred(optimizer, slot))
            continue;
        shard_tensor *gradient = slot->range.tensor->leaf->grad;
        shard_run *run = &optimizer->runs[count++];
        *run = (shard_run){.slot = slot, .array = {gradient}, .update.size = shard_numel(gradient)};
        run->update.gradient = to_write ? shard_tensor_memory_to_write(gradient) : shard_tensor_memory(gradient);
        if (!run->update.gradient)
            return -1;
    }
    return shard_runs_join(optimizer->runs, count);
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
    int64_t count = 0;
    shard_status status = sums ? sum_deferred(optimizer, power, counted, sums, &count) : shard_last_status();
    int64_t runs = status == SHARD_OK ? list_gradients(optimizer, counted, false) : 0;
    status = runs < 0 ? shard_last_status() : status;
    for (int64_t i = 0; i < runs && status == SHARD_OK; i++) {
        const shard_run *run = &optimizer->runs[i];
        status =
            device->ops->power_sum(device, run->update.size, power, run->update.gradient, sums + count++, run->array[0]->dtype);
    }
    if (status == SHARD_OK)
        status = shard_join_sums(device, count, power, sums, sum);
    for (int64_t i = 0; i < optimizer->count; i++)
        shard_slot_evict_gradient(&optimizer->slots[i]);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, sums, bytes);
    return status;
}

/* ---- by the norm ---- */

typedef struct clip_call {
    const char *function;
    shard_optimizer *const *optimizers;
    int64_t count;
    double power, max_norm;
    shard_device *device;
    double **scale; /* of each optimizer */
} clip_call;

/* Numbers in device memory, apart from the ranks' sums of each optimizer and its norm. */
enum { SUM, NORM, FACTOR, CLIP_NUMBERS };

/* The ranks' sums of an optimizer. Each rank's maximum has a separate element: SHARD_MAX may lose a NaN. */
static int64_t places_of(const clip_call *c)
{
    return c->power == INFINITY ? shard_group_size(shard_world()) : 1;
}

/* The norm of several optimizers is that of their norms, each of gradients times the optimizer's factor so far. */
static shard_status scale_together(const clip_call *c, const double *sums, double *norms, double *memory)
{
    shard_device *device = c->device;
    const shard_expansion one = shard_expansion_rows(1, 1);
    for (int64_t i = 0; i < c->count; i++) {
        size_t width = sizeof(double);
        SHARD_TRY(shard_join_sums(device, places_of(c), c->power, sums + i * places_of(c), memory + SUM));
        SHARD_TRY(device->ops->copy_rows(device, memory + FACTOR, width, c->scale[i], width, width, 1));
        SHARD_TRY(device->ops->clip_scale(device, c->power, INFINITY, memory + SUM, norms + i, memory + FACTOR));
    }
    SHARD_TRY(device->ops->power_sum(device, c->count, c->power, norms, memory + SUM, SHARD_FLOAT64));
    SHARD_TRY(device->ops->fill(device, 1, 1.0, memory + FACTOR, SHARD_FLOAT64));
    SHARD_TRY(device->ops->clip_scale(device, c->power, c->max_norm, memory + SUM, memory + NORM, memory + FACTOR));
    for (int64_t i = 0; i < c->count; i++)
        SHARD_TRY(device->ops->binary(device, SHARD_MUL, &one, c->scale[i], memory + FACTOR, c->scale[i], SHARD_FLOAT64));
    return SHARD_OK;
}

/* Called by all ranks. memory: CLIP_NUMBERS, then the sums, then the norms; NULL after an error. */
static shard_status clip(const clip_call *c, double *memory)
{
    shard_device *device = c->device;
    bool maximum = c->power == INFINITY;
    int64_t places = places_of(c), all = places * c->count;
    double *sums = memory ? memory + CLIP_NUMBERS : NULL;
    shard_status status = sums ? device->ops->zero(device, sums, (size_t)all * sizeof *sums) : shard_last_status();
    for (int64_t i = 0; i < c->count && status == SHARD_OK; i++)
        status = shard_optimizer_power_sum(c->optimizers[i], device, c->power, true,
                                           sums + i * places + (maximum ? shard_group_rank(shard_world()) : 0));
    SHARD_TRY(shard_group_all_reduce(shard_world(), device, sums, all, SHARD_FLOAT64, SHARD_SUM));
    if (c->count > 1)
        return scale_together(c, sums, sums + all, memory);
    SHARD_TRY(shard_join_sums(device, places, c->power, sums, memory + SUM));
    return device->ops->clip_scale(device, c->power, c->max_norm, memory + SUM, memory + NORM, c->scale[0]);
}

static shard_status check_clip(const clip_call *c)
{
    if (!(c->max_norm >= 0) || !(c->power > 0))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: max_norm %g, norm_type %g: a max_norm that is not negative and a norm_type above 0 are needed",
                           c->function, c->max_norm, c->power);
    if (c->count < 1)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " optimizers; at least one is needed", c->function, c->count);
    for (int64_t i = 0; i < c->count; i++) {
        if (!c->optimizers[i])
            return shard_null_argument(c->function, "optimizer");
        for (int64_t j = 0; j < i; j++)
            if (c->optimizers[j] == c->optimizers[i])
                return shard_error(SHARD_ERROR_ARGUMENT,
                                   "%s: optimizers %" PRId64 " and %" PRId64 " are the same; each counts once", c->function, j,
                                   i);
        SHARD_TRY(shard_optimizer_refuse_overlap(c->optimizers[i], c->function));
    }
    return shard_last_status();
}

/* Sets the optimizers' factors and their device. */
static shard_status take_scales(clip_call *c)
{
    for (int64_t i = 0; i < c->count; i++) {
        if (!(c->scale[i] = shard_optimizer_grad_scale(c->optimizers[i])))
            return shard_last_status();
        shard_device *device = shard_device_of(c->optimizers[i]->grad_scale);
        if (i > 0 && device != c->device)
            return shard_error(SHARD_ERROR_UNSUPPORTED,
                               "%s: optimizer 0 is on %s and optimizer %" PRId64 " on %s: a norm is of one", c->function,
                               c->device->name, i, device->name);
        c->device = device;
    }
    return SHARD_OK;
}

static shard_status clip_by_norm(clip_call *c, bool error_if_nonfinite, double *norm)
{
    size_t numbers = CLIP_NUMBERS + (size_t)(c->count * (places_of(c) + 1)), bytes = numbers * sizeof(double);
    double *memory = shard_device_allocate(c->device, SHARD_MEMORY_WORKSPACE, bytes), norm_here = NAN;
    shard_status status = clip(c, memory);
    if (status == SHARD_OK && (norm || error_if_nonfinite))
        status = c->device->ops->copy_out(c->device, &norm_here, memory + NORM, sizeof norm_here);
    if (norm)
        *norm = norm_here;
    shard_device_release(c->device, SHARD_MEMORY_WORKSPACE, memory, bytes);
    if (status == SHARD_OK && error_if_nonfinite && !isfinite(norm_here))
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: the norm of all gradients is %g: it cannot be scaled down", c->function,
                           norm_here);
    return status;
}

/* Collective over the world, also after an error. */
static shard_status call_clip(clip_call *c, const shard_clip_options *options, double *norm)
{
    c->power = options->norm_type;
    if (norm)
        *norm = NAN;
    c->scale = check_clip(c) == SHARD_OK ? shard_calloc((size_t)c->count, sizeof *c->scale) : NULL;
    shard_require_identical("max_norm %.7g", c->max_norm);
    shard_require_identical("norm_type %.7g", c->power);
    for (int64_t i = 0; i < c->count && c->scale; i++)
        if (shard_optimizer_follow(c->optimizers[i]) == SHARD_OK &&
            shard_optimizer_check_summed(c->optimizers[i], c->function) == SHARD_OK)
            shard_optimizer_require_identical_gradients(c->optimizers[i]);
    bool ready = c->scale && shard_last_status() == SHARD_OK && take_scales(c) == SHARD_OK;
    shard_status status = ready ? clip_by_norm(c, options->error_if_nonfinite, norm) : shard_group_fail(shard_world());
    free(c->scale);
    return status;
}

shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, const shard_clip_options *given, double *norm)
{
    SHARD_FUNCTION("shard_clip_grad_norm");
    SHARD_READ_OPTIONS(shard_clip_options, SHARD_CLIP_OPTIONS_INIT, options, given);
    clip_call call = {.function = "shard_clip_grad_norm", .optimizers = &optimizer, .count = 1, .max_norm = max_norm};
    return call_clip(&call, &options, norm);
}

shard_status shard_clip_grad_norm_of_with(shard_optimizer *const *optimizers, int64_t count, double max_norm,
                                          const shard_clip_options *given, double *norm)
{
    SHARD_FUNCTION("shard_clip_grad_norm_of");
    SHARD_READ_OPTIONS(shard_clip_options, SHARD_CLIP_OPTIONS_INIT, options, given);
    clip_call call = {
        .function = "shard_clip_grad_norm_of", .optimizers = optimizers, .count = optimizers ? count : 0, .max_norm = max_norm};
    if (!optimizers)
        shard_null_argument("shard_clip_grad_norm_of", "optimizers");
    shard_require_identical("%" PRId64 " optimizers", count);
    return call_clip(&call, &options, norm);
}

/* ---- by value ---- */

shard_status shard_clip_grad_value(shard_optimizer *optimizer, double value)
{
    if (!optimizer)
        return shard_null_argument("shard_clip_grad_value", "optimizer");
    if (!(value >= 0))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_clip_grad_value: the value is %g: it may not be negative", value);
    SHARD_TRY(shard_last_status());
    SHARD_TRY(shard_optimizer_follow(optimizer));
    SHARD_TRY(shard_optimizer_refuse_overlap(optimizer, "shard_clip_grad_value"));
    SHARD_TRY(shard_optimizer_check_summed(optimizer, "shard_clip_grad_value"));
    const double *scale = optimizer->scaled ? shard_optimizer_grad_scale(optimizer) : NULL;
    SHARD_TRY(shard_last_status());
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (clips_when_computed(slot))
            SHARD_TRY(shard_source_clip_value(slot->range.tensor->leaf->grad, shard_columns_of(slot->parameter), value, scale));
    }
    int64_t count = list_gradients(optimizer, false, true);
    shard_status status = count < 0 ? shard_last_status() : SHARD_OK;
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        const shard_run *run = &optimizer->runs[i];
        shard_device *device = shard_device_of(run->array[0]);
        status = device->ops->clip_value(device, run->update.size, value, scale, run->update.gradient, run->array[0]->dtype);
    }
    if (status == SHARD_OK) /* the step compares the ranks' bounds: a rank that has failed has another one */
        optimizer->clip_value = value;
    return status;
}
