#include "support/loss.h"

#include "base/dtype.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double *doubles(int64_t count)
{
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* ---- values of a dtype ---- */

double round_to(shard_dtype dtype, double value)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        return (float)value;
    case SHARD_BFLOAT16:
        return shard_bfloat16_to_float(shard_float_to_bfloat16((float)value));
    case SHARD_FLOAT16:
        return shard_float16_to_float(shard_float_to_float16((float)value));
    default:
        return value;
    }
}

shard_tensor *tensor_of(const double *values, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *tensor = shard_empty(shape, .dtype = dtype);
    ck_assert_msg(tensor, "%s", shard_last_error());
    int64_t count = shard_numel(tensor);
    void *data = malloc((size_t)count * sizeof(double) + 1);
    ck_assert_ptr_nonnull(data);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == SHARD_FLOAT64)
            ((double *)data)[i] = values[i];
        else if (dtype == SHARD_FLOAT32)
            ((float *)data)[i] = (float)values[i];
        else if (dtype == SHARD_BFLOAT16)
            ((uint16_t *)data)[i] = shard_float_to_bfloat16((float)values[i]);
        else
            ((uint16_t *)data)[i] = shard_float_to_float16((float)values[i]);
    }
    ck_assert_int_eq(shard_copy_from_host(tensor, data, (size_t)count * shard_dtype_size(dtype)), SHARD_OK);
    free(data);
    return tensor;
}

void check_number(double value, double expected, double tolerance, const char *what, int64_t index)
{
    if (isnan(value) && isnan(expected))
        return;
    ck_assert_msg(is_within(value, expected, tolerance * fmax(1.0, fabs(expected))), "%s: [%lld] is %.17g, not %.17g", what,
                  (long long)index, value, expected);
}

/* ---- cases and their data ---- */

loss_case loss_case_at(int index, int64_t rows, int64_t classes, shard_dtype dtype)
{
    static const double smoothing[] = {0.0, 0.1, 1.0};
    return (loss_case){.rows = rows,
                       .classes = classes,
                       .dtype = dtype,
                       .soft = index & 1,
                       .weighted = index & 2,
                       .ignoring = !(index & 1),
                       .smoothing = smoothing[index / 4 % 3],
                       .reduction = (shard_reduction)(index / 12),
                       .ignore_index = -100};
}

loss_case loss_case_by(int way, loss_case c)
{
    bool all = way == LOSS_WAYS - 1;
    c.row_weighted = way == 1 || all;
    c.z_loss = way == 2 || all ? 0.01 : 0.0;
    c.logit_scale = way == 3 ? 2.5 : all ? 0.75 : 0.0;
    c.soft_cap = way == 4 || all ? 2.0 : 0.0;
    return c;
}

const char *loss_case_text(const loss_case *c)
{
    static const char *const reductions[] = {"mean", "sum", "none"};
    static char text[200];
    snprintf(text, sizeof text, "%s%s%s%s, smoothing %g, z %g, scale %g, cap %g, %s of %s", c->soft ? "soft" : "labels",
             c->weighted ? ", weighted" : "", c->row_weighted ? ", rows weighted" : "", c->ignoring ? ", ignoring" : "",
             c->smoothing, c->z_loss, c->logit_scale, c->soft_cap, reductions[c->reduction], shard_dtype_name(c->dtype));
    return text;
}

