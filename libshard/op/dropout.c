/* dropout: the backward repeats the forward's draw; nothing is saved. */
#include "op/op.h"

#include "base/options.h"
#include "comm/function.h"
#include "device/graph.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct dropout_context {
    shard_region region;
    shard_draw draw;
    double p;
} dropout_context;

static shard_status apply(const dropout_context *context, shard_tensor *x, shard_tensor *y)
{
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_last_status();
    return SHARD_RUN(x, dropout, &context->region, context->draw, context->p, memory[0], memory[1], x->dtype);
}

static shard_status dropout_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = shard_gradient_over(node, 0, dy);
    return apply(node->context, dy, dx[0]);
}

static const shard_node_type dropout_type = {.name = "dropout", .backward = dropout_backward};

/* Makes the region that of the whole batch, of which x has the samples behind those of the group's ranks before this one.
 * Collective. */
static shard_status place_in_batch(const shard_tensor *x, double p, shard_group *group, shard_region *region)
{
    int size = shard_group_size(group);
    shard_random_state state = shard_get_random_state();
    shard_shape sample = x->shape;
    int64_t count = sample.ndim ? sample.dim[0] : 1, *counts = shard_calloc((size_t)size, sizeof *counts);
    if (sample.ndim)
        sample = shard_shape_without(&sample, 0, false);
    if (!counts)
        return shard_group_fail(group);
    shard_require_identical("p %.9g, samples of %s", p, shard_shape_text(&sample));
    shard_require_identical("seed %" PRIu64 ", draw %" PRId64, (uint64_t)state.seed, state.next_draw);
    shard_status status = shard_group_exchange(group, &count, sizeof count, counts);
    int64_t before = shard_count_before(counts, shard_group_rank(group)), all = shard_count_before(counts, size);
    free(counts);
    if (x->shape.ndim > 1) {
        region->row0 = before * shard_shape_product(&x->shape, 1, x->shape.ndim - 1);
    } else {
        region->col0 = before;
        region->whole_cols = all;
    }
    return status;
}

static bool check(shard_tensor *x, double p, const shard_group *group)
{
    if (!shard_check_operands("shard_dropout", SHARD_INPUTS(x)) || !shard_check_carried("shard_dropout", x, SHARD_MAX_DIMS))
        return false;
    if (!(p >= 0 && p <= 1))
        shard_error(SHARD_ERROR_ARGUMENT, "shard_dropout: the probability %g is not in [0, 1]", p);
    else if (group && shard_is_split(x, 0))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_dropout: .group with an x that is %s: its place in the batch is known; leave out .group",
                    shard_placement_text(&x->placement));
    else
        return shard_graph_check_device("shard_dropout", shard_device_of(x)) == SHARD_OK;
    return false;
}

shard_tensor *shard_dropout_with(shard_tensor *x, double p, const shard_dropout_options *given)
{
    SHARD_FUNCTION("shard_dropout");
    SHARD_READ_OPTIONS(shard_dropout_options, SHARD_DROPOUT_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    dropout_context context = {.p = p};
    if (!check(x, p, options.group) || shard_tensor_region(x, &context.region) != SHARD_OK) {
        shard_group_fail(options.group);
        return NULL;
    }
    if (options.group && place_in_batch(x, p, options.group, &context.region) != SHARD_OK)
        return NULL;
    context.draw = shard_next_draw();
    shard_tensor *y = shard_tensor_like(x);
    y = shard_result(y, apply(&context, x, y));
    shard_node *node = shard_record(&dropout_type, y, SHARD_INPUTS(x), sizeof context);
    if (node)
        *(dropout_context *)node->context = context;
    return y;
}
