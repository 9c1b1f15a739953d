/* linear: x weight^T + bias, with a local or split weight. */
#include "op/deferred_linear.h"
#include "op/linear_rows.h"
#include "op/op.h"

#include "device/graph.h"

enum { X, WEIGHT, BIAS };

typedef struct linear_context {
    int64_t rows, in, out;
    shard_group *columns; /* the weight is split along out over this group; NULL: it is not */
} linear_context;

static shard_status input_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const linear_context *context = node->context;
    shard_tensor *leaf = node->edge[WEIGHT].leaf;
    const shard_tensor *saved = shard_values_are_streamed(leaf) ? shard_saved(node, WEIGHT) : NULL;
    bool streamed = saved && saved->storage == leaf->storage; /* false: the weight was partitioned since */
    shard_tensor *weight = streamed ? leaf : shard_saved_operand(node, WEIGHT, dy->dtype);
    shard_tensor *to = weight ? shard_make_gradient(node, X) : NULL;
    void *memory[3];
    dx[X] = to;
    if (to && context->columns)
        to->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = context->columns};
    if (streamed)
        return shard_linear_rows_input_gradient(dy, weight, to);
    shard_matmul_shape shape = {.batch = 1, .m = context->rows, .n = context->in, .k = context->out};
    if (!to || !shard_load(SHARD_INPUTS(weight, to), memory) || !shard_load_rows(SHARD_INPUTS(dy), memory + 2, &shape.ld_a))
        return shard_last_status();
    shape.wide_c = to->dtype != dy->dtype;
    return SHARD_RUN(dy, matmul, &shape, memory[2], memory[0], memory[1], dy->dtype);
}

/* Whether the weight's gradient is streamed in row blocks; dx then has no memory. */
static bool weight_gradient_streams(shard_node *node, shard_tensor *dy, shard_tensor *x, shard_tensor **dx)
{
    const linear_context *context = node->context;
    shard_tensor *leaf = node->edge[WEIGHT].leaf, *to = NULL;
    shard_pending_sums pending;
    if (!x || !leaf || !leaf->leaf->rows || !(to = shard_gradient_taken(node, WEIGHT)))
        return false;
    if (!context->columns)
        shard_place_sum(to, dy);
    if (to->placement.kind == SHARD_PARTIAL || shard_gradient_pending_sums(node, WEIGHT, to, &pending) != SHARD_OK ||
        !leaf->leaf->rows->gradient_begin(leaf->leaf->rows, &pending))
        return false;
    dx[WEIGHT] = to;
    return true;
}

static shard_status weight_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const linear_context *context = node->context;
    shard_matmul_shape shape = {.batch = 1, .m = context->out, .n = context->in, .k = context->rows, .transpose_a = true};
    shard_tensor *x = shard_saved_operand(node, X, dy->dtype);
    if (weight_gradient_streams(node, dy, x, dx))
        return shard_linear_rows_weight_gradient(dy, node->edge[WEIGHT].leaf, x);
    shard_tensor *to = x ? shard_gradient_target(node, WEIGHT, &shape.accumulate) : NULL;
    void *memory[3];
    int64_t pitch[2];
    dx[WEIGHT] = to;
    if (!to || !shard_load(SHARD_INPUTS(to), memory) || !shard_load_rows(SHARD_INPUTS(dy, x), memory + 1, pitch))
        return shard_last_status();
    shape.ld_a = pitch[0];
    shape.ld_b = pitch[1];
    shape.wide_c = to->dtype != dy->dtype;
    if (!context->columns)
        shard_place_sum(to, dy);
    return SHARD_RUN(dy, matmul, &shape, memory[1], memory[2], memory[0], dy->dtype);
}

static shard_status bias_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const linear_context *context = node->context;
    bool accumulate;
    shard_tensor *to = shard_gradient_target(node, BIAS, &accumulate);
    void *memory[2];
    int64_t pitch;
    dx[BIAS] = to;
    if (!to || !shard_load(SHARD_INPUTS(to), memory) || !shard_load_rows(SHARD_INPUTS(dy), memory + 1, &pitch))
        return shard_last_status();
    if (!context->columns)
        shard_place_sum(to, dy);
    return SHARD_RUN(dy, sum_rows, context->rows, context->out, pitch, memory[1], dy->dtype, accumulate, memory[0], to->dtype);
}

