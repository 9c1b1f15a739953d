/*
 * Operations on the labels' columns of logits: pick, add, one-hot. If the logits are split by classes, each rank
 * handles the labels in its range, without communication.
 */
#include "base/options.h"
#include "op/autocast.h"
#include "op/op.h"

#include <inttypes.h>

#define LABEL_FAULT(function)                                                                                                    \
    {                                                                                                                            \
        SHARD_ERROR_ARGUMENT, function ": label %" PRId64 " at row %" PRId64 " is outside [0, %" PRId64 ")"                      \
    }
static const shard_fault pick_fault = LABEL_FAULT("shard_pick_labels"), add_fault = LABEL_FAULT("shard_add_at_labels"),
                         one_hot_fault = LABEL_FAULT("shard_one_hot");

/* The labels' positions in x [..., classes]. */
typedef struct columns {
    shard_axis axis; /* rows, local classes, 1 */
    int64_t start;   /* the first local class */
    int64_t ignored; /* the label that selects no column */
    double factor;
} columns;

/* Checks that labels are in [0, classes) or ignore_index, which selects no column. */
static bool check_range(shard_tensor *labels, int64_t classes, int64_t ignore_index, const shard_fault *fault)
{
    void *memory = shard_tensor_memory(labels);
    return memory && SHARD_RUN(labels, check_index, shard_numel(labels), memory, classes, ignore_index, fault, NULL) == SHARD_OK;
}

static bool check_labels(const char *function, shard_tensor *labels)
{
    if (!shard_check_operand(function, labels))
        return false;
    if (labels->dtype == SHARD_INT64)
        return true;
    shard_error(SHARD_ERROR_SHAPE, "%s: labels are %s; int64 is needed (shard_cast)", function, shard_dtype_name(labels->dtype));
    return false;
}

/* Checks that `row` has x's shape without its last dimension and is placed as x's rows are. For split rows it may
 * also be local if the values of the local rows are enough (`local`). */
static bool check_rows(const char *function, const shard_tensor *x, const shard_tensor *row, const char *name, bool local)
{
    shard_shape shape = x->shape;
    shape.ndim--;
    if (!shard_shape_equal(&row->shape, &shape) || shard_device_of(row) != shard_device_of(x)) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: %s of shape %s on %s for x of shape %s on %s; x's device, and its shape without the last dimension, are "
                    "needed",
                    function, name, shard_shape_text(&row->shape), shard_device_of(row)->name, shard_shape_text(&x->shape),
                    shard_device_of(x)->name);
        return false;
    }
    bool by_classes = shard_is_split(x, x->shape.ndim - 1);
    if (shard_placement_equal(&row->placement, &x->placement) && !by_classes)
        return true;
    return (shard_is_local(row) && (local || by_classes)) || shard_refuse_placement(function, row);
}

static bool read_columns(const char *function, shard_tensor *x, shard_tensor *labels, columns *c)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)) || !check_labels(function, labels))
        return false;
    if (x->shape.ndim == 0) {
        shard_error(SHARD_ERROR_SHAPE, "%s: x has shape []; [..., classes] is needed", function);
        return false;
    }
    if (x->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(function, x);
    int last = x->shape.ndim - 1;
    c->axis = shard_axis_along(x, last);
    c->start = shard_is_split(x, last) ? x->placement.start : 0;
    return check_rows(function, x, labels, "labels", true);
}

/* Whether an optional operand is NULL because its maker failed. */
static bool is_failed(const shard_tensor *operand)
{
    return !operand && shard_last_status() != SHARD_OK;
}

static shard_status zero(shard_tensor *x, void *memory)
{
    return SHARD_RUN(x, zero, memory, (size_t)shard_numel(x) * shard_dtype_size(x->dtype));
}

/* ---- pick ---- */

