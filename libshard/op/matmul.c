/* matmul: products of matrices, one or a batch. */
#include "op/autocast.h"
#include "op/op.h"

enum { A, B };

/* The forward's product. If b has no leading dimensions, a is one tall matrix. */
typedef struct matmul_context {
    shard_matmul_shape shape;
} matmul_context;

static shard_status multiply(shard_matmul_shape shape, shard_tensor *a, shard_tensor *b, shard_tensor *c)
{
    void *memory[3];
    if (!a || !b || !c || !shard_load(SHARD_INPUTS(a, b, c), memory))
        return shard_last_status();
    shape.stride_a = shape.m * shape.k;
    shape.stride_b = shape.k * shape.n;
    shape.stride_c = shape.m * shape.n;
    shape.wide_c = c->dtype != a->dtype;
    return SHARD_RUN(c, matmul, &shape, memory[0], memory[1], memory[2], a->dtype);
}

static shard_status matmul_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const shard_matmul_shape *y = &((const matmul_context *)node->context)->shape;
    if (shard_wants(node, B)) { /* a^T dy */
        shard_matmul_shape shape = {.batch = y->batch, .m = y->k, .n = y->n, .k = y->m, .transpose_a = true};
        shard_tensor *a = shard_saved_operand(node, A, dy->dtype);
        dx[B] = a ? shard_gradient_target(node, B, &shape.accumulate) : NULL;
        shard_place_sum(dx[B], dy);
        SHARD_TRY(multiply(shape, a, dy, dx[B]));
    }
    if (!shard_wants(node, A))
        return SHARD_OK;
    shard_matmul_shape shape = {.batch = y->batch, .m = y->m, .n = y->k, .k = y->n, .transpose_b = true}; /* dy b^T */
    shard_tensor *b = shard_saved_operand(node, B, dy->dtype);
    dx[A] = b ? shard_gradient_target(node, A, &shape.accumulate) : NULL;
    return multiply(shape, dy, b, dx[A]);
}

static const shard_node_type matmul_type = {.name = "matmul", .backward = matmul_backward};

static bool check_shapes(const char *function, const shard_tensor *a, const shard_tensor *b)
{
    int na = a->shape.ndim, nb = b->shape.ndim;
    bool fit = na >= 2 && nb >= 2 && (nb == 2 || na == nb) && a->shape.dim[na - 1] == b->shape.dim[nb - 2];
    for (int i = 0; fit && i < nb - 2; i++)
        fit = a->shape.dim[i] == b->shape.dim[i];
    if (!fit)
        shard_error(SHARD_ERROR_SHAPE, "%s: shapes %s and %s; [..., m, k] and [..., k, n] or [k, n] are needed", function,
                    shard_tensor_shape_text(a), shard_tensor_shape_text(b));
    return fit;
}

/* a may be split along any dimension but k if b is local and has no such dimension, and along a leading one if b has
 * the same split. */
static bool check_placements(const char *function, const shard_tensor *a, const shard_tensor *b)
{
    int lead = b->shape.ndim - 2;
    if (shard_is_local(b) && (lead == 0 || shard_is_local(a) || shard_is_split(a, lead)))
        return shard_check_carried(function, a, a->shape.ndim - 1);
    if (shard_placement_equal(&a->placement, &b->placement) && shard_check_carried(function, a, lead))
        return true;
    return shard_refuse_placement(function, shard_is_local(b) ? a : b);
}

static shard_tensor *matmul(shard_tensor **input)
{
    static const char function[] = "shard_matmul";
    shard_tensor *operand[B + 1];
    shard_autocast_product(B + 1, input, operand);
    shard_tensor *a = operand[A], *b = operand[B];
    if (!shard_check_operands(function, B + 1, operand) || !check_shapes(function, a, b) || !check_placements(function, a, b))
        return NULL;
    int last = a->shape.ndim - 1;
    shard_matmul_shape product = {
        .batch = shard_shape_product(&b->shape, 0, b->shape.ndim - 2),
        .m = shard_shape_product(&a->shape, b->shape.ndim - 2, last),
        .n = b->shape.dim[b->shape.ndim - 1],
        .k = a->shape.dim[last],
    };
    shard_shape shape = a->shape;
    shape.dim[last] = product.n;
    shard_tensor *y = shard_tensor_make(shape, a->dtype, shard_device_of(a));
    y = shard_result(y, multiply(product, a, b, y));
    if (!y)
        return NULL;
    y->placement = a->placement;
    shard_node *node = shard_record(&matmul_type, y, B + 1, input, sizeof(matmul_context));
    if (node) {
        ((matmul_context *)node->context)->shape = product;
        if (shard_wants(node, B))
            shard_save_operand(node, A, input[A], a);
        if (shard_wants(node, A))
            shard_save_operand(node, B, input[B], b);
    }
    return y;
}

shard_tensor *shard_matmul(shard_tensor *a, shard_tensor *b)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(matmul((shard_tensor *[]){a, b}), &scope);
    shard_scope_close(&scope);
    return y;
}
