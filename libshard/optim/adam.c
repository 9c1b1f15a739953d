/* Adam and AdamW, as torch.optim's. */
#include "optim/optimizer.h"

#include "base/options.h"

static shard_adam_arguments options_of(const shard_optimizer *optimizer, bool decoupled)
{
    const shard_adam_options *settings = optimizer->settings;
    return (shard_adam_arguments){.beta1 = settings->beta1,
                                  .beta2 = settings->beta2,
                                  .eps = settings->eps,
                                  .decoupled = decoupled,
                                  .amsgrad = settings->amsgrad};
}

static shard_status take_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                              shard_dtype dtype, bool decoupled)
{
    shard_adam_arguments options = options_of(optimizer, decoupled);
    return device->ops->adam(device, count, updates, &options, dtype);
}

static void adam_factors(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    shard_adam_arguments options = options_of(optimizer, false);
    *factors = shard_adam_factors(update, &options, false);
}

static void adamw_factors(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    shard_adam_arguments options = options_of(optimizer, true);
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
    const shard_adam_options *s = settings;
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
static shard_optimizer *make(const shard_optimizer_ops *ops, const shard_tensors *parameters, const shard_adam_options *options)
{
    bool sound = options->lr >= 0 && options->weight_decay >= 0 && options->eps >= 0 && options->beta1 >= 0 &&
                 options->beta1 < 1 && options->beta2 >= 0 && options->beta2 < 1;
    if (!sound)
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "%s: lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g: a beta is less than 1, and none may be "
                               "negative",
                               ops->name, options->lr, options->beta1, options->beta2, options->eps, options->weight_decay);
    shard_optimizer_defaults defaults = {options->lr, options->weight_decay, options->decay_1d};
    return shard_optimizer_make(&ops[options->amsgrad], parameters, defaults, options, sizeof *options);
}

shard_optimizer *shard_adam_with(const shard_tensors *parameters, const shard_adam_options *given)
{
    SHARD_READ_OPTIONS(shard_adam_options, SHARD_ADAM_OPTIONS_INIT, options, given);
    return options_ok ? make(adam, parameters, &options) : NULL;
}

shard_optimizer *shard_adamw_with(const shard_tensors *parameters, const shard_adamw_options *given)
{
    SHARD_READ_OPTIONS(shard_adamw_options, SHARD_ADAMW_OPTIONS_INIT, options, given);
    return options_ok ? make(adamw, parameters, &options) : NULL;
}
