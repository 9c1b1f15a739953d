/*
 * logsumexp: the logarithm of the sum of exponentials along a dimension, which may be split over a group.
 *
 * It is the lse of a cross-entropy, by the entries of the loss, and its gradient dy * exp(x - lse) is that of a loss whose
 * label is a class of no rank.
 */
#include "op/logsumexp.h"

#include "comm/function.h"
#include "op/autocast.h"
#include "op/class_rows.h"

enum { SAVED_X, SAVED_NUMBERS };

static int last_dim(const shard_tensor *x)
{
    return x->shape.ndim - 1;
}

static shard_group *group_of(const shard_tensor *x, int dim)
{
    return x && shard_is_split(x, dim) ? x->placement.group : NULL;
}

/* The label 0 of all rows is outside the columns. */
static shard_cross_entropy_shape shape_of(const shard_tensor *x)
{
    int64_t cols = x->shape.dim[last_dim(x)];
    return (shard_cross_entropy_shape){.rows = shard_shape_product(&x->shape, 0, last_dim(x)),
                                       .cols = cols,
                                       .pitch = cols,
                                       .col0 = 1,
                                       .classes = cols + 1,
                                       .ignore_index = -1};
}

/* Memory [count] whose elements are value; NULL with the error set. */
static void *constants(const shard_tensor *like, int64_t count, double value, shard_dtype dtype)
{
    shard_tensor *made = shard_workspace(like, count, dtype);
    void *memory = made ? shard_tensor_memory(made) : NULL;
    bool done = memory && SHARD_RUN(like, fill, count, value, memory, dtype) == SHARD_OK;
    return done ? memory : NULL;
}

/* ---- backward ---- */

static shard_status logsumexp_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_tensor *x = shard_saved(node, SAVED_X), *lse = x ? shard_saved(node, SAVED_NUMBERS) : NULL;
    shard_tensor *slope = shard_workspace(dy, shard_numel(dy), SHARD_FLOAT64);
    void *memory[3], *of_x, *to;
    if (!lse || !slope || !shard_load(SHARD_INPUTS(dy, slope, lse), memory) ||
        SHARD_RUN(dy, cast, shard_numel(dy), memory[0], dy->dtype, memory[1], SHARD_FLOAT64) != SHARD_OK)
        return shard_last_status();
    shard_cross_entropy_shape shape = shape_of(x);
    const double *number = memory[2];
    int64_t *label = constants(x, shape.rows, 0, SHARD_INT64);
    const shard_loss_rows rows = {.lse = number + SHARD_CE_LSE * shape.rows,
                                  .lse_error = number + SHARD_CE_LSE_ERROR * shape.rows,
                                  .slope = memory[1],
                                  .scale = constants(x, shape.rows, 1, SHARD_FLOAT64)};
    if (!label || !rows.scale || !shard_load_rows(SHARD_INPUTS(x), &of_x, &shape.pitch))
        return shard_last_status();
    dx[0] = shard_class_rows_gradient(node, x, shape.pitch);
    if (!dx[0] || !shard_load_rows(SHARD_INPUTS(dx[0]), &to, &(int64_t){0}))
        return shard_last_status();
    return SHARD_RUN(x, cross_entropy_backward, &shape, of_x, label, NULL, NULL, &rows, to, x->dtype);
}

static const shard_node_type logsumexp_type = {.name = "logsumexp", .backward = logsumexp_backward};

/* ---- forward ---- */

/* This rank's statistics, in its place among those of the group. */
static bool measure(shard_tensor *x, shard_cross_entropy_shape *shape, const int64_t *label, double *stats)
{
    void *memory;
    return label && stats && shard_load_rows(SHARD_INPUTS(x), &memory, &shape->pitch) &&
           SHARD_RUN(x, cross_entropy_stats, shape, memory, label, NULL, NULL, stats, NULL, NULL, x->dtype) == SHARD_OK;
}

/* The numbers of a loss; NULL with the error set. Collective over the group, also for a rank that has failed. */
static shard_tensor *join(shard_tensor *x, shard_group *group)
{
    int ranks = shard_group_size(group);
    shard_cross_entropy_shape shape = shape_of(x);
    int64_t stride = SHARD_CE_STATS * shape.rows, count = SHARD_CE_NUMBERS * shape.rows;
    shard_tensor *stats = shard_workspace(x, stride * ranks, SHARD_FLOAT64);
    shard_tensor *numbers = shard_workspace(x, count + 1, SHARD_FLOAT64);
    int64_t *label = constants(x, shape.rows, 0, SHARD_INT64);
    void *memory[2];
    bool ready = stats && numbers && shard_load(SHARD_INPUTS(stats, numbers), memory);
    double *all = ready ? memory[0] : NULL, *number = ready ? memory[1] : NULL;
    double *mine = ready ? all + shard_group_rank(group) * stride : NULL;
    if (!measure(x, &shape, label, mine))
        return shard_group_fail(group), NULL;
    if (group)
        shard_require_identical_operand(x);
    shard_status status =
        ranks > 1 ? shard_group_all_gather_equal(group, shard_device_of(x), mine, all, stride, SHARD_FLOAT64) : SHARD_OK;
    if (status == SHARD_OK)
        status =
            SHARD_RUN(x, cross_entropy_join, &shape, false, ranks, stride, all, NULL, label, NULL, number, number + count, NULL);
    return status == SHARD_OK ? numbers : NULL;
}

