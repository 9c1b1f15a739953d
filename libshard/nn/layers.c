/* Layers that are one operation: activations, dropout, pooling, flatten, embedding. */
#include "nn/nn.h"

#include <inttypes.h>

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

static shard_tensor *flatten_forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_flatten(x, 1, -1);
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

/* ---- dropout ---- */

typedef struct dropout_data {
    double p;
} dropout_data;

static shard_tensor *dropout_forward(shard_module *module, shard_tensor *x)
{
    const dropout_data *data = shard_module_data(module);
    return shard_module_is_training(module) ? shard_dropout(x, data->p) : x;
}

static const shard_module_type dropout_type = {.name = "dropout", .forward = dropout_forward, .destroy = shard_module_free};

shard_module *shard_nn_dropout(double p)
{
    if (!(p >= 0.0 && p <= 1.0))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_dropout: %g is no probability", p);
    dropout_data *data = shard_calloc(1, sizeof *data);
    if (!data)
        return NULL;
    data->p = p;
    return shard_module_create(&dropout_type, data);
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
    max_pool2d_data *data = shard_calloc(1, sizeof *data);
    if (!data)
        return NULL;
    *data = (max_pool2d_data){kernel, stride, padding};
    return shard_module_create(&max_pool2d_type, data);
}

/* ---- embedding ---- */

typedef struct embedding_data {
    int64_t padding_idx;
} embedding_data;

static shard_tensor *embedding_forward(shard_module *module, shard_tensor *index)
{
    const embedding_data *data = shard_module_data(module);
    return shard_embedding(shard_module_tensor(module, "weight"), index, data->padding_idx);
}

static const shard_module_type embedding_type = {.name = "embedding", .forward = embedding_forward, .destroy = shard_module_free};

/* PyTorch's padding row begins as zeros. */
static shard_status clear_row(shard_tensor *weight, int64_t row)
{
    char *memory = shard_tensor_memory_to_write(weight);
    size_t bytes = (size_t)weight->shape.dim[1] * shard_dtype_size(weight->dtype);
    if (!memory)
        return shard_last_status();
    return shard_ops(weight)->zero(shard_device_of(weight), memory + (size_t)row * bytes, bytes);
}

shard_module *shard_nn_embedding(int64_t count, int64_t dim, int64_t padding_idx)
{
    if (count < 1 || dim < 1 || padding_idx < -1 || padding_idx >= count)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_embedding: %" PRId64 " rows of %" PRId64 ", padding_idx %" PRId64,
                               count, dim, padding_idx);
    embedding_data *data = shard_calloc(1, sizeof *data);
    if (!data)
        return NULL;
    data->padding_idx = padding_idx;
    shard_module *module = shard_module_create(&embedding_type, data);
    if (!module)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *weight = shard_normal(SHARD_SHAPE(count, dim), 0.0, 1.0);
    shard_status status = weight && padding_idx >= 0 ? clear_row(weight, padding_idx) : SHARD_OK;
    if (status == SHARD_OK)
        status = shard_module_add_parameter(module, "weight", weight);
    shard_scope_close(&scope);
    return shard_module_checked(module, status);
}
