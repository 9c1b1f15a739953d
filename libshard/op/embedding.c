/* embedding: rows of a table. */
#include "op/op.h"

#include "base/options.h"
#include "comm/function.h"
#include "tensor/scope.h"

#include <inttypes.h>
#include <math.h>

typedef struct embedding_context {
    int64_t row0;        /* of the weight's local shard */
    int64_t padding_idx; /* the local row without a gradient; -1: none */
    bool by_count;
} embedding_context;

/* Adds to rows of dweight. The padding row is saved and restored around the addition, or is zero. */
static shard_status embedding_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const embedding_context *context = node->context;
    shard_tensor *index = shard_saved(node, 0);
    bool accumulate;
    shard_tensor *dweight = index ? shard_gradient_target(node, 0, &accumulate) : NULL;
    dx[0] = dweight;
    if (!dweight)
        return shard_last_status();
    int64_t rows = dweight->shape.dim[0], dim = dweight->shape.dim[1];
    shard_tensor *aside = shard_workspace(dy, dim, dy->dtype);
    void *memory[4];
    if (!aside || !shard_load(SHARD_INPUTS(index, dy, dweight, aside), memory))
        return shard_last_status();
    shard_place_sum(dweight, dy);
    size_t row_bytes = (size_t)dim * shard_dtype_size(dy->dtype);
    bool pads = context->padding_idx >= 0;
    char *padding = pads ? (char *)memory[2] + (size_t)context->padding_idx * row_bytes : NULL;
    if (pads && accumulate)
        SHARD_TRY(SHARD_RUN(dy, copy_rows, memory[3], row_bytes, padding, row_bytes, row_bytes, 1));
    else if (pads)
        SHARD_TRY(SHARD_RUN(dy, zero, memory[3], row_bytes));
    SHARD_TRY(SHARD_RUN(dy, embedding_backward, shard_numel(index), dim, context->row0, rows, memory[0], memory[1],
                        context->by_count, accumulate, memory[2], dy->dtype));
    return pads ? SHARD_RUN(dy, copy_rows, padding, row_bytes, memory[3], row_bytes, row_bytes, 1) : SHARD_OK;
}

static const shard_node_type embedding_type = {.name = "embedding", .backward = embedding_backward};

static bool check_index(shard_tensor *index, int64_t count)
{
    static const shard_fault outside = {SHARD_ERROR_ARGUMENT, "shard_embedding: index %" PRId64 " (element %" PRId64
                                                              ") is outside of [0, %" PRId64 ")"};
    const int64_t *memory = shard_tensor_memory(index);
    if (count == 0 && shard_numel(index) > 0) {
        shard_error(SHARD_ERROR_ARGUMENT, "shard_embedding: an index of shape %s into a weight without rows",
                    shard_tensor_shape_text(index));
        return false;
    }
    /* No value is ignored: ignore_index is 0, which is in range. */
    return memory && SHARD_RUN(index, check_index, shard_numel(index), memory, count, 0, &outside, NULL) == SHARD_OK;
}

static bool check(shard_tensor *weight, shard_tensor *index, int64_t padding_idx)
{
    static const char function[] = "shard_embedding";
    if (!shard_check_operands(function, SHARD_INPUTS(weight)) || !shard_check_operand(function, index))
        return false;
    if (weight->shape.ndim != 2 || index->dtype != SHARD_INT64 || index->shape.ndim == SHARD_MAX_DIMS ||
        shard_device_of(index) != shard_device_of(weight)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: needs a weight [count, dim] and an int64 index on its device, not %s and %s %s",
                    function, shard_tensor_shape_text(weight), shard_dtype_name(index->dtype), shard_tensor_shape_text(index));
        return false;
    }
    if (index->placement.kind == SHARD_PARTIAL || (!shard_is_local(weight) && !shard_is_local(index)))
        return shard_refuse_placement(function, index);
    if (weight->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(function, weight);
    int64_t count = shard_tensor_whole_shape(weight).dim[0];
    if (padding_idx < -1 || padding_idx >= count) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: padding_idx %" PRId64 " of %" PRId64 " rows; -1 is none", function, padding_idx,
                    count);
        return false;
    }
    return check_index(index, count);
}

bool shard_check_max_norm(const char *function, double max_norm, double norm_type)
{
    if (max_norm >= 0 && norm_type > 0)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT,
                "%s: max_norm %g, norm_type %g: a max_norm that is not negative and a norm_type above 0 are needed", function,
                max_norm, norm_type);
    return false;
}