loss_data loss_data_make(const loss_case *c)
{
    int64_t count = c->rows * c->classes;
    loss_data data = {.logits = doubles(count),
                      .probabilities = doubles(c->soft ? count : 0),
                      .labels = calloc((size_t)c->rows + 1, sizeof(int64_t)),
                      .weight = doubles(c->weighted ? c->classes : 0),
                      .row_weight = doubles(c->row_weighted ? c->rows : 0),
                      .dy = doubles(c->rows),
                      .results = c->reduction == SHARD_REDUCTION_NONE ? c->rows : 1};
    shard_draw logits = {11, 0}, probabilities = {11, 1}, weight = {11, 2}, labels = {11, 3};
    double scale = c->scale != 0.0 ? c->scale : 3.0;
    for (int64_t i = 0; i < count; i++)
        data.logits[i] = round_to(c->dtype, scale * (2.0 * shard_uniform_at(logits, (uint64_t)i) - 1.0));
    for (int64_t i = 0; i < count && c->soft; i++)
        data.probabilities[i] = round_to(c->dtype, 2.0 * shard_uniform_at(probabilities, (uint64_t)i) / (double)c->classes);
    for (int64_t i = 0; i < c->classes && c->weighted; i++)
        data.weight[i] = round_to(c->dtype, 0.25 + shard_uniform_at(weight, (uint64_t)i));
    for (int64_t i = 0; i < c->rows && c->row_weighted; i++)
        data.row_weight[i] = i % 5 == 3 ? 0.0 : 0.5 + (double)(i % 3);
    for (int64_t i = 0; i < c->rows; i++)
        data.labels[i] = c->ignoring && i % 4 == 1 ? c->ignore_index
                                                   : (int64_t)(shard_uniform_at(labels, (uint64_t)i) * (float)c->classes);
    for (int64_t i = 0; i < data.results; i++)
        data.dy[i] = 0.5 + (double)(i % 3);
    return data;
}

void loss_data_free(loss_data *data)
{
    free(data->logits);
    free(data->probabilities);
    free(data->labels);
    free(data->weight);
    free(data->row_weight);
    free(data->dy);
}

/* ---- by plain loops ---- */

static double target_at(const loss_case *c, const loss_data *data, int64_t row, int64_t class)
{
    double weight = c->weighted ? data->weight[class] : 1.0;
    double target = c->soft ? data->probabilities[row * c->classes + class] : class == data->labels[row];
    return weight * ((1.0 - c->smoothing) * target + c->smoothing / (double)c->classes);
}

static bool is_ignored(const loss_case *c, const loss_data *data, int64_t row)
{
    return !c->soft && data->labels[row] == c->ignore_index;
}

static double mapped(const loss_case *c, double logit)
{
    double x = c->logit_scale != 0.0 ? c->logit_scale * logit : logit;
    return c->soft_cap != 0.0 ? c->soft_cap * tanh(x / c->soft_cap) : x;
}

/* Of mapped by the logit. */
static double derivative(const loss_case *c, double logit)
{
    double t = c->soft_cap != 0.0 ? mapped(c, logit) / c->soft_cap : 0.0;
    return (c->logit_scale != 0.0 ? c->logit_scale : 1.0) * (1.0 - t * t);
}

static double log_sum_exp(const loss_case *c, const double *logit)
{
    double largest = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < c->classes; i++)
        largest = fmax(largest, mapped(c, logit[i]));
    for (int64_t i = 0; i < c->classes; i++)
        sum += exp(mapped(c, logit[i]) - largest);
    return largest + log(sum);
}

static double row_weight(const loss_case *c, const loss_data *data, int64_t row)
{
    return c->row_weighted ? data->row_weight[row] : 1.0;
}

/* The sum of target * -log softmax, as the definition says. */
static double row_loss(const loss_case *c, const loss_data *data, int64_t row)
{
    const double *x = data->logits + row * c->classes;
    double loss = 0.0, log_sum = log_sum_exp(c, x);
    for (int64_t k = 0; k < c->classes; k++) {
        double target = target_at(c, data, row, k);
        loss -= target != 0.0 ? target * (mapped(c, x[k]) - log_sum) : 0.0;
    }
    return row_weight(c, data, row) * (c->z_loss != 0.0 ? loss + c->z_loss * log_sum * log_sum : loss);
}

static double mean_divisor(const loss_case *c, const loss_data *data)
{
    double sum = 0.0;
    for (int64_t i = 0; i < c->rows; i++)
        if (!is_ignored(c, data, i))
            sum += row_weight(c, data, i) * (c->weighted && !c->soft ? data->weight[data->labels[i]] : 1.0);
    return sum;
}

