/* Layers that are one operation: activations, dropout, pooling, flatten. */
#include "nn/nn.h"

#include "base/options.h"

#include <inttypes.h>
#include <math.h>

/* ---- without settings ---- */

shard_tensor *shard_flatten_rows(shard_tensor *x)
{
    bool images = x && x->shape.ndim == 4 && x->shape.dim[1] * x->shape.dim[2] != 1;
    return shard_flatten(images ? shard_permute(x, (int[]){0, 3, 1, 2}) : x, 1, -1);
}

/* The maker of a module whose forward is function(x). */
#define LAYER(kind, function)                                                                                                    \
    static shard_tensor *kind##_forward(shard_module *module, shard_tensor *x)                                                   \
    {                                                                                                                            \
        (void)module;                                                                                                            \
        return function(x);                                                                                                      \
    }                                                                                                                            \
    static const shard_module_type kind##_type = {.name = #kind, .forward = kind##_forward};                                     \
    shard_module *shard_nn_##kind(void)                                                                                          \
    {                                                                                                                            \
        return shard_module_create(&kind##_type, NULL);                                                                          \
    }
LAYER(relu, shard_relu)
LAYER(gelu, shard_gelu)
LAYER(silu, shard_silu)
LAYER(sigmoid, shard_sigmoid)
LAYER(tanh, shard_tanh)
LAYER(flatten, shard_flatten_rows)
LAYER(global_avg_pool2d, shard_global_avg_pool2d)
#undef LAYER

/* ---- activations with numbers ---- */

static shard_tensor *leaky_relu_forward(shard_module *module, shard_tensor *x)
{
    const double *negative_slope = shard_module_data(module);
    return shard_leaky_relu(x, *negative_slope);
}

static shard_tensor *softplus_forward(shard_module *module, shard_tensor *x)
{
    const double *numbers = shard_module_data(module);
    return shard_softplus(x, numbers[0], numbers[1]);
}

static const shard_module_type leaky_relu_type = {
    .name = "leaky_relu", .forward = leaky_relu_forward, .destroy = shard_module_free};
static const shard_module_type softplus_type = {.name = "softplus", .forward = softplus_forward, .destroy = shard_module_free};

shard_module *shard_nn_leaky_relu(double negative_slope)
{
    return shard_module_make(&leaky_relu_type, &negative_slope, sizeof negative_slope);
}

shard_module *shard_nn_softplus(double beta, double threshold)
{
    return shard_module_make(&softplus_type, (const double[]){beta, threshold}, 2 * sizeof(double));
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

/* ---- pooling ---- */

typedef struct pool2d_data {
    int64_t kernel, stride, padding;
} pool2d_data;

static shard_tensor *max_pool2d_forward(shard_module *module, shard_tensor *x)
{
    const pool2d_data *data = shard_module_data(module);
    return shard_max_pool2d(x, data->kernel, .stride = data->stride, .padding = data->padding);
}

static shard_tensor *avg_pool2d_forward(shard_module *module, shard_tensor *x)
{
    const pool2d_data *data = shard_module_data(module);
    return shard_avg_pool2d(x, data->kernel, .stride = data->stride, .padding = data->padding);
}

static const shard_module_type max_pool2d_type = {
    .name = "max_pool2d", .forward = max_pool2d_forward, .destroy = shard_module_free};
static const shard_module_type avg_pool2d_type = {
    .name = "avg_pool2d", .forward = avg_pool2d_forward, .destroy = shard_module_free};

shard_module *shard_nn_max_pool2d(int64_t kernel, int64_t stride, int64_t padding)
{
    return shard_module_make(&max_pool2d_type, &(pool2d_data){kernel, stride, padding}, sizeof(pool2d_data));
}

shard_module *shard_nn_avg_pool2d(int64_t kernel, int64_t stride, int64_t padding)
{
    return shard_module_make(&avg_pool2d_type, &(pool2d_data){kernel, stride, padding}, sizeof(pool2d_data));
}
