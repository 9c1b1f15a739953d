/*
 * Binary cross-entropy of a linear layer without its logits: sweeps over tiles of the weight (device/head.h). The derivative by
 * a logit needs no other logit, so that the forward's sweep gives the loss and, but for factors of the rows, the gradient of x;
 * the ranks exchange the sums of their losses alone.
 */
#include "base/options.h"
#include "comm/function.h"
#include "op/autocast.h"
#include "op/binary_cross_entropy.h"
#include "op/cross_entropy.h"
#include "op/linear_head.h"

static const char function[] = "shard_linear_binary_cross_entropy";
static const shard_binary_faults faults = SHARD_BINARY_FAULTS("shard_linear_binary_cross_entropy");

enum { X = SHARD_LINEAR_X, WEIGHT = SHARD_LINEAR_WEIGHT, BIAS = SHARD_LINEAR_BIAS, INPUTS = SHARD_LINEAR_OPERANDS };
/* The tensors that a node saves: the inputs, and these. SUM [rows, in]: that of the forward. */
enum {
    PAIRS = INPUTS,
    CLASS_WEIGHT,
    POSITIVE,
    ROW_WEIGHT,
    OPERANDS,
    SUM = OPERANDS,
    STASH,
    CLASS_WEIGHT_ORIGIN,
    POSITIVE_ORIGIN,
    SAVED
};

typedef struct binary_head_call {
    shard_binary_call loss;
    shard_tensor *input[INPUTS];   /* as given: the operands that get gradients */
    shard_tensor *operand[INPUTS]; /* x in the products' type */
    shard_tensor *sum, *stash;
    shard_tensor *weight_given, *positive_given; /* that those of the loss are copies of, or parts; NULL: none */
} binary_head_call;

typedef struct binary_head_context {
    shard_cross_entropy_shape shape;
    int64_t pairs;
    double factor; /* of the sum of the losses */
} binary_head_context;

/* The head of OPERANDS in memory. */
static shard_head head_of(const binary_head_context *c, const shard_tensor *x, const shard_tensor *weight, void *const *memory)
{
    return (shard_head){.loss = c->shape,
                        .in = weight->shape.dim[1],
                        .dtype = x->dtype,
                        .weight_dtype = weight->dtype,
                        .x = memory[X],
                        .weight = memory[WEIGHT],
                        .bias = memory[BIAS],
                        .class_weight = memory[CLASS_WEIGHT],
                        .weight_rows = weight->shape.dim[0],
                        .binary = true,
                        .pair = memory[PAIRS],
                        .pairs = c->pairs,
                        .positive = memory[POSITIVE],
                        .row_weight = memory[ROW_WEIGHT]};
}

/* ---- backward ---- */

/* [rows], float64: the derivative of the result by each row's losses, times dy. */
static double *row_scales(const binary_head_context *c, shard_tensor *like, const double *row_weight, shard_tensor *dy)
{
    int64_t rows = c->shape.rows;
    shard_tensor *factor = shard_workspace(like, rows, SHARD_FLOAT64);
    double *memory = factor ? shard_tensor_memory(factor) : NULL;
    shard_status status = !memory      ? shard_last_status()
                          : row_weight ? SHARD_RUN(dy, axpby, rows, c->factor, row_weight, 0.0, memory, SHARD_FLOAT64)
                                       : SHARD_RUN(dy, fill, rows, c->factor, memory, SHARD_FLOAT64);
    return status == SHARD_OK ? shard_cross_entropy_row_scales(like, rows, memory, dy) : NULL;
}

static shard_status binary_head_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const binary_head_context *c = node->context;
    shard_tensor *saved[SAVED];
    void *memory[SAVED];
    if (!shard_saved_all(node, SAVED, saved) || !shard_load(SAVED, saved, memory))
        return shard_last_status();
    shard_head h = head_of(c, saved[X], saved[WEIGHT], memory);
    shard_head_set_stash(&h, saved[STASH]);
    const shard_loss_rows rows = {.scale = row_scales(c, saved[X], memory[ROW_WEIGHT], dy)};
    if (!rows.scale)
        return shard_last_status();
    shard_tensor *const kept[SHARD_HEAD_KEPT] = {[SHARD_HEAD_WEIGHT] = node->saved[WEIGHT],
                                                 [SHARD_HEAD_BIAS] = node->saved[BIAS],
                                                 [SHARD_HEAD_CLASS_WEIGHT] = node->saved[CLASS_WEIGHT],
                                                 [SHARD_HEAD_POSITIVE] = node->saved[POSITIVE],
                                                 [SHARD_HEAD_CLASS_WEIGHT_ORIGIN] = node->saved[CLASS_WEIGHT_ORIGIN],
                                                 [SHARD_HEAD_POSITIVE_ORIGIN] = node->saved[POSITIVE_ORIGIN]};
    return shard_linear_head_backward(node, &h, &rows, NULL, memory[SUM], kept, node->saved[STASH], dx);
}

static const shard_node_type binary_head_type = {.name = "shard_linear_binary_cross_entropy", .backward = binary_head_backward};

/* ---- forward ---- */

static bool read_arguments(binary_head_call *call, shard_tensor *target, const shard_binary_cross_entropy_options *options)
{
    shard_class_rows *rows = &call->loss.rows;
    shard_tensor *logits =
        shard_check_operand(rows->function, target) ? shard_linear_head_logits(rows->function, call->operand) : NULL;
    if (!logits || !shard_binary_read(&call->loss, logits, target, options))
        return false;
    rows->x = call->operand[X];
    rows->weight = call->operand[WEIGHT];
    if (rows->group || shard_is_local(logits))
        return true;
    shard_error(SHARD_ERROR_UNSUPPORTED,
                "%s: rows that are split over a group; take shard_binary_cross_entropy_with_logits of shard_linear",
                rows->function);
    return false;
}

