/* Adam and AdamW, as torch.optim's. */
#include "optim/optimizer.h"

#include <stdlib.h>

static shard_adam_options options_of(const shard_optimizer *optimizer, bool decoupled)
{
    const shard_adam_settings *settings = optimizer->settings;
    return (shard_adam_options){.beta1 = settings->beta1,
                                .beta2 = settings->beta2,
                                .eps = settings->eps,
                                .decoupled = decoupled,
                                .amsgrad = settings->amsgrad};
}

static shard_status take_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                              shard_dtype dtype, bool decoupled)
{
    shard_adam_options options = options_of(optimizer, decoupled);
    return device->ops->adam(device, count, updates, &options, dtype);
}

static void adam_factors(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    shard_adam_options options = options_of(optimizer, false);
    *factors = shard_adam_factors(update, &options, false);
}

static void adamw_factors(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    shard_adam_options options = options_of(optimizer, true);
    *factors = shard_adam_factors(update, &options, false);
}

static shard_status adam_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                              shard_dtype dtype)
{
    return take_step(optimizer, device, count, updates, dtype, false);
}

static shard_status adamw_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                               shard_dtype dtype)
{
    return take_step(optimizer, device, count, updates, dtype, true);
}

static char *describe(const void *settings)
{
    const shard_adam_settings *s = settings;
    return shard_format("beta1 %.15g, beta2 %.15g, eps %.15g, amsgrad %s", s->beta1, s->beta2, s->eps,
                        s->amsgrad ? "true" : "false");
}

#define STATES                                                                                                                   \
    {                                                                                                                            \
        "exp_avg", "exp_avg_sq", "max_exp_avg_sq"                                                                                \
    }
static const shard_optimizer_ops adam[] = {
    {.name = "shard_adam", .states = 2, .state_name = STATES, .describe = describe, .step = adam_step, .factors = adam_factors},
    {.name = "shard_adam", .states = 3, .state_name = STATES, .describe = describe, .step = adam_step, .factors = adam_factors},
};
static const shard_optimizer_ops adamw[] = {
    {.name = "shard_adamw",
     .states = 2,
     .state_name = STATES,
     .describe = describe,
     .step = adamw_step,
     .factors = adamw_factors},
    {.name = "shard_adamw",
     .states = 3,
     .state_name = STATES,
     .describe = describe,
     .step = adamw_step,
     .factors = adamw_factors},
};

/* ops: without and with amsgrad. */
static shard_optimizer *make(const shard_optimizer_ops *ops, shard_tensors *parameters, shard_adam_settings settings,
                             double weight_decay)
{
    settings.beta1 = shard_setting(settings.beta1, 0.9);
    settings.beta2 = shard_setting(settings.beta2, 0.999);
    settings.weight_decay = shard_setting(settings.weight_decay, weight_decay);
    settings.eps = settings.eps == 0 ? 1e-8 : settings.eps;
    bool sound = settings.lr >= 0 && settings.weight_decay >= 0 && settings.eps > 0 && settings.beta1 >= 0 &&
                 settings.beta1 < 1 && settings.beta2 >= 0 && settings.beta2 < 1;
    shard_adam_settings *copy = sound ? shard_calloc(1, sizeof *copy) : NULL;
    if (!copy) {
        shard_tensors_destroy(parameters);
        if (!sound)
            return shard_fail_null(SHARD_ERROR_ARGUMENT,
                                   "%s: lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g: a beta is less than 1 (a "
                                   "negative one is 0, as is a negative decay), and lr and eps may not be negative",
                                   ops->name, settings.lr, settings.beta1, settings.beta2, settings.eps, settings.weight_decay);
        return NULL;
    }
    *copy = settings;
    shard_optimizer_defaults defaults = {settings.lr, settings.weight_decay, settings.no_decay_1d};
    return shard_optimizer_make(&ops[settings.amsgrad], parameters, defaults, copy);
}

shard_optimizer *shard_adam_with(shard_tensors *parameters, shard_adam_settings settings)
{
    return make(adam, parameters, settings, 0);
}

shard_optimizer *shard_adamw_with(shard_tensors *parameters, shard_adam_settings settings)
{
    return make(adamw, parameters, settings, 0.01);
}
