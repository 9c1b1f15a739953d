/*
 * batch_norm: over all but the last dimension, over a group's rows too, with relu
 * and the addition before it in the same pass.
 *
 * The sums over rows are the device's; what is done to a number for each channel
 * is done here in float64, after they have been summed over the group. There a
 * member's sums are those of x itself and x^2: the shift that keeps them exact on
 * the device may be another on each member. A member that fails before a
 * collective takes part in it all the same, and so tells the others.
 */
#include "op/op.h"

#include <math.h>
#include <stdlib.h>

enum { X, WEIGHT, BIAS, RESIDUAL };
enum { SAVED_X, SAVED_Y, SAVED_WEIGHT, SAVED_MEAN, SAVED_RSTD };

typedef struct batch_norm_context {
    int64_t rows, channels;
    bool training, relu;
    double count; /* rows of all members; 0: mean and rstd were constants */
    shard_group *group;
} batch_norm_context;

/* ---- backward ---- */

/* This member's sums; NULL if that fails. */
static shard_tensor *gradient_sums(const batch_norm_context *context, shard_tensor *x, shard_tensor *y, shard_tensor *dy,
                                   shard_tensor *mean, shard_tensor *rstd)
{
    if (!x || !mean || !rstd || (context->relu && !y))
        return NULL;
    shard_tensor *sums = shard_workspace(x, 2 * context->channels, SHARD_FLOAT64);
    void *memory[6];
    if (!sums || !shard_load(SHARD_INPUTS(x, y, dy, mean, rstd, sums), memory))
        return NULL;
    shard_status status = SHARD_RUN(x, batch_norm_backward_sums, context->rows, context->channels, memory[0], memory[1],
                                    memory[2], memory[3], memory[4], memory[5], x->dtype);
    return status == SHARD_OK ? sums : NULL;
}

static shard_status parameter_gradient(shard_node *node, int input, shard_tensor *sums, int which, const shard_tensor *dy,
                                       shard_tensor **dx)
{
    if (!shard_wants(node, input))
        return SHARD_OK;
    int64_t channels = ((const batch_norm_context *)node->context)->channels;
    dx[input] = shard_gradient_to_overwrite(node, input);
    void *memory[2];
    if (!dx[input] || !shard_load(SHARD_INPUTS(sums, dx[input]), memory))
        return shard_last_status();
    shard_place_sum(dx[input], dy);
    const double *sum = memory[0];
    return SHARD_RUN(sums, cast, channels, sum + which * channels, SHARD_FLOAT64, memory[1], dx[input]->dtype);
}

static shard_status input_gradients(shard_node *node, shard_tensor *x, shard_tensor *y, shard_tensor *dy, shard_tensor *sums,
                                    shard_tensor **dx)
{
    const batch_norm_context *context = node->context;
    shard_tensor *mean = shard_saved(node, SAVED_MEAN), *rstd = shard_saved(node, SAVED_RSTD);
    shard_tensor *weight = shard_saved(node, SAVED_WEIGHT);
    if (node->saved[SAVED_WEIGHT] && !weight)
        return shard_last_status();
    bool hands_on = shard_wants(node, RESIDUAL) && !context->relu; /* the residual's gradient is dy */
    shard_tensor *residual = NULL;
    if (hands_on)
        dx[RESIDUAL] = dy;
    else if (shard_wants(node, RESIDUAL) && !(dx[RESIDUAL] = residual = shard_make_gradient(node, RESIDUAL)))
        return shard_last_status();
    if (!shard_wants(node, X) && !residual)
        return SHARD_OK;
    if (shard_wants(node, X) && !(dx[X] = hands_on ? shard_make_gradient(node, X) : shard_gradient_over(node, X, dy)))
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
    shard_tensor *sums = gradient_sums(context, x, y, dy, shard_saved(node, SAVED_MEAN), shard_saved(node, SAVED_RSTD));
    shard_status status = sums ? parameter_gradient(node, BIAS, sums, 0, dy, dx) : shard_last_status();
    if (status == SHARD_OK)
        status = parameter_gradient(node, WEIGHT, sums, 1, dy, dx);
    if (context->training && shard_wants(node, X))
        status = shard_group_all_reduce(context->group, sums ? shard_tensor_memory(sums) : NULL, 2 * context->channels,
                                        SHARD_FLOAT64, SHARD_SUM);
    return status == SHARD_OK ? input_gradients(node, x, y, dy, sums, dx) : status;
}