static binary_head_context context_of(const binary_head_call *call)
{
    return (binary_head_context){.shape = call->loss.rows.shape, .pairs = call->loss.shape.pairs, .factor = call->loss.factor};
}

/* The sum of the local losses, for the exchange, and the sum for the features' gradient. */
static bool measure_local(binary_head_call *call)
{
    shard_class_rows *rows = &call->loss.rows;
    shard_tensor *x = call->operand[X], *weight = call->operand[WEIGHT];
    const binary_head_context c = context_of(call);
    void *memory[OPERANDS + 1] = {NULL};
    if (shard_will_record(SHARD_INPUTS(call->input[X]))) {
        call->sum = shard_workspace(x, c.shape.rows * weight->shape.dim[1], shard_head_wide(x->dtype));
        if (!call->sum)
            return false;
    }
    if (!shard_class_rows_open(rows, 1) ||
        !shard_load(SHARD_INPUTS(x, weight, call->operand[BIAS], call->loss.pairs, call->loss.weight, call->loss.positive,
                                 rows->row_weight, call->sum),
                    memory))
        return false;
    shard_head h = head_of(&c, x, weight, memory);
    h.gradient_only = call->loss.gradient_only;
    if (shard_will_record(SHARD_INPUTS(call->input[WEIGHT], call->input[BIAS])) &&
        !shard_linear_head_stash(&h, call->operand, call->loss.stash_share, &call->stash))
        return false;
    if (h.gradient_only && !memory[SUM] && !h.stash) /* nothing is wanted of the sweep */
        return SHARD_RUN(x, fill, 1, 0, rows->local, SHARD_FLOAT64) == SHARD_OK;
    return shard_head_forward(shard_device_of(x), &h, rows->local, memory[SUM]) == SHARD_OK;
}

static shard_tensor *record(const binary_head_call *call, shard_tensor *y)
{
    shard_node *node = y ? shard_record(&binary_head_type, y, INPUTS, call->input, sizeof(binary_head_context)) : NULL;
    if (!node)
        return shard_last_status() == SHARD_OK ? y : NULL;
    *(binary_head_context *)node->context = context_of(call);
    node->group = call->loss.rows.group; /* NULL unless the classes are split */
    shard_tensor *const saved[SAVED] = {call->operand[X],  call->operand[WEIGHT], call->operand[BIAS],        call->loss.pairs,
                                        call->loss.weight, call->loss.positive,   call->loss.rows.row_weight, call->sum,
                                        call->stash,       call->weight_given,    call->positive_given};
    for (int i = 0; i < SAVED; i++)
        shard_save_for_backward(node, i, saved[i]);
    return y;
}

/* ok: whether the options could be read. */
static shard_tensor *linear_binary_cross_entropy(binary_head_call *call, bool ok, shard_tensor *target,
                                                 const shard_binary_cross_entropy_options *options)
{
    shard_class_rows *rows = &call->loss.rows;
    shard_tensor *weight = call->input[WEIGHT];
    if (weight && weight->shape.ndim > 0 && shard_is_split(weight, 0))
        rows->group = weight->placement.group; /* whose ranks wait for this one, whatever is wrong here */
    bool ready = read_arguments(call, target, options) && ok;
    if (ready)
        rows->options = shard_binary_hash(&call->loss);
    if (shard_class_rows_gather(rows, ready && measure_local(call)) != SHARD_OK)
        return NULL;
    return record(call, shard_binary_reduce(&call->loss));
}

/* By the two functions, for a target or results that are as large as the logits. */
static shard_tensor *with_logits(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                 shard_binary_cross_entropy_options *options)
{
    shard_group *group = weight && shard_is_split(weight, 0) ? weight->placement.group : NULL;
    bool mixed = x && weight && shard_dtype_size(x->dtype) == 2 && weight->dtype == SHARD_FLOAT32;
    shard_dtype mode = shard_autocast_dtype();
    if (mixed) /* a cast of the weight would round its gradient */
        shard_set_autocast(x->dtype);
    shard_tensor *logits = shard_linear(x, weight, bias);
    if (mixed)
        shard_set_autocast(mode);
    if (logits)
        return shard_binary_cross_entropy_with_logits_with(logits, target, options);
    if (group && options->reduction != SHARD_REDUCTION_NONE)
        shard_group_fail(group); /* its ranks wait for this one */
    return NULL;
}

shard_tensor *shard_linear_binary_cross_entropy_of(const char *name, const shard_binary_faults *of, shard_tensor *x,
                                                   shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                                   const shard_binary_cross_entropy_options *given)
{
    SHARD_READ_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT, options, given);
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *loss;
    if (options_ok && target && (shard_dtype_is_float(target->dtype) || options.reduction == SHARD_REDUCTION_NONE)) {
        loss = with_logits(x, weight, bias, target, &options);
    } else {
        binary_head_call call = {.loss = {.faults = of, .rows = {.function = name, .faults = &of->rows}},
                                 .input = {x, weight, bias},
                                 .operand = {x, weight, bias},
                                 .weight_given = options.weight,
                                 .positive_given = options.pos_weight};
        shard_autocast_product(1, call.input, call.operand);
        loss = linear_binary_cross_entropy(&call, options_ok, target, &options);
    }
    loss = shard_scope_return(loss, &scope);
    shard_scope_close(&scope);
    return loss;
}

shard_tensor *shard_linear_binary_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                     shard_tensor *target, const shard_binary_cross_entropy_options *options)
{
    SHARD_FUNCTION("shard_linear_binary_cross_entropy");
    return shard_linear_binary_cross_entropy_of(function, &faults, x, weight, bias, target, options);
}
