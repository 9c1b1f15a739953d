/* The conversion of linear and embedding layers into parallel ones. */
#include "nn/nn.h"

#include "comm/function.h"
#include "comm/majority.h"
#include "comm/preflight.h"
#include "distributed/distributed.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first rank sends values to the others in row blocks of at most this many bytes. */
#define BLOCK_BYTES ((int64_t)16 << 20)

typedef struct conversion {
    const char *function;
    const shard_split_layer *layer;
    const char *pattern;
    shard_split split;
    shard_group *group;
    shard_module *root; /* the module that was given, with the layers that are converted so far */
    int64_t multiple;   /* that of the layer that is converted */
    int converted, split_already;
} conversion;

shard_status shard_check_split(const char *function, shard_split split)
{
    if ((unsigned)split <= SHARD_SPLIT_COLUMN)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: %d is no split: it is SHARD_SPLIT_NONE (0), SHARD_SPLIT_ROW (1) or SHARD_SPLIT_COLUMN (2)", function,
                       (int)split);
}

shard_status shard_check_layer_dtype(const char *function, shard_dtype dtype)
{
    return shard_dtype_is_float(dtype)
               ? SHARD_OK
               : shard_error(SHARD_ERROR_ARGUMENT, "%s: dtype %s; a floating one is needed", function, shard_dtype_name(dtype));
}

shard_status shard_check_multiple(const char *function, int64_t features, int64_t multiple)
{
    if (multiple >= 1 && features % multiple == 0)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " features are not divided by split_multiple %" PRId64, function,
                       features, multiple);
}

shard_tensor *shard_make_shard(shard_shape whole, int dim, shard_layer_split split,
                               shard_tensor *(*make)(shard_shape shape, const void *context), const void *context)
{
    if (dim < 0)
        return make(whole, context);
    shard_group *group = split.group;
    shard_range range = shard_split_multiple(whole.dim[dim], split.multiple, shard_group_size(group), shard_group_rank(group));
    shard_shape shape = whole;
    shape.dim[dim] = range.size;
    shard_tensor *shard = shard_as_split(make(shape, context), dim, group, range.start, whole.dim[dim]);
    shard_tensor_set_replica_group(shard, group ? group->replicas : NULL);
    return shard;
}

/* The description of a tensor that a rank is about to split: a text that must be identical on all ranks, and the
 * recipe if it has no values yet. The first rank's recipe is used. */
typedef struct description {
    char what[400];
    shard_recipe recipe;
    int64_t made;
} description;

static shard_status compare_calls(const conversion *c, const char *layer, const char *name, const shard_tensor *tensor, int dim,
                                  description *first)
{
    shard_group *group = c->group;
    description mine = {.recipe = shard_leaf_of(tensor)->recipe, .made = !shard_has_recipe(tensor)};
    shard_placement wanted = {.kind = dim < 0 ? SHARD_LOCAL : SHARD_SPLIT, .dim = dim};
    char units[48] = "";
    if (c->multiple > 1)
        snprintf(units, sizeof units, " in units of %" PRId64, c->multiple);
    snprintf(mine.what, sizeof mine.what, "%s %s %s (%s%s) of layer \"%s\"", name, shard_dtype_name(tensor->dtype),
             shard_shape_text(&tensor->shape), shard_placement_text(&wanted), units, layer);
    description *all = shard_calloc((size_t)shard_group_size(group), sizeof *all);
    if (!all)
        return shard_group_fail(group);
    shard_status status = shard_group_exchange(group, &mine, sizeof mine, all);
    shard_majority found;
    if (status == SHARD_OK && shard_find_majority(group, all, sizeof all->what, sizeof *all, &found))
        status =
            shard_error(SHARD_ERROR_MISMATCH, "%s: rank %d converts %s, %s %s", c->function,
                        shard_group_world_rank(group, found.odd), all[found.odd].what, found.usual_ranks, all[found.usual].what);
    *first = status == SHARD_OK ? all[0] : mine;
    free(all);
    return status;
}

