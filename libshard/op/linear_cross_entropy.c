/*
 * The loss of a linear layer without its logits: sweeps over tiles of the weight (device/head.h). The exchange between
 * ranks is that of shard_cross_entropy, whose statistics the forward computes; the logits are a tensor that has a
 * shape and a placement, and never memory.
 *
 * The forward also sums exp(z - max) weight, so that the features' gradient needs no second sweep, and no logits. With label
 * ranks a product of the rows with their labels' rows of the weight comes first, and an exchange of these logits, in which the
 * ranks compare their calls.
 */
#include "base/options.h"
#include "op/autocast.h"
#include "op/cross_entropy.h"

#include "comm/function.h"
#include "op/label_margins.h"
#include "op/linear_head.h"
#include "op/sampled_classes.h"

static const shard_class_faults faults = SHARD_CLASS_FAULTS("shard_linear_cross_entropy");

enum { X = SHARD_LINEAR_X, WEIGHT = SHARD_LINEAR_WEIGHT, BIAS = SHARD_LINEAR_BIAS, INPUTS = SHARD_LINEAR_OPERANDS };
/* The tensors that a node saves: the inputs, and these. SUMS: the local statistics, then the sums [rows, in] and `spread` [in].
 */
enum { TARGET = INPUTS, CLASS_WEIGHT, LIST, LIST_ON_HOST, LABEL_ROW, OPERANDS };
enum { NUMBERS = OPERANDS /* [SHARD_CE_NUMBERS, rows] and the result */, SUMS, STASH, MARGIN_SHIFT, MARGIN_NUMBERS };
enum { BIAS_ORIGIN = MARGIN_NUMBERS + 1, CLASS_WEIGHT_ORIGIN, CORRECTION_ORIGIN, SAVED };
_Static_assert((int)SAVED <= SHARD_NODE_SAVED, "a node has so many slots");

typedef struct head_call {
    shard_class_rows rows;
    shard_tensor *input[INPUTS];   /* as given: the operands that get gradients */
    shard_tensor *operand[INPUTS]; /* x in the products' type */
    shard_tensor *target;
    shard_tensor *class_weight; /* of the local classes, of the wide type; NULL: ones */
    shard_tensor *weight_given; /* that it is a copy of, or a part; NULL: none */
    shard_reduction reduction;
    shard_sampled sampled;           /* with a list: its classes are all that count */
    shard_tensor *correction;        /* of the sample; NULL: none */
    shard_cross_entropy_shape shape; /* of the head: of all classes or of the sample */
    bool normalized, has_margins;    /* x is normalized and has the scale of the margin */
    double logit_scale;              /* as given */
    double stash_share;
    shard_margin_logits_options margin;
    shard_label_margins margins;
    shard_tensor *sums;  /* SUMS above */
    shard_tensor *stash; /* shard_head.stash; NULL: none */
    bool ranked;         /* the labels' ranks are requested */
    shard_tensor *rank;
} head_call;

typedef struct head_context {
    shard_cross_entropy_shape shape;
    bool normalized; /* shard_head.normalized */
} head_context;

/* ---- backward ---- */

/* The head of OPERANDS in memory. */
static shard_head head_of(const shard_cross_entropy_shape *shape, const shard_tensor *x, const shard_tensor *weight,
                          void *const *memory)
{
    return (shard_head){.loss = *shape,
                        .in = weight->shape.dim[1],
                        .dtype = x->dtype,
                        .weight_dtype = weight->dtype,
                        .x = memory[X],
                        .weight = memory[WEIGHT],
                        .bias = memory[BIAS],
                        .target = memory[TARGET],
                        .class_weight = memory[CLASS_WEIGHT],
                        .weight_rows = weight->shape.dim[0],
                        .list = memory[LIST],
                        .list_on_host = memory[LIST_ON_HOST],
                        .label_row = memory[LABEL_ROW]};
}

