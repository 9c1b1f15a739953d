/*
 * The first elements along a dimension: max, min, argmax, argmin, and the first k along the last one. If the
 * dimension is split over a group, each rank finds the first elements of its local shard; these and their indices in
 * the whole dimension are gathered, and every rank finds the first elements among them. Those of a linear layer's logits are
 * found by a sweep over its weight (device/head.h), without the logits.
 */
#include "op/deferred_linear.h"
#include "op/linear_head.h"

#include "base/math.h"
#include "comm/function.h"
#include "comm/majority.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct search {
    const char *function;
    shard_tensor *x;
    int dim;
    bool largest;
    bool top;                     /* the first `count` of the last dimension; else one of any dimension, and count is 1 */
    bool keepdim;                 /* of the one */
    int64_t count;                /* of the result, for each outer and inner */
    shard_axis axis;              /* of x */
    int64_t start;                /* of the local shard, in the whole dimension */
    shard_group *group;           /* over which it is split; NULL: it is not split */
    shard_tensor *const *operand; /* of the linear layer of which x stands for the logits; NULL: x has elements */
} search;

/* ---- backward ---- */

typedef struct search_context {
    shard_axis axis;
    int64_t count, start;
} search_context;

/* Adds dy to the elements that were found. */
static shard_status search_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const search_context *c = node->context;
    shard_tensor *index = shard_saved(node, 0);
    dx[0] = index ? shard_make_gradient(node, 0) : NULL;
    void *memory[3];
    if (!dx[0] || !shard_load(SHARD_INPUTS(index, dy, dx[0]), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(dy, zero, memory[2], (size_t)shard_numel(dx[0]) * shard_dtype_size(dy->dtype)));
    return SHARD_RUN(dy, add_at, &c->axis, c->count, c->start, -1, memory[0], 1.0, memory[1], memory[2], dy->dtype);
}

static const shard_node_type search_type = {.name = "top_k", .backward = search_backward};

/* ---- exchange between ranks ---- */

typedef struct part_head {
    struct {
        int64_t count, lines; /* outer * inner */
        int64_t dtype, whole;
    } common; /* the same on all ranks */
    int64_t start, size;
} part_head;

/* All ranks check the same headers, so that all get the same error. */
static shard_status check_heads(const search *s, const part_head *head)
{
    int64_t next = 0;
    shard_majority found;
    if (shard_find_majority(s->group, &head->common, sizeof head->common, sizeof *head, &found))
        return shard_error(SHARD_ERROR_MISMATCH,
                           "%s: dtype, k or whole shape on %s differ from those on %s; they must be the same on every rank",
                           s->function, found.odd_ranks, found.usual_ranks);
    for (int rank = 0; rank < shard_group_size(s->group); rank++) {
        const part_head *own = &head[rank];
        int world_rank = shard_group_world_rank(s->group, rank);
        if (own->start != next)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has the elements from %" PRId64 " on where %" PRId64 " comes next along the split "
                               "dimension",
                               s->function, world_rank, own->start, next);
        next += own->size;
    }
    if (next == head->common.whole)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_MISMATCH, "%s: the ranks have %" PRId64 " of %" PRId64 " elements along the split dimension",
                       s->function, next, head->common.whole);
}

static shard_status compare_calls(const search *s)
{
    part_head head = {.common = {.count = s->count,
                                 .lines = s->axis.outer * s->axis.inner,
                                 .dtype = (int64_t)s->x->dtype,
                                 .whole = s->x->placement.whole},
                      .start = s->start,
                      .size = s->axis.size};
    part_head *heads = shard_calloc((size_t)shard_group_size(s->group), sizeof *heads);
    if (!heads)
        return shard_group_fail(s->group);
    shard_status status = shard_group_exchange(s->group, &head, sizeof head, heads);
    if (status == SHARD_OK)
        status = check_heads(s, heads);
    free(heads);
    return status;
}

/* ---- forward ---- */

static shard_status find(const search *s, const shard_axis *axis, int64_t start, const int64_t *index_of, const void *x, void *y,
                         int64_t *index)
{
    if (s->count == 0)
        return SHARD_OK;
    if (s->top)
        return SHARD_RUN(s->x, top_k, axis->outer, axis->size, s->count, start, index_of, x, y, index, s->x->dtype);
    return SHARD_RUN(s->x, extreme_dim, axis, s->largest, start, index_of, x, y, index, s->x->dtype);
}

