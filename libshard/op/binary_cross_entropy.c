/*
 * Binary cross-entropy for targets that are probabilities or pairs of a row and a class, and local or split logits. Each
 * rank sums the losses of its local classes; if classes are split, an all-gather collects the sums, and each rank adds them
 * up in rank order, so that all ranks have the same bits. The backward needs the logits and the target, and no
 * communication.
 */
#include "base/hash.h"
#include "base/options.h"
#include "comm/function.h"
#include "device/head.h"
#include "op/autocast.h"
#include "op/binary_cross_entropy.h"
#include "op/cross_entropy.h"
#include "op/deferred_linear.h"

static const char function[] = "shard_binary_cross_entropy_with_logits";
static const shard_binary_faults faults = SHARD_BINARY_FAULTS("shard_binary_cross_entropy_with_logits");

/* The tensors that a node saves. */
enum { LOGITS, DENSE, PAIRS, WEIGHT, POSITIVE, ROW_WEIGHT, SAVED };

typedef struct binary_context {
    shard_binary_loss_shape shape;
    double factor;
    bool each;
} binary_context;

/* ---- backward ---- */

/* One float64: the derivative by the sum of the losses; of single losses, which have a dy each, 1. */
static shard_tensor *make_scale(const binary_context *c, shard_tensor *dy)
{
    shard_tensor *scale = shard_workspace(dy, 1, SHARD_FLOAT64);
    void *memory[2];
    if (!scale || !shard_load(SHARD_INPUTS(dy, scale), memory))
        return NULL;
    if (c->each)
        return shard_result(scale, SHARD_RUN(dy, fill, 1, 1.0, memory[1], SHARD_FLOAT64));
    shard_status status = SHARD_RUN(dy, cast, 1, memory[0], dy->dtype, memory[1], SHARD_FLOAT64);
    if (status == SHARD_OK)
        status = SHARD_RUN(dy, axpby, 1, c->factor, memory[1], 0.0, memory[1], SHARD_FLOAT64);
    return shard_result(scale, status);
}

static shard_status binary_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const binary_context *c = node->context;
    shard_binary_loss_shape shape = c->shape;
    shard_tensor *saved[SAVED], *scale = make_scale(c, dy);
    void *memory[SAVED], *to, *factors[2];
    if (!scale || !shard_saved_all(node, SAVED, saved) || !shard_load(SHARD_INPUTS(scale, c->each ? dy : NULL), factors) ||
        !shard_load(SAVED - DENSE, saved + DENSE, memory + DENSE) ||
        !shard_load_rows(SHARD_INPUTS(saved[LOGITS]), memory + LOGITS, &shape.pitch))
        return shard_last_status();
    dx[0] = c->each ? shard_gradient_of_rows(node, 0, shape.pitch) : shard_class_rows_gradient(node, saved[LOGITS], shape.pitch);
    int64_t pitch;
    if (!dx[0] || !shard_load_rows(SHARD_INPUTS(dx[0]), &to, &pitch))
        return shard_last_status();
    return SHARD_RUN(dx[0], binary_cross_entropy_backward, &shape, memory[LOGITS], memory[DENSE], memory[PAIRS], memory[WEIGHT],
                     memory[POSITIVE], memory[ROW_WEIGHT], factors[0], factors[1], to, dx[0]->dtype);
}

static const shard_node_type binary_type = {.name = "shard_binary_cross_entropy_with_logits", .backward = binary_backward};

/* ---- checks ---- */

static bool check_dense(const shard_binary_call *call)
{
    shard_tensor *logits = call->rows.logits, *target = call->dense;
    if (!shard_check_operands(call->rows.function, SHARD_INPUTS(logits, target)))
        return false;
    if (!shard_shape_equal(&target->shape, &logits->shape)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a target of shape %s for logits of shape %s; pairs are int64 [2, n]",
                    call->rows.function, shard_shape_text(&target->shape), shard_shape_text(&logits->shape));
        return false;
    }
    if (shard_will_record(SHARD_INPUTS(target))) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: the target requires a gradient, but gets none; shard_detach it",
                    call->rows.function);
        return false;
    }
    bool own_rows = !call->rows.group && shard_is_local(target);
    return own_rows || shard_placement_equal(&target->placement, &logits->placement) ||
           shard_refuse_placement(call->rows.function, target);
}