/* The head's `spread` in SUMS, whose memory begins with `stats`; NULL is ignored. */
static void set_spread(shard_head *h, double *stats)
{
    char *sums = stats ? (char *)(stats + h->loss.rows * SHARD_CE_STATS) : NULL;
    if (sums && shard_head_spreads(h))
        h->spread = sums + (size_t)(h->loss.rows * h->in) * shard_dtype_size(shard_head_wide(h->dtype));
}

static shard_status input_gradient(shard_node *node, const shard_head *h, const shard_loss_rows *rows, const double *stats,
                                   const void *sum, shard_tensor **dx)
{
    shard_dtype wide = shard_head_wide(h->dtype);
    shard_tensor *to = shard_make_gradient(node, X);
    shard_tensor *computed = !to || to->dtype == wide ? to : shard_workspace(to, shard_numel(to), wide);
    void *result = computed ? shard_tensor_memory(computed) : NULL;
    if (!result)
        return shard_last_status();
    SHARD_TRY(shard_head_input_gradient(shard_device_of(to), h, stats, sum, rows, result));
    if (computed != to)
        SHARD_TRY(SHARD_RUN(to, cast, shard_numel(to), result, wide, shard_tensor_memory(to), to->dtype));
    if (node->group)
        to->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = node->group};
    dx[X] = to;
    return SHARD_OK;
}

static shard_status weight_gradient(shard_node *node, const shard_head *h, const shard_loss_rows *rows, shard_tensor **dx)
{
    shard_head_gradient to = {.weight = NULL};
    if (shard_wants(node, WEIGHT)) {
        dx[WEIGHT] = shard_gradient_target(node, WEIGHT, &to.accumulate);
        to.weight = dx[WEIGHT] ? shard_tensor_memory(dx[WEIGHT]) : NULL;
    }
    if (shard_wants(node, BIAS)) {
        dx[BIAS] = shard_gradient_target(node, BIAS, &to.accumulate_bias);
        to.bias = dx[BIAS] ? shard_tensor_memory(dx[BIAS]) : NULL;
    }
    if ((shard_wants(node, WEIGHT) && !to.weight) || (shard_wants(node, BIAS) && !to.bias))
        return shard_last_status();
    for (int i = WEIGHT; i <= BIAS && !node->group; i++)
        shard_place_sum(dx[i], node->gradient);
    return shard_head_weight_gradient(shard_device_of(node->saved[WEIGHT]), h, rows, &to);
}

/* Adds the rows of this call to the deferred gradients of weight and bias. */
static shard_status defer(shard_node *node, const shard_head *h, const shard_loss_rows *rows, shard_gradient_source *source,
                          shard_tensor *const *kept, shard_tensor *stash, shard_tensor **dx)
{
    shard_tensor *bias = shard_wants(node, BIAS) ? node->saved[BIAS] : NULL;
    shard_gradient_source *made = source ? NULL : shard_head_source_create(h, kept);
    shard_status status = source || made ? shard_head_source_add(source ? source : made, h, rows, stash) : shard_last_status();
    if (status == SHARD_OK) {
        dx[WEIGHT] = made ? shard_make_deferred(node, WEIGHT, made, SHARD_SOURCE_MATRIX) : shard_gradient_taken(node, WEIGHT);
        if (bias)
            dx[BIAS] = made ? shard_make_deferred(node, BIAS, made, SHARD_SOURCE_VECTOR) : shard_gradient_taken(node, BIAS);
        status = dx[WEIGHT] && (dx[BIAS] || !bias) ? SHARD_OK : shard_last_status();
    }
    shard_gradient_source_unref(made);
    return status;
}

/* Whether the gradients of weight and bias can be deferred, and the source that is extended (NULL: a new one). Not where they are
 * sums over the ranks whose rows are split along another dimension than 0 (shard_place_sum). */