/* lse - y of the joined numbers, where y is lse rounded to its type; without a gradient. NULL with the error set. */
static shard_tensor *rounding_error(shard_tensor *y, shard_tensor *numbers)
{
    int64_t rows = shard_numel(y);
    shard_tensor *error = shard_tensor_make(y->shape, y->dtype, shard_device_of(y));
    shard_tensor *wide = shard_workspace(y, rows, SHARD_FLOAT64);
    void *memory[4];
    if (!error || !wide || !shard_load(SHARD_INPUTS(y, numbers, wide, error), memory))
        return NULL;
    const double *number = memory[1];
    double *difference = memory[2];
    bool done = SHARD_RUN(y, cast, rows, memory[0], y->dtype, difference, SHARD_FLOAT64) == SHARD_OK &&
                SHARD_RUN(y, axpby, rows, 1, number + SHARD_CE_LSE * rows, -1, difference, SHARD_FLOAT64) == SHARD_OK &&
                SHARD_RUN(y, axpby, rows, 1, number + SHARD_CE_LSE_ERROR * rows, 1, difference, SHARD_FLOAT64) == SHARD_OK;
    return done ? shard_result(error, SHARD_RUN(y, cast, rows, difference, SHARD_FLOAT64, memory[3], y->dtype)) : NULL;
}

/* Along the last dimension. *error: what the result has lost by rounding; NULL: not wanted. Collective over x's group if that is
 * split, also for a rank that has failed. */
static shard_tensor *of_rows(shard_tensor *x, bool keepdim, shard_tensor **error)
{
    int last = last_dim(x);
    shard_group *group = group_of(x, last);
    shard_tensor *y = shard_tensor_make(shard_shape_without(&x->shape, last, keepdim), x->dtype, shard_device_of(x));
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(y), memory + 1))
        return shard_group_fail(group), NULL;
    if (!group)
        y->placement = shard_placement_without(&x->placement, last, keepdim);
    shard_tensor *numbers = join(x, group);
    if (!numbers || !shard_load(SHARD_INPUTS(numbers), memory))
        return NULL;
    const double *lse = (const double *)memory[0] + SHARD_CE_LSE * shard_numel(y);
    y = shard_result(y, SHARD_RUN(y, cast, shard_numel(y), lse, SHARD_FLOAT64, memory[1], y->dtype));
    if (y && error && !(*error = rounding_error(y, numbers)))
        return NULL;
    shard_node *node = shard_record(&logsumexp_type, y, SHARD_INPUTS(x), 0);
    if (node) {
        node->group = group;
        shard_save_for_backward(node, SAVED_X, x);
        shard_save_for_backward(node, SAVED_NUMBERS, numbers);
    }
    return y;
}

/* Along any dimension, which becomes the last one. */
static shard_tensor *along(shard_tensor *x, int dim, bool keepdim)
{
    int to_last[SHARD_MAX_DIMS], back[SHARD_MAX_DIMS], last = last_dim(x), count = 0;
    for (int i = 0; i <= last; i++)
        if (i != dim)
            to_last[count++] = i;
    to_last[last] = dim;
    for (int i = 0; i <= last; i++)
        back[to_last[i]] = i;
    shard_tensor *rows = shard_permute(x, to_last);
    if (!rows)
        return shard_group_fail(group_of(x, dim)), NULL;
    shard_tensor *y = of_rows(rows, keepdim, NULL);
    return y && keepdim ? shard_permute(y, back) : y;
}

static bool check(const char *function, shard_tensor *x, int *dim)
{
    if (!shard_check_operand(function, x) || shard_resolve_dim(function, &x->shape, *dim, dim) != SHARD_OK ||
        !shard_check_operands(function, SHARD_INPUTS(x)))
        return false;
    return x->placement.kind != SHARD_PARTIAL || shard_refuse_placement(function, x);
}

static shard_tensor *logsumexp(const char *function, shard_tensor *x, int dim, bool keepdim)
{
    shard_tensor *wide = check(function, x, &dim) ? shard_autocast_wide(x) : NULL;
    if (!wide)
        return shard_group_fail(group_of(x, dim)), NULL;
    return dim == last_dim(wide) ? of_rows(wide, keepdim, NULL) : along(wide, dim, keepdim);
}

shard_tensor *shard_logsumexp(shard_tensor *x, int dim, bool keepdim)
{
    SHARD_FUNCTION("shard_logsumexp");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(logsumexp("shard_logsumexp", x, dim, keepdim), &scope);
    shard_scope_close(&scope);
    return y;
}

/* ---- softmax ---- */

shard_tensor *shard_softmax_of_split(const char *function, bool log, shard_tensor *x)
{
    shard_tensor *given = shard_check_operands(function, SHARD_INPUTS(x)) ? shard_autocast_wide(x) : NULL;
    bool narrow = given && shard_dtype_size(given->dtype) == 2;
    shard_tensor *wide = narrow ? shard_cast(given, SHARD_FLOAT32) : given;
    if (!wide)
        return shard_group_fail(x->placement.group), NULL;
    shard_tensor *error, *lse = of_rows(wide, true, &error);
    shard_tensor *y = lse ? shard_sub(shard_sub(wide, lse), error) : NULL;
    y = log ? y : shard_exp(y);
    return narrow ? shard_cast(y, given->dtype) : y;
}