static const shard_node_type batch_norm_type = {.name = "batch_norm", .backward = batch_norm_backward};

/* ---- statistics ---- */

typedef struct batch_norm {
    shard_tensor *x, *running_mean, *running_var, *weight, *bias;
    shard_batch_norm_options options;
    int64_t rows, channels;
    shard_tensor *y, *mean, *rstd;
    /* On the host: [channels] the mean, [channels] the sum of squared differences from
     * it (or, while they are summed over the group, the sums of x and x^2), and the rows. */
    double *moments;
} batch_norm;

/* host [channels] = tensor, whatever its dtype. */
static shard_status read_doubles(shard_tensor *tensor, double *host)
{
    shard_tensor *doubles = shard_workspace(tensor, shard_numel(tensor), SHARD_FLOAT64);
    void *memory[2];
    if (!doubles || !shard_load(SHARD_INPUTS(tensor, doubles), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(tensor, cast, shard_numel(tensor), memory[0], tensor->dtype, memory[1], SHARD_FLOAT64));
    return shard_copy_to_host(doubles, host, (size_t)shard_numel(tensor) * sizeof *host);
}

static shard_status write_doubles(shard_tensor *tensor, const double *host)
{
    int64_t n = shard_numel(tensor);
    shard_tensor *doubles = shard_workspace(tensor, n, SHARD_FLOAT64);
    if (!doubles)
        return shard_last_status();
    SHARD_TRY(shard_copy_from_host(doubles, host, (size_t)n * sizeof *host));
    void *to = shard_tensor_memory_to_write(tensor);
    return to ? SHARD_RUN(tensor, cast, n, shard_tensor_memory(doubles), SHARD_FLOAT64, to, tensor->dtype) : shard_last_status();
}

/* moments of this member's rows; its sums are about the running mean. */
static shard_status measure(batch_norm *b)
{
    int64_t c = b->channels;
    double *moments = b->moments, *shift = shard_calloc((size_t)c, sizeof *shift);
    shard_tensor *sums = shard_workspace(b->x, 2 * c, SHARD_FLOAT64);
    shard_tensor *about = b->running_mean ? shard_workspace(b->x, c, SHARD_FLOAT64) : NULL;
    void *memory[3];
    shard_status status = SHARD_ERROR_MEMORY;
    if (shift && sums && (about || !b->running_mean)) {
        status = b->running_mean ? read_doubles(b->running_mean, shift) : SHARD_OK;
        if (status == SHARD_OK && about)
            status = shard_copy_from_host(about, shift, (size_t)c * sizeof *shift);
        if (status == SHARD_OK)
            status = shard_load(SHARD_INPUTS(b->x, about, sums), memory) ? SHARD_OK : shard_last_status();
        if (status == SHARD_OK)
            status = SHARD_RUN(b->x, batch_norm_sums, b->rows, c, memory[0], memory[1], memory[2], b->x->dtype);
        if (status == SHARD_OK)
            status = shard_copy_to_host(sums, moments, 2 * (size_t)c * sizeof *moments);
    }
    double n = (double)b->rows;
    moments[2 * c] = n;
    for (int64_t j = 0; status == SHARD_OK && j < c && b->rows; j++) {
        double off = moments[j] / n; /* of the mean from the shift */
        moments[c + j] -= n * off * off;
        moments[j] = shift[j] + off;
    }
    free(shift);
    return status;
}

/* moments of the group's rows. Collective. */
static shard_status combine(batch_norm *b)
{
    int64_t c = b->channels;
    double *mean = b->moments, *squares = mean + c, n = mean[2 * c];
    if (shard_group_size(b->options.group) == 1)
        return SHARD_OK;
    for (int64_t j = 0; j < c; j++) {
        squares[j] += n * mean[j] * mean[j];
        mean[j] *= n;
    }
    SHARD_TRY(shard_group_all_reduce(b->options.group, b->moments, 2 * c + 1, SHARD_FLOAT64, SHARD_SUM));
    n = mean[2 * c];
    for (int64_t j = 0; j < c && n > 0; j++) {
        mean[j] /= n;
        squares[j] -= n * mean[j] * mean[j];
    }
    return SHARD_OK;
}

/* running += momentum * (now - running), where the variance now is the unbiased one. */
static shard_status update_running(batch_norm *b)
{
    int64_t c = b->channels;
    double n = b->moments[2 * c], momentum = b->options.momentum;
    shard_tensor *const running[] = {b->running_mean, b->running_var};
    if (!b->running_mean || n == 0)
        return SHARD_OK;
    double *values = shard_calloc((size_t)c, sizeof *values);
    shard_status status = values ? SHARD_OK : SHARD_ERROR_MEMORY;
    for (int which = 0; which < 2 && status == SHARD_OK; which++) {
        const double *now = b->moments + which * c;
        status = read_doubles(running[which], values);
        for (int64_t j = 0; j < c; j++)
            values[j] = (1 - momentum) * values[j] + momentum * (which ? fmax(now[j], 0) / (n - 1) : now[j]);
        if (status == SHARD_OK)
            status = write_doubles(running[which], values);
    }
    free(values);
    return status;
}

/* mean and rstd from the moments, which are used up. */
static shard_status finish(batch_norm *b)
{
    int64_t c = b->channels;
    double *squares = b->moments + c, n = b->moments[2 * c];
    if (n == 1)
        return shard_error(SHARD_ERROR_SHAPE,
                           "shard_batch_norm: expected more than 1 value per channel when training, got x of "
                           "shape %s",
                           shard_shape_text(&b->x->shape));
    SHARD_TRY(update_running(b));
    for (int64_t j = 0; j < c; j++)
        squares[j] = 1 / sqrt((n > 0 ? fmax(squares[j], 0) / n : 0) + b->options.epsilon);
    SHARD_TRY(write_doubles(b->mean, b->moments));
    return write_doubles(b->rstd, squares);
}

static shard_status recall(batch_norm *b)
{
    int64_t c = b->channels;
    SHARD_TRY(read_doubles(b->running_mean, b->moments));
    SHARD_TRY(read_doubles(b->running_var, b->moments + c));
    for (int64_t j = 0; j < c; j++)
        b->moments[c + j] = 1 / sqrt(b->moments[c + j] + b->options.epsilon);
    SHARD_TRY(write_doubles(b->mean, b->moments));
    return write_doubles(b->rstd, b->moments + c);
}

/* ---- forward ---- */

static bool check_residual(const char *function, const shard_tensor *x, shard_tensor *residual)
{
    if (!residual)
        return true;
    if (!shard_check_operands(function, 2, (shard_tensor *[]){(shard_tensor *)x, residual}))
        return false;
    if (!shard_shape_equal(&x->shape, &residual->shape) || !shard_placement_equal(&x->placement, &residual->placement)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a residual of shape %s, %s, for x of shape %s, %s", function,
                    shard_shape_text(&residual->shape), shard_placement_text(&residual->placement), shard_shape_text(&x->shape),
                    shard_placement_text(&x->placement));
        return false;
    }
    return true;
}

