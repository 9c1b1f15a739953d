/*
 * The loss, for local and split logits. Each rank computes a few numbers for each row of its local classes
 * (SHARD_CE_STATS), an all-gather collects them, and each rank joins them in rank order, so that all ranks have the
 * same bits. Local logits are the case of one rank. The backward needs the logits and three numbers for each row,
 * and no communication. Kernels scale and cap logits as they read them, in both passes.
 *
 * With label ranks the pass that computes the statistics also counts the logits before the label's. It needs the
 * label's logit, which one rank has if the classes are split: an exchange of these logits comes first, and the ranks
 * compare their calls in it.
 */
#include "op/autocast.h"
#include "base/hash.h"
#include "base/options.h"
#include "op/cross_entropy.h"
#include "op/deferred_linear.h"
#include "op/label_margins.h"
#include "op/sampled_classes.h"

#include "comm/function.h"
#include "device/head.h"

#include <inttypes.h>
#include <math.h>

/* The tensors that a node saves. */
enum { LOGITS, TARGET, WEIGHT, NUMBERS /* [SHARD_CE_NUMBERS, rows] and the result */, SAVED };

static const shard_class_faults faults = SHARD_CLASS_FAULTS("shard_cross_entropy");

typedef struct loss_call {
    shard_class_rows rows;
    shard_tensor *target;
    shard_tensor *weight; /* the local shard of it, or NULL */
    /* Which the kernels read: those of rows, or of a sample of the classes. */
    shard_tensor *logits;
    shard_cross_entropy_shape shape;
    shard_reduction reduction;
    bool ranked; /* the labels' ranks are requested */
    shard_tensor *rank;
} loss_call;

/* ---- backward ---- */

double *shard_cross_entropy_row_scales(const shard_tensor *like, int64_t rows, const double *factor, shard_tensor *dy)
{
    int64_t count = shard_numel(dy);
    shard_tensor *wide = shard_workspace(like, count, SHARD_FLOAT64), *scale = shard_workspace(like, rows, SHARD_FLOAT64);
    void *memory[3];
    if (!wide || !scale || !shard_load(SHARD_INPUTS(dy, wide, scale), memory) ||
        SHARD_RUN(dy, cast, count, memory[0], dy->dtype, memory[1], SHARD_FLOAT64) != SHARD_OK)
        return NULL;
    bool reduced = dy->shape.ndim == 0; /* one dy for all rows */
    const shard_expansion over = shard_expansion_rows(reduced ? rows : 1, reduced ? 1 : rows);
    return SHARD_RUN(dy, binary, SHARD_MUL, &over, factor, memory[1], memory[2], SHARD_FLOAT64) == SHARD_OK ? memory[2] : NULL;
}

shard_loss_rows shard_cross_entropy_rows(const shard_tensor *like, int64_t rows, const double *number, shard_tensor *dy)
{
    return (shard_loss_rows){.lse = number + SHARD_CE_LSE * rows,
                             .lse_error = number + SHARD_CE_LSE_ERROR * rows,
                             .slope = number + SHARD_CE_SLOPE * rows,
                             .scale = shard_cross_entropy_row_scales(like, rows, number + SHARD_CE_FACTOR * rows, dy)};
}

static shard_status loss_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_cross_entropy_shape shape = *(const shard_cross_entropy_shape *)node->context;
    shard_tensor *saved[SAVED];
    void *memory[SAVED], *to;
    if (!shard_saved_all(node, SAVED, saved))
        return shard_last_status();
    shard_tensor *logits = saved[LOGITS];
    if (!shard_load(SAVED - TARGET, saved + TARGET, memory + TARGET) ||
        !shard_load_rows(SHARD_INPUTS(logits), memory + LOGITS, &shape.pitch))
        return shard_last_status();
    const shard_loss_rows rows = shard_cross_entropy_rows(logits, shape.rows, memory[NUMBERS], dy);
    dx[0] = rows.scale ? shard_class_rows_gradient(node, logits, shape.pitch) : NULL;
    if (!dx[0] || !shard_load_rows(SHARD_INPUTS(dx[0]), &to, &(int64_t){0}))
        return shard_last_status();
    bool labels = saved[TARGET]->dtype == SHARD_INT64;
    return SHARD_RUN(logits, cross_entropy_backward, &shape, memory[LOGITS], labels ? memory[TARGET] : NULL,
                     labels ? NULL : memory[TARGET], memory[WEIGHT], &rows, to, logits->dtype);
}

