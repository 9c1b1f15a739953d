/* Adam and AdamW, as torch.optim's. */
#include "optim/optimizer.h"

#include "base/options.h"

static shard_status step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                         shard_update_types types)
{
    return device->ops->adam(device, count, updates, optimizer->settings, types);
}

static void factors_of(const shard_optimizer *optimizer, const shard_update *update, shard_step_factors *factors)
{
    *factors = shard_adam_factors(update, optimizer->settings, false);
}

static char *describe(const void *settings)
{
    const shard_adam_arguments *s = settings;
    return shard_format("beta1 %.15g, beta2 %.15g, eps %.15g, amsgrad %s", s->beta1, s->beta2, s->eps, shard_word(s->amsgrad));
}

#define ADAM(title)                                                                                                              \
    {                                                                                                                            \
        .name = title, .state_name = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .describe = describe, .step = step,            \
        .factors = factors_of, .steps_product = true                                                                             \
    }
static const shard_optimizer_ops adam = ADAM("shard_adam"), adamw = ADAM("shard_adamw");

shard_status shard_check_adam(const char *function, double lr, double beta1, double beta2, double eps, double weight_decay)
{
    if (shard_valid_settings(5, (double[]){lr, beta1, beta2, eps, weight_decay}) && beta1 < 1 && beta2 < 1)
        return SHARD_OK;
    return shard_error(
        SHARD_ERROR_ARGUMENT,
        "%s: lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g: finite numbers are needed, none negative, and betas "
        "less than 1",
        function, lr, beta1, beta2, eps, weight_decay);
}

static shard_optimizer *make(bool decoupled, const shard_tensors *parameters, const shard_adam_options *options)
{
    const shard_optimizer_ops *ops = decoupled ? &adamw : &adam;
    if (shard_check_adam(ops->name, options->lr, options->beta1, options->beta2, options->eps, options->weight_decay) != SHARD_OK)
        return NULL;
    shard_optimizer_defaults defaults = {SHARD_COMMON_SETTINGS(*options), .state_dtype = options->state_dtype};
    shard_adam_arguments arguments = {options->beta1, options->beta2, options->eps, decoupled, options->amsgrad};
    return shard_optimizer_make(ops, options->amsgrad ? 3 : 2, parameters, defaults, &arguments, sizeof arguments);
}

shard_optimizer *shard_adam_with(const shard_tensors *parameters, const shard_adam_options *given)
{
    SHARD_READ_OPTIONS(shard_adam_options, SHARD_ADAM_OPTIONS_INIT, options, given);
    return options_ok ? make(false, parameters, &options) : NULL;
}

shard_optimizer *shard_adamw_with(const shard_tensors *parameters, const shard_adamw_options *given)
{
    SHARD_READ_OPTIONS(shard_adamw_options, SHARD_ADAMW_OPTIONS_INIT, options, given);
    return options_ok ? make(true, parameters, &options) : NULL;
}
