/* add, mul: two tensors, the second repeated over the first's leading dimensions. */
#include "op/autocast.h"
#include "op/op.h"

/* A second operand of cols elements goes with each of the first's rows. */
static shard_status apply(shard_binary kind, shard_tensor *a, shard_tensor *b, shard_tensor *y)
{
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(a, b, y), memory))
        return shard_last_status();
    int64_t rows = shard_shape_product(&a->shape, 0, a->shape.ndim - b->shape.ndim);
    return SHARD_RUN(a, binary, kind, rows, shard_numel(b), memory[0], memory[1], memory[2], a->dtype);
}

/* The gradient of what was repeated: x summed over the rows that it was repeated for. */
static shard_tensor *sum_over_rows(shard_node *node, shard_tensor *x)
{
    bool accumulate;
    shard_tensor *sum = shard_gradient_target(node, 1, &accumulate);
    void *memory[2];
    if (!sum || !shard_load(SHARD_INPUTS(x, sum), memory))
        return NULL;
    shard_place_sum(sum, x);
    int64_t rows = shard_shape_product(&x->shape, 0, x->shape.ndim - sum->shape.ndim);
    shard_status status = SHARD_RUN(x, sum_rows, rows, shard_numel(sum), memory[0], x->dtype, accumulate, memory[1], sum->dtype);
    return status == SHARD_OK ? sum : NULL;
}

static bool is_repeated(const shard_node *node)
{
    return node->edge[1].shape.ndim < node->edge[0].shape.ndim;
}

static shard_status add_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = dy;
    if (shard_wants(node, 1)) /* a sum takes 16 bits to float32 on its way */
        dx[1] = is_repeated(node) || node->edge[1].dtype != dy->dtype ? sum_over_rows(node, dy) : dy;
    return !shard_wants(node, 1) || dx[1] ? SHARD_OK : shard_last_status();
}

static shard_status mul_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    if (shard_wants(node, 1)) {
        shard_tensor *a = shard_saved(node, 0), *product = a ? shard_tensor_like(dy) : NULL;
        SHARD_TRY(a ? apply(SHARD_MUL, dy, a, product) : shard_last_status());
        dx[1] = is_repeated(node) ? sum_over_rows(node, product) : product;
        if (!dx[1])
            return shard_last_status();
    }
    if (!shard_wants(node, 0))
        return SHARD_OK;
    shard_tensor *b = shard_saved(node, 1);
    dx[0] = b ? shard_gradient_over(node, 0, dy) : NULL;
    return b ? apply(SHARD_MUL, dy, b, dx[0]) : shard_last_status();
}

static const shard_node_type add_type = {.name = "add", .backward = add_backward};
static const shard_node_type mul_type = {.name = "mul", .backward = mul_backward};

static bool check_shapes(const char *function, const shard_tensor *a, const shard_tensor *b)
{
    int lead = a->shape.ndim - b->shape.ndim;
    bool fit = lead >= 0;
    for (int i = 0; fit && i < b->shape.ndim; i++)
        fit = a->shape.dim[lead + i] == b->shape.dim[i];
    if (!fit)
        shard_error(SHARD_ERROR_SHAPE, "%s: shapes %s and %s; the second must be the end of the first", function,
                    shard_shape_text(&a->shape), shard_shape_text(&b->shape));
    return fit;
}

static bool check_placements(const char *function, shard_binary kind, const shard_tensor *a, const shard_tensor *b)
{
    int lead = a->shape.ndim - b->shape.ndim;
    shard_placement there = b->placement;
    if (there.kind == SHARD_SPLIT)
        there.dim += lead;
    bool alike = shard_placement_equal(&a->placement, &there) && (kind == SHARD_ADD || there.kind != SHARD_PARTIAL);
    if (alike || (a->placement.kind == SHARD_SPLIT && a->placement.dim < lead && shard_is_replicated(b)))
        return true;
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: no rule for a tensor of shape %s that is %s and one of shape %s that is %s",
                function, shard_shape_text(&a->shape), shard_placement_text(&a->placement), shard_shape_text(&b->shape),
                shard_placement_text(&b->placement));
    return false;
}

/* Of a and operand, which stands for b. */
static shard_tensor *forward(const char *function, shard_binary kind, shard_tensor *a, shard_tensor *b, shard_tensor *operand)
{
    if (!shard_check_operands(function, SHARD_INPUTS(a, operand)) || !check_shapes(function, a, operand) ||
        !check_placements(function, kind, a, operand))
        return NULL;
    shard_tensor *y = shard_tensor_like(a);
    y = shard_result(y, apply(kind, a, operand, y));
    shard_node *node = shard_record(kind == SHARD_ADD ? &add_type : &mul_type, y, SHARD_INPUTS(a, b), 0);
    if (node && kind == SHARD_MUL) {
        shard_save_for_backward(node, 0, shard_wants(node, 1) ? a : NULL);
        shard_save_for_backward(node, 1, shard_wants(node, 0) ? operand : NULL);
    }
    return y;
}

static shard_tensor *binary(const char *function, shard_binary kind, shard_tensor *a, shard_tensor *b)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *x[] = {a, b};
    shard_autocast_promote(2, x);
    shard_tensor *y = shard_scope_hand_out(forward(function, kind, x[0], x[1], x[1]), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_add(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_add", SHARD_ADD, a, b);
}

shard_tensor *shard_add_bias(shard_tensor *y, shard_tensor *bias)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *operand;
    shard_autocast_product(1, &bias, &operand);
    y = shard_scope_hand_out(forward("shard_linear", SHARD_ADD, y, bias, operand), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_mul(shard_tensor *a, shard_tensor *b)
{
    return binary("shard_mul", SHARD_MUL, a, b);
}
