/* Embedding layers, local and parallel: one module; the weight's placement selects the function. */
#include "nn/nn.h"

#include "base/options.h"
#include "comm/function.h"
#include "distributed/distributed.h"
#include "op/op.h"

#include <inttypes.h>

typedef struct embedding_data {
    shard_layer_split split;
    int64_t padding_idx;
    shard_nn_embedding_options options;
} embedding_data;

shard_tensor *shard_parallel_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                            const shard_embedding_options *options)
{
    SHARD_FUNCTION("shard_parallel_embedding");
    if (!weight || weight->placement.kind != SHARD_SPLIT)
        return shard_embedding_with(weight, index, padding_idx, options);
    shard_group *group = weight->placement.group;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *part = shard_embedding_with(weight, index, padding_idx, options);
    shard_tensor *y =
        weight->placement.dim == 0 ? shard_reduce_from_group(part, group) : shard_gather_from_group(part, -1, group);
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}

static shard_tensor *embedding_forward(shard_module *module, shard_tensor *index)
{
    const embedding_data *data = shard_module_data(module);
    return shard_parallel_embedding(shard_module_tensor(module, "weight"), index, data->padding_idx,
                                    .max_norm = data->options.max_norm, .norm_type = data->options.norm_type,
                                    .scale_grad_by_freq = data->options.scale_grad_by_freq);
}

static const shard_module_type embedding_type = {.name = "embedding", .forward = embedding_forward, .destroy = shard_module_free};

static const shard_layer_split *split_of(const shard_module *module)
{
    return shard_module_get_type(module) == &embedding_type ? &((embedding_data *)shard_module_data(module))->split : NULL;
}

static shard_module *make_from(embedding_data what, shard_tensor *weight)
{
    shard_module *module = shard_module_make(&embedding_type, &what, sizeof what);
    return module ? shard_module_checked(module, shard_module_add_parameter(module, "weight", weight)) : NULL;
}

static shard_module *rebuild(const shard_module *old, shard_layer_split split, shard_tensor *weight, shard_tensor *bias)
{
    (void)bias;
    embedding_data what = *(embedding_data *)shard_module_data(old);
    what.split = split;
    return make_from(what, weight);
}

const shard_split_layer shard_split_embedding = {
    .name = "embedding",
    .weight_dim = {[SHARD_SPLIT_NONE] = -1, [SHARD_SPLIT_ROW] = 0, [SHARD_SPLIT_COLUMN] = 1},
    .bias_dim = {-1, -1, -1},
    .split_of = split_of,
    .rebuild = rebuild,
};

/* Standard normal, the padding row zeros, as PyTorch's Embedding. */
static shard_tensor *make_values(shard_shape shape, const void *context)
{
    const embedding_data *data = context;
    shard_tensor *weight = shard_normal(shape, 0.0, 1.0, .dtype = data->options.dtype);
    if (weight) {
        weight->leaf->recipe.pads = data->padding_idx >= 0;
        weight->leaf->recipe.zero_row = data->padding_idx;
    }
    return weight;
}

static shard_module *make_embedding(const char *function, int64_t count, int64_t dim, embedding_data what)
{
    if (shard_check_split(function, what.split.split) != SHARD_OK)
        return NULL;
    if (count < 1 || dim < 1 || what.padding_idx < -1 || what.padding_idx >= count)
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "%s: %" PRId64 " rows of %" PRId64 ", padding_idx %" PRId64
                               "; both numbers must be at least 1, and padding_idx a row, or -1 for none",
                               function, count, dim, what.padding_idx);
    if (!shard_check_max_norm(function, what.options.max_norm, what.options.norm_type) ||
        shard_check_layer_dtype(function, what.options.dtype) != SHARD_OK)
        return NULL;
    what.split.multiple = 1;
    if (what.split.split == SHARD_SPLIT_NONE)
        what.split.group = NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *weight = shard_make_shard(SHARD_SHAPE(count, dim), shard_split_embedding.weight_dim[what.split.split],
                                            what.split, make_values, &what);
    shard_module *module = weight ? make_from(what, weight) : NULL;
    shard_scope_close(&scope);
    return module;
}

shard_module *shard_nn_embedding_with(int64_t count, int64_t dim, int64_t padding_idx, const shard_nn_embedding_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_embedding_options, SHARD_NN_EMBEDDING_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_embedding("shard_nn_embedding", count, dim, (embedding_data){.padding_idx = padding_idx, .options = options});
}

shard_module *shard_nn_parallel_embedding_with(int64_t count, int64_t dim, int64_t padding_idx, shard_split split,
                                               shard_group *group, const shard_nn_embedding_options *given)
{
    SHARD_READ_OPTIONS(shard_nn_embedding_options, SHARD_NN_EMBEDDING_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    embedding_data what = {.split = {split, group}, .padding_idx = padding_idx, .options = options};
    return make_embedding("shard_nn_parallel_embedding", count, dim, what);
}