static shard_status pick_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const columns *c = node->context;
    shard_tensor *labels = shard_saved(node, 0);
    dx[0] = labels ? shard_make_gradient(node, 0) : NULL;
    void *memory[3];
    if (!dx[0] || !shard_load(SHARD_INPUTS(labels, dy, dx[0]), memory))
        return shard_last_status();
    SHARD_TRY(zero(dx[0], memory[2]));
    return SHARD_RUN(dy, add_at, &c->axis, 1, c->start, c->ignored, memory[0], 1.0, memory[1], memory[2], dy->dtype);
}

static const shard_node_type pick_type = {.name = "pick_labels", .backward = pick_backward};

shard_tensor *shard_pick_labels(shard_tensor *x, shard_tensor *labels, int64_t ignore_index)
{
    columns c = {.ignored = ignore_index};
    if (!read_columns("shard_pick_labels", x, labels, &c) ||
        !check_range(labels, shard_tensor_whole_shape(x).dim[x->shape.ndim - 1], ignore_index, &pick_fault))
        return NULL;
    int last = x->shape.ndim - 1;
    shard_tensor *y = shard_tensor_make(shard_shape_without(&x->shape, last, false), x->dtype, shard_device_of(x));
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(x, labels, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = x->placement;
    if (shard_is_split(x, last))
        y->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = x->placement.group};
    y = shard_result(y, SHARD_RUN(x, gather_at, &c.axis, 1, c.start, c.ignored, memory[1], memory[0], memory[2], x->dtype));
    shard_node *node = shard_record(&pick_type, y, SHARD_INPUTS(x), sizeof c);
    if (node) {
        *(columns *)node->context = c;
        shard_save_for_backward(node, 0, labels);
    }
    return y;
}

/* ---- add ---- */

enum { X, VALUES };

/* The gradient of the values: factor * dy at the labels; each rank has the gradient of its local classes. */
static shard_tensor *gradient_of_values(shard_node *node, shard_tensor *dy)
{
    const columns *c = node->context;
    shard_tensor *labels = shard_saved(node, 0), *gradient = labels ? shard_make_gradient(node, VALUES) : NULL;
    void *memory[3];
    if (!gradient || !shard_load(SHARD_INPUTS(labels, dy, gradient), memory) ||
        SHARD_RUN(dy, gather_at, &c->axis, 1, c->start, c->ignored, memory[0], memory[1], memory[2], dy->dtype) != SHARD_OK ||
        SHARD_RUN(dy, axpby, shard_numel(gradient), c->factor, memory[2], 0.0, memory[2], dy->dtype) != SHARD_OK)
        return NULL;
    if (shard_is_split(dy, dy->shape.ndim - 1))
        gradient->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = dy->placement.group};
    return gradient;
}

static shard_status add_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[X] = dy;
    if (!shard_wants(node, VALUES))
        return SHARD_OK;
    dx[VALUES] = gradient_of_values(node, dy);
    return dx[VALUES] ? SHARD_OK : shard_last_status();
}

static const shard_node_type add_type = {.name = "add_at_labels", .backward = add_backward};

static shard_tensor *add(shard_tensor *x, shard_tensor *labels, shard_tensor *values, double factor, int64_t ignore_index)
{
    static const char function[] = "shard_add_at_labels";
    columns c = {.ignored = ignore_index, .factor = factor};
    if (!read_columns(function, x, labels, &c) ||
        (values &&
         (!shard_check_operands(function, SHARD_INPUTS(x, values)) || !check_rows(function, x, values, "values", false))) ||
        !check_range(labels, shard_tensor_whole_shape(x).dim[x->shape.ndim - 1], ignore_index, &add_fault))
        return NULL;
    shard_tensor *y = shard_tensor_like(x);
    void *memory[4];
    if (!y || !shard_load(SHARD_INPUTS(x, labels, values, y), memory) ||
        SHARD_RUN(x, axpby, shard_numel(x), 1.0, memory[0], 0.0, memory[3], x->dtype) != SHARD_OK)
        return NULL;
    y = shard_result(y, SHARD_RUN(x, add_at, &c.axis, 1, c.start, c.ignored, memory[1], factor, memory[2], memory[3], x->dtype));
    shard_node *node = shard_record(&add_type, y, SHARD_INPUTS(x, values), sizeof c);
    if (node) {
        *(columns *)node->context = c;
        shard_save_for_backward(node, 0, shard_wants(node, VALUES) ? labels : NULL);
    }
    return y;
}