void loss_reference(const loss_case *c, const loss_data *data, double *result, double *gradient)
{
    double divisor = c->reduction == SHARD_REDUCTION_MEAN ? mean_divisor(c, data) : 1.0, sum = 0.0;
    bool each = c->reduction == SHARD_REDUCTION_NONE;
    for (int64_t i = 0; i < c->rows; i++) {
        const double *x = data->logits + i * c->classes;
        bool ignored = is_ignored(c, data, i);
        double loss = ignored ? 0.0 : row_loss(c, data, i), log_sum = log_sum_exp(c, x);
        double total = 2.0 * c->z_loss * log_sum;
        double factor = ignored ? 0.0 : row_weight(c, data, i) * data->dy[each ? i : 0] / divisor;
        for (int64_t k = 0; k < c->classes; k++)
            total += target_at(c, data, i, k);
        for (int64_t k = 0; k < c->classes; k++)
            gradient[i * c->classes + k] =
                factor * derivative(c, x[k]) * (total * exp(mapped(c, x[k]) - log_sum) - target_at(c, data, i, k));
        if (each)
            result[i] = loss;
        sum += loss;
    }
    if (!each)
        result[0] = sum / divisor;
}

/* ---- by the library ---- */

shard_range loss_range(const loss_case *c, const shard_group *group)
{
    return shard_split_range(c->classes, shard_group_size(group), shard_group_rank(group));
}

/* Columns of values [rows, classes], as the part of the whole that they are. */
static shard_tensor *columns_of(const loss_case *c, const double *values, shard_group *group, shard_range range)
{
    double *part = doubles(c->rows * range.size);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t k = 0; k < range.size; k++)
            part[i * range.size + k] = values[i * c->classes + range.start + k];
    shard_tensor *tensor = tensor_of(part, SHARD_SHAPE(c->rows, range.size), c->dtype);
    free(part);
    return group ? shard_as_split(tensor, 1, group, range.start, c->classes) : tensor;
}

shard_tensor *loss_of_part(const loss_case *c, const loss_data *data, shard_group *group, shard_range range,
                           shard_tensor **logits)
{
    *logits = columns_of(c, data->logits, group, range);
    shard_set_requires_grad(*logits, true);
    shard_tensor *target = c->soft ? columns_of(c, data->probabilities, group, range)
                                   : shard_from_host(data->labels, SHARD_SHAPE(c->rows), .dtype = SHARD_INT64);
    /* Odd members bring their own part of the weights, even ones all of them. */
    bool part = group && shard_group_rank(group) % 2;
    shard_tensor *weight = NULL;
    if (c->weighted && part)
        weight = shard_as_split(tensor_of(data->weight + range.start, SHARD_SHAPE(range.size), c->dtype), 0, group, range.start,
                                c->classes);
    else if (c->weighted)
        weight = tensor_of(data->weight, SHARD_SHAPE(c->classes), c->dtype);
    /* Row weights may have another dtype. */
    shard_tensor *rows = c->row_weighted ? tensor_of(data->row_weight, SHARD_SHAPE(c->rows), SHARD_FLOAT32) : NULL;
    return shard_cross_entropy(*logits, target, .weight = weight, .label_smoothing = c->smoothing, .reduction = c->reduction,
                               .ignore_index = c->ignoring || c->ignore_index ? c->ignore_index : -100, .row_weight = rows,
                               .z_loss = c->z_loss, .logit_scale = c->logit_scale != 0.0 ? c->logit_scale : 1.0,
                               .soft_cap = c->soft_cap);
}

void loss_and_gradient(const loss_case *c, const loss_data *data, shard_group *group, shard_range range, double *result,
                       double *gradient)
{
    SHARD_SCOPE {
        shard_tensor *logits, *loss = loss_of_part(c, data, group, range, &logits);
        read_values(loss, result);
        shard_tensor *dy = tensor_of(data->dy, shard_tensor_shape(loss), shard_tensor_dtype(loss));
        check_ok(shard_backward_from(loss, dy));
        read_values(shard_grad(logits), gradient);
    }
}
