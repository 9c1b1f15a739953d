/* Initial values: a recipe gives the values of any range of the whole tensor. Makers of tensors with one. */
#include "tensor/tensor.h"

#include "base/math.h"
#include "base/options.h"

#include <float.h>
#include <math.h>

static shard_status make_values(const shard_tensor *tensor, const shard_region *region, void *memory)
{
    shard_recipe recipe = shard_leaf_of(tensor)->recipe;
    const shard_device_ops *ops = shard_ops(tensor);
    shard_device *device = shard_device_of(tensor);
    switch (recipe.kind) {
    case SHARD_NO_RECIPE:
        return SHARD_OK;
    case SHARD_CONSTANT:
        return ops->fill(device, region->rows * region->cols, recipe.a, memory, tensor->dtype);
    case SHARD_UNIFORM:
        return ops->random_uniform(device, region, recipe.draw, recipe.a, recipe.b, memory, tensor->dtype);
    case SHARD_NORMAL:
        return ops->random_normal(device, region, recipe.draw, recipe.a, recipe.b, memory, tensor->dtype);
    case SHARD_TRUNCATED_NORMAL: {
        shard_truncated_normal how = {.mean = recipe.a, .std = recipe.b, .low = recipe.low, .high = recipe.high};
        return ops->random_truncated_normal(device, region, recipe.draw, &how, memory, tensor->dtype);
    }
    }
    return shard_error(SHARD_ERROR_INTERNAL, "a tensor with the unknown recipe %d", (int)recipe.kind);
}

shard_status shard_recipe_follow_in(const shard_tensor *tensor, const shard_region *region, void *memory)
{
    SHARD_TRY(make_values(tensor, region, memory));
    const shard_recipe *recipe = &shard_leaf_of(tensor)->recipe;
    int64_t row = recipe->zero_row - region->row0;
    size_t bytes = (size_t)region->cols * shard_dtype_size(tensor->dtype);
    if (!recipe->pads || row < 0 || row >= region->rows || bytes == 0)
        return SHARD_OK;
    return shard_ops(tensor)->zero(shard_device_of(tensor), (char *)memory + (size_t)row * bytes, bytes);
}

/* A flat range of another tensor has up to three regions: the end of a row, whole rows, the beginning of a row. */
static shard_status follow_recipe_in_range(const shard_tensor *range, void *memory)
{
    const shard_flat_range *of = range->leaf->flat_range;
    shard_tensor other = {.shape = of->shape, .placement = of->placement};
    shard_region all;
    SHARD_TRY(shard_tensor_region(&other, &all));
    int64_t at = of->start, left = shard_numel(range);
    while (left > 0) {
        int64_t row = at / all.cols, column = at % all.cols, width = all.cols - column;
        bool rows = column == 0 && left >= all.cols;
        shard_region part = {.rows = rows ? left / all.cols : 1,
                             .cols = shard_min(width, left),
                             .row0 = all.row0 + row,
                             .col0 = all.col0 + column,
                             .whole_cols = all.whole_cols};
        SHARD_TRY(shard_recipe_follow_in(range, &part, memory));
        memory = (char *)memory + (size_t)(part.rows * part.cols) * shard_dtype_size(range->dtype);
        at += part.rows * part.cols;
        left -= part.rows * part.cols;
    }
    return SHARD_OK;
}

shard_status shard_recipe_follow(shard_tensor *tensor, void *memory)
{
    const shard_leaf *leaf = shard_leaf_of(tensor);
    bool constant = leaf->recipe.kind == SHARD_CONSTANT && !leaf->recipe.pads;
    shard_region region = {.rows = 1, .cols = shard_numel(tensor)};
    if (leaf->flat_range && !constant)
        return follow_recipe_in_range(tensor, memory);
    if (!constant)
        SHARD_TRY(shard_tensor_region(tensor, &region));
    return shard_recipe_follow_in(tensor, &region, memory);
}

/* The largest finite number of a floating dtype. */
static double largest(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? DBL_MAX : dtype == SHARD_FLOAT32 ? FLT_MAX : dtype == SHARD_BFLOAT16 ? 0x1.fep127 : 65504;
}

shard_status shard_check_uniform(const char *function, shard_dtype dtype, double low, double high)
{
    double most = largest(dtype);
    if (low <= high && low >= -most && high <= most && high - low <= most)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: low %g, high %g: low must not be above high, and both and their difference at most %g in size, the "
                       "largest number of %s",
                       function, low, high, most, shard_dtype_name(dtype));
}