static const shard_node_type loss_type = {.name = "shard_cross_entropy", .backward = loss_backward};

/* ---- checks ---- */

bool shard_cross_entropy_check_factor(const char *function, const char *name, double value, bool positive)
{
    if (isfinite(value) && (value > 0 || (!positive && value == 0)))
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: %s %g; a finite number %s 0 is needed", function, name, value,
                positive ? "above" : "of at least");
    return false;
}

static bool check_options(const char *function, const shard_cross_entropy_options *options)
{
    if (!shard_cross_entropy_check_factor(function, "z_loss", options->z_loss, false) ||
        !shard_cross_entropy_check_factor(function, "logit_scale", options->logit_scale, true) ||
        !shard_cross_entropy_check_factor(function, "soft_cap", options->soft_cap, false) ||
        !shard_cross_entropy_check_factor(function, "stash_share", options->stash_share, false))
        return false;
    if (!(options->label_smoothing >= 0.0 && options->label_smoothing <= 1.0)) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: label_smoothing %g is outside [0, 1]", function, options->label_smoothing);
        return false;
    }
    if ((unsigned)options->reduction > SHARD_REDUCTION_NONE) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: there is no reduction %d here; SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM and SHARD_REDUCTION_NONE are",
                    function, (int)options->reduction);
        return false;
    }
    return true;
}

bool shard_cross_entropy_read_options(shard_class_rows *rows, const shard_cross_entropy_options *options, shard_tensor **weight)
{
    if (!check_options(rows->function, options))
        return false;
    rows->shape.smoothing = options->label_smoothing;
    rows->shape.z_loss = options->z_loss;
    rows->shape.map = (shard_logit_map){.maps = options->logit_scale != 1.0 || options->soft_cap != 0.0,
                                        .scale = options->logit_scale,
                                        .soft_cap = options->soft_cap};
    return shard_class_rows_read_weight(rows, options->weight, "class weights", weight) &&
           shard_class_rows_widen(rows, options->row_weight, "row weights", &rows->row_weight);
}

uint64_t shard_cross_entropy_hash(const shard_class_rows *rows, const shard_cross_entropy_options *options, bool ranked)
{
    const double factors[] = {options->label_smoothing, options->z_loss, options->logit_scale, options->soft_cap,
                              options->stash_share};
    const int64_t flags[] = {ranked,
                             options->reduction,
                             options->weight != NULL,
                             rows->row_weight != NULL,
                             options->sample != NULL,
                             options->sample_correction != NULL};
    uint64_t hash = shard_hash_bytes(SHARD_HASH_START, factors, sizeof factors);
    return shard_hash_words(hash, flags, sizeof flags / sizeof *flags);
}

static bool check_probabilities(const loss_call *call)
{
    const shard_tensor *logits = call->rows.logits, *target = call->target;
    if (target->shape.ndim == logits->shape.ndim - 1) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: a target of shape %s and dtype %s for logits of shape %s; labels must be int64: "
                    "shard_cast(target, SHARD_INT64)",
                    call->rows.function, shard_shape_text(&target->shape), shard_dtype_name(target->dtype),
                    shard_shape_text(&logits->shape));
        return false;
    }
    if (!shard_check_operands(call->rows.function, SHARD_INPUTS(call->rows.logits, call->target)))
        return false;
    if (shard_will_record(SHARD_INPUTS(call->target))) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: probabilities require a gradient, but get none; shard_detach them",
                    call->rows.function);
        return false;
    }
    if (!shard_shape_equal(&target->shape, &logits->shape)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: probabilities of shape %s for logits of shape %s; one shape is needed",
                    call->rows.function, shard_shape_text(&target->shape), shard_shape_text(&logits->shape));
        return false;
    }
    if (call->rows.shape.ignore_index >= 0) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: ignore_index %" PRId64 " with probabilities, which have no labels to ignore",
                    call->rows.function, call->rows.shape.ignore_index);
        return false;
    }
    bool own_rows = !call->rows.group && shard_is_local(target);
    return own_rows || shard_placement_equal(&target->placement, &logits->placement) ||
           shard_refuse_placement(call->rows.function, target);
}

