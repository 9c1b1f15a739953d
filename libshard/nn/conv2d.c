/* Convolution layers. */
#include "nn/nn.h"

#include "base/options.h"
#include "op/op.h"

#include <inttypes.h>
#include <math.h>

static shard_tensor *conv2d_forward(shard_module *module, shard_tensor *x)
{
    const shard_nn_conv2d_options *options = shard_module_data(module);
    return shard_conv2d(x, shard_module_tensor(module, "weight"), shard_module_optional(module, "bias"),
                        .stride = options->stride, .padding = options->padding, .dilation = options->dilation,
                        .groups = options->groups);
}

static const shard_module_type conv2d_type = {.name = "conv2d", .forward = conv2d_forward, .destroy = shard_module_free};

shard_module *shard_nn_conv2d_with(int64_t in, int64_t out, int64_t kernel, const shard_nn_conv2d_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_conv2d_options, SHARD_NN_CONV2D_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    int64_t groups = options.groups;
    if (in < 1 || out < 1 || kernel < 1 || groups < 1 || in % groups || out % groups)
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_nn_conv2d: %" PRId64 " to %" PRId64 " channels, kernel %" PRId64 ", %" PRId64
                               " groups; all must be at least 1, and the channels multiples of the groups",
                               in, out, kernel, groups);
    if (!shard_check_windows("shard_nn_conv2d", "height and width", options.stride, options.padding, options.dilation) ||
        shard_check_layer_dtype("shard_nn_conv2d", options.dtype) != SHARD_OK)
        return NULL;
    shard_module *module = shard_module_make(&conv2d_type, &options, sizeof options);
    if (!module)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    int64_t group_in = in / groups;
    double area = (double)kernel * (double)kernel, fan_in = (double)group_in * area;
    double fan_out = (double)out * area; /* as PyTorch counts it, whatever the groups */
    shard_shape shape = SHARD_SHAPE(out, group_in, kernel, kernel);
    shard_status status =
        shard_module_add_parameter(module, "weight", shard_normal(shape, 0.0, sqrt(2.0 / fan_out), .dtype = options.dtype));
    double bound = 1.0 / sqrt(fan_in);
    if (status == SHARD_OK && options.bias)
        status =
            shard_module_add_parameter(module, "bias", shard_uniform(SHARD_SHAPE(out), -bound, bound, .dtype = options.dtype));
    shard_scope_close(&scope);
    return shard_module_checked(module, status);
}
