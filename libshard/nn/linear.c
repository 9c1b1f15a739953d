/* Linear layers, plain and parallel: one module, whose parameters' placement says
 * which. */
#include "nn/nn.h"

#include <inttypes.h>
#include <math.h>

static shard_tensor *linear_forward(shard_module *module, shard_tensor *x)
{
    return shard_parallel_linear(x, shard_module_tensor(module, "weight"), shard_module_optional(module, "bias"));
}

static const shard_module_type linear_type = {.name = "linear", .forward = linear_forward, .destroy = shard_module_free};

shard_linear_data *shard_linear_of(const shard_module *module)
{
    return shard_module_get_type(module) == &linear_type ? shard_module_data(module) : NULL;
}

shard_module *shard_linear_from(shard_linear_data what, shard_tensor *weight, shard_tensor *bias)
{
    shard_linear_data *data = shard_calloc(1, sizeof *data);
    if (!data)
        return NULL;
    *data = what;
    shard_module *module = shard_module_create(&linear_type, data);
    if (!module)
        return NULL;
    shard_status status = shard_module_add_parameter(module, "weight", weight);
    if (status == SHARD_OK && bias)
        status = shard_module_add_parameter(module, "bias", bias);
    return shard_module_checked(module, status);
}

/* The own part along dim of a tensor of that whole shape (-1: the whole), uniform in
 * +-bound as PyTorch's Linear. */
static shard_tensor *make_part(shard_shape shape, int dim, shard_group *group, double bound, shard_dtype dtype)
{
    int64_t whole = dim < 0 ? 0 : shape.dim[dim];
    shard_range part = shard_split_range(whole, shard_group_size(group), shard_group_rank(group));
    if (dim >= 0)
        shape.dim[dim] = part.size;
    shard_tensor *tensor = shard_uniform(shape, -bound, bound, .dtype = dtype);
    return dim < 0 ? tensor : shard_as_split(tensor, dim, group, part.start, whole);
}

static shard_module *make_linear(shard_linear_data what, shard_nn_linear_options options)
{
    if (what.in < 1 || what.out < 1)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "a linear layer from %" PRId64 " to %" PRId64 " features", what.in, what.out);
    shard_scope scope;
    shard_scope_open(&scope);
    double bound = 1.0 / sqrt((double)what.in);
    int split = what.split == SHARD_SPLIT_COLUMN ? 0 : what.split == SHARD_SPLIT_ROW ? 1 : -1;
    shard_tensor *weight = make_part(SHARD_SHAPE(what.out, what.in), split, what.group, bound, options.dtype);
    shard_tensor *bias =
        options.no_bias ? NULL : make_part(SHARD_SHAPE(what.out), split == 0 ? 0 : -1, what.group, bound, options.dtype);
    shard_group *replicas = what.split == SHARD_SPLIT_NONE || !what.group ? NULL : what.group->replicas;
    shard_module *module = NULL;
    if (weight && (bias || options.no_bias)) {
        if (split >= 0)
            shard_set_replica_group(weight, replicas);
        if (split == 0)
            shard_set_replica_group(bias, replicas);
        module = shard_linear_from(what, weight, bias);
    }
    shard_scope_close(&scope);
    return module;
}

shard_module *shard_nn_linear_with(int64_t in, int64_t out, shard_nn_linear_options options)
{
    return make_linear((shard_linear_data){.in = in, .out = out}, options);
}

shard_module *shard_nn_parallel_linear_with(int64_t in, int64_t out, shard_split split, shard_group *group,
                                            shard_nn_linear_options options)
{
    if ((unsigned)split > SHARD_SPLIT_COLUMN)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_linear: %d is no split", (int)split);
    shard_linear_data what = {.in = in, .out = out, .split = split, .group = split == SHARD_SPLIT_NONE ? NULL : group};
    return make_linear(what, options);
}
