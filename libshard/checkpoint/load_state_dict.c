/* Loading from tensors in memory: each rank copies its local shards and flat ranges by itself. */
#include "base/printable.h"
#include "checkpoint/fit.h"
#include "base/options.h"
#include "checkpoint/ranges.h"

#include <shard/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct loading {
    const char *function;                  /* the public function, for messages */
    const shard_tensors *tensors, *source; /* the flat range that this rank keeps of each, or the tensor */
    shard_load_state_dict_options options;
    shard_tensor **from;     /* by tensor; NULL: missing, which is allowed */
    void *block, *converted; /* staging */
} loading;

/* ---- whether the source fits ---- */

static const char *place_text(const shard_tensor *tensor)
{
    return shard_flat_range_of(tensor) ? "partitioned by shard_zero_optimizer" : shard_placement_text(&tensor->placement);
}

static bool is_whole(const shard_tensor *tensor)
{
    return tensor->placement.kind == SHARD_LOCAL && !shard_flat_range_of(tensor);
}

static shard_status match(loading *l, int64_t index, const char *name, shard_fit *fit)
{
    const shard_tensor *tensor = shard_tensors_at(l->tensors, index);
    shard_tensor *from = l->from[index] = shard_tensors_find(l->source, name);
    if (!from) {
        if (!l->options.allow_missing && !shard_tensor_is_idle(tensor))
            shard_complain(&fit->missing, "%s", shard_quoted(name));
        return SHARD_OK;
    }
    SHARD_TRY(shard_check_saved(l->function, name, from));
    shard_shape shape = shard_tensor_whole_shape(from), whole = shard_tensor_whole_shape(tensor);
    shard_fit_compare(fit, name, tensor, &shape, from->dtype, l->options.convert);
    if (shard_fit_shapes(&shape, &whole) && !is_whole(from) && shard_first_element(from, tensor) < 0)
        shard_complain(&fit->placements, "%s is %s there, %s here: call shard_collect_state_dict first", shard_quoted(name),
                       place_text(from), place_text(tensor));
    return SHARD_OK;
}

static void find_unexpected(const loading *l, const char *prefix, shard_fit *fit)
{
    size_t length = strlen(prefix);
    for (int64_t i = 0; i < shard_tensors_count(l->source) && !l->options.allow_unexpected; i++) {
        const char *name = shard_tensors_name(l->source, i);
        if (strncmp(name, prefix, length) == 0 && !shard_tensors_find(l->tensors, name + length))
            shard_complain(&fit->unexpected, "%s", shard_quoted(name));
    }
}

static shard_status match_all(loading *l)
{
    const char *prefix = l->options.prefix ? l->options.prefix : "";
    int64_t count = shard_tensors_count(l->tensors);
    shard_fit fit = {0};
    l->from = shard_calloc((size_t)count, sizeof *l->from);
    if (!l->from)
        return shard_last_status();
    for (int64_t i = 0; i < count; i++) {
        const char *own = shard_tensors_name(l->tensors, i);
        SHARD_TRY(shard_check_saved(l->function, own, shard_tensors_at(l->tensors, i)));
        char *name = shard_format("%s%s", prefix, own);
        shard_status status = name ? match(l, i, name, &fit) : shard_last_status();
        free(name);
        SHARD_TRY(status);
    }
    find_unexpected(l, prefix, &fit);
    char what[64];
    snprintf(what, sizeof what, "%s: the source", l->function);
    return shard_fit_report(&fit, what);
}

/* ---- copying ---- */

/* Copies the elements from `first` on to another device or dtype, a block at a time by way of the host. */
static shard_status convey(const loading *l, shard_tensor *from, int64_t first, shard_tensor *to, char *memory)
{
    if (!memory)
        return shard_last_status();
    int64_t from_size = (int64_t)shard_dtype_size(from->dtype), to_size = (int64_t)shard_dtype_size(to->dtype);
    int64_t count = shard_numel(to), most = SHARD_BLOCK_BYTES / (from_size > to_size ? from_size : to_size);
    for (int64_t at = 0; at < count; at += most) {
        int64_t number = count - at < most ? count - at : most;
        const void *values = shard_values_read(from, first + at, number, l->block);
        if (!values)
            return shard_last_status();
        SHARD_TRY(shard_values_write(to, memory + at * to_size, values, from->dtype, number, l->converted));
    }
    return SHARD_OK;
}