static bool check_correction(const loss_call *call, const shard_cross_entropy_options *options)
{
    const char *function = call->rows.function;
    if (!options->sample_correction)
        return true;
    if (!options->sample || options->margin)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a sample's correction %s", function,
                    options->margin ? "with a margin; leave it out, as Partial FC does" : "without a sample");
    else if (options->soft_cap != 0.0)
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a sample's correction with soft_cap %g; 0 is needed", function,
                    options->soft_cap);
    else
        return true;
    return false;
}

static bool check_logits_options(const loss_call *call, const shard_cross_entropy_options *options)
{
    const char *function = call->rows.function;
    if (options->normalized)
        shard_error(
            SHARD_ERROR_UNSUPPORTED,
            "%s: normalized rows for logits in memory; give labels and the logits of shard_nn_parallel_classifier in training "
            "and outside a capture, or call shard_linear_cross_entropy",
            function);
    else if (options->margin && options->soft_cap != 0.0)
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: soft_cap %g with a margin; leave one of them out", function, options->soft_cap);
    else if (options->margin && call->ranked)
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a label rank with a margin; shard_label_rank counts it of the cosines",
                    function);
    else if (options->sample && !call->rows.labels)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a sample of classes with probabilities; labels are needed", function);
    else if (options->sample && call->ranked)
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a label rank with a sample of classes; count it of the logits in evaluation",
                    function);
    else
        return check_correction(call, options);
    return false;
}

/* If rows are split over a group, each rank has the losses of its rows. */
static bool check_row_placement(const loss_call *call)
{
    bool rows_are_split = !call->rows.group && !shard_is_local(call->rows.logits);
    if (!rows_are_split || call->reduction != SHARD_REDUCTION_MEAN)
        return true;
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: no mean over rows that are split over a group; take SHARD_REDUCTION_SUM and divide",
                call->rows.function);
    return false;
}

static bool read_arguments(loss_call *call, shard_tensor *logits, const shard_cross_entropy_options *options)
{
    if (!shard_class_rows_read(&call->rows, logits, call->target, options->ignore_index))
        return false;
    if (call->ranked && !call->rows.labels) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: label_rank with probabilities, which have no labels", call->rows.function);
        return false;
    }
    call->reduction = options->reduction;
    return check_logits_options(call, options) && (call->rows.labels || check_probabilities(call)) &&
           shard_cross_entropy_read_options(&call->rows, options, &call->weight) && check_row_placement(call);
}

/* ---- forward ---- */

int64_t *shard_cross_entropy_ahead(const shard_class_rows *rows, bool ranked, double *part)
{
    return ranked ? (int64_t *)(part + SHARD_CE_STATS * rows->shape.rows) : NULL;
}

/* logit: of the labels, or NULL if this rank has all classes. */
static bool measure_local(loss_call *call, shard_tensor *logit)
{
    shard_class_rows *rows = &call->rows;
    bool labels = rows->labels != NULL;
    void *memory[5];
    if (!shard_class_rows_open(rows, rows->shape.rows * (SHARD_CE_STATS + call->ranked)) ||
        !shard_load(SHARD_INPUTS(labels ? call->target : NULL, labels ? NULL : call->target, call->weight, logit), memory + 1) ||
        !shard_load_rows(SHARD_INPUTS(call->logits), memory, &call->shape.pitch))
        return false;
    return SHARD_RUN(call->logits, cross_entropy_stats, &call->shape, memory[0], memory[1], memory[2], memory[3], rows->local,
                     memory[4], shard_cross_entropy_ahead(rows, call->ranked, rows->local), call->logits->dtype) == SHARD_OK;
}

