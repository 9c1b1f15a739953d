/*
 * The gradient scaler: each rank checks once the gradients that it steps by. The step multiplies the gradients; the
 * scaler does not write to them.
 *
 * As torch/amp/grad_scaler.py, and its kernels _amp_foreach_non_finite_check_and_unscale_ and _amp_update_scale_.
 */
#include <shard/amp.h>

#include "comm/function.h"
#include "base/options.h"
#include "device/expansion.h"
#include "device/graph.h"
#include "optim/optimizer.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct shard_grad_scaler {
    shard_grad_scaler_options options;
    shard_tensor *scale;   /* float32, on the host */
    shard_tensor *tracker; /* int64, on the host: steps without overflow since the scale was changed */
    uint64_t period;       /* from one update to the next; no other scaler has the number */
    /* whether gradients were unscaled since the last update, and whether any was not finite. The same on all ranks */
    bool checked, found;
};

/* ---- making ---- */

static uint64_t next_period(void)
{
    static _Atomic uint64_t last;
    return ++last;
}

/* Gradients of float32 are multiplied by the inverse, which is finite for normal numbers. */
static bool is_scale(double scale)
{
    return (float)scale >= FLT_MIN && isfinite((float)scale);
}

static bool are_sound(const shard_grad_scaler_options *o)
{
    bool sound = is_scale(o->init_scale) && o->growth_factor > 1 && isfinite(o->growth_factor) &&
                 o->backoff_factor > 0 && o->backoff_factor < 1 && o->growth_interval > 0;
    if (!sound)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_grad_scaler: init_scale %g, growth_factor %g, backoff_factor %g, growth_interval %lld; a finite "
                    "float32 of at least %g, a number above 1, one between 0 and 1, and a positive number are needed",
                    o->init_scale, o->growth_factor, o->backoff_factor, (long long)o->growth_interval, FLT_MIN);
    return sound;
}

shard_grad_scaler *shard_grad_scaler_create_with(const shard_grad_scaler_options *given)
{
    SHARD_READ_OPTIONS(shard_grad_scaler_options, SHARD_GRAD_SCALER_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    shard_grad_scaler *scaler = are_sound(&options) ? shard_calloc(1, sizeof *scaler) : NULL;
    if (!scaler)
        return NULL;
    *scaler = (shard_grad_scaler){.options = options, .period = next_period()};
    scaler->scale = shard_keep(shard_full(SHARD_SCALAR, options.init_scale, .device = shard_cpu()));
    scaler->tracker = shard_keep(shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_cpu()));
    if (scaler->scale && scaler->tracker && shard_tensor_memory(scaler->scale) && shard_tensor_memory(scaler->tracker))
        return scaler;
    shard_grad_scaler_destroy(scaler);
    return NULL;
}

void shard_grad_scaler_destroy(shard_grad_scaler *scaler)
{
    if (!scaler)
        return;
    shard_tensor_unref(scaler->scale);
    shard_tensor_unref(scaler->tracker);
    free(scaler);
}

/* its memory is allocated with it */
double shard_grad_scaler_get_scale(const shard_grad_scaler *scaler)
{
    return scaler ? (double)*(float *)shard_tensor_memory(scaler->scale) : 1.0;
}

shard_status shard_grad_scaler_set_scale(shard_grad_scaler *scaler, double scale)
{
    if (!is_scale(scale))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_set_scale: %g; a finite float32 of at least %g is needed",
                           scale, FLT_MIN);
    if (scaler)
        *(float *)shard_tensor_memory_to_write(scaler->scale) = (float)scale;
    return SHARD_OK;
}