static bool may_defer(const shard_node *node, const shard_head *h, shard_tensor *const *kept, shard_gradient_source **source)
{
    const shard_placement *placement = &node->gradient->placement;
    *source = NULL;
    if (placement->kind == SHARD_SPLIT && placement->dim != 0)
        return false;
    for (int i = WEIGHT; i <= BIAS; i++)
        if (shard_wants(node, i) ? !shard_may_defer(node, i) : i == WEIGHT)
            return false;
    const shard_tensor *weight = node->edge[WEIGHT].leaf, *bias = shard_wants(node, BIAS) ? node->edge[BIAS].leaf : NULL;
    if (bias && bias->leaf->gathers_grad != weight->leaf->gathers_grad)
        return false;
    if (!weight->leaf->has_grad && !(bias && bias->leaf->has_grad))
        return true;
    *source = shard_source_to_extend(node, WEIGHT);
    if (*source && !bias && (*source)->gradient[SHARD_SOURCE_VECTOR])
        return false; /* the bias was frozen since: its gradient has no summand of these rows */
    return *source && (!bias || shard_source_to_extend(node, BIAS) == *source) && shard_head_source_takes(*source, h, kept);
}

shard_status shard_linear_head_backward(shard_node *node, const shard_head *head, const shard_loss_rows *rows,
                                        const double *stats, const void *sum, shard_tensor *const *kept, shard_tensor *stash,
                                        shard_tensor **dx)
{
    if (shard_wants(node, X))
        SHARD_TRY(input_gradient(node, head, rows, stats, sum, dx));
    shard_gradient_source *source;
    if (may_defer(node, head, kept, &source))
        return defer(node, head, rows, source, kept, stash, dx);
    return shard_wants(node, WEIGHT) || shard_wants(node, BIAS) ? weight_gradient(node, head, rows, dx) : SHARD_OK;
}

static shard_status head_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const head_context *c = node->context;
    shard_tensor *saved[SAVED];
    void *memory[SAVED];
    if (!shard_saved_all(node, SAVED, saved) || !shard_load(SAVED, saved, memory))
        return shard_last_status();
    shard_head h = head_of(&c->shape, saved[X], saved[WEIGHT], memory);
    shard_head_set_stash(&h, saved[STASH]);
    h.normalized = c->normalized;
    shard_label_margins_set(&h, memory[MARGIN_SHIFT], memory[MARGIN_NUMBERS]);
    const shard_loss_rows rows = shard_cross_entropy_rows(saved[X], c->shape.rows, memory[NUMBERS], dy);
    if (!rows.scale)
        return shard_last_status();
    shard_tensor *const kept[SHARD_HEAD_KEPT] = {[SHARD_HEAD_WEIGHT] = node->saved[WEIGHT],
                                                 [SHARD_HEAD_BIAS] = node->saved[BIAS],
                                                 [SHARD_HEAD_CLASS_WEIGHT] = node->saved[CLASS_WEIGHT],
                                                 [SHARD_HEAD_LIST] = node->saved[LIST],
                                                 [SHARD_HEAD_LIST_ON_HOST] = node->saved[LIST_ON_HOST],
                                                 [SHARD_HEAD_BIAS_ORIGIN] = node->saved[BIAS_ORIGIN],
                                                 [SHARD_HEAD_CLASS_WEIGHT_ORIGIN] = node->saved[CLASS_WEIGHT_ORIGIN],
                                                 [SHARD_HEAD_CORRECTION_ORIGIN] = node->saved[CORRECTION_ORIGIN]};
    double *stats = memory[SUMS];
    set_spread(&h, stats);
    return shard_linear_head_backward(node, &h, &rows, stats, stats ? stats + SHARD_CE_STATS * c->shape.rows : NULL, kept,
                                      node->saved[STASH], dx);
}

static const shard_node_type head_type = {.name = "shard_linear_cross_entropy", .backward = head_backward};

/* ---- checks ---- */