static bool check_pairs(const shard_binary_call *call)
{
    shard_tensor *pairs = call->pairs;
    const shard_cross_entropy_shape *shape = &call->rows.shape;
    if (pairs->dtype != SHARD_INT64 || pairs->shape.ndim != 2 || pairs->shape.dim[0] != 2 ||
        shard_device_of(pairs) != shard_device_of(call->rows.logits)) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: a target of dtype %s and shape %s on %s; like the logits, or int64 pairs [2, n], on %s "
                    "is needed",
                    call->rows.function, shard_dtype_name(pairs->dtype), shard_shape_text(&pairs->shape),
                    shard_device_of(pairs)->name, shard_device_of(call->rows.logits)->name);
        return false;
    }
    if (!shard_is_local(pairs))
        return shard_refuse_placement(call->rows.function, pairs);
    int64_t count = pairs->shape.dim[1], *pair;
    if (count > 0 && (shape->rows == 0 || shape->classes == 0)) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " pairs for logits of shape %s, which have no elements",
                    call->rows.function, count, shard_tensor_shape_text(call->rows.logits));
        return false;
    }
    void *memory;
    if (!shard_load(SHARD_INPUTS(pairs), &memory))
        return false;
    pair = memory; /* no value is ignored: ignore_index is 0, which is in range */
    return SHARD_RUN(pairs, check_index, count, pair, shape->rows, 0, &call->faults->row, NULL) == SHARD_OK &&
           SHARD_RUN(pairs, check_index, count, pair + count, shape->classes, 0, &call->faults->class, NULL) == SHARD_OK &&
           SHARD_RUN(pairs, check_pairs, count, pair, &call->faults->order) == SHARD_OK;
}

/* The number that the sum is divided by: that of the whole tensor's elements or rows. */
static double divisor(const shard_binary_call *call)
{
    shard_shape whole = shard_tensor_whole_shape(call->rows.logits);
    int last = whole.ndim - 1;
    double rows = (double)shard_shape_product(&whole, 0, last);
    return call->reduction == SHARD_REDUCTION_MEAN         ? rows * (double)whole.dim[last]
           : call->reduction == SHARD_REDUCTION_BATCH_MEAN ? rows
                                                           : 1.0;
}

bool shard_binary_read(shard_binary_call *call, shard_tensor *logits, shard_tensor *target,
                       const shard_binary_cross_entropy_options *options)
{
    call->reduction = options->reduction;
    call->gradient_only = options->gradient_only;
    call->stash_share = options->stash_share;
    /* The logits stand for a target without labels. */
    if (!shard_class_rows_read(&call->rows, logits, target ? logits : NULL, -1))
        return false;
    if ((unsigned)options->reduction > SHARD_REDUCTION_BATCH_MEAN) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no reduction %d", call->rows.function, (int)options->reduction);
        return false;
    }
    if (options->gradient_only && options->reduction == SHARD_REDUCTION_NONE) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: gradient_only with SHARD_REDUCTION_NONE, which has no sum to leave out",
                    call->rows.function);
        return false;
    }
    if (!shard_cross_entropy_check_factor(call->rows.function, "stash_share", options->stash_share, false))
        return false;
    *(shard_dtype_is_float(target->dtype) ? &call->dense : &call->pairs) = target;
    call->rows.pairs = call->pairs;
    const shard_cross_entropy_shape *shape = &call->rows.shape;
    call->shape = (shard_binary_loss_shape){.rows = shape->rows,
                                            .cols = shape->cols,
                                            .col0 = shape->col0,
                                            .classes = shape->classes,
                                            .pairs = call->pairs ? shard_numel(call->pairs) / 2 : 0};
    call->factor = 1.0 / divisor(call);
    return (call->dense ? check_dense(call) : check_pairs(call)) &&
           shard_class_rows_read_weight(&call->rows, options->weight, "weight", &call->weight) &&
           shard_class_rows_read_weight(&call->rows, options->pos_weight, "pos_weight", &call->positive) &&
           shard_class_rows_widen(&call->rows, options->row_weight, "row weights", &call->rows.row_weight);
}

/* ---- forward ---- */

uint64_t shard_binary_hash(const shard_binary_call *call)
{
    const int64_t flags[] = {call->reduction,        call->pairs != NULL,           call->weight != NULL,
                             call->positive != NULL, call->rows.row_weight != NULL, call->gradient_only};
    uint64_t hash = shard_hash_bytes(SHARD_HASH_START, &call->stash_share, sizeof call->stash_share);
    return shard_hash_words(hash, flags, sizeof flags / sizeof *flags);
}

/* Writes the single losses to `each`, or their sum to `sum`. */
static bool measure(shard_binary_call *call, void *each, double *sum)
{
    void *memory[SAVED];
    if (sum && call->gradient_only)
        return SHARD_RUN(call->rows.logits, fill, 1, 0, sum, SHARD_FLOAT64) == SHARD_OK;
    return shard_load(SHARD_INPUTS(call->dense, call->pairs, call->weight, call->positive, call->rows.row_weight),
                      memory + DENSE) &&
           shard_load_rows(SHARD_INPUTS(call->rows.logits), memory + LOGITS, &call->shape.pitch) &&
           SHARD_RUN(call->rows.logits, binary_cross_entropy, &call->shape, memory[LOGITS], memory[DENSE], memory[PAIRS],
                     memory[WEIGHT], memory[POSITIVE], memory[ROW_WEIGHT], each, sum, call->rows.logits->dtype) == SHARD_OK;
}