shard_status shard_check_normal(const char *function, shard_dtype dtype, double mean, double std)
{
    double most = largest(dtype);
    if (std >= 0 && std <= most && fabs(mean) <= most)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: mean %g, std %g: two finite numbers are needed, std not negative, and both at most %g in size, the "
                       "largest number of %s",
                       function, mean, std, most, shard_dtype_name(dtype));
}

shard_status shard_check_truncated(const char *function, shard_dtype dtype, double mean, double std, double low, double high)
{
    double most = largest(dtype);
    SHARD_TRY(shard_check_normal(function, dtype, mean, std));
    if (std > 0 && low < high && low >= -most && high <= most)
        return SHARD_OK;
    return shard_error(
        SHARD_ERROR_ARGUMENT,
        "%s: std %g, low %g, high %g: std must be more than 0, low less than high, and both at most %g in size, the "
        "largest number of %s",
        function, std, low, high, most, shard_dtype_name(dtype));
}

void shard_tensor_forget_recipe(shard_tensor *tensor)
{
    if (tensor->leaf)
        tensor->leaf->recipe.kind = SHARD_NO_RECIPE;
}

void *shard_tensor_memory_to_replace(shard_tensor *tensor)
{
    const shard_recipe recipe = shard_leaf_of(tensor)->recipe;
    shard_tensor_forget_recipe(tensor);
    void *memory = shard_tensor_memory_to_write(tensor);
    if (!memory && tensor->leaf)
        tensor->leaf->recipe = recipe;
    return memory;
}

shard_status shard_tensor_set_recipe(shard_tensor *tensor, shard_recipe recipe)
{
    shard_storage *storage = tensor->storage;
    shard_tensor *local = shard_local_range_of(tensor), *own = local ? local : tensor;
    if (!shard_make_leaf(own))
        return shard_last_status();
    own->leaf->recipe = recipe;
    if (own == tensor && !storage->memory && !storage->materializer && storage->references == 1) {
        shard_tensor_count_write(tensor);
        return SHARD_OK;
    }
    void *memory = shard_tensor_memory_to_write(own);
    if (!memory) {
        shard_tensor_forget_recipe(own);
        return shard_last_status();
    }
    if (own != tensor) {
        shard_tensor_count_write(tensor);
        shard_storage_release(storage); /* the gathered values are out of date */
    }
    return SHARD_OK;
}

/* ---- makers ---- */

static shard_tensor *make_with_recipe(const char *function, shard_shape shape, shard_tensor_options options, shard_recipe recipe)
{
    int64_t numel;
    if (shard_shape_check(function, &shape, options.dtype, &numel) != SHARD_OK)
        return NULL;
    shard_tensor *tensor = shard_tensor_make(shape, options.dtype, options.device);
    if (!tensor)
        return NULL;
    bool sets = recipe.kind != SHARD_NO_RECIPE;
    if (sets && !shard_make_leaf(tensor))
        return shard_release(tensor), NULL;
    if (sets)
        tensor->leaf->recipe = recipe;
    shard_set_requires_grad(tensor, options.requires_grad);
    return tensor->requires_grad == options.requires_grad ? tensor : (shard_release(tensor), NULL);
}

shard_tensor *shard_empty_for(const char *function, shard_shape shape, const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_with_recipe(function, shape, options, (shard_recipe){0});
}

shard_tensor *shard_empty_with(shard_shape shape, const shard_tensor_options *options)
{
    return shard_empty_for("shard_empty", shape, options);
}

shard_tensor *shard_full_with(shard_shape shape, double value, const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_with_recipe("shard_full", shape, options, (shard_recipe){.kind = SHARD_CONSTANT, .a = value});
}

static shard_tensor *make_random(const char *function, shard_recipe_kind kind, shard_shape shape, double a, double b,
                                 const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (!shard_dtype_is_float(options.dtype))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %s is not a floating dtype", function, shard_dtype_name(options.dtype));
    if ((kind == SHARD_UNIFORM ? shard_check_uniform(function, options.dtype, a, b)
                               : shard_check_normal(function, options.dtype, a, b)) != SHARD_OK)
        return NULL;
    return make_with_recipe(function, shape, options, (shard_recipe){.kind = kind, .a = a, .b = b, .draw = shard_next_draw()});
}

shard_tensor *shard_uniform_with(shard_shape shape, double low, double high, const shard_tensor_options *options)
{
    return make_random("shard_uniform", SHARD_UNIFORM, shape, low, high, options);
}

shard_tensor *shard_normal_with(shard_shape shape, double mean, double std, const shard_tensor_options *options)
{
    return make_random("shard_normal", SHARD_NORMAL, shape, mean, std, options);
}
