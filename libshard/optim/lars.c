/* LARS: SGD's step with a trust ratio. */
#include "optim/optimizer.h"

#include <stdlib.h>

static shard_trust_options trust(const shard_optimizer *optimizer, const shard_update *update)
{
    const shard_lars_settings *settings = optimizer->settings;
    return (shard_trust_options){.trust_coefficient = settings->trust_coefficient,
                                 .weight_decay = update->weight_decay,
                                 .eps = settings->eps,
                                 .grad_scale = update->grad_scale};
}

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_dtype dtype)
{
    const shard_lars_settings *settings = optimizer->settings;
    shard_sgd_options options = {settings->momentum, settings->dampening, settings->nesterov};
    return device->ops->sgd(device, count, updates, &options, dtype);
}

static char *describe(const void *settings)
{
    const shard_lars_settings *s = settings;
    return shard_format("momentum %.15g, dampening %.15g, trust_coefficient %.15g, eps %.15g, nesterov %s", s->momentum,
                        s->dampening, s->trust_coefficient, s->eps, s->nesterov ? "true" : "false");
}

static const shard_optimizer_ops plain = {.name = "shard_lars", .describe = describe, .step = step, .trust = trust};
static const shard_optimizer_ops with_momentum = {
    .name = "shard_lars", .states = 1, .state_name = {"momentum_buffer"}, .describe = describe, .step = step, .trust = trust};

static shard_status check(const shard_lars_settings *s)
{
    if (!(s->lr >= 0 && s->momentum >= 0 && s->weight_decay >= 0 && s->trust_coefficient >= 0 && s->eps >= 0))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_lars: lr %g, momentum %g, weight decay %g, trust coefficient %g, eps %g: none may be negative",
                           s->lr, s->momentum, s->weight_decay, s->trust_coefficient, s->eps);
    if (s->nesterov && !(s->momentum > 0 && s->dampening == 0))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_lars: Nesterov momentum needs a momentum, and no dampening");
    return SHARD_OK;
}

shard_optimizer *shard_lars_with(shard_tensors *parameters, shard_lars_settings settings)
{
    settings.trust_coefficient = settings.trust_coefficient == 0 ? 0.001 : settings.trust_coefficient;
    shard_lars_settings *copy = check(&settings) == SHARD_OK ? shard_calloc(1, sizeof *copy) : NULL;
    if (!copy) {
        shard_tensors_destroy(parameters);
        return NULL;
    }
    *copy = settings;
    shard_optimizer_defaults defaults = {.lr = settings.lr,
                                         .weight_decay = settings.weight_decay,
                                         .no_decay_1d = !settings.decay_all,
                                         .adapt_all = settings.adapt_all};
    return shard_optimizer_make(settings.momentum > 0 ? &with_momentum : &plain, parameters, defaults, copy);
}
