/* Stochastic gradient descent with momentum, as torch.optim.SGD. */
#include "optim/optimizer.h"

#include <stdlib.h>

static shard_status sgd_step(shard_optimizer *optimizer, shard_slot *slot, int64_t step)
{
    const shard_sgd_settings *settings = optimizer->settings;
    shard_tensor *parameter = slot->parameter, *buffer = slot->state[0];
    bool decays = settings->decay_all || parameter->shape.ndim > 1;
    shard_sgd_options options = {.lr = optimizer->lr,
                                 .momentum = settings->momentum,
                                 .dampening = settings->dampening,
                                 .weight_decay = decays ? settings->weight_decay : 0.0,
                                 .nesterov = settings->nesterov,
                                 .first = step == 1};
    if (buffer && options.first)
        buffer->recipe.kind = SHARD_NO_RECIPE; /* it is overwritten */
    const void *gradient = shard_tensor_memory(parameter->grad);
    void *momentum = buffer && gradient ? shard_tensor_memory_to_write(buffer) : NULL;
    void *value = gradient && (momentum || !buffer) ? shard_tensor_memory_to_write(parameter) : NULL;
    if (!value)
        return shard_last_status();
    return shard_ops(parameter)->sgd(shard_device_of(parameter), shard_numel(parameter), &options, gradient, momentum, value,
                                     parameter->dtype);
}

static const shard_optimizer_ops plain = {.name = "shard_sgd", .step = sgd_step};
static const shard_optimizer_ops with_momentum = {
    .name = "shard_sgd", .states = 1, .state_name = {"momentum_buffer"}, .step = sgd_step};

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
    return shard_optimizer_make(settings.momentum > 0 ? &with_momentum : &plain, parameters, settings.lr, copy);
}