static shard_status linear_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    if (shard_wants(node, BIAS))
        SHARD_TRY(bias_gradient(node, dy, dx));
    if (shard_wants(node, WEIGHT))
        SHARD_TRY(weight_gradient(node, dy, dx));
    return shard_wants(node, X) ? input_gradient(node, dy, dx) : SHARD_OK;
}

static const shard_node_type linear_type = {.name = "linear", .backward = linear_backward};

static bool check_shapes(const char *function, const shard_tensor *x, const shard_tensor *weight, const shard_tensor *bias)
{
    if (weight->shape.ndim != 2 || x->shape.ndim < 1 || x->shape.dim[x->shape.ndim - 1] != weight->shape.dim[1]) {
        bool features = x->shape.ndim > 0 && shard_is_split(x, x->shape.ndim - 1); /* as a COLUMN layer's result */
        shard_error(SHARD_ERROR_SHAPE, "%s: x of shape %s and a weight of shape %s; [..., in] and [out, in] are needed%s",
                    function, shard_tensor_shape_text(x), shard_tensor_shape_text(weight),
                    features ? ": a layer of SHARD_SPLIT_ROW takes x, or shard_gather_from_group makes it local" : "");
        return false;
    }
    if (bias && (bias->shape.ndim != 1 || bias->shape.dim[0] != weight->shape.dim[0])) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a bias of shape %s for a weight of shape %s; [out] is needed", function,
                    shard_tensor_shape_text(bias), shard_tensor_shape_text(weight));
        return false;
    }
    return true;
}

static bool same_range(const shard_placement *a, const shard_placement *b)
{
    return a->kind == SHARD_SPLIT && b->kind == SHARD_SPLIT && shard_group_same(a->group, b->group) && a->start == b->start &&
           a->whole == b->whole;
}

/* Sets the result's placement; false with the error set if there is no rule. */
static bool choose_placement(const char *function, const shard_tensor *x, const shard_tensor *weight, const shard_tensor *bias,
                             shard_placement *placement)
{
    int last = x->shape.ndim - 1;
    if (shard_is_local(weight)) {
        *placement = x->placement;
        return shard_check_carried(function, x, last) && (!bias || shard_check_carried(function, bias, 0));
    }
    if (shard_is_split(weight, 0)) {
        *placement = weight->placement;
        placement->dim = last;
        if (bias && !same_range(&bias->placement, &weight->placement)) {
            shard_error(SHARD_ERROR_UNSUPPORTED, "%s: the weight is split along out, the bias must be in the same way; it is %s",
                        function, shard_placement_text(&bias->placement));
            return false;
        }
        return shard_check_carried(function, x, 0);
    }
    if (!shard_is_split(weight, 1))
        return shard_refuse_placement(function, weight);
    *placement = (shard_placement){.kind = SHARD_PARTIAL, .group = weight->placement.group};
    if (!shard_is_split(x, last) || !same_range(&x->placement, &weight->placement)) {
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: the weight is split along in, x must be in the same way; it has shape %s and is %s", function,
                    shard_shape_text(&x->shape), shard_placement_text(&x->placement));
        return false;
    }
    if (bias)
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: the weight is split along in, so a bias would be added once for each rank; add "
                    "it to the sum",
                    function);
    return !bias;
}

/* Whether the weight is of another 16-bit type than autocast's: its cast is recorded, and needs its values. */
static bool is_cast(const shard_tensor *weight, shard_dtype autocast)
{
    return autocast != SHARD_FLOAT32 && weight->dtype != autocast && shard_dtype_size(weight->dtype) == 2;
}

static bool is_streamed(const shard_tensor *weight, shard_dtype autocast)
{
    return shard_values_are_streamed(weight) && !is_cast(weight, autocast);
}

/* A weight that is streamed, or needed later, is represented by an empty tensor of its shape and type among the operands. */
static void choose_operands(int inputs, shard_tensor **input, shard_tensor **operand, bool defer)
{
    shard_tensor *weight = input[WEIGHT];
    shard_dtype autocast = shard_autocast_dtype();
    bool empty = weight && (defer || is_streamed(weight, autocast));
    if (empty)
        input[WEIGHT] = NULL;
    shard_autocast_product(inputs, input, operand);
    if (!empty)
        return;
    input[WEIGHT] = operand[WEIGHT] = weight;
    if (autocast != SHARD_FLOAT32 && weight->dtype == SHARD_FLOAT32)
        operand[WEIGHT] = shard_tensor_make(weight->shape, autocast, shard_device_of(weight));
    if (operand[WEIGHT])
        operand[WEIGHT]->placement = weight->placement;
}