shard_tensor *shard_add_at_labels(shard_tensor *x, shard_tensor *labels, shard_tensor *values, double factor,
                                  int64_t ignore_index)
{
    if (is_failed(values))
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *same[] = {x, values};
    shard_autocast_promote(2, same);
    shard_tensor *y = shard_scope_return(add(same[X], labels, same[VALUES], factor, ignore_index), &scope);
    shard_scope_close(&scope);
    return y;
}

/* ---- one-hot ---- */

/* An empty tensor for the rows' one-hot vectors, or the shape and placement of `like`. */
static shard_tensor *make_one_hot(shard_tensor *labels, int64_t classes, const shard_one_hot_options *options, columns *c)
{
    static const char function[] = "shard_one_hot";
    shard_tensor *like = options->like;
    shard_shape shape = labels->shape;
    if (!like) {
        if (classes < 0 || shape.ndim == SHARD_MAX_DIMS || labels->placement.kind == SHARD_PARTIAL)
            return shard_fail_null(
                SHARD_ERROR_ARGUMENT,
                "%s: %" PRId64 " classes for labels of shape %s that are %s; a number of at least 0 and labels "
                "of fewer than %d dimensions that are not partial are needed",
                function, classes, shard_shape_text(&labels->shape), shard_placement_text(&labels->placement), SHARD_MAX_DIMS);
        shape.dim[shape.ndim++] = classes;
        shard_dtype dtype = shard_dtype_is_float(options->dtype) ? options->dtype : SHARD_FLOAT32;
        shard_tensor *y = shard_tensor_make(shape, dtype, shard_device_of(labels));
        if (y)
            y->placement = labels->placement;
        c->axis = (shard_axis){.outer = shard_numel(labels), .size = classes, .inner = 1};
        return y;
    }
    if (!read_columns(function, like, labels, c))
        return NULL;
    int64_t whole = shard_tensor_whole_shape(like).dim[like->shape.ndim - 1];
    if (classes != whole)
        return shard_fail_null(SHARD_ERROR_SHAPE,
                               "%s: %" PRId64 " classes, and .like has %" PRId64
                               " along its last dimension; one number is needed",
                               function, classes, whole);
    return shard_tensor_like(like);
}

static shard_tensor *one_hot(shard_tensor *labels, int64_t classes, const shard_one_hot_options *options)
{
    if (!check_labels("shard_one_hot", labels))
        return NULL;
    if (shard_dtype_size(options->dtype) == 0)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_one_hot: there is no dtype %d", (int)options->dtype);
    columns c = {.ignored = options->ignore_index};
    shard_tensor *y = make_one_hot(labels, classes, options, &c);
    void *memory[2];
    if (!y || !check_range(labels, classes, c.ignored, &one_hot_fault) || !shard_load(SHARD_INPUTS(labels, y), memory) ||
        zero(y, memory[1]) != SHARD_OK ||
        SHARD_RUN(y, add_at, &c.axis, 1, c.start, c.ignored, memory[0], 1.0, NULL, memory[1], y->dtype) != SHARD_OK)
        return NULL;
    return options->like || options->dtype == y->dtype ? y : shard_cast(y, options->dtype);
}

shard_tensor *shard_one_hot_with(shard_tensor *labels, int64_t classes, const shard_one_hot_options *given)
{
    SHARD_READ_OPTIONS(shard_one_hot_options, SHARD_ONE_HOT_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (is_failed(options.like))
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(one_hot(labels, classes, &options), &scope);
    shard_scope_close(&scope);
    return y;
}