/* Searches the logits of the local classes. */
static shard_status find_by_sweep(const search *s, void *y, int64_t *index)
{
    const shard_tensor *x = s->operand[SHARD_LINEAR_X], *weight = s->operand[SHARD_LINEAR_WEIGHT];
    void *memory[SHARD_LINEAR_OPERANDS];
    if (s->count == 0)
        return SHARD_OK;
    if (!shard_load(SHARD_LINEAR_OPERANDS, s->operand, memory))
        return shard_last_status();
    const shard_head h = {.loss = {.rows = s->axis.outer,
                                   .cols = s->axis.size,
                                   .col0 = s->start,
                                   .classes = shard_tensor_whole_shape(s->x).dim[s->dim]},
                          .in = weight->shape.dim[1],
                          .dtype = x->dtype,
                          .weight_dtype = weight->dtype,
                          .x = memory[SHARD_LINEAR_X],
                          .weight = memory[SHARD_LINEAR_WEIGHT],
                          .bias = memory[SHARD_LINEAR_BIAS]};
    return shard_head_top_k(shard_device_of(x), &h, s->count, y, index);
}

/* Bytes of rows that are made dense at once. */
enum { AT_ONCE = 8 << 20 };

/* Searches the local elements. Padded rows stay padded: some at a time are copied to dense memory. */
static shard_status find_local(const search *s, char *y, int64_t *index)
{
    if (s->operand)
        return find_by_sweep(s, y, index);
    bool last = s->dim == s->x->shape.ndim - 1;
    int64_t pitch = 0, rows = s->axis.outer, cols = s->axis.size, most;
    SHARD_TRY(shard_tensor_materialize(s->x));
    const char *x = last ? shard_tensor_rows(s->x, &pitch) : shard_tensor_memory(s->x);
    size_t size = shard_dtype_size(s->x->dtype), width = (size_t)cols * size;
    if (!x)
        return shard_last_status();
    if (!last || pitch == cols)
        return find(s, &s->axis, s->start, NULL, x, y, index);
    most = width < AT_ONCE ? (int64_t)(AT_ONCE / width) : 1;
    shard_tensor *some = shard_workspace(s->x, shard_min(most, rows) * cols, s->x->dtype);
    void *dense = some ? shard_tensor_memory(some) : NULL;
    if (!dense)
        return shard_last_status();
    for (int64_t row = 0, count; row < rows; row += count) {
        count = rows - row < most ? rows - row : most;
        const shard_axis axis = {.outer = count, .size = cols, .inner = 1};
        SHARD_TRY(SHARD_RUN(s->x, copy_rows, dense, width, x + (size_t)(row * pitch) * size, (size_t)pitch * size, width,
                            (size_t)count));
        SHARD_TRY(find(s, &axis, s->start, NULL, dense, y ? y + (size_t)(row * s->count) * size : NULL, index + row * s->count));
    }
    return SHARD_OK;
}

/* Permutes [ranks, outer, count] to [outer, ranks, count], in other memory of the scope; NULL with the error
 * set. */
static void *rows_together(const search *s, shard_tensor *parts, void *memory)
{
    int64_t ranks = shard_group_size(s->group), shape[] = {ranks, s->axis.outer, s->count};
    shard_tensor *rows = shard_workspace(parts, shard_numel(parts), parts->dtype);
    void *to = rows ? shard_tensor_memory(rows) : NULL;
    bool done = to && SHARD_RUN(parts, permute, 3, shape, (int[]){1, 0, 2}, memory, to, parts->dtype) == SHARD_OK;
    return done ? to : NULL;
}

