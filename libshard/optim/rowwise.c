/* Adagrad and Adam whose second moment is one number for each row. */
#include "optim/optimizer.h"

#include "base/options.h"

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_update_types types)
{
    return device->ops->rowwise(device, count, updates, optimizer->settings, types);
}

static void factors_of(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    *factors = shard_rowwise_factors(update, optimizer->settings);
}

static char *describe(const void *settings)
{
    const shard_rowwise_arguments *s = settings;
    return s->adam ? shard_format("beta1 %.15g, beta2 %.15g, eps %.15g", s->beta1, s->beta2, s->eps)
                   : shard_format("eps %.15g", s->eps);
}

#define ROWWISE(title, ...)                                                                                                      \
    {                                                                                                                            \
        .name = title, .row_states = 1, .state_name = {__VA_ARGS__}, .describe = describe, .step = step, .factors = factors_of   \
    }
static const shard_optimizer_ops adagrad = ROWWISE("shard_rowwise_adagrad", "sum");
static const shard_optimizer_ops adam = ROWWISE("shard_rowwise_adam", "exp_avg_sq", "exp_avg");

shard_optimizer *shard_rowwise_adagrad_with(const shard_tensors *parameters, const shard_rowwise_adagrad_options *given)
{
    SHARD_READ_OPTIONS(shard_rowwise_adagrad_options, SHARD_ROWWISE_ADAGRAD_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (!shard_valid_settings(3, (double[]){options.lr, options.eps, options.weight_decay}))
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_rowwise_adagrad: lr %g, eps %g, weight decay %g: finite numbers are needed, none negative",
                               options.lr, options.eps, options.weight_decay);
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(options), .state_dtype = -1};
    shard_rowwise_arguments arguments = {.eps = options.eps};
    return shard_optimizer_make(&adagrad, 1, parameters, defaults, &arguments, sizeof arguments);
}

shard_optimizer *shard_rowwise_adam_with(const shard_tensors *parameters, const shard_rowwise_adam_options *given)
{
    SHARD_READ_OPTIONS(shard_rowwise_adam_options, SHARD_ROWWISE_ADAM_OPTIONS_INIT, options, given);
    if (!options_ok || shard_check_adam("shard_rowwise_adam", options.lr, options.beta1, options.beta2, options.eps,
                                        options.weight_decay) != SHARD_OK)
        return NULL;
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(options), .state_dtype = options.state_dtype};
    shard_rowwise_arguments arguments = {.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps, .adam = true};
    return shard_optimizer_make(&adam, options.beta1 > 0 ? 2 : 1, parameters, defaults, &arguments, sizeof arguments);
}
