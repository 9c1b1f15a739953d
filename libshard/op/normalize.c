/* normalize: divide by the 2-norm along a dimension, which may be split over a group. */
#include "op/autocast.h"
#include "comm/function.h"
#include "op/op.h"

enum { SAVED_X, SAVED_SQUARE };

typedef struct normalize_context {
    shard_axis axis;
    double eps;
    shard_group *group; /* over which the dimension is split; NULL: it is not split */
} normalize_context;

/* Adds the ranks' sums. Collective over the group, also for a rank that has failed. */
static shard_status add_up(shard_group *group, bool ready, shard_tensor *sums)
{
    if (!ready)
        return shard_group_fail(group);
    return shard_group_all_reduce(group, shard_device_of(sums), shard_tensor_memory(sums), shard_numel(sums), SHARD_FLOAT64,
                                  SHARD_SUM);
}

/* ---- backward ---- */

static shard_status normalize_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const normalize_context *c = node->context;
    shard_tensor *x = shard_saved(node, SAVED_X), *square = shard_saved(node, SAVED_SQUARE);
    shard_tensor *dot = shard_workspace(dy, c->axis.outer * c->axis.inner, SHARD_FLOAT64);
    dx[0] = shard_gradient_over(node, 0, dy);
    void *memory[5];
    bool ready = x && square && dot && dx[0] && shard_load(SHARD_INPUTS(x, square, dy, dot, dx[0]), memory);
    if (c->group) {
        ready = ready && SHARD_RUN(dy, normalize_backward, &c->axis, c->eps, true, memory[0], memory[1], memory[2], memory[3],
                                   NULL, dy->dtype) == SHARD_OK;
        SHARD_TRY(add_up(c->group, ready, dot));
    }
    if (!ready)
        return shard_last_status();
    return SHARD_RUN(dy, normalize_backward, &c->axis, c->eps, !c->group, memory[0], memory[1], memory[2], memory[3], memory[4],
                     dy->dtype);
}

static const shard_node_type normalize_type = {.name = "normalize", .backward = normalize_backward};

/* ---- forward ---- */

static bool check(shard_tensor *x, int *dim, double eps)
{
    static const char function[] = "shard_normalize";
    if (!shard_check_operand(function, x) || shard_resolve_dim(function, &x->shape, *dim, dim) != SHARD_OK ||
        !shard_check_operands(function, SHARD_INPUTS(x)))
        return false;
    if (x->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(function, x);
    if (eps >= 0)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: eps is %g; it must be at least 0", function, eps);
    return false;
}

static shard_tensor *compute(shard_tensor *x, const normalize_context *c, shard_tensor *square)
{
    shard_tensor *y = shard_tensor_like(x);
    void *memory[3];
    bool ready = square && y && shard_load(SHARD_INPUTS(x, square, y), memory);
    if (c->group) {
        ready = ready && SHARD_RUN(x, normalize, &c->axis, c->eps, true, memory[0], memory[1], NULL, x->dtype) == SHARD_OK;
        ready = add_up(c->group, ready, square) == SHARD_OK;
    }
    if (!ready)
        return NULL;
    return shard_result(y, SHARD_RUN(x, normalize, &c->axis, c->eps, !c->group, memory[0], memory[1], memory[2], x->dtype));
}

static shard_tensor *normalize(shard_tensor *given, int dim, double eps)
{
    shard_tensor *x = check(given, &dim, eps) ? shard_autocast_wide(given) : NULL;
    if (!x) {
        if (given && shard_is_split(given, dim))
            shard_group_fail(given->placement.group);
        return NULL;
    }
    normalize_context context = {
        .axis = shard_axis_along(x, dim), .eps = eps, .group = shard_is_split(x, dim) ? x->placement.group : NULL};
    if (context.group) {
        shard_require_identical_operand(x);
        shard_require_identical("eps %.9g", eps);
    }
    shard_tensor *square = shard_workspace(x, context.axis.outer * context.axis.inner, SHARD_FLOAT64);
    shard_tensor *y = compute(x, &context, square);
    shard_node *node = shard_record(&normalize_type, y, SHARD_INPUTS(x), sizeof context);
    if (node) {
        *(normalize_context *)node->context = context;
        shard_save_for_backward(node, SAVED_X, x);
        shard_save_for_backward(node, SAVED_SQUARE, square);
    }
    return y;
}

shard_tensor *shard_normalize(shard_tensor *x, int dim, double eps)
{
    SHARD_FUNCTION("shard_normalize");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(normalize(x, dim, eps), &scope);
    shard_scope_close(&scope);
    return y;
}