static bool check_options(const shard_tensor *weight, const shard_tensor *index, const shard_embedding_options *options)
{
    static const char function[] = "shard_embedding";
    if (options->scale_grad_by_freq && !shard_is_local(index)) /* the counts are those of all ranks' indices */
        return shard_refuse_placement("shard_embedding with scale_grad_by_freq", index);
    bool sound = shard_check_max_norm(function, options->max_norm, options->norm_type);
    bool in_parts = options->max_norm < INFINITY && weight->storage->materializer;
    if (sound && in_parts)
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: max_norm scales rows of the weight in place, but shard_zero_optimizer (stage 3) partitions it over "
                    "several ranks; "
                    "use stage 1 or 2",
                    function);
    return sound && !in_parts;
}

/* Scales rows down to max_norm. For a weight split along dim 1 the norms are summed over its group, and all ranks of
 * it call this, also if not `ready`. */
static shard_status renormalize(bool ready, shard_tensor *weight, shard_tensor *index, const shard_embedding_options *options)
{
    shard_group *group = weight && shard_is_split(weight, 1) ? weight->placement.group : NULL;
    double power = options->norm_type;
    int64_t n = shard_numel(index), rows = ready ? weight->shape.dim[0] : 0, dim = ready ? weight->shape.dim[1] : 0;
    int64_t row0 = ready && shard_is_split(weight, 0) ? weight->placement.start : 0;
    shard_tensor *sum = ready ? shard_workspace(weight, n, SHARD_FLOAT64) : NULL;
    void *memory[3] = {NULL};
    ready = sum && shard_load(SHARD_INPUTS(index, weight, sum), memory) && shard_tensor_memory_to_write(weight) &&
            SHARD_RUN(weight, embedding_power_sums, n, dim, row0, rows, memory[0], memory[1], power, memory[2], weight->dtype) ==
                SHARD_OK;
    if (group) {
        shard_require_identical_operand(weight);
        shard_require_identical("max_norm %.9g, norm_type %.9g", options->max_norm, power);
    }
    if (group)
        SHARD_TRY(shard_group_all_reduce(group, ready ? shard_device_of(sum) : NULL, memory[2], n, SHARD_FLOAT64,
                                         power == INFINITY ? SHARD_MAX : SHARD_SUM));
    if (!ready)
        return shard_last_status();
    return SHARD_RUN(weight, embedding_renorm, n, dim, row0, rows, memory[0], power, options->max_norm, memory[2], memory[1],
                     weight->dtype);
}

static shard_placement place(const shard_tensor *weight, const shard_tensor *index)
{
    shard_placement placement = index->placement;
    if (shard_is_split(weight, 0))
        placement = (shard_placement){.kind = SHARD_PARTIAL, .group = weight->placement.group};
    if (shard_is_split(weight, 1)) {
        placement = weight->placement;
        placement.dim = index->shape.ndim;
    }
    return placement;
}

static shard_tensor *look_up(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                             const shard_embedding_options *options)
{
    int64_t rows = weight->shape.dim[0], dim = weight->shape.dim[1];
    int64_t row0 = shard_is_split(weight, 0) ? weight->placement.start : 0;
    shard_shape shape = index->shape;
    shape.dim[shape.ndim++] = dim;
    shard_tensor *y = shard_tensor_make(shape, weight->dtype, shard_device_of(weight));
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(index, weight, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = place(weight, index);
    y = shard_result(
        y, SHARD_RUN(weight, embedding, shard_numel(index), dim, row0, rows, memory[0], memory[1], memory[2], weight->dtype));
    shard_node *node = shard_record(&embedding_type, y, SHARD_INPUTS(weight), sizeof(embedding_context));
    if (node) {
        int64_t own = padding_idx < 0 ? -1 : padding_idx - row0;
        *(embedding_context *)node->context =
            (embedding_context){.row0 = row0, .padding_idx = own < rows ? own : -1, .by_count = options->scale_grad_by_freq};
        shard_save_for_backward(node, 0, index);
    }
    return y;
}

shard_tensor *shard_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                   const shard_embedding_options *given)
{
    SHARD_FUNCTION("shard_embedding");
    SHARD_READ_OPTIONS(shard_embedding_options, SHARD_EMBEDDING_OPTIONS_INIT, options, given);
    bool ready = check(weight, index, padding_idx) && options_ok && check_options(weight, index, &options);
    if (options.max_norm != INFINITY) {
        shard_scope scope;
        shard_scope_open(&scope);
        ready = renormalize(ready, weight, index, &options) == SHARD_OK && ready;
        shard_scope_close(&scope);
    }
    return ready ? look_up(weight, index, padding_idx, &options) : NULL;
}
