/* sum, mean: of all elements, added up in float64. */
#include "op/autocast.h"
#include "op/op.h"

typedef struct reduce_context {
    double factor;
} reduce_context;

/* y = factor * sum of x. The device's sums of batch norm are in float64 for every dtype of x; the second one, of
 * squares, is not used. */
static shard_status add_up(shard_tensor *x, double factor, shard_tensor *y)
{
    shard_tensor *sums = shard_workspace(x, 2, SHARD_FLOAT64);
    void *memory[3];
    if (!sums || !y || !shard_load(SHARD_INPUTS(x, sums, y), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(x, batch_norm_sums, shard_numel(x), 1, memory[0], NULL, memory[1], x->dtype));
    SHARD_TRY(SHARD_RUN(x, axpby, 1, factor, memory[1], 0.0, memory[1], SHARD_FLOAT64));
    return SHARD_RUN(x, cast, 1, memory[1], SHARD_FLOAT64, memory[2], y->dtype);
}

/* The gradient: factor * dy for each element. */
static shard_status reduce_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const reduce_context *context = node->context;
    shard_tensor *value = shard_workspace(dy, 1, dy->dtype);
    dx[0] = shard_make_gradient(node, 0);
    void *memory[3];
    if (!value || !dx[0] || !shard_load(SHARD_INPUTS(dy, value, dx[0]), memory))
        return shard_last_status();
    int64_t n = shard_numel(dx[0]);
    SHARD_TRY(SHARD_RUN(dy, axpby, 1, context->factor, memory[0], 0.0, memory[1], dy->dtype));
    SHARD_TRY(SHARD_RUN(dy, fill, n, 1.0, memory[2], dy->dtype));
    const shard_expansion over = shard_expansion_rows(n, 1);
    return SHARD_RUN(dy, binary, SHARD_MUL, &over, memory[2], memory[1], memory[2], dy->dtype);
}

static const shard_node_type reduce_type = {.name = "sum", .backward = reduce_backward};

static shard_tensor *reduce(const char *function, shard_tensor *x, double factor)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_tensor_make(SHARD_SCALAR, x->dtype, shard_device_of(x));
    y = shard_scope_return(shard_result(y, add_up(x, factor, y)), &scope);
    shard_scope_close(&scope);
    if (y && x->placement.kind == SHARD_SPLIT)
        y->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = x->placement.group};
    shard_node *node = shard_record(&reduce_type, y, SHARD_INPUTS(x), sizeof(reduce_context));
    shard_name_node(node, function);
    if (node)
        ((reduce_context *)node->context)->factor = factor;
    return y;
}

static bool check(const char *function, shard_tensor *x)
{
    return shard_check_operands(function, SHARD_INPUTS(x)) && shard_check_carried(function, x, SHARD_MAX_DIMS);
}

shard_tensor *shard_sum(shard_tensor *x)
{
    if (!check("shard_sum", x))
        return NULL;
    shard_tensor *wide = shard_autocast_wide(x), *y = wide ? reduce("shard_sum", wide, 1.0) : NULL;
    if (wide != x)
        shard_release(wide);
    return y;
}

shard_tensor *shard_mean(shard_tensor *x)
{
    if (!check("shard_mean", x))
        return NULL;
    double count = 1;
    shard_shape whole = shard_tensor_whole_shape(x);
    for (int i = 0; i < whole.ndim; i++)
        count *= (double)whole.dim[i];
    return reduce("shard_mean", x, 1.0 / count);
}
