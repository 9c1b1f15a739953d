/* Initial values in place, as torch.nn.init: each function sets the tensor's recipe; each rank makes its local shard
 * or flat range. */
#include "device/graph.h"
#include "base/options.h"
#include "nn/nn.h"

#include <math.h>

static shard_status check_tensor(const char *function, const shard_tensor *tensor, bool random)
{
    if (!tensor)
        return shard_null_argument(function, "tensor");
    if (tensor->history)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: the tensor is the result of an operation, not a leaf", function);
    if (tensor->placement.kind == SHARD_PARTIAL)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: the tensor is partial: only the sum of the ranks' tensors has a value",
                           function);
    if (random && !shard_dtype_is_float(tensor->dtype))
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: %s is not a floating dtype", function, shard_dtype_name(tensor->dtype));
    shard_region region;
    return random ? shard_tensor_region(tensor, &region) : SHARD_OK;
}

/* ---- constants ---- */

static shard_status fill(const char *function, shard_tensor *tensor, double value)
{
    SHARD_TRY(check_tensor(function, tensor, false));
    return shard_tensor_set_recipe(tensor, (shard_recipe){.kind = SHARD_CONSTANT, .a = value});
}

shard_status shard_nn_init_constant(shard_tensor *tensor, double value)
{
    return fill("shard_nn_init_constant", tensor, value);
}

shard_status shard_nn_init_zeros(shard_tensor *tensor)
{
    return fill("shard_nn_init_zeros", tensor, 0);
}

shard_status shard_nn_init_ones(shard_tensor *tensor)
{
    return fill("shard_nn_init_ones", tensor, 1);
}

/* ---- distributions ---- */

static shard_status draw_uniform(const char *function, shard_tensor *tensor, double low, double high)
{
    SHARD_TRY(check_tensor(function, tensor, true));
    SHARD_TRY(shard_graph_refuse(function));
    SHARD_TRY(shard_check_uniform(function, tensor->dtype, low, high));
    return shard_tensor_set_recipe(tensor, (shard_recipe){.kind = SHARD_UNIFORM, .a = low, .b = high, .draw = shard_next_draw()});
}

static shard_status draw_normal(const char *function, shard_tensor *tensor, double mean, double std)
{
    SHARD_TRY(check_tensor(function, tensor, true));
    SHARD_TRY(shard_graph_refuse(function));
    SHARD_TRY(shard_check_normal(function, tensor->dtype, mean, std));
    return shard_tensor_set_recipe(tensor, (shard_recipe){.kind = SHARD_NORMAL, .a = mean, .b = std, .draw = shard_next_draw()});
}

shard_status shard_nn_init_uniform(shard_tensor *tensor, double low, double high)
{
    return draw_uniform("shard_nn_init_uniform", tensor, low, high);
}

shard_status shard_nn_init_normal(shard_tensor *tensor, double mean, double std)
{
    return draw_normal("shard_nn_init_normal", tensor, mean, std);
}

shard_status shard_nn_init_trunc_normal(shard_tensor *tensor, double mean, double std, double low, double high)
{
    static const char function[] = "shard_nn_init_trunc_normal";
    SHARD_TRY(check_tensor(function, tensor, true));
    SHARD_TRY(shard_graph_refuse(function));
    SHARD_TRY(shard_check_truncated(function, tensor->dtype, mean, std, low, high));
    return shard_tensor_set_recipe(
        tensor,
        (shard_recipe){.kind = SHARD_TRUNCATED_NORMAL, .a = mean, .b = std, .low = low, .high = high, .draw = shard_next_draw()});
}

/* ---- by the number of inputs and outputs ---- */

typedef struct fans {
    double in, out;
} fans;