static bool check_operands(const char *of, shard_tensor *const *operand)
{
    const shard_tensor *x = operand[X], *weight = operand[WEIGHT], *bias = operand[BIAS];
    bool wide_weight = x->dtype != weight->dtype && shard_dtype_size(x->dtype) == 2 && weight->dtype == SHARD_FLOAT32;
    if ((x->dtype != weight->dtype && !wide_weight) || (bias && bias->dtype != weight->dtype)) {
        shard_error(
            SHARD_ERROR_SHAPE,
            "%s: x is %s, weight is %s and bias is %s; all of one dtype are needed, or x of 16 bits with a float32 weight", of,
            shard_dtype_name(x->dtype), shard_dtype_name(weight->dtype), bias ? shard_dtype_name(bias->dtype) : "missing");
        return false;
    }
    if (weight->shape.ndim != 2 || x->shape.ndim < 1 || x->shape.dim[x->shape.ndim - 1] != weight->shape.dim[1]) {
        shard_error(SHARD_ERROR_SHAPE, "%s: x of shape %s and a weight of shape %s; [..., in] and [classes, in] are needed", of,
                    shard_shape_text(&x->shape), shard_shape_text(&weight->shape));
        return false;
    }
    if (bias && (bias->shape.ndim != 1 || bias->shape.dim[0] != weight->shape.dim[0])) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a bias of shape %s for a weight of shape %s; [classes] is needed", of,
                    shard_shape_text(&bias->shape), shard_shape_text(&weight->shape));
        return false;
    }
    return true;
}

/* Sets the placement of the logits; false with the error set if there is no rule. */
static bool choose_placement(const char *of, shard_tensor *const *operand, shard_placement *placement)
{
    const shard_tensor *x = operand[X], *weight = operand[WEIGHT], *bias = operand[BIAS];
    int last = x->shape.ndim - 1;
    if (!shard_is_local(weight) && !shard_is_split(weight, 0))
        return shard_refuse_placement(of, weight);
    *placement = shard_is_local(weight) ? x->placement : weight->placement;
    if (shard_is_local(weight))
        return shard_check_carried(of, x, last) && (!bias || shard_check_carried(of, bias, 0));
    placement->dim = last;
    if (bias && !shard_placement_equal(&bias->placement, &weight->placement)) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: the weight is split along classes, the bias must be in the same way; it is %s",
                    of, shard_placement_text(&bias->placement));
        return false;
    }
    return shard_check_carried(of, x, 0);
}

shard_tensor *shard_linear_head_logits(const char *of, shard_tensor *const *operand)
{
    shard_tensor *x = operand[X];
    shard_placement placement;
    for (int i = 0; i < INPUTS; i++) {
        if (i == BIAS && !operand[i])
            continue;
        if (!shard_check_operands(of, SHARD_INPUTS(operand[i])))
            return NULL;
        if (shard_device_of(operand[i]) != shard_device_of(x))
            return shard_fail_null(SHARD_ERROR_SHAPE, "%s: operands are on %s and on %s; one device is needed (shard_to_device)",
                                   of, shard_device_of(x)->name, shard_device_of(operand[i])->name);
    }
    if (!check_operands(of, operand) || !choose_placement(of, operand, &placement))
        return NULL;
    shard_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = operand[WEIGHT]->shape.dim[0];
    shard_tensor *logits = shard_tensor_make(shape, shard_head_wide(x->dtype), shard_device_of(x));
    if (logits)
        logits->placement = placement;
    return logits;
}

static bool read_options(head_call *call, const shard_cross_entropy_options *options)
{
    const char *function = call->rows.function;
    bool cosines = call->normalized || call->has_margins;
    double scale = call->logit_scale * (call->has_margins ? call->margin.scale : 1.0);
    if (!shard_cross_entropy_check_factor(function, "logit_scale", call->logit_scale, true))
        return false;
    if ((options->sample || cosines) && options->soft_cap != 0.0) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: soft_cap %g with a sample of classes, a margin or normalized rows; 0 is needed",
                    function, options->soft_cap);
        return false;
    }
    if (call->ranked && (options->sample || cosines)) {
        shard_error(
            SHARD_ERROR_UNSUPPORTED,
            "%s: a label rank with a sample of classes, a margin or normalized rows; count it of the logits in evaluation",
            function);
        return false;
    }
    if (cosines && call->input[BIAS]) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a bias with a margin or normalized rows; cosines have none", function);
        return false;
    }
    if (call->correction && (cosines || !options->sample)) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a sample's correction %s", function,
                    cosines ? "with a margin or normalized rows; leave it out, as Partial FC does" : "without a sample");
        return false;
    }
    if (call->has_margins && call->rows.labels &&
        (!shard_label_margins_read(&call->rows, &call->margin, &call->margins) ||
         !shard_cross_entropy_check_factor(function, "the product of the margin's scale and logit_scale", scale, true)))
        return false;
    if (!call->rows.labels) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: the target is %s; int64 labels are needed (probabilities: shard_linear and "
                    "shard_cross_entropy)",
                    function, shard_dtype_name(call->target->dtype));
        return false;
    }
    call->reduction = options->reduction;
    bool rows_are_split = !call->rows.group && !shard_is_local(call->rows.logits);
    if (rows_are_split && call->reduction != SHARD_REDUCTION_NONE) {
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: no mean and no sum over rows that are split over a group; take SHARD_REDUCTION_NONE and shard_sum",
                    function);
        return false;
    }
    return shard_cross_entropy_read_options(&call->rows, options, &call->class_weight);
}

