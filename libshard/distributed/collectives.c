/* copy, reduce, and the collectives in place. */
#include "distributed/distributed.h"

#include "comm/function.h"

shard_tensor *shard_leave(shard_group *group)
{
    shard_group_fail(group);
    return NULL;
}

bool shard_refuse_group(const char *function, const shard_tensor *x, bool fits)
{
    if (!fits)
        return shard_refuse_placement(function, x);
    shard_error(SHARD_ERROR_UNSUPPORTED,
                "%s: a tensor of shape %s is %s over another group of %d ranks, not over the call's; "
                "shard_tensor_placement has its group",
                function, shard_shape_text(&x->shape), shard_placement_text(&x->placement), shard_group_size(x->placement.group));
    return false;
}

/* ---- copy: forward x unchanged, backward the sum over the group if the gradient is PARTIAL ---- */

static shard_status copy_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    (void)node;
    dx[0] = shard_detach(dy);
    shard_place_partial(dx[0], dy);
    return dx[0] ? SHARD_OK : shard_last_status();
}

static const shard_node_type copy_type = {
    .name = "copy", .backward = copy_backward, .takes_partial = true, .sums_gradient = true};

shard_tensor *shard_copy_to_group(shard_tensor *x, shard_group *group)
{
    SHARD_FUNCTION("shard_copy_to_group");
    if (!shard_check_operand("shard_copy_to_group", x))
        return NULL;
    if (!shard_is_local(x))
        return shard_refuse_placement("shard_copy_to_group", x), NULL;
    if (shard_group_size(group) == 1)
        return shard_reshape(x, x->shape);
    shard_tensor *y = shard_detach(x);
    shard_node *node = shard_record(&copy_type, y, SHARD_INPUTS(x), 0);
    if (node)
        node->group = group;
    return y;
}

/* ---- reduce: forward the sum over the group, backward dy unchanged, as the gradient of this rank's summand ---- */

static shard_status reduce_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = dy;
    if (node->edge[0].placement.kind == SHARD_PARTIAL)
        return SHARD_OK;
    dx[0] = shard_detach(dy);
    return dx[0] ? shard_pending_sums_add(&dx[0]->pending, node->group) : shard_last_status();
}

static const shard_node_type reduce_type = {.name = "reduce", .backward = reduce_backward};

shard_tensor *shard_reduce_from_group(shard_tensor *x, shard_group *group)
{
    SHARD_FUNCTION("shard_reduce_from_group");
    if (!shard_check_operand("shard_reduce_from_group", x))
        return shard_leave(group);
    bool partial = x->placement.kind == SHARD_PARTIAL;
    if (!shard_is_local(x) && !(partial && shard_group_same(x->placement.group, group))) {
        shard_refuse_group("shard_reduce_from_group", x, partial);
        return shard_leave(group);
    }
    if (shard_group_size(group) == 1)
        return shard_reshape(x, x->shape);
    shard_tensor *y = shard_tensor_make(x->shape, x->dtype, shard_device_of(x));
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_group_fail(group));
    size_t bytes = shard_tensor_bytes(x);
    if (SHARD_RUN(x, copy_rows, memory[1], bytes, memory[0], bytes, bytes, 1) != SHARD_OK)
        return shard_result(y, shard_group_fail(group));
    shard_require_identical("shape %s", shard_shape_text(&x->shape));
    y = shard_result(y, shard_group_all_reduce(group, shard_device_of(y), memory[1], shard_numel(y), y->dtype, SHARD_SUM));
    shard_node *node = shard_record(&reduce_type, y, SHARD_INPUTS(x), 0);
    if (node)
        node->group = group;
    return y;
}

/* ---- in place ---- */

/* Whether several ranks of the group have other elements of x at the same places. */
static bool mixes_shards(const shard_tensor *x, const shard_group *group)
{
    return x->placement.kind == SHARD_SPLIT && shard_group_common(x->placement.group, group) > 1;
}

/* Whether ranks of the group have summands of a sum over `of`, of which a reduction would be a part, or if `all` also that sum.
 */
static bool mixes_summands(const shard_group *of, const shard_group *group, bool all)
{
    int common = shard_group_common(of, group);
    return common > 1 && (all || common < shard_group_size(of));
}

/* Whether x, a leaf's gradient, is to be summed over several ranks of the group, or over these and others. The error is set
 * then. */
static bool refuse_summand(const char *function, const shard_tensor *x, const shard_group *group, bool all)
{
    for (int i = 0; i < x->pending.count; i++)
        if (mixes_summands(x->pending.group[i], group, all)) {
            shard_error(SHARD_ERROR_UNSUPPORTED,
                        "%s: a gradient of shape %s that is still to be summed over %d ranks, of which %d are in the group: take "
                        "the sum over all of them first, by shard_all_reduce with SHARD_SUM",
                        function, shard_shape_text(&x->shape), shard_group_size(x->pending.group[i]),
                        shard_group_common(x->pending.group[i], group));
            return true;
        }
    return false;
}

shard_status shard_all_reduce(shard_tensor *x, shard_reduce_op op, shard_group *group)
{
    SHARD_FUNCTION("shard_all_reduce");
    if (!x) {
        shard_null_argument("shard_all_reduce", "x");
        return shard_group_fail(group);
    }
    bool partial = x->placement.kind == SHARD_PARTIAL;
    if ((partial && (op != SHARD_SUM || mixes_summands(x->placement.group, group, false))) || mixes_shards(x, group)) {
        shard_refuse_placement("shard_all_reduce", x);
        return shard_group_fail(group);
    }
    if (refuse_summand("shard_all_reduce", x, group, op != SHARD_SUM))
        return shard_group_fail(group);
    shard_require_identical("shape %s", shard_shape_text(&x->shape));
    SHARD_TRY(shard_group_all_reduce(group, shard_device_of(x), shard_tensor_memory_to_write(x), shard_numel(x), x->dtype, op));
    if (op == SHARD_SUM)
        shard_pending_sums_remove(&x->pending, group);
    if (partial && shard_group_common(x->placement.group, group) == shard_group_size(x->placement.group))
        x->placement = (shard_placement){0};
    return SHARD_OK;
}

shard_status shard_broadcast(shard_tensor *x, int root, shard_group *group)
{
    SHARD_FUNCTION("shard_broadcast");
    if (!x) {
        shard_null_argument("shard_broadcast", "x");
        return shard_group_fail(group);
    }
    bool partial = x->placement.kind == SHARD_PARTIAL;
    if ((partial && mixes_summands(x->placement.group, group, true)) || mixes_shards(x, group)) {
        shard_refuse_placement("shard_broadcast", x);
        return shard_group_fail(group);
    }
    if (refuse_summand("shard_broadcast", x, group, true))
        return shard_group_fail(group);
    shard_require_identical("shape %s", shard_shape_text(&x->shape));
    return shard_group_broadcast(group, shard_device_of(x), shard_tensor_memory_to_write(x), shard_numel(x), x->dtype, root);
}