/* Searches a dimension that is split. Collective over the group, also for a rank that has failed. */
static shard_status find_over_group(const search *s, void *y, int64_t *index, bool ready)
{
    int ranks = shard_group_size(s->group), rank = shard_group_rank(s->group);
    int64_t found = s->axis.outer * s->axis.inner * s->count;
    shard_tensor *values = shard_workspace(s->x, found * ranks, s->x->dtype);
    shard_tensor *indices = shard_workspace(s->x, found * ranks, SHARD_INT64);
    void *memory[3];
    ready = ready && values && indices && shard_load(SHARD_INPUTS(values, indices), memory + 1);
    char *own = ready ? (char *)memory[1] + (size_t)(rank * found) * shard_dtype_size(s->x->dtype) : NULL;
    int64_t *own_index = ready ? (int64_t *)memory[2] + rank * found : NULL;
    if (!ready || find_local(s, own, own_index) != SHARD_OK)
        return shard_group_fail(s->group);
    SHARD_TRY(compare_calls(s));
    if (found == 0)
        return SHARD_OK;
    shard_device *device = shard_device_of(s->x);
    SHARD_TRY(shard_group_all_gather_equal(s->group, device, own, memory[1], found, s->x->dtype));
    SHARD_TRY(shard_group_all_gather_equal(s->group, device, own_index, memory[2], found, SHARD_INT64));
    shard_axis axis = {.outer = 1, .size = ranks, .inner = found};
    if (s->top) {
        axis = (shard_axis){.outer = s->axis.outer, .size = ranks * s->count, .inner = 1};
        memory[1] = rows_together(s, values, memory[1]);
        memory[2] = rows_together(s, indices, memory[2]);
        if (!memory[1] || !memory[2])
            return shard_last_status();
    }
    return find(s, &axis, 0, memory[2], memory[1], y, index);
}

/* Makes values and indices of this shape and placement; no values if they are not needed. */
static shard_tensor *run(const search *s, shard_shape shape, shard_placement placement, bool values, shard_tensor **index)
{
    shard_tensor *y = values ? shard_tensor_make(shape, s->x->dtype, shard_device_of(s->x)) : NULL;
    *index = shard_tensor_make(shape, SHARD_INT64, shard_device_of(s->x));
    void *memory[3] = {NULL};
    bool ready = (y || !values) && *index && shard_load(SHARD_INPUTS(y, *index), memory + 1);
    shard_status status = ready ? SHARD_OK : shard_last_status();
    if (s->group)
        status = find_over_group(s, memory[1], memory[2], ready);
    else if (ready)
        status = find_local(s, memory[1], memory[2]);
    if (status != SHARD_OK) {
        *index = NULL;
        return NULL;
    }
    (*index)->placement = placement;
    if (!values)
        return NULL;
    y->placement = placement;
    shard_node *node = shard_record(&search_type, y, SHARD_INPUTS(s->x), sizeof(search_context));
    shard_name_node(node, s->function);
    if (node) {
        *(search_context *)node->context = (search_context){.axis = s->axis, .count = s->count, .start = s->start};
        node->group = s->group;
        shard_save_for_backward(node, 0, *index);
    }
    return y;
}

static bool check_count(const search *s)
{
    int64_t size = shard_tensor_whole_shape(s->x).dim[s->dim];
    if (!s->top && size == 0)
        shard_error(SHARD_ERROR_SHAPE, "%s: a tensor of shape %s has no elements along dimension %d", s->function,
                    shard_shape_text(&s->x->shape), s->dim);
    else if (s->count < 0 || s->count > size)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: k is %" PRId64 " for %" PRId64 " elements along the last dimension; it must be from 0 to their number",
                    s->function, s->count, size);
    else
        return true;
    return false;
}