static bool read_arguments(head_call *call, const shard_cross_entropy_options *options)
{
    shard_tensor *logits = shard_check_operand(call->rows.function, call->target)
                               ? shard_linear_head_logits(call->rows.function, call->operand)
                               : NULL;
    if (!logits)
        return false;
    call->rows.x = call->operand[X];
    call->rows.weight = call->operand[WEIGHT];
    return shard_class_rows_read(&call->rows, logits, call->target, options->ignore_index) && read_options(call, options);
}

/* Adds the correction to the bias of the sampled classes, or makes it the bias, which the logits' scale multiplies. */
static bool add_correction(head_call *call)
{
    shard_tensor *bias = call->operand[BIAS], *weight = call->operand[WEIGHT];
    shard_tensor *correction = shard_sampled_correction(call->correction, call->logit_scale, weight);
    call->operand[BIAS] = bias ? shard_add(bias, correction) : correction;
    return call->operand[BIAS] != NULL;
}

/* The numbers of the sampled classes alone. */
static bool pick_sampled(head_call *call)
{
    shard_tensor **all[] = {&call->operand[BIAS], &call->class_weight};
    for (int i = 0; i < 2; i++) {
        shard_tensor *picked = shard_sampled_pick(&call->sampled, *all[i]);
        if (*all[i] && !picked)
            return false;
        *all[i] = picked;
    }
    return !call->correction || add_correction(call);
}

/* ---- forward ---- */

bool shard_linear_head_stash(shard_head *h, shard_tensor *const *operand, double share, shard_tensor **stash)
{
    shard_tensor *x = operand[X];
    const shard_leaf *leaf = shard_leaf_of(operand[WEIGHT]);
    double most = share * (double)shard_tensor_bytes(operand[WEIGHT]);
    bool extends = leaf->has_grad && shard_source_of(leaf->grad);
    *stash = NULL;
    if (leaf->gathers_grad || extends) /* of the rows of all replicas or micro-batches, of which this forward has some */
        return true;
    size_t bytes = shard_head_stash_bytes(shard_device_of(x), h, most < (double)INT64_MAX ? (size_t)most : INT64_MAX);
    if (bytes == 0)
        return true;
    *stash = shard_workspace(x, (int64_t)bytes, SHARD_UINT8);
    if (*stash)
        shard_head_set_stash(h, *stash);
    return h->stash != NULL;
}

static bool load(const head_call *call, void **memory)
{
    const shard_sampled *sampled = &call->sampled;
    return shard_load(SHARD_INPUTS(call->operand[X], call->operand[WEIGHT], call->operand[BIAS], call->target, call->class_weight,
                                   sampled->list, sampled->on_host, sampled->label_row),
                      memory);
}

/* Computes the labels' logits of the local classes: the first numbers that the ranks exchange, where label ranks are wanted. */
static bool pick_local(head_call *call)
{
    shard_class_rows *rows = &call->rows;
    shard_tensor *x = call->operand[X];
    void *memory[OPERANDS];
    if (!shard_class_rows_open(rows, rows->shape.rows) || !load(call, memory))
        return false;
    shard_head h = head_of(&rows->shape, x, call->operand[WEIGHT], memory);
    return shard_head_label_logits(shard_device_of(x), &h, rows->local) == SHARD_OK;
}