/* On the same device and in the same dtype. */
static shard_status copy(shard_tensor *from, const char *values, shard_tensor *to)
{
    size_t size = shard_dtype_size(to->dtype), bytes = (size_t)shard_numel(to) * size;
    int64_t first = shard_first_element(from, to);
    char *memory = shard_tensor_memory_to_replace(to);
    if (!memory || memory == values)
        return shard_last_status();
    if (first < 0)
        return shard_values_copy(to, from, memory);
    return shard_ops(to)->copy_rows(shard_device_of(to), memory, bytes, values + (size_t)first * size, bytes, bytes, 1);
}

/* The source's values and all memory are made before the recipe is removed: both tensors may have the same memory, and without
 * memory the tensor keeps its initial values. */
static shard_status fill(loading *l, shard_tensor *from, shard_tensor *to)
{
    const char *values = shard_tensor_values(from);
    if (from == to || !values)
        return shard_last_status();
    if (shard_device_of(from) == shard_device_of(to) && from->dtype == to->dtype)
        return copy(from, values, to);
    SHARD_TRY(shard_blocks_allocate(from->dtype != to->dtype, &l->block, &l->converted));
    int64_t first = shard_first_element(from, to);
    if (first >= 0)
        return convey(l, from, first, to, shard_tensor_memory_to_replace(to));
    shard_tensor *range = shard_tensor_make(to->shape, from->dtype, shard_device_of(from));
    char *part = range ? shard_tensor_memory_to_write(range) : NULL;
    shard_status status = part ? shard_values_copy(to, from, part) : shard_last_status();
    if (status == SHARD_OK)
        status = convey(l, range, 0, to, shard_tensor_memory_to_replace(to));
    shard_release(range);
    return status;
}

static shard_status fill_all(loading *l)
{
    for (int64_t i = 0; i < shard_tensors_count(l->tensors); i++)
        if (l->from[i])
            SHARD_TRY(fill(l, l->from[i], shard_tensors_at(l->tensors, i)));
    return SHARD_OK;
}

static shard_status load(const char *function, const shard_tensors *tensors, const shard_tensors *source,
                         shard_load_state_dict_options options)
{
    if (shard_last_status() != SHARD_OK)
        return shard_last_status();
    shard_tensors *kept = shard_tensors_kept(tensors, true), *kept_source = shard_tensors_kept(source, false);
    loading l = {.function = function, .tensors = kept, .source = kept_source, .options = options};
    shard_status status = kept && kept_source ? match_all(&l) : shard_last_status();
    if (status == SHARD_OK) {
        status = fill_all(&l);
        shard_tensors_forget_gathered(tensors);
    }
    shard_block_free(l.block);
    shard_block_free(l.converted);
    free(l.from);
    shard_tensors_destroy(kept);
    shard_tensors_destroy(kept_source);
    return status;
}

shard_status shard_load_state_dict_with(const shard_tensors *tensors, const shard_tensors *source,
                                        const shard_load_state_dict_options *given)
{
    const char *function = "shard_load_state_dict";
    SHARD_READ_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS_INIT, options, given);
    if (!options_ok)
        return shard_last_status();
    if (!tensors || !source)
        return shard_null_argument(function, tensors ? "source" : "tensors");
    return load(function, tensors, source, options);
}

shard_status shard_module_load_state_dict_with(shard_module *module, const shard_tensors *source,
                                               const shard_load_state_dict_options *given)
{
    const char *function = "shard_module_load_state_dict";
    SHARD_READ_OPTIONS(shard_load_state_dict_options, SHARD_LOAD_STATE_DICT_OPTIONS_INIT, options, given);
    if (!options_ok)
        return shard_last_status();
    if (!module || !source)
        return shard_null_argument(function, module ? "source" : "module");
    shard_tensors *tensors = shard_state_dict(module);
    shard_status status = tensors ? load(function, tensors, source, options) : shard_last_status();
    shard_tensors_destroy(tensors);
    return status;
}
