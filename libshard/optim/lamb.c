/* LAMB: AdamW's update first, then SGD's step by it with a trust ratio. */
#include "optim/optimizer.h"

#include "base/options.h"

static void factors_of(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    *factors = shard_adam_factors(update, optimizer->settings, true);
}

static shard_status prepare(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                            shard_update_types types)
{
    return device->ops->lamb_update(device, count, updates, optimizer->settings, types);
}

static shard_trust_options trust(const shard_optimizer *optimizer, const shard_update *update)
{
    (void)optimizer, (void)update;
    return (shard_trust_options){.trust_coefficient = 1};
}

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_update_types types)
{
    (void)optimizer;
    return device->ops->sgd(device, count, updates, &(shard_sgd_arguments){0}, types);
}

static char *describe(const void *settings)
{
    const shard_adam_arguments *s = settings;
    return shard_format("beta1 %.15g, beta2 %.15g, eps %.15g", s->beta1, s->beta2, s->eps);
}

static const shard_optimizer_ops lamb = {.name = "shard_lamb",
                                         .state_name = {"exp_avg", "exp_avg_sq"},
                                         .describe = describe,
                                         .step = step,
                                         .factors = factors_of,
                                         .trust = trust,
                                         .prepare = prepare};

shard_optimizer *shard_lamb_with(const shard_tensors *parameters, const shard_lamb_options *given)
{
    SHARD_READ_OPTIONS(shard_lamb_options, SHARD_LAMB_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (shard_check_adam("shard_lamb", options.lr, options.beta1, options.beta2, options.eps, options.weight_decay) != SHARD_OK)
        return NULL;
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(options), .adapt_1d = options.adapt_1d,
                                         .state_dtype = options.state_dtype};
    shard_adam_arguments arguments = {.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
    return shard_optimizer_make(&lamb, 2, parameters, defaults, &arguments, sizeof arguments);
}