shard_tensors *shard_grad_scaler_state_dict(shard_grad_scaler *scaler)
{
    if (!scaler)
        return shard_null_argument("shard_grad_scaler_state_dict", "scaler"), NULL;
    shard_tensors *list = shard_tensors_create();
    if (list && shard_tensors_add(list, "scale", scaler->scale) == SHARD_OK &&
        shard_tensors_add(list, "growth_tracker", scaler->tracker) == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}

shard_tensor *shard_grad_scaler_scale(shard_grad_scaler *scaler, shard_tensor *loss)
{
    if (!scaler || !loss)
        return loss ? shard_reshape(loss, loss->shape) : NULL; /* a tensor of its own, which the caller may release */
    if (shard_graph_refuse("a gradient scaler, whose scale and decision to skip a step are the host's,") != SHARD_OK)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *wide = shard_dtype_size(loss->dtype) == 2 ? shard_cast(loss, SHARD_FLOAT32) : loss;
    shard_tensor *scaled = shard_scope_return(shard_scale(wide, shard_grad_scaler_get_scale(scaler)), &scope);
    shard_scope_close(&scope);
    return scaled;
}

/* ---- gradients ---- */

/* Sets *found, torch's found_inf, to whether a gradient of this rank, times the factor of clipping, is not finite: the largest
 * one is then not finite either. */
static shard_status find_overflow(shard_optimizer *optimizer, bool *found)
{
    const double *scale = shard_optimizer_grad_scale(optimizer);
    if (!scale)
        return shard_last_status();
    shard_device *device = shard_device_of(optimizer->grad_scale);
    const shard_expansion one = shard_expansion_rows(1, 1);
    shard_tensor *largest = shard_empty(SHARD_SCALAR, .dtype = SHARD_FLOAT64, .device = device);
    double *value = largest ? shard_tensor_memory(largest) : NULL;
    if (value && shard_optimizer_power_sum(optimizer, device, INFINITY, false, value) == SHARD_OK &&
        device->ops->binary(device, SHARD_MUL, &one, value, scale, value, SHARD_FLOAT64) == SHARD_OK)
        *found = !isfinite(shard_item(largest));
    return shard_last_status();
}

/* Sets the factor by which the step multiplies the gradients, which are not written to. */
static shard_status multiply(shard_optimizer *optimizer, double factor)
{
    double *scale = shard_optimizer_grad_scale(optimizer);
    if (!scale)
        return shard_last_status();
    shard_device *device = shard_device_of(optimizer->grad_scale);
    return device->ops->axpby(device, 1, factor, scale, 0.0, scale, SHARD_FLOAT64);
}

/* ---- steps ---- */

/* Checks the gradients and records the factor, on all ranks or on none, so that the step can be repeated after an
 * error. Collective over the world. */
static shard_status unscale(shard_grad_scaler *scaler, shard_optimizer *optimizer)
{
    shard_group *world = shard_world();
    shard_scope scope;
    shard_scope_open(&scope);
    bool found = false;
    double scale = shard_grad_scaler_get_scale(scaler);
    if (!is_scale((float)scale))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_grad_scaler: the scale is %g, as it was loaded: a finite number of at least %g is needed", scale,
                    FLT_MIN);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = find_overflow(optimizer, &found);
    shard_scope_close(&scope);
    if (status != SHARD_OK)
        return shard_group_fail(world);
    int64_t somewhere = found;
    shard_require_identical("scale %.9g", scale);
    SHARD_TRY(shard_group_all_reduce(world, NULL, &somewhere, 1, SHARD_INT64, SHARD_MAX));
    optimizer->overflowed = somewhere != 0;
    scaler->checked = true;
    scaler->found |= optimizer->overflowed;
    SHARD_TRY(multiply(optimizer, 1.0 / scale));
    optimizer->unscaled = true;
    return SHARD_OK;
}

/* Refuses a second step in a period, and where `unscales` is set a second division. */
static shard_status check(const shard_grad_scaler *scaler, const shard_optimizer *optimizer, const char *function, bool unscales)
{
    if (!optimizer)
        return shard_null_argument(function, "optimizer");
    SHARD_TRY(shard_optimizer_refuse_overlap(optimizer, function));
    bool stepped = optimizer->scaler_period == scaler->period;
    if (!stepped && !(unscales && optimizer->unscaled))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "%s: this optimizer's gradients were %s since the last shard_grad_scaler_update",
                       function, stepped ? "stepped by" : "unscaled");
}

shard_status shard_grad_scaler_unscale(shard_grad_scaler *scaler, shard_optimizer *optimizer)
{
    SHARD_FUNCTION("shard_grad_scaler_unscale");
    if (!scaler)
        return shard_last_status();
    return check(scaler, optimizer, "shard_grad_scaler_unscale", true) == SHARD_OK ? unscale(scaler, optimizer)
                                                                                   : shard_group_fail(shard_world());
}

static shard_status step(shard_grad_scaler *scaler, shard_optimizer *optimizer)
{
    if (check(scaler, optimizer, "shard_grad_scaler_step", false) != SHARD_OK)
        return shard_group_fail(shard_world());
    if (!optimizer->unscaled)
        SHARD_TRY(unscale(scaler, optimizer));
    SHARD_TRY(optimizer->overflowed ? shard_agree(shard_world()) : shard_step(optimizer));
    if (optimizer->overflowed)
        shard_optimizer_zero_grad(optimizer);
    optimizer->skipped = optimizer->overflowed;
    optimizer->scaler_period = scaler->period;
    return SHARD_OK;
}

shard_status shard_grad_scaler_step(shard_grad_scaler *scaler, shard_optimizer *optimizer)
{
    SHARD_FUNCTION("shard_grad_scaler_step");
    return scaler ? step(scaler, optimizer) : shard_step(optimizer);
}

bool shard_grad_scaler_overflowed(const shard_grad_scaler *scaler)
{
    return scaler && scaler->found;
}

static void update_scale(shard_grad_scaler *scaler)
{
    float *scale = shard_tensor_memory_to_write(scaler->scale);
    int64_t *tracker = shard_tensor_memory_to_write(scaler->tracker);
    int64_t since = *tracker > 0 ? *tracker : 0; /* a file may have any number */
    *tracker = scaler->found ? 0 : since + (since < INT64_MAX);
    float less = (float)((double)*scale * scaler->options.backoff_factor);
    if (scaler->found && is_scale(less))
        *scale = less;
    scaler->checked = scaler->found = false;
    if (*tracker < scaler->options.growth_interval)
        return;
    *tracker = 0;
    float grown = (float)((double)*scale * scaler->options.growth_factor);
    *scale = is_scale(grown) ? grown : *scale;
}

shard_status shard_grad_scaler_update(shard_grad_scaler *scaler)
{
    SHARD_FUNCTION("shard_grad_scaler_update");
    if (scaler && !scaler->checked)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_update: no gradients were unscaled since the last update; call "
                                          "shard_grad_scaler_step before it");
    if (scaler && scaler->checked)
        update_scale(scaler);
    if (scaler)
        scaler->period = next_period();
    return shard_last_status();
}