/* Makes the logits those of the sampled classes; a failure is one of all ranks. */
static shard_status sample_classes(loss_call *call, bool ready, const shard_cross_entropy_options *options)
{
    shard_sampled sampled = {.count = 0};
    shard_tensor *correction = options->sample_correction, *all = call->weight;
    SHARD_TRY(
        shard_sampled_open(&call->rows, ready, options->sample, correction, options->label_smoothing, &sampled, &call->shape));
    call->target = sampled.target;
    call->weight = shard_sampled_pick(&sampled, all);
    call->logits = shard_sampled_columns(&sampled, call->rows.logits);
    if (correction && call->logits)
        call->logits = shard_add(call->logits, shard_sampled_correction(correction, options->logit_scale, call->logits));
    return !call->logits || (all && !call->weight) ? shard_class_rows_gather(&call->rows, false) : SHARD_OK;
}

/* The statistics of all ranks. */
static shard_status measure(loss_call *call, bool ready)
{
    shard_tensor *logit = NULL;
    if (call->ranked && call->rows.group) {
        ready = ready && shard_class_rows_pick(&call->rows);
        SHARD_TRY(shard_class_rows_gather(&call->rows, ready));
        logit = shard_class_rows_add_picked(&call->rows);
        ready = logit != NULL;
    }
    return shard_class_rows_gather(&call->rows, ready && measure_local(call, logit));
}

shard_tensor *shard_cross_entropy_join(const shard_class_rows *rows, bool mean, bool ranked, shard_tensor **rank)
{
    int64_t count = SHARD_CE_NUMBERS * rows->shape.rows, *ahead = shard_cross_entropy_ahead(rows, ranked, rows->part);
    shard_tensor *numbers = shard_workspace(rows->logits, count + 1, SHARD_FLOAT64);
    *rank = ranked ? shard_class_rows_make(rows, SHARD_INT64) : NULL;
    void *memory[4];
    if (!numbers || (ranked && !*rank) || !shard_load(SHARD_INPUTS(numbers, rows->labels, rows->row_weight, *rank), memory))
        return NULL;
    double *number = memory[0];
    return shard_result(numbers, SHARD_RUN(numbers, cross_entropy_join, &rows->shape, mean, rows->ranks, rows->stride, rows->part,
                                           ahead, memory[1], memory[2], number, number + count, memory[3]));
}

shard_tensor *shard_cross_entropy_result(const shard_class_rows *rows, shard_reduction reduction, shard_tensor *numbers)
{
    shard_tensor *logits = rows->logits;
    bool each = reduction == SHARD_REDUCTION_NONE;
    shard_dtype dtype = shard_head_wide(logits->dtype);
    shard_tensor *y = each ? shard_class_rows_make(rows, dtype) : shard_tensor_make(SHARD_SCALAR, dtype, shard_device_of(logits));
    void *memory[2];
    if (!y || !numbers || !shard_load(SHARD_INPUTS(numbers, y), memory))
        return NULL;
    if (!each && !rows->group && !shard_is_local(logits))
        y->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = logits->placement.group};
    const double *from = (double *)memory[0] + (each ? SHARD_CE_LOSS : SHARD_CE_NUMBERS) * rows->shape.rows;
    return shard_result(y, SHARD_RUN(y, cast, shard_numel(y), from, SHARD_FLOAT64, memory[1], y->dtype));
}

static shard_tensor *record(const loss_call *call, shard_tensor *y, shard_tensor *numbers)
{
    shard_tensor *logits = call->logits;
    if (!y || !shard_will_record(SHARD_INPUTS(logits)))
        return y;
    shard_node *node = shard_record(&loss_type, y, SHARD_INPUTS(logits), sizeof call->shape);
    if (!node)
        return NULL;
    *(shard_cross_entropy_shape *)node->context = call->shape;
    node->group = call->rows.group; /* NULL unless the classes are split */
    shard_save_for_backward(node, LOGITS, logits);
    shard_save_for_backward(node, TARGET, call->target);
    shard_save_for_backward(node, WEIGHT, call->weight);
    shard_save_for_backward(node, NUMBERS, numbers);
    return y;
}

