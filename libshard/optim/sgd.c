/* Stochastic gradient descent with momentum, as torch.optim.SGD. */
#include "optim/optimizer.h"

#include "base/options.h"

#include <math.h>

shard_status shard_sgd_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                            shard_update_types types)
{
    return device->ops->sgd(device, count, updates, optimizer->settings, types);
}

static char *describe(const void *settings)
{
    const shard_sgd_arguments *s = settings;
    return shard_format("momentum %.15g, dampening %.15g, nesterov %s", s->momentum, s->dampening, shard_word(s->nesterov));
}

static const shard_optimizer_ops sgd = {
    .name = "shard_sgd", .state_name = {"momentum_buffer"}, .describe = describe, .step = shard_sgd_step, .steps_product = true};

shard_optimizer *shard_sgd_with(const shard_tensors *parameters, const shard_sgd_options *given)
{
    SHARD_READ_OPTIONS(shard_sgd_options, SHARD_SGD_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (!shard_valid_settings(4, (double[]){options.lr, options.momentum, fabs(options.dampening), options.weight_decay}))
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_sgd: lr %g, momentum %g, dampening %g, weight decay %g: finite numbers are needed, none "
                               "negative but the dampening",
                               options.lr, options.momentum, options.dampening, options.weight_decay);
    if (options.nesterov && !(options.momentum > 0 && options.dampening == 0))
        return shard_fail_null(
            SHARD_ERROR_ARGUMENT,
            "shard_sgd: Nesterov momentum with momentum %g and dampening %g: a momentum above 0 and a dampening of "
            "0 are needed",
            options.momentum, options.dampening);
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(options), .state_dtype = options.state_dtype};
    shard_sgd_arguments arguments = {options.momentum, options.dampening, options.nesterov};
    return shard_optimizer_make(&sgd, options.momentum > 0, parameters, defaults, &arguments, sizeof arguments);
}
