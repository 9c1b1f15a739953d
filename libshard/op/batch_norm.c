/*
 * batch_norm: over all but the last dimension and over the rows of a group, with relu and the addition of a residual
 * in the same pass.
 *
 * Nothing waits for the device. The ranks sum x and x^2 without a shift, as each rank has its own shift, which keeps
 * its sums exact. They exchange their numbers of rows before that. A rank that failed before a collective takes part
 * in it, so that the other ranks learn of its error.
 */
#include "op/autocast.h"
#include "base/options.h"
#include "op/op.h"

#include "comm/function.h"

#include <inttypes.h>

enum { X, WEIGHT, BIAS, RESIDUAL };
enum { SAVED_X, SAVED_Y, SAVED_WEIGHT, SAVED_MEAN, SAVED_RSTD };

typedef struct batch_norm_context {
    int64_t rows, channels;
    bool training, relu;
    double count; /* rows of all ranks; 0: mean and rstd were constants */
    shard_group *group;
} batch_norm_context;

/* ---- backward ---- */

/* Makes a parameter's gradient, which is written together with the sums. */
static shard_status parameter_gradient(shard_node *node, int input, const shard_tensor *dy, shard_tensor **dx)
{
    if (!shard_wants(node, input))
        return SHARD_OK;
    dx[input] = shard_gradient_to_overwrite(node, input);
    if (!dx[input])
        return shard_last_status();
    shard_place_sum(dx[input], dy);
    return SHARD_OK;
}

/* The sums of this rank's rows, which are its gradients of the parameters; NULL with the error set. */
static shard_tensor *gradient_sums(shard_node *node, shard_tensor *x, shard_tensor *y, shard_tensor *dy, shard_tensor **dx)
{
    const batch_norm_context *context = node->context;
    shard_tensor *mean = shard_saved(node, SAVED_MEAN), *rstd = shard_saved(node, SAVED_RSTD);
    if (!x || !mean || !rstd || (context->relu && !y) || parameter_gradient(node, WEIGHT, dy, dx) != SHARD_OK ||
        parameter_gradient(node, BIAS, dy, dx) != SHARD_OK)
        return NULL;
    shard_tensor *sums = shard_workspace(x, 2 * context->channels, SHARD_FLOAT64);
    void *memory[8];
    if (!sums || !shard_load(SHARD_INPUTS(x, y, dy, mean, rstd, sums, dx[WEIGHT], dx[BIAS]), memory))
        return NULL;
    shard_status status = SHARD_RUN(x, batch_norm_backward_sums, context->rows, context->channels, memory[0], memory[1],
                                    memory[2], memory[3], memory[4], memory[5], memory[6], memory[7], x->dtype);
    return status == SHARD_OK ? sums : NULL;
}

static shard_status input_gradients(shard_node *node, shard_tensor *x, shard_tensor *y, shard_tensor *dy, shard_tensor *sums,
                                    shard_tensor **dx)
{
    const batch_norm_context *context = node->context;
    shard_tensor *mean = shard_saved(node, SAVED_MEAN), *rstd = shard_saved(node, SAVED_RSTD);
    shard_tensor *weight = shard_saved(node, SAVED_WEIGHT);
    if (node->saved[SAVED_WEIGHT] && !weight)
        return shard_last_status();
    bool passes_dy = shard_wants(node, RESIDUAL) && !context->relu; /* the residual's gradient is dy */
    shard_tensor *residual = NULL;
    if (passes_dy)
        dx[RESIDUAL] = dy;
    else if (shard_wants(node, RESIDUAL) && !(dx[RESIDUAL] = residual = shard_make_gradient(node, RESIDUAL)))
        return shard_last_status();
    if (!shard_wants(node, X) && !residual)
        return SHARD_OK;
    if (shard_wants(node, X) && !(dx[X] = passes_dy ? shard_make_gradient(node, X) : shard_gradient_over(node, X, dy)))
        return shard_last_status();
    void *memory[9];
    if (!shard_load(SHARD_INPUTS(x, y, dy, mean, rstd, weight, sums, dx[X], residual), memory))
        return shard_last_status();
    return SHARD_RUN(x, batch_norm_backward, context->rows, context->channels, memory[0], memory[1], memory[2], memory[3],
                     memory[4], memory[5], memory[6], context->count, memory[7], memory[8], x->dtype);
}

static shard_status batch_norm_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const batch_norm_context *context = node->context;
    shard_tensor *x = shard_saved(node, SAVED_X), *y = shard_saved(node, SAVED_Y);
    shard_tensor *sums = gradient_sums(node, x, y, dy, dx);
    shard_status status = sums ? SHARD_OK : shard_last_status();
    if (context->training && shard_wants(node, X))
        status = shard_group_all_reduce(context->group, sums ? shard_device_of(sums) : NULL,
                                        sums ? shard_tensor_memory(sums) : NULL, 2 * context->channels, SHARD_FLOAT64, SHARD_SUM);
    return status == SHARD_OK ? input_gradients(node, x, y, dy, sums, dx) : status;
}

