/* LARS: SGD's step with a trust ratio. */
#include "optim/optimizer.h"

#include "base/options.h"

#include <math.h>

typedef struct lars_settings {
    shard_sgd_arguments sgd; /* first, for shard_sgd_step */
    double trust_coefficient, eps;
} lars_settings;

static shard_trust_options trust(const shard_optimizer *optimizer, const shard_update *update)
{
    const lars_settings *settings = optimizer->settings;
    return (shard_trust_options){.trust_coefficient = settings->trust_coefficient,
                                 .weight_decay = update->weight_decay,
                                 .eps = settings->eps,
                                 .grad_scale = update->grad_scale};
}

static char *describe(const void *settings)
{
    const lars_settings *s = settings;
    return shard_format("momentum %.15g, dampening %.15g, trust_coefficient %.15g, eps %.15g, nesterov %s", s->sgd.momentum,
                        s->sgd.dampening, s->trust_coefficient, s->eps, shard_word(s->sgd.nesterov));
}

static const shard_optimizer_ops lars = {
    .name = "shard_lars", .state_name = {"momentum_buffer"}, .describe = describe, .step = shard_sgd_step, .trust = trust};

static shard_status check(const shard_lars_options *s)
{
    const double settings[] = {s->lr, s->momentum, fabs(s->dampening), s->weight_decay, s->trust_coefficient, s->eps};
    if (!shard_valid_settings(6, settings))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_lars: lr %g, momentum %g, dampening %g, weight decay %g, trust coefficient %g, eps %g: finite "
                           "numbers are needed, none negative but the dampening",
                           s->lr, s->momentum, s->dampening, s->weight_decay, s->trust_coefficient, s->eps);
    if (s->nesterov && !(s->momentum > 0 && s->dampening == 0))
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_lars: Nesterov momentum with momentum %g and dampening %g: a momentum above 0 and a dampening of 0 "
            "are needed",
            s->momentum, s->dampening);
    return SHARD_OK;
}

shard_optimizer *shard_lars_with(const shard_tensors *parameters, const shard_lars_options *given)
{
    SHARD_READ_OPTIONS(shard_lars_options, SHARD_LARS_OPTIONS_INIT, options, given);
    if (!options_ok || check(&options) != SHARD_OK)
        return NULL;
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(options), .adapt_1d = options.adapt_1d,
                                         .state_dtype = options.state_dtype};
    lars_settings settings = {{options.momentum, options.dampening, options.nesterov}, options.trust_coefficient, options.eps};
    return shard_optimizer_make(&lars, options.momentum > 0, parameters, defaults, &settings, sizeof settings);
}
