/* Linear layers, plain and parallel, and classifiers: one module, whose parameters' placement says
 * which split it has. */
#include "nn/nn.h"

#include "base/options.h"
#include "distributed/distributed.h"
#include "op/deferred_linear.h"

#include <inttypes.h>
#include <math.h>

typedef struct linear_data {
    shard_layer_split split;
    bool classifies; /* while training, logits and gradients are deferred */
} linear_data;

/* The layer's parameters get deferred gradients. */
static void defer_gradient(shard_tensor *parameter)
{
    if (parameter && parameter->requires_grad)
        parameter->leaf->defers_grad = true;
}

static shard_tensor *classifier_forward(shard_module *module, shard_tensor *x)
{
    shard_tensor *weight = shard_module_tensor(module, "weight"), *bias = shard_module_optional(module, "bias");
    defer_gradient(weight);
    defer_gradient(bias);
    /* Under the autocast of the other 16-bit type x is cast in place of the weight, whose cast would be in memory as a whole. */
    shard_dtype mode = shard_autocast_dtype();
    bool casts_x = weight && mode != SHARD_FLOAT32 && shard_dtype_size(weight->dtype) == 2;
    shard_set_autocast(casts_x ? weight->dtype : mode);
    shard_tensor *logits = shard_linear_deferred(x, weight, bias);
    shard_set_autocast(mode);
    return logits;
}

static shard_tensor *linear_forward(shard_module *module, shard_tensor *x)
{
    const linear_data *data = shard_module_data(module);
    const shard_layer_split *split = &data->split;
    if (data->classifies && shard_module_is_training(module))
        return classifier_forward(module, x);
    if (split->split == SHARD_SPLIT_ROW && split->multiple > 1 && shard_is_local(x)) /* the weight's ranges are not even */
        x = shard_scatter_multiple(x, -1, split->multiple, split->group);
    return shard_parallel_linear(x, shard_module_tensor(module, "weight"), shard_module_optional(module, "bias"));
}

static const shard_module_type linear_type = {.name = "linear", .forward = linear_forward, .destroy = shard_module_free};

static const shard_layer_split *split_of(const shard_module *module)
{
    return shard_module_get_type(module) == &linear_type ? &((linear_data *)shard_module_data(module))->split : NULL;
}

static shard_module *make_from(shard_layer_split split, bool classifies, shard_tensor *weight, shard_tensor *bias)
{
    shard_module *module = shard_module_make(&linear_type, &(linear_data){split, classifies}, sizeof(linear_data));
    if (!module)
        return NULL;
    shard_status status = shard_module_add_parameter(module, "weight", weight);
    if (status == SHARD_OK && bias)
        status = shard_module_add_parameter(module, "bias", bias);
    for (int i = 0; i < 2 && classifies && status == SHARD_OK; i++) /* before data parallel takes them */
        defer_gradient(i ? bias : weight);
    return shard_module_checked(module, status);
}

static shard_module *rebuild_linear(const shard_module *old, shard_layer_split split, shard_tensor *weight, shard_tensor *bias)
{
    const linear_data *data = shard_module_data(old);
    return make_from(split, data->classifies && split.split != SHARD_SPLIT_ROW, weight, bias);
}

static shard_module *rebuild_classifier(const shard_module *old, shard_layer_split split, shard_tensor *weight,
                                        shard_tensor *bias)
{
    (void)old;
    return make_from(split, true, weight, bias);
}

#define LINEAR_SPLITS                                                                                                            \
    .name = "linear", .weight_dim = {[SHARD_SPLIT_NONE] = -1, [SHARD_SPLIT_ROW] = 1, [SHARD_SPLIT_COLUMN] = 0},                  \
    .bias_dim = {[SHARD_SPLIT_NONE] = -1, [SHARD_SPLIT_ROW] = -1, [SHARD_SPLIT_COLUMN] = 0}, .split_of = split_of
const shard_split_layer shard_split_linear = {LINEAR_SPLITS, .rebuild = rebuild_linear};
const shard_split_layer shard_split_classifier = {LINEAR_SPLITS, .rebuild = rebuild_classifier};

typedef struct initial {
    double bound;
    shard_dtype dtype;
} initial;

/* Uniform in +-bound as PyTorch's Linear. */
static shard_tensor *make_values(shard_shape shape, const void *context)
{
    const initial *i = context;
    return shard_uniform(shape, -i->bound, i->bound, .dtype = i->dtype);
}

static shard_module *make_linear(const char *function, int64_t in, int64_t out, shard_layer_split split, bool classifies,
                                 shard_nn_linear_options options)
{
    if (shard_check_split(function, split.split) != SHARD_OK)
        return NULL;
    if (in < 1 || out < 1)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: from %" PRId64 " to %" PRId64 " features; both must be at least 1",
                               function, in, out);
    if (shard_check_layer_dtype(function, options.dtype) != SHARD_OK)
        return NULL;
    bool local = split.split == SHARD_SPLIT_NONE; /* a conversion splits it in or out, in units of the multiple */
    bool by_in = split.split == SHARD_SPLIT_ROW || (local && split.multiple > 0 && in % split.multiple == 0);
    if (shard_check_multiple(function, by_in ? in : out, split.multiple) != SHARD_OK)
        return NULL;
    if (local)
        split.group = NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    const shard_split_layer *layer = &shard_split_linear;
    initial values = {1.0 / sqrt((double)in), options.dtype};
    shard_tensor *weight = shard_make_shard(SHARD_SHAPE(out, in), layer->weight_dim[split.split], split, make_values, &values);
    shard_tensor *bias =
        options.bias ? shard_make_shard(SHARD_SHAPE(out), layer->bias_dim[split.split], split, make_values, &values) : NULL;
    shard_module *module = weight && (bias || !options.bias) ? make_from(split, classifies, weight, bias) : NULL;
    shard_scope_close(&scope);
    return module;
}

shard_module *shard_nn_linear_with(int64_t in, int64_t out, const shard_nn_linear_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_linear("shard_nn_linear", in, out, (shard_layer_split){.multiple = options.split_multiple}, false, options);
}

shard_module *shard_nn_parallel_linear_with(int64_t in, int64_t out, shard_split split, shard_group *group,
                                            const shard_nn_linear_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_linear("shard_nn_parallel_linear", in, out, (shard_layer_split){split, group, options.split_multiple}, false,
                       options);
}

shard_module *shard_nn_parallel_classifier_with(int64_t in, int64_t classes, shard_group *group,
                                                const shard_nn_linear_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_linear("shard_nn_parallel_classifier", in, classes,
                       (shard_layer_split){SHARD_SPLIT_COLUMN, group, options.split_multiple}, true, options);
}