static shard_status compute(shard_tensor *const *operand, shard_tensor *y)
{
    shard_tensor *x = operand[X], *weight = operand[WEIGHT], *bias = operand[BIAS];
    void *memory[4];
    int64_t pitch[2];
    if (shard_values_are_streamed(weight))
        return shard_linear_rows(x, weight, bias, y);
    if (!y || !shard_load(SHARD_INPUTS(weight, bias), memory) || !shard_load_rows(SHARD_INPUTS(x, y), memory + 2, pitch))
        return shard_last_status();
    const shard_linear_shape shape = {.rows = shard_shape_product(&x->shape, 0, x->shape.ndim - 1),
                                      .in = weight->shape.dim[1],
                                      .out = weight->shape.dim[0],
                                      .pitch_x = pitch[0],
                                      .pitch_y = pitch[1]};
    return SHARD_RUN(x, linear, &shape, memory[2], memory[0], memory[1], memory[3], x->dtype);
}

/* The values of y, now or when they are needed. */
static shard_status make_values(shard_tensor *y, shard_tensor *const *input, shard_tensor *const *operand, bool defer)
{
    bool empty = defer || shard_values_are_streamed(input[WEIGHT]);
    shard_tensor *const with[] = {operand[X], empty ? input[WEIGHT] : operand[WEIGHT], operand[BIAS]};
    if (!y && !shard_values_are_streamed(input[WEIGHT])) /* of which the ranks gather the rows together */
        return shard_last_status();
    if (defer)
        return shard_defer_linear(y, &linear_type, input, with, compute);
    if (y)
        shard_tensor_pad_rows(y, SHARD_RUN(y, row_pitch, y->shape.dim[y->shape.ndim - 1], y->dtype));
    return compute(with, y);
}

static shard_tensor *linear(shard_tensor **input, int inputs, bool defer)
{
    static const char function[] = "shard_linear";
    shard_tensor *operand[BIAS + 1] = {NULL};
    choose_operands(inputs, input, operand, defer);
    shard_tensor *x = operand[X], *weight = operand[WEIGHT], *bias = operand[BIAS];
    shard_placement placement;
    if (!shard_check_operands(function, inputs, operand) || !check_shapes(function, x, weight, bias) ||
        !choose_placement(function, x, weight, bias, &placement))
        return NULL;
    int last = x->shape.ndim - 1;
    linear_context context = {
        .rows = shard_shape_product(&x->shape, 0, last),
        .in = weight->shape.dim[1],
        .out = weight->shape.dim[0],
        .columns = shard_is_split(weight, 0) ? weight->placement.group : NULL,
    };
    shard_shape shape = x->shape;
    shape.dim[last] = context.out;
    shard_tensor *y = shard_tensor_make(shape, x->dtype, shard_device_of(x));
    if (y)
        y->placement = placement;
    y = shard_result(y, make_values(y, input, operand, defer));
    shard_node *node = shard_record(&linear_type, y, inputs, input, sizeof context);
    if (node) {
        *(linear_context *)node->context = context;
        if (shard_wants(node, WEIGHT))
            shard_save_operand(node, X, input[X], x);
        if (shard_wants(node, X))
            shard_save_operand(node, WEIGHT, input[WEIGHT], defer ? input[WEIGHT] : weight);
    }
    return y;
}

static shard_tensor *linear_in_scope(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, bool defer)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *input[] = {x, weight, bias};
    int inputs = bias ? 3 : 2;
    defer = defer && x && weight && shard_will_record(inputs, input) && !shard_values_are_streamed(weight) &&
            !is_cast(weight, shard_autocast_dtype()) && !shard_is_capturing();
    shard_tensor *y = shard_scope_return(linear(input, inputs, defer), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias)
{
    return linear_in_scope(x, weight, bias, false);
}

shard_tensor *shard_linear_deferred(shard_tensor *x, shard_tensor *weight, shard_tensor *bias)
{
    return linear_in_scope(x, weight, bias, true);
}
