/* Batch norm and layer norm layers. */
#include "nn/nn.h"

#include "base/options.h"
#include "device/graph.h"
#include "op/op.h"

#include <inttypes.h>

/* ---- batch norm ---- */

static void count_batch(void *batches, void *values, int count)
{
    int64_t *batch_count = shard_data(batches);
    (void)values;
    if (batch_count)
        *batch_count += count;
}

static void release_batches(void *batches)
{
    shard_tensor_unref(batches);
}

/* Each replay of a graph counts a captured batch. */
static void count_or_capture(shard_tensor *batches)
{
    shard_graph *graph = shard_graph_capturing();
    if (!graph)
        count_batch(batches, NULL, 1);
    else
        shard_graph_on_replay(
            graph, (shard_replay){.call = count_batch, .release = release_batches, .context = shard_tensor_ref(batches)}, 0);
}

static shard_tensor *batch_norm(shard_module *module, shard_tensor *x, shard_tensor *residual, bool relu)
{
    const shard_nn_batch_norm_options *options = shard_module_data(module);
    bool training = shard_module_is_training(module);
    shard_tensor *batches = shard_module_tensor(module, "num_batches_tracked");
    shard_tensor *y = shard_batch_norm(x, shard_module_tensor(module, "running_mean"), shard_module_tensor(module, "running_var"),
                                       shard_module_tensor(module, "weight"), shard_module_tensor(module, "bias"),
                                       .training = training, .momentum = options->momentum, .eps = options->eps,
                                       .group = options->group, .residual = residual, .relu = relu);
    if (training && batches && y) /* after an error the group's ranks have counted equally many */
        count_or_capture(batches);
    return y;
}

static shard_tensor *batch_norm_forward(shard_module *module, shard_tensor *x)
{
    return batch_norm(module, x, NULL, false);
}

static const shard_module_type batch_norm_type = {
    .name = "batch_norm", .forward = batch_norm_forward, .destroy = shard_module_free};

shard_tensor *shard_nn_batch_norm_relu(shard_module *module, shard_tensor *x, shard_tensor *residual)
{
    bool is_norm = module && shard_module_get_type(module) == &batch_norm_type;
    if (!module || (!x && !is_norm)) /* without x a batch norm is called, whose group fails together */
        return shard_null_argument("shard_nn_batch_norm_relu", module ? "x" : "batch_norm"), NULL;
    if (!is_norm)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_batch_norm_relu: a module of type \"%s\" is no batch norm",
                               shard_module_type_name(module));
    shard_tensor *y = batch_norm(module, x, residual, true);
    shard_module_rest(module);
    return y;
}

static void synchronize(shard_module *module, void *group)
{
    if (shard_module_get_type(module) == &batch_norm_type)
        ((shard_nn_batch_norm_options *)shard_module_data(module))->group = group;
}

void shard_nn_sync_batch_norm(shard_module *module, shard_group *group)
{
    shard_module_each(module, synchronize, group);
}

shard_module *shard_nn_batch_norm_with(int64_t channels, const shard_nn_batch_norm_options *given)
{
    static const char function[] = "shard_nn_batch_norm";
    SHARD_READ_OPTIONS(shard_nn_batch_norm_options, SHARD_NN_BATCH_NORM_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (channels < 1)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " channels; at least 1 is needed", function, channels);
    if (!shard_check_batch_norm(function, options.momentum, options.eps) ||
        shard_check_layer_dtype(function, options.dtype) != SHARD_OK)
        return NULL;
    shard_module *module = shard_module_make(&batch_norm_type, &options, sizeof options);
    if (!module)
        return NULL;
    shard_dtype dtype = shard_norm_dtype(options.dtype);
    shard_shape shape = SHARD_SHAPE(channels);
    shard_scope scope;
    shard_scope_open(&scope);
    shard_status status = shard_module_add_parameter(module, "weight", shard_ones(shape, .dtype = dtype));
    if (status == SHARD_OK)
        status = shard_module_add_parameter(module, "bias", shard_zeros(shape, .dtype = dtype));
    if (status == SHARD_OK)
        status = shard_module_add_buffer(module, "running_mean", shard_zeros(shape, .dtype = dtype));
    if (status == SHARD_OK)
        status = shard_module_add_buffer(module, "running_var", shard_ones(shape, .dtype = dtype));
    if (status == SHARD_OK) /* counted on the host, whatever the device */
        status = shard_module_add_buffer(module, "num_batches_tracked",
                                         shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_cpu()));
    shard_scope_close(&scope);
    return shard_module_checked(module, status);
}

/* ---- layer norm ---- */

typedef struct layer_norm_data {
    double eps;
} layer_norm_data;

static shard_tensor *layer_norm_forward(shard_module *module, shard_tensor *x)
{
    const layer_norm_data *data = shard_module_data(module);
    shard_tensor *weight = shard_module_optional(module, "weight"), *bias = shard_module_optional(module, "bias");
    if (weight && !bias)
        bias = shard_zeros(weight->shape, .dtype = weight->dtype, .device = shard_device_of(weight));
    return weight && !bias ? NULL : shard_layer_norm(x, weight, bias, data->eps);
}

static const shard_module_type layer_norm_type = {
    .name = "layer_norm", .forward = layer_norm_forward, .destroy = shard_module_free};

shard_module *shard_nn_layer_norm_with(int64_t size, double eps, const shard_nn_layer_norm_options *given)
{
    static const char function[] = "shard_nn_layer_norm";
    SHARD_READ_OPTIONS(shard_nn_layer_norm_options, SHARD_NN_LAYER_NORM_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (size < 1)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " features; at least 1 is needed", function, size);
    if (!shard_check_layer_norm(function, eps) || shard_check_layer_dtype(function, options.dtype) != SHARD_OK)
        return NULL;
    shard_module *module = shard_module_make(&layer_norm_type, &(layer_norm_data){eps}, sizeof(layer_norm_data));
    if (!module || !options.elementwise_affine)
        return module;
    shard_dtype dtype = shard_norm_dtype(options.dtype);
    shard_scope scope;
    shard_scope_open(&scope);
    shard_status status = shard_module_add_parameter(module, "weight", shard_ones(SHARD_SHAPE(size), .dtype = dtype));
    if (status == SHARD_OK && options.bias)
        status = shard_module_add_parameter(module, "bias", shard_zeros(SHARD_SHAPE(size), .dtype = dtype));
    shard_scope_close(&scope);
    return shard_module_checked(module, status);
}