static bool check(batch_norm *b)
{
    static const char function[] = "shard_batch_norm";
    shard_batch_norm_options *options = &b->options;
    if (!shard_check_operands(function, SHARD_INPUTS(b->x)))
        return false;
    if (b->x->shape.ndim == 0) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a scalar has no channels", function);
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
    options->momentum = options->momentum == 0 ? 0.1 : options->momentum;
    options->epsilon = options->epsilon == 0 ? 1e-5 : options->epsilon;
    if (!(options->momentum >= 0 && options->momentum <= 1) || !(options->epsilon > 0)) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: momentum %g, epsilon %g", function, options->momentum, options->epsilon);
        return false;
    }
    return true;
}

/* Everything that can fail on this member alone, before the collective. */
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
    b->moments = shard_calloc(2 * (size_t)b->channels + 1, sizeof *b->moments);
    if (!b->y || !b->mean || !b->rstd || !b->moments)
        return false;
    return !b->options.training || measure(b) == SHARD_OK;
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
        .count = options->training ? b->moments[2 * b->channels] : 0,
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
    if ((options->training ? combine(b) : SHARD_OK) != SHARD_OK || (options->training ? finish(b) : recall(b)) != SHARD_OK)
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
                                    shard_tensor *bias, shard_batch_norm_options options)
{
    batch_norm b = {
        .x = x, .running_mean = running_mean, .running_var = running_var, .weight = weight, .bias = bias, .options = options};
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_hand_out(forward(&b), &scope);
    shard_scope_close(&scope);
    free(b.moments);
    return y;
}
