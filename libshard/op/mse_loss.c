/* mse_loss: the squares of the differences, or their sum or mean. */
#include "op/autocast.h"
#include "base/options.h"
#include "op/op.h"

static shard_tensor *forward(const char *function, shard_tensor *const *x, shard_reduction reduction)
{
    if (!shard_check_operands(function, 2, x))
        return NULL;
    if (!shard_shape_equal(&x[0]->shape, &x[1]->shape))
        return shard_fail_null(SHARD_ERROR_SHAPE, "%s: an input of shape %s and a target of shape %s; one shape is needed",
                               function, shard_shape_text(&x[0]->shape), shard_shape_text(&x[1]->shape));
    shard_tensor *squares = shard_pow_scalar(shard_sub(x[0], x[1]), 2);
    switch (reduction) {
    case SHARD_REDUCTION_MEAN:
        return shard_mean(squares);
    case SHARD_REDUCTION_SUM:
        return shard_sum(squares);
    case SHARD_REDUCTION_NONE:
        return squares;
    case SHARD_REDUCTION_BATCH_MEAN:
        break;
    }
    return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %d is no reduction", function, (int)reduction);
}

shard_tensor *shard_mse_loss_with(shard_tensor *input, shard_tensor *target, const shard_mse_loss_options *given)
{
    SHARD_READ_OPTIONS(shard_mse_loss_options, SHARD_MSE_LOSS_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *x[] = {shard_autocast_wide(input), shard_autocast_wide(target)};
    shard_autocast_promote(2, x);
    shard_tensor *y = shard_scope_return(forward("shard_mse_loss", x, options.reduction), &scope);
    shard_scope_close(&scope);
    return y;
}