/* shard = the range along dim of the first rank's whole tensor, which is sent in row blocks. */
static shard_status receive_shard(shard_tensor *whole, int dim, shard_range range, shard_tensor *shard, shard_group *group)
{
    int64_t rows = whole->shape.dim[0], width = shard_shape_product(&whole->shape, 1, whole->shape.ndim);
    int64_t row_bytes = width * (int64_t)shard_dtype_size(whole->dtype);
    int64_t block = BLOCK_BYTES / (row_bytes ? row_bytes : 1);
    block = block < 1 ? 1 : block;
    bool first = shard_group_rank(group) == 0;
    for (int64_t row = 0; row < rows; row += block) {
        int64_t count = rows - row < block ? rows - row : block;
        shard_shape shape = whole->shape;
        shape.dim[0] = count;
        shard_tensor *rows_here =
            first ? shard_tensor_view(whole, row * width, shape) : shard_tensor_make(shape, whole->dtype, shard_device_of(whole));
        char *to = shard_tensor_memory_to_write(shard);
        if (!rows_here || !to)
            return shard_group_fail(group);
        SHARD_TRY(shard_group_broadcast(group, shard_device_of(rows_here), shard_tensor_values(rows_here), count * width,
                                        whole->dtype, 0));
        if (dim == 0) { /* the rows of this block that are in the range */
            int64_t from = row > range.start ? row : range.start;
            int64_t end = row + count < range.start + range.size ? row + count : range.start + range.size;
            if (from < end)
                SHARD_TRY(shard_copy_part_out(rows_here, 0, (shard_range){from - row, end - from},
                                              to + (size_t)((from - range.start) * row_bytes)));
        } else {
            size_t shard_bytes =
                (size_t)shard_shape_product(&shard->shape, 1, shard->shape.ndim) * shard_dtype_size(shard->dtype);
            SHARD_TRY(shard_copy_part_out(rows_here, dim, range, to + (size_t)row * shard_bytes));
        }
        shard_release(rows_here);
    }
    return SHARD_OK;
}

/* The local shard along dim (-1: all) of the first rank's tensor. */
static shard_tensor *make_shard(const conversion *c, const char *layer, const char *name, shard_tensor *whole, int dim)
{
    shard_group *group = c->group;
    description first = {.made = 0};
    if (compare_calls(c, layer, name, whole, dim, &first) != SHARD_OK)
        return NULL;
    int along = dim < 0 ? 0 : dim;
    shard_range range = {.start = 0, .size = whole->shape.dim[along]};
    if (dim >= 0)
        range = shard_split_multiple(whole->shape.dim[dim], c->multiple, shard_group_size(group), shard_group_rank(group));
    shard_shape shape = whole->shape;
    shape.dim[along] = range.size;
    shard_tensor *shard = shard_tensor_make(shape, whole->dtype, shard_device_of(whole));
    if (!shard || !shard_make_leaf(shard))
        return shard_leave(group);
    if (dim >= 0 && shard_group_size(group) > 1)
        shard->placement = (shard_placement){
            .kind = SHARD_SPLIT, .dim = dim, .group = group, .start = range.start, .whole = whole->shape.dim[dim]};
    if (dim >= 0)
        shard_tensor_set_replica_group(shard, group ? group->replicas : NULL);
    if (!first.made)
        shard->leaf->recipe = first.recipe;
    else if (receive_shard(whole, along, range, shard, group) != SHARD_OK)
        return NULL;
    return shard;
}

/* A layer that shares the parameter would keep the whole one, and train apart. */
static shard_status check_unshared(const conversion *c, const char *name, const char *which, const shard_tensor *parameter)
{
    shard_tensors *parameters = shard_parameters(c->root); /* not kept: it would keep the whole weights of converted layers */
    shard_status status = parameters ? SHARD_OK : shard_last_status();
    size_t length = strlen(name);
    for (int64_t i = 0; i < shard_tensors_count(parameters) && status == SHARD_OK; i++) {
        const char *other = shard_tensors_name(parameters, i);
        bool own = length == 0 || (strncmp(other, name, length) == 0 && other[length] == '.');
        if (shard_tensors_at(parameters, i) == parameter && !own)
            status = shard_error(
                SHARD_ERROR_ARGUMENT,
                "%s: \"%s\" shares its %s with \"%s\", which would keep the whole one: convert both layers, then share "
                "the new one by shard_module_set_parameter",
                c->function, name, which, other);
    }
    shard_tensors_destroy(parameters);
    return status;
}

/* Replaces the layer. NULL with the error set. */
static shard_module *convert_one(conversion *c, const char *name, shard_module *old)
{
    const shard_split_layer *layer = c->layer;
    shard_tensor *old_weight = shard_module_tensor(old, "weight"), *old_bias = shard_module_optional(old, "bias");
    c->multiple = layer->split_of(old)->multiple;
    if (check_unshared(c, name, "weight", old_weight) != SHARD_OK ||
        (old_bias && check_unshared(c, name, "bias", old_bias) != SHARD_OK))
        return shard_group_fail(c->group), NULL;
    if (shard_check_multiple(c->function, old_weight->shape.dim[layer->weight_dim[c->split]], c->multiple) != SHARD_OK)
        return shard_group_fail(c->group), NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *weight = make_shard(c, name, "weight", old_weight, layer->weight_dim[c->split]);
    shard_tensor *bias = old_bias && weight ? make_shard(c, name, "bias", old_bias, layer->bias_dim[c->split]) : NULL;
    shard_module *module = NULL;
    if (weight && (bias || !old_bias)) {
        module = layer->rebuild(old, (shard_layer_split){c->split, c->group, c->multiple}, weight, bias);
        shard_module_set_training(module, shard_module_is_training(old));
        if (module) { /* frozen parameters stay frozen */
            weight->requires_grad = old_weight->requires_grad;
            if (bias)
                bias->requires_grad = old_bias->requires_grad;
        }
    }
    shard_scope_close(&scope);
    if (module) {
        shard_module_replace(old, module);
        c->converted++;
    }
    return module;
}