static shard_tensor *single_losses(shard_binary_call *call, bool ready)
{
    shard_tensor *y = ready && shard_class_rows_go_on(&call->rows) ? shard_tensor_like(call->rows.logits) : NULL;
    void *memory = y ? shard_tensor_memory(y) : NULL;
    return memory && measure(call, memory, NULL) ? y : NULL;
}

shard_tensor *shard_binary_reduce(const shard_binary_call *call)
{
    const shard_class_rows *rows = &call->rows;
    shard_tensor *logits = rows->logits, *sum = shard_workspace(logits, 1, SHARD_FLOAT64);
    shard_tensor *y = shard_tensor_make(SHARD_SCALAR, shard_head_wide(logits->dtype), shard_device_of(logits));
    void *memory[2];
    if (!sum || !y || !shard_load(SHARD_INPUTS(sum, y), memory) ||
        SHARD_RUN(logits, sum_rows, rows->ranks, 1, rows->stride, rows->part, SHARD_FLOAT64, false, memory[0], SHARD_FLOAT64) !=
            SHARD_OK ||
        SHARD_RUN(logits, axpby, 1, call->gradient_only ? 0.0 : call->factor, memory[0], 0.0, memory[0], SHARD_FLOAT64) !=
            SHARD_OK ||
        SHARD_RUN(logits, cast, 1, memory[0], SHARD_FLOAT64, memory[1], y->dtype) != SHARD_OK)
        return NULL;
    if (!rows->group && !shard_is_local(logits))
        y->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = logits->placement.group};
    return y;
}

static shard_tensor *record(const shard_binary_call *call, shard_tensor *y)
{
    const shard_class_rows *rows = &call->rows;
    bool each = call->reduction == SHARD_REDUCTION_NONE;
    shard_node *node = y ? shard_record(&binary_type, y, SHARD_INPUTS(rows->logits), sizeof(binary_context)) : NULL;
    if (!node)
        return y;
    *(binary_context *)node->context = (binary_context){.shape = call->shape, .factor = call->factor, .each = each};
    node->group = each ? NULL : rows->group;
    shard_tensor *const saved[SAVED] = {rows->logits, call->dense, call->pairs, call->weight, call->positive, rows->row_weight};
    for (int i = 0; i < SAVED; i++)
        shard_save_for_backward(node, i, saved[i]);
    return y;
}

/* ok: whether the options could be read. */
static shard_tensor *binary_loss(shard_binary_call *call, bool ok, shard_tensor *logits, shard_tensor *target,
                                 const shard_binary_cross_entropy_options *options)
{
    call->reduction = options->reduction;
    bool ready = shard_binary_read(call, logits, target, options) && ok;
    if (call->reduction == SHARD_REDUCTION_NONE)
        return record(call, single_losses(call, ready));
    if (ready)
        call->rows.options = shard_binary_hash(call);
    ready = ready && shard_class_rows_open(&call->rows, 1) && measure(call, NULL, call->rows.local);
    return shard_class_rows_gather(&call->rows, ready) == SHARD_OK ? record(call, shard_binary_reduce(call)) : NULL;
}

/* Whether shard_linear_binary_cross_entropy has this loss without logits. */
static bool can_fuse(const shard_tensor *logits, const shard_tensor *target, const shard_binary_cross_entropy_options *options)
{
    if (!logits || !target || target->dtype != SHARD_INT64 || options->reduction == SHARD_REDUCTION_NONE)
        return false;
    return logits->placement.kind != SHARD_SPLIT || logits->placement.dim == logits->shape.ndim - 1;
}

shard_tensor *shard_binary_cross_entropy_with_logits_with(shard_tensor *logits, shard_tensor *target,
                                                          const shard_binary_cross_entropy_options *given)
{
    SHARD_FUNCTION("shard_binary_cross_entropy_with_logits");
    SHARD_READ_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT, options, given);
    shard_tensor *operand[SHARD_LINEAR_OPERANDS];
    shard_dtype autocast;
    if (can_fuse(logits, target, &options) && shard_deferred_linear(logits, operand, &autocast)) {
        shard_dtype now = shard_set_autocast(autocast); /* the products are those of the forward */
        shard_tensor *loss = shard_linear_binary_cross_entropy_of(
            function, &faults, operand[SHARD_LINEAR_X], operand[SHARD_LINEAR_WEIGHT], operand[SHARD_LINEAR_BIAS], target, given);
        shard_set_autocast(now);
        return loss;
    }
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *wide = options.reduction == SHARD_REDUCTION_NONE ? shard_autocast_wide(logits) : logits;
    shard_tensor *same[] = {wide, target, options.weight, options.pos_weight};
    shard_class_rows_promote(2, same);
    options.weight = same[2];
    options.pos_weight = same[3];
    shard_binary_call call = {.faults = &faults, .rows = {.function = function, .faults = &faults.rows}};
    shard_tensor *loss = shard_scope_return(binary_loss(&call, options_ok, same[0], same[1], &options), &scope);
    shard_scope_close(&scope);
    return loss;
}