static const shard_node_type batch_norm_type = {.name = "batch_norm", .backward = batch_norm_backward};

/* ---- statistics ---- */

typedef struct batch_norm {
    shard_tensor *x, *running_mean, *running_var, *weight, *bias;
    shard_batch_norm_options options;
    int64_t rows, channels;
    int64_t count; /* rows of all ranks */
    shard_tensor *y, *mean, *rstd;
} batch_norm;

/* [channels], float64: the first row, which is about as close to the batch's mean as any value of it. A running mean may be far
 * away, or not finite after a batch that was not. */
static shard_tensor *guess_mean(const batch_norm *b)
{
    shard_tensor *guess = shard_workspace(b->x, b->channels, SHARD_FLOAT64);
    void *memory[2];
    if (!guess || !shard_load(SHARD_INPUTS(b->x, guess), memory))
        return NULL;
    return shard_result(guess, SHARD_RUN(guess, cast, b->channels, memory[0], b->x->dtype, memory[1], SHARD_FLOAT64));
}

/* The sums of x and x^2 over this rank's rows; NULL with the error set. */
static shard_tensor *local_sums(const batch_norm *b)
{
    shard_tensor *sums = shard_workspace(b->x, 2 * b->channels, SHARD_FLOAT64);
    shard_tensor *shift = b->rows ? guess_mean(b) : NULL;
    void *memory[3];
    if (!sums || (b->rows && !shift) || !shard_load(SHARD_INPUTS(b->x, shift, sums), memory))
        return NULL;
    if (SHARD_RUN(sums, batch_norm_sums, b->rows, b->channels, memory[0], memory[1], memory[2], b->x->dtype) != SHARD_OK ||
        SHARD_RUN(sums, batch_norm_unshift, b->rows, b->channels, memory[1], memory[2]) != SHARD_OK)
        return NULL;
    return sums;
}

/* The running statistics' memory; none if there are no rows. */
static bool load_running(const batch_norm *b, void **running)
{
    shard_tensor *const tensors[] = {b->running_mean, b->running_var};
    for (int i = 0; i < 2; i++) {
        running[i] = NULL;
        if (tensors[i] &&
            !(running[i] = b->count > 0 ? shard_tensor_memory_to_write(tensors[i]) : shard_tensor_memory(tensors[i])))
            return false;
    }
    return true;
}

/* Computes mean and rstd over the group's rows and updates the running statistics. Collective. */
static shard_status measure(batch_norm *b)
{
    const shard_batch_norm_options *options = &b->options;
    bool alone = shard_group_size(options->group) <= 1;
    shard_tensor *sums = alone ? NULL : local_sums(b);
    if (!alone)
        SHARD_TRY(shard_group_all_reduce(options->group, sums ? shard_device_of(sums) : NULL,
                                         sums ? shard_tensor_memory(sums) : NULL, 2 * b->channels, SHARD_FLOAT64, SHARD_SUM));
    void *memory[4], *running[2];
    if (!load_running(b, running) || !shard_load(SHARD_INPUTS(b->x, sums, b->mean, b->rstd), memory))
        return shard_last_status();
    if (alone)
        return SHARD_RUN(b->x, batch_norm_measure, b->rows, b->channels, memory[0], options->eps, options->momentum, running[0],
                         running[1], memory[2], memory[3], b->x->dtype);
    return SHARD_RUN(b->x, batch_norm_statistics, b->channels, (double)b->count, NULL, memory[1], options->eps, options->momentum,
                     running[0], running[1], memory[2], memory[3], b->x->dtype);
}

static shard_status recall(const batch_norm *b)
{
    void *memory[4];
    if (!shard_load(SHARD_INPUTS(b->running_mean, b->running_var, b->mean, b->rstd), memory))
        return shard_last_status();
    return SHARD_RUN(b->x, batch_norm_recall, b->channels, memory[0], memory[1], b->options.eps, memory[2], memory[3],
                     b->x->dtype);
}

/* ---- forward ---- */

static bool check_residual(const char *function, const shard_tensor *x, shard_tensor *residual)
{
    if (!residual)
        return true;
    if (!shard_check_operands(function, 2, (shard_tensor *[]){(shard_tensor *)x, residual}))
        return false;
    if (!shard_shape_equal(&x->shape, &residual->shape) || !shard_placement_equal(&x->placement, &residual->placement)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a residual of shape %s, %s, for x of shape %s, %s; both must be the same", function,
                    shard_shape_text(&residual->shape), shard_placement_text(&residual->placement), shard_shape_text(&x->shape),
                    shard_placement_text(&x->placement));
        return false;
    }
    return true;
}

bool shard_check_batch_norm(const char *function, double momentum, double eps)
{
    if (momentum >= 0 && momentum <= 1 && eps >= 0)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: momentum %g, eps %g; a momentum in [0, 1] and an eps of at least 0 are needed",
                function, momentum, eps);
    return false;
}