/* The local statistics, for the exchange and for the features' gradient. label_logit: NULL without ranks. */
static bool measure_local(head_call *call, shard_tensor *label_logit)
{
    shard_class_rows *rows = &call->rows;
    shard_tensor *x = call->operand[X], *weight = call->operand[WEIGHT];
    int64_t doubles = rows->shape.rows * SHARD_CE_STATS, wide = (int64_t)shard_dtype_size(shard_head_wide(x->dtype));
    bool records = shard_will_record(SHARD_INPUTS(call->input[X]));
    void *memory[OPERANDS];
    if (!shard_class_rows_open(rows, doubles + call->ranked * rows->shape.rows) || (call->sampled.list && !pick_sampled(call)) ||
        !load(call, memory))
        return false;
    shard_head h = head_of(&call->shape, x, weight, memory);
    h.normalized = call->normalized;
    if (call->has_margins && !shard_label_margins_compute(&call->margins, x, &h))
        return false;
    if (call->ranked) {
        h.ahead = shard_cross_entropy_ahead(rows, call->ranked, rows->local);
        h.label_logit = shard_tensor_memory(label_logit);
    }
    if (shard_will_record(SHARD_INPUTS(call->input[WEIGHT], call->input[BIAS])) &&
        !shard_linear_head_stash(&h, call->operand, call->stash_share, &call->stash))
        return false;
    if (!records)
        return shard_head_forward(shard_device_of(x), &h, rows->local, NULL) == SHARD_OK;
    int64_t sums = shard_head_sums(&h) ? rows->shape.rows * h.in : 0, bytes = (sums + shard_head_spreads(&h) * h.in) * wide;
    call->sums = shard_workspace(x, doubles + (bytes + (int64_t)sizeof(double) - 1) / (int64_t)sizeof(double), SHARD_FLOAT64);
    double *stats = call->sums ? shard_tensor_memory(call->sums) : NULL;
    set_spread(&h, stats);
    size_t width = (size_t)doubles * sizeof(double);
    return stats && shard_head_forward(shard_device_of(x), &h, stats, shard_head_sums(&h) ? stats + doubles : NULL) == SHARD_OK &&
           SHARD_RUN(x, copy_rows, rows->local, width, stats, width, width, 1) == SHARD_OK;
}

/* The statistics of all ranks. */
static shard_status measure(head_call *call, bool ready)
{
    shard_tensor *logit = NULL;
    if (call->ranked) {
        ready = ready && pick_local(call);
        SHARD_TRY(shard_class_rows_gather(&call->rows, ready));
        logit = shard_class_rows_add_picked(&call->rows);
        ready = logit != NULL;
    }
    return shard_class_rows_gather(&call->rows, ready && measure_local(call, logit));
}

static shard_tensor *record(const head_call *call, shard_tensor *y, shard_tensor *numbers)
{
    shard_node *node = shard_record(&head_type, y, INPUTS, call->input, sizeof(head_context));
    if (!node)
        return shard_last_status() == SHARD_OK ? y : NULL;
    *(head_context *)node->context = (head_context){call->shape, call->normalized};
    node->group = call->rows.group; /* NULL unless the classes are split */
    for (int i = 0; i < INPUTS; i++)
        shard_save_for_backward(node, i, call->operand[i]);
    shard_save_for_backward(node, TARGET, call->target);
    shard_save_for_backward(node, CLASS_WEIGHT, call->class_weight);
    shard_save_for_backward(node, LIST, call->sampled.list);
    shard_save_for_backward(node, LIST_ON_HOST, call->sampled.on_host);
    shard_save_for_backward(node, LABEL_ROW, call->sampled.label_row);
    shard_save_for_backward(node, NUMBERS, numbers);
    shard_save_for_backward(node, SUMS, call->sums);
    shard_save_for_backward(node, STASH, call->stash);
    shard_save_for_backward(node, MARGIN_SHIFT, call->margins.shift);
    shard_save_for_backward(node, MARGIN_NUMBERS, call->margins.numbers);
    shard_save_for_backward(node, BIAS_ORIGIN, call->sampled.list ? call->input[BIAS] : NULL);
    shard_save_for_backward(node, CLASS_WEIGHT_ORIGIN, call->weight_given);
    shard_save_for_backward(node, CORRECTION_ORIGIN, call->correction);
    return y;
}

