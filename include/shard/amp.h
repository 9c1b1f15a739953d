/*
 * shard/amp.h: the gradient scaler of mixed precision. shard/op.h has SHARD_AUTOCAST, which selects
 * the types of operations. In float16 gradients are small enough to vanish, so the scaler multiplies the loss by a
 * factor and divides the gradients by it. Parameters stay float32, as master weights; shard/optim.h has the rules for
 * 16-bit ones. docs/mixed-precision.md is the guide.
 *
 *     SHARD_SCOPE {
 *         shard_tensor *loss;
 *         SHARD_AUTOCAST(SHARD_FLOAT16)
 *             loss = shard_cross_entropy(shard_forward(model, x), labels);
 *         shard_backward(shard_grad_scaler_scale(scaler, loss));
 *     }
 *     shard_grad_scaler_unscale(scaler, optimizer);   (only to clip gradients after it)
 *     shard_grad_scaler_step(scaler, optimizer);
 *     shard_grad_scaler_update(scaler);
 *     if (!shard_optimizer_skipped(optimizer)) {
 *         shard_ema_update(ema);
 *         shard_optimizer_set_lr(optimizer, shard_schedule_lr(&schedule, ++steps));
 *     }
 */
#ifndef SHARD_AMP_H
#define SHARD_AMP_H

#include <shard/op.h>
#include <shard/optim.h>

SHARD_BEGIN_C

/*
 * Scales the loss by a factor that it adapts, as torch.amp.GradScaler. A step whose gradients are not all finite is
 * skipped and the factor reduced; after growth_interval steps without a skipped one it grows. A split layer may
 * overflow on one rank alone, so the whole world decides whether a step is skipped: factors and steps are the same
 * on all ranks.
 *
 * NULL is a scaler that does nothing, as torch's with enabled=False: shard_grad_scaler_step is then shard_step.
 */
typedef struct shard_grad_scaler shard_grad_scaler;

typedef struct shard_grad_scaler_options {
    size_t size;
    double init_scale;       /* as of shard_grad_scaler_set_scale. Default: 65536. */
    double growth_factor;    /* > 1. Default: 2. */
    double backoff_factor;   /* in (0, 1). Default: 0.5. */
    int64_t growth_interval; /* steps. Default: 2000. */
} shard_grad_scaler_options;
#define SHARD_GRAD_SCALER_OPTIONS_VALUES sizeof(shard_grad_scaler_options), 65536.0, 2.0, 0.5, 2000
#define SHARD_GRAD_SCALER_OPTIONS_INIT {SHARD_GRAD_SCALER_OPTIONS_VALUES}

/* Makes a scaler, which the caller destroys. Options must be the same on all ranks. NULL with the error set
 * (ARGUMENT, a factor outside of its range). Not collective. */
#define shard_grad_scaler_create(...)                            \
    SHARD_GIVEN(shard_grad_scaler_create_with(                   \
        &(shard_grad_scaler_options)SHARD_FIELDS(shard_grad_scaler_options, SHARD_GRAD_SCALER_OPTIONS, __VA_ARGS__)))
SHARD_API shard_grad_scaler *shard_grad_scaler_create_with(const shard_grad_scaler_options *options);
SHARD_API void shard_grad_scaler_destroy(shard_grad_scaler *scaler);

/* The factor times the loss, to be passed to shard_backward; in float32, if the loss has 16 bits. NULL with the
 * error set; NULL gives NULL. Not collective. */
SHARD_API shard_tensor *shard_grad_scaler_scale(shard_grad_scaler *scaler, shard_tensor *loss);

/* Makes clipping and the next step divide the gradients by the factor. It is only needed to clip gradients before
 * the step; otherwise shard_grad_scaler_step does it. Call it after all backwards of the step, once, or again after
 * shard_optimizer_zero_grad. (torch would step by the next gradients undivided.) The gradients are not written to,
 * so that those of float16 parameters do not vanish. The step and shard_optimizer_zero_grad end the division;
 * shard_zero_grad of the parameters does not. Errors: ARGUMENT, out of this order, or a factor that was
 * loaded and that shard_grad_scaler_set_scale refuses; UNSUPPORTED, shard_zero_optimizer's overlap, whose steps are done in
 * backward, or parameters on several devices. Collective over the world. */
SHARD_API SHARD_CHECKED shard_status shard_grad_scaler_unscale(shard_grad_scaler *scaler, shard_optimizer *optimizer);

/* As shard_step, unless a gradient is not finite on some rank: then all ranks zero the gradients and skip the step
 * (shard_optimizer_skipped). Call it once between two updates. After an error that all ranks have it may be
 * repeated, with these gradients, or after shard_optimizer_zero_grad with others. Errors: as
 * shard_grad_scaler_unscale and shard_step. Collective over the world. */
SHARD_API SHARD_CHECKED shard_status shard_grad_scaler_step(shard_grad_scaler *scaler, shard_optimizer *optimizer);

/* Whether a gradient that was unscaled since the last update is not finite on some rank. Of several optimizers each step is
 * skipped for itself, as in torch; to skip all or none, call this after shard_grad_scaler_unscale of each, and where it is
 * true shard_optimizer_zero_grad in place of the steps, then shard_grad_scaler_update. False for NULL. Identical on all
 * ranks. Not collective. */
SHARD_API bool shard_grad_scaler_overflowed(const shard_grad_scaler *scaler);

/* Sets the factor for the next steps; call it after the steps of all optimizers. It does so also if the thread has
 * an error, which other ranks may not have yet, and returns that error. Errors: ARGUMENT, no gradients were unscaled
 * since the last update. Not collective: all ranks have the same result of the step. */
SHARD_API SHARD_CHECKED shard_status shard_grad_scaler_update(shard_grad_scaler *scaler);

/* Sets the factor, on all ranks to the same finite float32 of at least 2^-126, whose inverse is finite (else ARGUMENT). Call it
 * between update and the next loss. NULL is fine. Not collective. As torch's update(new_scale). */
SHARD_API SHARD_CHECKED shard_status shard_grad_scaler_set_scale(shard_grad_scaler *scaler, double scale);

/* The current factor; 1 for NULL. Cannot fail. Not collective. */
SHARD_API double shard_grad_scaler_get_scale(const shard_grad_scaler *scaler);

/* "scale" (float32) and "growth_tracker" (int64, steps since the factor was changed), on the CPU. Loading into them
 * changes the scaler, which checks the factor in the next step. Growth and back-off are options and are not saved, unlike
 * torch's. The caller destroys the list. NULL with the error set. Not collective. */
SHARD_API shard_tensors *shard_grad_scaler_state_dict(shard_grad_scaler *scaler);

SHARD_END_C

#endif
