/* Stochastic gradient descent with momentum, as torch.optim.SGD. */
#include "optim/optimizer.h"

#include <stdlib.h>

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_dtype dtype)
{
    const shard_sgd_settings *settings = optimizer->settings;
    shard_sgd_options options = {settings->momentum, settings->dampening, settings->nesterov};
    return device->ops->sgd(device, count, updates, &options, dtype);
}

static char *describe(const void *settings)
{
    const shard_sgd_settings *s = settings;
    return shard_format("momentum %.15g, dampening %.15g, nesterov %s", s->momentum, s->dampening,
                        s->nesterov ? "true" : "false");
}

static const shard_optimizer_ops plain = {.name = "shard_sgd", .describe = describe, .step = step};
static const shard_optimizer_ops with_momentum = {
    .name = "shard_sgd", .states = 1, .state_name = {"momentum_buffer"}, .describe = describe, .step = step};

shard_optimizer *shard_sgd_with(shard_tensors *parameters, shard_sgd_settings settings)
{
    bool sound = settings.lr >= 0 && settings.momentum >= 0 && settings.weight_decay >= 0;
    bool nesterov_ok = !settings.nesterov || (settings.momentum > 0 && settings.dampening == 0);
    shard_sgd_settings *copy = sound && nesterov_ok ? shard_calloc(1, sizeof *copy) : NULL;
    if (!copy) {
        shard_tensors_destroy(parameters);
        if (!sound)
            return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_sgd: lr %g, momentum %g, weight decay %g: none may be negative",
                                   settings.lr, settings.momentum, settings.weight_decay);
        if (!nesterov_ok)
            return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_sgd: Nesterov momentum needs a momentum, and no dampening");
        return NULL;
    }
    *copy = settings;
    shard_optimizer_defaults defaults = {settings.lr, settings.weight_decay, settings.no_decay_1d};
    return shard_optimizer_make(settings.momentum > 0 ? &with_momentum : &plain, parameters, defaults, copy);
}
