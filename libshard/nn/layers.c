/* Layers that are one operation: activations, dropout, pooling, flatten. */
#include "nn/nn.h"

#include "base/options.h"

#include <inttypes.h>
#include <math.h>

/* ---- without settings ---- */

static shard_tensor *relu_forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_relu(x);
}

static shard_tensor *gelu_forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_gelu(x);
}

shard_tensor *shard_flatten_rows(shard_tensor *x)
{
    bool images = x && x->shape.ndim == 4 && x->shape.dim[1] * x->shape.dim[2] != 1;
    return shard_flatten(images ? shard_permute(x, (int[]){0, 3, 1, 2}) : x, 1, -1);
}

static shard_tensor *flatten_forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_flatten_rows(x);
}

static shard_tensor *global_avg_pool2d_forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_global_avg_pool2d(x);
}

static const shard_module_type relu_type = {.name = "relu", .forward = relu_forward};
static const shard_module_type gelu_type = {.name = "gelu", .forward = gelu_forward};
static const shard_module_type flatten_type = {.name = "flatten", .forward = flatten_forward};
static const shard_module_type global_avg_pool2d_type = {.name = "global_avg_pool2d", .forward = global_avg_pool2d_forward};

shard_module *shard_nn_relu(void)
{
    return shard_module_create(&relu_type, NULL);
}

shard_module *shard_nn_gelu(void)
{
    return shard_module_create(&gelu_type, NULL);
}

shard_module *shard_nn_flatten(void)
{
    return shard_module_create(&flatten_type, NULL);
}

shard_module *shard_nn_global_avg_pool2d(void)
{
    return shard_module_create(&global_avg_pool2d_type, NULL);
}

/* ---- PReLU ---- */

static shard_tensor *prelu_forward(shard_module *module, shard_tensor *x)
{
    return shard_prelu(x, shard_module_tensor(module, "weight"));
}

static const shard_module_type prelu_type = {.name = "prelu", .forward = prelu_forward};

shard_module *shard_nn_prelu_with(int64_t channels, const shard_nn_prelu_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_prelu_options, SHARD_NN_PRELU_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (channels < 1 || !isfinite(options.init))
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_nn_prelu: %" PRId64 " channels, init %g; at least 1 and a finite number", channels,
                               options.init);
    if (shard_check_layer_dtype("shard_nn_prelu", options.dtype) != SHARD_OK)
        return NULL;
    shard_module *module = shard_module_create(&prelu_type, NULL);
    if (!module)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_status status =
        shard_module_add_parameter(module, "weight", shard_full(SHARD_SHAPE(channels), options.init, .dtype = options.dtype));
    shard_scope_close(&scope);
    return shard_module_checked(module, status);
}

/* ---- dropout ---- */

typedef struct dropout_data {
    double p;
    shard_group *group;
} dropout_data;

static shard_tensor *dropout_forward(shard_module *module, shard_tensor *x)
{
    const dropout_data *data = shard_module_data(module);
    return shard_module_is_training(module) ? shard_dropout(x, data->p, .group = data->group) : x;
}

static const shard_module_type dropout_type = {.name = "dropout", .forward = dropout_forward, .destroy = shard_module_free};

shard_module *shard_nn_dropout(double p)
{
    if (!(p >= 0.0 && p <= 1.0))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_dropout: %g is no probability", p);
    return shard_module_make(&dropout_type, &(dropout_data){.p = p}, sizeof(dropout_data));
}

static void synchronize(shard_module *module, void *group)
{
    if (shard_module_get_type(module) == &dropout_type)
        ((dropout_data *)shard_module_data(module))->group = group;
}

void shard_nn_sync_dropout(shard_module *module, shard_group *group)
{
    shard_module_each(module, synchronize, group);
}

/* ---- max pooling ---- */

typedef struct max_pool2d_data {
    int64_t kernel, stride, padding;
} max_pool2d_data;

static shard_tensor *max_pool2d_forward(shard_module *module, shard_tensor *x)
{
    const max_pool2d_data *data = shard_module_data(module);
    return shard_max_pool2d(x, data->kernel, .stride = data->stride, .padding = data->padding);
}

static const shard_module_type max_pool2d_type = {
    .name = "max_pool2d", .forward = max_pool2d_forward, .destroy = shard_module_free};

shard_module *shard_nn_max_pool2d(int64_t kernel, int64_t stride, int64_t padding)
{
    return shard_module_make(&max_pool2d_type, &(max_pool2d_data){kernel, stride, padding}, sizeof(max_pool2d_data));
}