/* Whether a layer is to be converted; counts those that are split already. */
static bool is_wanted(conversion *c, const shard_module *module, const char *name)
{
    const shard_layer_split *split = c->layer->split_of(module);
    bool named = split && (!c->pattern || fnmatch(c->pattern, name, 0) == 0);
    c->split_already += named && split->split != SHARD_SPLIT_NONE;
    return named && split->split == SHARD_SPLIT_NONE;
}

static shard_status convert_below(conversion *c, shard_module *module, const char *prefix)
{
    for (int i = 0; i < shard_module_child_count(module); i++) {
        char *name = shard_format("%s%s", prefix, shard_module_child_name(module, i));
        char *below = name ? shard_format("%s.", name) : NULL;
        shard_module *child = shard_module_child_at(module, i);
        shard_status status = below ? SHARD_OK : shard_last_status();
        if (status == SHARD_OK && is_wanted(c, child, name))
            status = convert_one(c, name, child) ? SHARD_OK : shard_last_status();
        else if (status == SHARD_OK)
            status = convert_below(c, child, below);
        free(name);
        free(below);
        SHARD_TRY(status);
    }
    return SHARD_OK;
}

static shard_status convert(conversion *c, shard_module **module, int *converted)
{
    if (shard_last_status() != SHARD_OK)
        return shard_group_fail(c->group);
    if (!module || !*module) {
        shard_null_argument(c->function, "module");
        return shard_group_fail(c->group);
    }
    if (shard_check_split(c->function, c->split) != SHARD_OK)
        return shard_group_fail(c->group);
    if (c->split == SHARD_SPLIT_NONE) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: SHARD_SPLIT_NONE splits no layer: give SHARD_SPLIT_ROW or SHARD_SPLIT_COLUMN, or leave the call out",
                    c->function);
        return shard_group_fail(c->group);
    }
    c->root = *module;
    if (is_wanted(c, *module, "")) {
        shard_module *parallel = convert_one(c, "", *module);
        if (parallel)
            *module = parallel;
    } else if (convert_below(c, *module, "") == SHARD_OK && !c->converted) {
        const char *pattern = c->pattern ? c->pattern : "*", *name = c->layer->name;
        if (c->split_already)
            shard_error(SHARD_ERROR_ARGUMENT, "%s: every %s layer whose name matches \"%s\" (%d) is parallel already",
                        c->function, name, pattern, c->split_already);
        else
            shard_error(SHARD_ERROR_ARGUMENT, "%s: no %s layer's name matches \"%s\"", c->function, name, pattern);
    }
    if (shard_error_is_joint(shard_group_size(c->group))) /* of a collective, which was the last one of every rank */
        return shard_last_status();
    SHARD_TRY(shard_agree(c->group));
    if (converted)
        *converted = c->converted;
    return SHARD_OK;
}

shard_status shard_convert_parallel_linear(shard_module **module, const char *pattern, shard_split split, shard_group *group,
                                           int *converted)
{
    SHARD_FUNCTION("shard_convert_parallel_linear");
    conversion c = {"shard_convert_parallel_linear", &shard_split_linear, pattern, split, group, .converted = 0};
    return convert(&c, module, converted);
}

shard_status shard_convert_parallel_classifier(shard_module **module, const char *pattern, shard_group *group, int *converted)
{
    SHARD_FUNCTION("shard_convert_parallel_classifier");
    conversion c = {
        "shard_convert_parallel_classifier", &shard_split_classifier, pattern, SHARD_SPLIT_COLUMN, group, .converted = 0};
    return convert(&c, module, converted);
}

shard_status shard_convert_parallel_embedding(shard_module **module, const char *pattern, shard_split split, shard_group *group,
                                              int *converted)
{
    SHARD_FUNCTION("shard_convert_parallel_embedding");
    conversion c = {"shard_convert_parallel_embedding", &shard_split_embedding, pattern, split, group, .converted = 0};
    return convert(&c, module, converted);
}