/* Of all settings that must be identical on all ranks. */
static uint64_t hash_options(const loss_call *call, const shard_cross_entropy_options *options)
{
    uint64_t hash = shard_cross_entropy_hash(&call->rows, options, call->ranked);
    if (!options->margin)
        return hash;
    SHARD_READ_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS_INIT, m, options->margin);
    const shard_label_margins margins = {
        .margin = {.scale = m.scale, .m1 = m.m1, .m2 = m.m2, .m3 = m.m3, .rule = (int64_t)m.rule},
        .row_m2 = m.row_m2,
        .row_m3 = m.row_m3};
    return m_ok ? shard_label_margins_hash(hash, false, &margins) : hash;
}

/* ok: whether the options could be read. */
static shard_tensor *cross_entropy(loss_call *call, bool ok, shard_tensor *logits, const shard_cross_entropy_options *options)
{
    bool ready = read_arguments(call, logits, options) && ok;
    if (ready)
        call->rows.options = hash_options(call, options);
    call->shape = call->rows.shape;
    call->logits = call->rows.logits;
    if (options->sample && sample_classes(call, ready, options) != SHARD_OK)
        return NULL;
    if (measure(call, ready) != SHARD_OK)
        return NULL;
    shard_tensor *numbers =
        shard_cross_entropy_join(&call->rows, call->reduction == SHARD_REDUCTION_MEAN, call->ranked, &call->rank);
    return record(call, shard_cross_entropy_result(&call->rows, call->reduction, numbers), numbers);
}

/* Whether shard_linear_cross_entropy has this loss: then *operand and *autocast are those of the logits. Normalized rows are only
 * there, with its errors. */
static bool can_fuse(const shard_tensor *logits, const shard_tensor *target, const shard_cross_entropy_options *options,
                     shard_tensor **operand, shard_dtype *autocast)
{
    if (!logits || !target || target->dtype != SHARD_INT64 || !shard_deferred_linear(logits, operand, autocast))
        return false;
    if (!options->normalized && ((options->sample && options->soft_cap != 0) || (options->margin && operand[SHARD_LINEAR_BIAS])))
        return false;
    bool splits_rows = logits->placement.kind == SHARD_SPLIT && logits->placement.dim < logits->shape.ndim - 1;
    return !splits_rows || options->reduction == SHARD_REDUCTION_NONE;
}

shard_tensor *shard_cross_entropy_with(shard_tensor *logits, shard_tensor *target, const shard_cross_entropy_options *given,
                                       shard_tensor **label_rank)
{
    SHARD_FUNCTION("shard_cross_entropy");
    SHARD_READ_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS_INIT, options, given);
    shard_tensor *operand[SHARD_LINEAR_OPERANDS];
    shard_dtype autocast;
    if (can_fuse(logits, target, &options, operand, &autocast)) {
        shard_dtype now = shard_set_autocast(autocast); /* the products are those of the forward */
        shard_tensor *loss =
            shard_linear_cross_entropy_of("shard_cross_entropy", &faults, operand[SHARD_LINEAR_X], operand[SHARD_LINEAR_WEIGHT],
                                          operand[SHARD_LINEAR_BIAS], target, given, label_rank);
        shard_set_autocast(now);
        return loss;
    }
    shard_scope scope;
    shard_scope_open(&scope);
    loss_call call = {.rows = {.function = "shard_cross_entropy", .faults = &faults}, .ranked = label_rank};
    if (logits && shard_is_split(logits, logits->shape.ndim - 1))
        call.rows.group = logits->placement.group; /* whose ranks wait for this one, whatever is wrong here */
    if (options.margin && !options.normalized)
        logits = shard_margin_logits_of(logits, target, options.margin, options.ignore_index);
    shard_tensor *same[] = {logits, target, options.weight};
    shard_class_rows_promote(1, same);
    call.target = same[1];
    options.weight = same[2];
    shard_tensor *loss = shard_scope_return(cross_entropy(&call, options_ok, same[0], &options), &scope);
    if (label_rank)
        *label_rank = loss ? shard_scope_return(call.rank, &scope) : NULL;
    shard_scope_close(&scope);
    return loss;
}
