/* LAMB: AdamW's update first, then SGD's step by it with a trust ratio. */
#include "optim/optimizer.h"

#include <stdlib.h>

static shard_adam_options options_of(const shard_optimizer *optimizer)
{
    const shard_lamb_settings *settings = optimizer->settings;
    return (shard_adam_options){.beta1 = settings->beta1, .beta2 = settings->beta2, .eps = settings->eps};
}

static void factors_of(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    shard_adam_options options = options_of(optimizer);
    *factors = shard_adam_factors(update, &options, true);
}

static shard_status prepare(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                            shard_dtype dtype)
{
    shard_adam_options options = options_of(optimizer);
    return device->ops->lamb_update(device, count, updates, &options, dtype);
}

static shard_trust_options trust(const shard_optimizer *optimizer, const shard_update *update)
{
    (void)optimizer, (void)update;
    return (shard_trust_options){.trust_coefficient = 1};
}

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_dtype dtype)
{
    (void)optimizer;
    return device->ops->sgd(device, count, updates, &(shard_sgd_options){0}, dtype);
}

static char *describe(const void *settings)
{
    const shard_lamb_settings *s = settings;
    return shard_format("beta1 %.15g, beta2 %.15g, eps %.15g", s->beta1, s->beta2, s->eps);
}

static const shard_optimizer_ops lamb = {.name = "shard_lamb",
                                         .states = 2,
                                         .state_name = {"exp_avg", "exp_avg_sq"},
                                         .describe = describe,
                                         .step = step,
                                         .factors = factors_of,
                                         .trust = trust,
                                         .prepare = prepare};

shard_optimizer *shard_lamb_with(shard_tensors *parameters, shard_lamb_settings settings)
{
    settings.beta1 = shard_setting(settings.beta1, 0.9);
    settings.beta2 = shard_setting(settings.beta2, 0.999);
    settings.eps = settings.eps == 0 ? 1e-6 : settings.eps;
    bool sound = settings.lr >= 0 && settings.weight_decay >= 0 && settings.eps > 0 && settings.beta1 >= 0 &&
                 settings.beta1 < 1 && settings.beta2 >= 0 && settings.beta2 < 1;
    shard_lamb_settings *copy = sound ? shard_calloc(1, sizeof *copy) : NULL;
    if (!copy) {
        shard_tensors_destroy(parameters);
        if (!sound)
            return shard_fail_null(SHARD_ERROR_ARGUMENT,
                                   "shard_lamb: lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g: a beta is less than 1 (a "
                                   "negative one is 0), and none of the others may be negative",
                                   settings.lr, settings.beta1, settings.beta2, settings.eps, settings.weight_decay);
        return NULL;
    }
    *copy = settings;
    shard_optimizer_defaults defaults = {.lr = settings.lr,
                                         .weight_decay = settings.weight_decay,
                                         .no_decay_1d = !settings.decay_all,
                                         .adapt_all = settings.adapt_all};
    return shard_optimizer_make(&lamb, parameters, defaults, copy);
}