/* ok: whether the options could be read. */
static shard_tensor *linear_cross_entropy(head_call *call, bool ok, const shard_cross_entropy_options *options)
{
    shard_tensor *weight = call->input[WEIGHT];
    if (weight && weight->shape.ndim > 0 && shard_is_split(weight, 0))
        call->rows.group = weight->placement.group; /* whose ranks wait for this one, whatever is wrong here */
    bool ready = read_arguments(call, options) && ok;
    if (ready)
        call->rows.options = shard_label_margins_hash(shard_cross_entropy_hash(&call->rows, options, call->ranked),
                                                      call->normalized, &call->margins);
    call->shape = call->rows.shape;
    if (options->sample) {
        if (shard_sampled_open(&call->rows, ready, options->sample, call->correction, options->label_smoothing, &call->sampled,
                               &call->shape) != SHARD_OK)
            return NULL;
        call->target = call->sampled.target;
    }
    if (measure(call, ready) != SHARD_OK)
        return NULL;
    shard_tensor *numbers =
        shard_cross_entropy_join(&call->rows, call->reduction == SHARD_REDUCTION_MEAN, call->ranked, &call->rank);
    shard_tensor *y = shard_cross_entropy_result(&call->rows, call->reduction, numbers);
    return y ? record(call, y, numbers) : NULL;
}

/* Normalizes x and gives it the scale of the logits, where these are cosines. */
static shard_tensor *scale_features(shard_tensor *x, head_call *call, shard_cross_entropy_options *options)
{
    double scale = call->has_margins ? call->margin.scale * options->logit_scale : options->logit_scale;
    bool fits = x && shard_dtype_is_float(x->dtype) && x->shape.ndim > 0; /* else the loss reports it */
    if (!fits || (!call->normalized && !call->has_margins))
        return x;
    options->logit_scale = 1;
    call->margins.margin.scale = scale;
    if (call->normalized)
        x = shard_normalize(x, -1, SHARD_HEAD_EPS);
    return scale != 1 ? shard_scale(x, scale) : x;
}

shard_tensor *shard_linear_cross_entropy_of(const char *function, const shard_class_faults *class_faults, shard_tensor *x,
                                            shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                            const shard_cross_entropy_options *given, shard_tensor **label_rank)
{
    SHARD_READ_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS_INIT, options, given);
    SHARD_READ_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS_INIT, margin, options.margin);
    head_call call = {.rows = {.function = function, .faults = class_faults},
                      .input = {x, weight, bias},
                      .target = target,
                      .normalized = options.normalized,
                      .logit_scale = options.logit_scale,
                      .stash_share = options.stash_share,
                      .correction = options.sample_correction,
                      .weight_given = options.weight,
                      .has_margins = options.margin,
                      .margin = margin,
                      .ranked = label_rank};
    shard_scope scope;
    shard_scope_open(&scope);
    call.input[X] = scale_features(x, &call, &options);
    for (int i = 0; i < INPUTS; i++)
        call.operand[i] = call.input[i];
    shard_autocast_product(1, call.input, call.operand);
    shard_tensor *loss = shard_scope_return(linear_cross_entropy(&call, options_ok && margin_ok, &options), &scope);
    if (label_rank)
        *label_rank = loss ? shard_scope_return(call.rank, &scope) : NULL;
    shard_scope_close(&scope);
    return loss;
}

shard_tensor *shard_linear_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                              const shard_cross_entropy_options *options, shard_tensor **label_rank)
{
    SHARD_FUNCTION("shard_linear_cross_entropy");
    return shard_linear_cross_entropy_of("shard_linear_cross_entropy", &faults, x, weight, bias, target, options, label_rank);
}