/* Fan in and fan out of the whole tensor, [out, in, ...]: the dimensions after the second are the kernel's area. */
static shard_status count_fans(const char *function, const shard_tensor *tensor, fans *f)
{
    SHARD_TRY(check_tensor(function, tensor, true));
    shard_shape shape = shard_tensor_whole_shape(tensor);
    if (shape.ndim < 2)
        return shard_error(SHARD_ERROR_SHAPE,
                           "%s: a tensor of shape %s has no numbers of inputs and outputs: it needs two dimensions or more",
                           function, shard_shape_text(&shape));
    double area = (double)shard_shape_product(&shape, 2, shape.ndim);
    *f = (fans){.in = (double)shape.dim[1] * area, .out = (double)shape.dim[0] * area};
    return SHARD_OK;
}

/* gain / sqrt(fan); for a tensor without elements any number is right. */
static double deviation(double gain, double fan)
{
    return fan > 0 ? gain / sqrt(fan) : 0;
}

shard_status shard_nn_init_xavier_uniform(shard_tensor *tensor, double gain)
{
    static const char function[] = "shard_nn_init_xavier_uniform";
    fans f = {0};
    SHARD_TRY(count_fans(function, tensor, &f));
    double bound = sqrt(3.0) * deviation(fabs(gain), (f.in + f.out) / 2);
    return draw_uniform(function, tensor, -bound, bound);
}

shard_status shard_nn_init_xavier_normal(shard_tensor *tensor, double gain)
{
    static const char function[] = "shard_nn_init_xavier_normal";
    fans f = {0};
    SHARD_TRY(count_fans(function, tensor, &f));
    return draw_normal(function, tensor, 0, deviation(fabs(gain), (f.in + f.out) / 2));
}

double shard_nn_init_gain(shard_nonlinearity nonlinearity, double negative_slope)
{
    switch (nonlinearity) {
    case SHARD_NONLINEARITY_LEAKY_RELU:
        if (!isnan(negative_slope))
            return sqrt(2 / (1 + negative_slope * negative_slope));
        shard_error(SHARD_ERROR_ARGUMENT, "shard_nn_init_gain: the negative slope is NaN; a number is needed");
        return NAN;
    case SHARD_NONLINEARITY_RELU:
        return sqrt(2);
    case SHARD_NONLINEARITY_LINEAR:
    case SHARD_NONLINEARITY_SIGMOID:
        return 1;
    case SHARD_NONLINEARITY_TANH:
        return 5.0 / 3;
    case SHARD_NONLINEARITY_SELU:
        return 0.75;
    }
    shard_error(SHARD_ERROR_ARGUMENT, "shard_nn_init_gain: %d is no nonlinearity", (int)nonlinearity);
    return NAN;
}

static shard_status kaiming(const char *function, const shard_tensor *tensor, const shard_nn_init_kaiming_options *options,
                            double *std)
{
    fans f = {0};
    SHARD_TRY(count_fans(function, tensor, &f));
    if ((unsigned)options->mode > SHARD_FAN_OUT)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: mode %d is neither SHARD_FAN_IN (0) nor SHARD_FAN_OUT (1)", function,
                           (int)options->mode);
    double gain = shard_nn_init_gain(options->nonlinearity, options->a);
    *std = deviation(gain, options->mode == SHARD_FAN_OUT ? f.out : f.in);
    return gain == gain ? SHARD_OK : shard_last_status();
}

shard_status shard_nn_init_kaiming_uniform_with(shard_tensor *tensor, const shard_nn_init_kaiming_options *given)
{
    static const char function[] = "shard_nn_init_kaiming_uniform";
    SHARD_READ_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS_INIT, options, given);
    if (!options_ok)
        return shard_last_status();
    double std = 0;
    SHARD_TRY(kaiming(function, tensor, &options, &std));
    return draw_uniform(function, tensor, -sqrt(3.0) * std, sqrt(3.0) * std);
}

shard_status shard_nn_init_kaiming_normal_with(shard_tensor *tensor, const shard_nn_init_kaiming_options *given)
{
    static const char function[] = "shard_nn_init_kaiming_normal";
    SHARD_READ_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS_INIT, options, given);
    if (!options_ok)
        return shard_last_status();
    double std = 0;
    SHARD_TRY(kaiming(function, tensor, &options, &std));
    return draw_normal(function, tensor, 0, std);
}
