/*
 * shard/amp.h: training in mixed precision. What runs in which type: SHARD_AUTOCAST in
 * shard/op.h. Here the gradient scaler, which float16 needs: its gradients are small
 * enough to vanish, so the loss is made larger and the gradients smaller again.
 * Parameters stay float32, the master weights; what becomes of 16-bit ones: shard/optim.h.
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
 * Finds the factor by which the loss may be scaled, as torch.amp.GradScaler: a step whose
 * gradients are not all finite is left out and the factor made smaller; after
 * growth_interval steps without one it is made larger. A layer that is split overflows on
 * one rank alone: whether a step is left out is agreed over the world, so that factors,
 * steps and their numbers are the same on all ranks.
 *
 * NULL is one that does nothing, as torch's with enabled=False: shard_grad_scaler_step is
 * shard_step then.
 */
typedef struct shard_grad_scaler shard_grad_scaler;

typedef struct shard_grad_scaler_options {
    size_t size;
    double init_scale;       /* 65536 */
    double growth_factor;    /* > 1; 2 */
    double backoff_factor;   /* in (0, 1); 0.5 */
    int64_t growth_interval; /* steps; 2000 */
} shard_grad_scaler_options;
#define SHARD_GRAD_SCALER_OPTIONS_VALUES sizeof(shard_grad_scaler_options), 65536.0, 2.0, 0.5, 2000
#define SHARD_GRAD_SCALER_OPTIONS_INIT {SHARD_GRAD_SCALER_OPTIONS_VALUES}

/* Options are to be the same on all ranks. The caller's, to be destroyed. NULL with the error
 * set (ARGUMENT, a factor outside of its range). Not collective. */
#define shard_grad_scaler_create(...) \
    SHARD_GIVEN(shard_grad_scaler_create_with(&(shard_grad_scaler_options){SHARD_GRAD_SCALER_OPTIONS_VALUES, __VA_ARGS__}))
SHARD_API shard_grad_scaler *shard_grad_scaler_create_with(const shard_grad_scaler_options *options);
SHARD_API void shard_grad_scaler_destroy(shard_grad_scaler *scaler);

/* The factor times the loss, whose gradients are to be taken; in float32, if it is of 16
 * bits. NULL with the error set; NULL gives NULL. Not collective. */
SHARD_API shard_tensor *shard_grad_scaler_scale(shard_grad_scaler *scaler, shard_tensor *loss);

/* Has the next step, and clipping before it, take the gradients divided by the factor,
 * for who wants to clip between; else shard_grad_scaler_step does it. The gradients
 * themselves stay as they are, so that those of float16 parameters do not vanish; that
 * step and shard_optimizer_zero_grad forget the division, shard_zero_grad of the parameters
 * does not. After all backwards of the step, and once, unless shard_optimizer_zero_grad
 * has forgotten the gradients since (torch would step by the next ones as they are). Errors:
 * ARGUMENT, out of this order; UNSUPPORTED, shard_zero_optimizer's overlap, whose steps are made by then.
 * Collective over the world. */
SHARD_API shard_status shard_grad_scaler_unscale(shard_grad_scaler *scaler, shard_optimizer *optimizer);

/* shard_step, unless a gradient is not finite on some rank: then the gradients are
 * forgotten and the optimizer is left as it was (shard_optimizer_skipped). Once between two
 * updates; after an error that all ranks have it may be tried again, with these gradients, or
 * after shard_optimizer_zero_grad with others. Errors as above. Collective over the world. */
SHARD_API shard_status shard_grad_scaler_step(shard_grad_scaler *scaler, shard_optimizer *optimizer);

/* After the steps of all optimizers: the factor of the next ones. It is made, and the steps
 * are over, also where the thread has an error, of which the others may not know yet; then
 * returns that. ARGUMENT if no gradients were looked at. Not collective: all ranks know what
 * was found. */
SHARD_API shard_status shard_grad_scaler_update(shard_grad_scaler *scaler);

/* The factor from now on, on all ranks the same: a finite number above 0, else ARGUMENT. Between
 * update and the next loss; as torch's update(new_scale). NULL is fine. Not collective. */
SHARD_API shard_status shard_grad_scaler_set_scale(shard_grad_scaler *scaler, double scale);

/* The factor now; 1 of NULL. Cannot fail. Not collective. */
SHARD_API double shard_grad_scaler_get_scale(const shard_grad_scaler *scaler);

/* "scale" (float32) and "growth_tracker" (int64, steps since the factor was changed), on
 * the CPU: what is loaded into them is what the scaler goes on with. Growth and back-off are
 * its options', not saved as torch's are. The caller's, to be destroyed. NULL with the error set. Not collective. */
SHARD_API shard_tensors *shard_grad_scaler_state_dict(shard_grad_scaler *scaler);

SHARD_END_C

#endif