static bool check(batch_norm *b)
{
    static const char function[] = "shard_batch_norm";
    const shard_batch_norm_options *options = &b->options;
    if (!shard_check_operands(function, SHARD_INPUTS(b->x)))
        return false;
    if (b->x->shape.ndim == 0) {
        shard_error(SHARD_ERROR_SHAPE, "%s: x has shape []; [..., channels] is needed", function);
        return false;
    }
    if (!shard_check_carried(function, b->x, b->x->shape.ndim - 1) ||
        !shard_check_norm_pair(function, "weight and bias", b->x, b->weight, b->bias) ||
        !shard_check_norm_pair(function, "running_mean and running_var", b->x, b->running_mean, b->running_var) ||
        !check_residual(function, b->x, options->residual))
        return false;
    if (!options->training && !b->running_mean) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: running_mean and running_var are needed when not training", function);
        return false;
    }
    return shard_check_batch_norm(function, options->momentum, options->eps);
}

/* Does what may fail on this rank alone before the collectives and the update of the running statistics, apart from the first use
 * of x, weight, bias and residual. */
static bool prepare(batch_norm *b)
{
    if (!check(b))
        return false;
    int last = b->x->shape.ndim - 1;
    b->rows = shard_shape_product(&b->x->shape, 0, last);
    b->channels = b->x->shape.dim[last];
    b->y = shard_tensor_like(b->x);
    b->mean = shard_workspace(b->x, b->channels, SHARD_FLOAT64);
    b->rstd = shard_workspace(b->x, b->channels, SHARD_FLOAT64);
    void *memory[5];
    return b->y && b->mean && b->rstd &&
           shard_load(SHARD_INPUTS(b->y, b->mean, b->rstd, b->running_mean, b->running_var), memory);
}

/* The number of rows of all ranks. Collective. */
static shard_status count_rows(batch_norm *b)
{
    b->count = b->rows;
    if (b->options.group)
        shard_require_identical("%s, %" PRId64 " channels, eps %.9g, momentum %.9g", shard_dtype_name(b->x->dtype), b->channels,
                                b->options.eps, b->options.momentum);
    SHARD_TRY(shard_group_all_reduce(b->options.group, NULL, &b->count, 1, SHARD_INT64, SHARD_SUM));
    if (b->count != 1)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_SHAPE,
                       "shard_batch_norm: expected more than 1 value per channel when training, got x of shape %s",
                       shard_tensor_shape_text(b->x));
}

static void record(const batch_norm *b)
{
    const shard_batch_norm_options *options = &b->options;
    shard_node *node = shard_record(&batch_norm_type, b->y, SHARD_INPUTS(b->x, b->weight, b->bias, options->residual),
                                    sizeof(batch_norm_context));
    if (!node)
        return;
    *(batch_norm_context *)node->context = (batch_norm_context){
        .rows = b->rows,
        .channels = b->channels,
        .training = options->training,
        .relu = options->relu,
        .count = options->training ? (double)b->count : 0,
        .group = options->group,
    };
    shard_save_for_backward(node, SAVED_X, b->x);
    shard_save_for_backward(node, SAVED_Y, options->relu ? b->y : NULL);
    shard_save_for_backward(node, SAVED_WEIGHT, b->weight);
    shard_save_for_backward(node, SAVED_MEAN, b->mean);
    shard_save_for_backward(node, SAVED_RSTD, b->rstd);
}

static shard_tensor *forward(batch_norm *b)
{
    const shard_batch_norm_options *options = &b->options;
    if (!prepare(b)) {
        if (options->training)
            shard_group_fail(options->group);
        return NULL;
    }
    if (options->training ? count_rows(b) != SHARD_OK || measure(b) != SHARD_OK : recall(b) != SHARD_OK)
        return NULL;
    void *memory[7];
    if (!shard_load(SHARD_INPUTS(b->x, b->mean, b->rstd, b->weight, b->bias, options->residual, b->y), memory) ||
        SHARD_RUN(b->x, batch_norm, b->rows, b->channels, memory[0], memory[1], memory[2], memory[3], memory[4], memory[5],
                  options->relu, memory[6], b->x->dtype) != SHARD_OK)
        return NULL;
    record(b);
    return b->y;
}

shard_tensor *shard_batch_norm_with(shard_tensor *x, shard_tensor *running_mean, shard_tensor *running_var, shard_tensor *weight,
                                    shard_tensor *bias, const shard_batch_norm_options *given)
{
    SHARD_FUNCTION("shard_batch_norm");
    SHARD_READ_OPTIONS(shard_batch_norm_options, SHARD_BATCH_NORM_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    batch_norm b = {
        .x = x, .running_mean = running_mean, .running_var = running_var, .weight = weight, .bias = bias, .options = options};
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *same[] = {x, options.residual};
    shard_autocast_promote(2, same);
    b.x = same[0];
    b.options.residual = same[1];
    shard_tensor *y = shard_scope_return(forward(&b), &scope);
    shard_scope_close(&scope);
    return y;
}