static bool check(search *s)
{
    shard_tensor *x = s->x;
    if (!shard_check_operand(s->function, x) || shard_resolve_dim(s->function, &x->shape, s->dim, &s->dim) != SHARD_OK ||
        !shard_check_operands(s->function, SHARD_INPUTS(x)))
        return false;
    if (x->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(s->function, x);
    s->axis = shard_axis_along(x, s->dim);
    if (shard_is_split(x, s->dim)) {
        s->group = x->placement.group;
        s->start = x->placement.start;
    }
    return check_count(s);
}

/* Returns the values, or the indices if values are not needed; *indices is NULL, or where the indices go. */
static shard_tensor *look_for(search s, bool values, shard_tensor **indices)
{
    shard_tensor *index = NULL, *y = NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    if (check(&s)) {
        shard_shape shape = s.top ? s.x->shape : shard_shape_without(&s.x->shape, s.dim, s.keepdim);
        if (s.top)
            shape.dim[s.dim] = s.count;
        shard_placement placement = s.top ? s.x->placement : shard_placement_without(&s.x->placement, s.dim, s.keepdim);
        if (s.group) /* the result is the whole one on each rank */
            placement = (shard_placement){0};
        y = run(&s, shape, placement, values, &index);
    } else if (s.x && s.x->placement.kind == SHARD_SPLIT && s.x->placement.dim == s.dim) {
        shard_group_fail(s.x->placement.group);
    }
    y = shard_scope_return(values ? y : index, &scope);
    if (indices)
        *indices = shard_scope_return(index, &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_max_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices)
{
    SHARD_FUNCTION("shard_max_dim");
    search s = {.function = "shard_max_dim", .x = x, .dim = dim, .largest = true, .keepdim = keepdim, .count = 1};
    return look_for(s, true, indices);
}

shard_tensor *shard_min_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices)
{
    SHARD_FUNCTION("shard_min_dim");
    search s = {.function = "shard_min_dim", .x = x, .dim = dim, .keepdim = keepdim, .count = 1};
    return look_for(s, true, indices);
}

shard_tensor *shard_argmax(shard_tensor *x, int dim, bool keepdim)
{
    SHARD_FUNCTION("shard_argmax");
    search s = {.function = "shard_argmax", .x = x, .dim = dim, .largest = true, .keepdim = keepdim, .count = 1};
    return look_for(s, false, NULL);
}

shard_tensor *shard_argmin(shard_tensor *x, int dim, bool keepdim)
{
    SHARD_FUNCTION("shard_argmin");
    search s = {.function = "shard_argmin", .x = x, .dim = dim, .keepdim = keepdim, .count = 1};
    return look_for(s, false, NULL);
}

/* Collective over the weight's group if it is split, also for a rank that has failed. */
static shard_tensor *linear_top_k(const char *function, shard_tensor **input, int64_t k, shard_tensor **indices)
{
    shard_tensor *weight = input[SHARD_LINEAR_WEIGHT];
    shard_tensor *operand[] = {input[SHARD_LINEAR_X], weight, input[SHARD_LINEAR_BIAS]};
    shard_autocast_product(1, input, operand);
    shard_tensor *logits = shard_linear_head_logits(function, operand);
    search s = {.function = function, .x = logits, .dim = -1, .largest = true, .top = true, .count = k, .operand = operand};
    if (logits)
        return look_for(s, true, indices);
    if (indices)
        *indices = NULL;
    if (weight && weight->shape.ndim > 0 && shard_is_split(weight, 0))
        shard_group_fail(weight->placement.group);
    return NULL;
}

shard_tensor *shard_linear_top_k(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, int64_t k, shard_tensor **indices)
{
    SHARD_FUNCTION("shard_linear_top_k");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *input[] = {x, weight, bias};
    shard_tensor *y = shard_scope_return(linear_top_k("shard_linear_top_k", input, k, indices), &scope);
    if (indices)
        *indices = shard_scope_return(*indices, &scope);
    shard_scope_close(&scope);
    return y;
}

/* Of a classifier's logits that are not in memory, where no gradient is wanted. */
static shard_tensor *deferred_top_k(shard_tensor *x, shard_tensor **input, shard_dtype autocast, int64_t k,
                                    shard_tensor **indices)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_dtype now = shard_set_autocast(autocast); /* the products are those of the forward */
    shard_tensor *y = linear_top_k("shard_top_k", input, k, indices);
    shard_set_autocast(now);
    y = shard_scope_return(y ? shard_cast(y, x->dtype) : NULL, &scope);
    if (indices)
        *indices = y ? shard_scope_return(*indices, &scope) : NULL;
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_top_k(shard_tensor *x, int64_t k, shard_tensor **indices)
{
    SHARD_FUNCTION("shard_top_k");
    shard_tensor *input[SHARD_LINEAR_OPERANDS];
    shard_dtype autocast;
    if (x && !shard_will_record(SHARD_INPUTS(x)) && shard_deferred_linear(x, input, &autocast))
        return deferred_top_k(x, input, autocast, k, indices);
    search s = {.function = "shard_top_k", .x = x, .dim = -1, .largest = true, .top = true, .count = k};
    return look_for(s, true, indices);
}
