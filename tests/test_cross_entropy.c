/* The loss of whole logits: against plain loops, finite differences and PyTorch; its edges and errors. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/loss.h"
#include "support/options.h"

#include "base/error.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shard_range whole(const loss_case *c)
{
    return (shard_range){0, c->classes};
}

static void check_case(const loss_case *c, double loss_tolerance, double gradient_tolerance)
{
    loss_data data = loss_data_make(c);
    int64_t count = c->rows * c->classes;
    double *result = calloc((size_t)(2 * data.results), sizeof *result);
    double *gradient = calloc((size_t)(2 * count), sizeof *gradient);
    loss_reference(c, &data, result, gradient);
    loss_and_gradient(c, &data, NULL, whole(c), result + data.results, gradient + count);
    for (int64_t i = 0; i < data.results; i++)
        check_number(result[data.results + i], result[i], loss_tolerance, loss_case_text(c), i);
    /* Of 16 bits the tolerance is relative: of many classes most gradients are far below 1. */
    for (int64_t i = 0; i < count && shard_dtype_size(c->dtype) == 2; i++)
        ck_assert_msg(is_within(gradient[count + i], gradient[i], gradient_tolerance * fabs(gradient[i]) + 1e-6),
                      "%s: gradient %lld is %g, expected %g", loss_case_text(c), (long long)i, gradient[count + i], gradient[i]);
    for (int64_t i = 0; i < count; i++)
        check_number(gradient[count + i], gradient[i], gradient_tolerance, loss_case_text(c), i);
    free(result);
    free(gradient);
    loss_data_free(&data);
}

/* ---- every option ---- */

static const struct {
    shard_dtype dtype;
    double loss, gradient;
} tolerances[] = {{SHARD_FLOAT64, 1e-13, 1e-14},
                  {SHARD_FLOAT32, 1e-6, 1e-6},
                  {SHARD_BFLOAT16, 0x1p-8, 0x1p-8}, /* a rounding to 8 bits */
                  {SHARD_FLOAT16, 0x1p-11, 0x1p-11}};

START_TEST(follows_the_definition)
{
    static const int64_t shapes[][2] = {{1, 1}, {5, 3}, {13, 10}, {3, 1031}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < LOSS_CASES; i++) {
            loss_case c = loss_case_at(i, shapes[s][0], shapes[s][1], tolerances[_i].dtype);
            check_case(&c, tolerances[_i].loss, tolerances[_i].gradient);
        }
}
END_TEST

START_TEST(follows_the_definition_in_other_ways)
{
    static const int64_t shapes[][2] = {{5, 3}, {9, 10}, {3, 1031}};
    int form = _i / (LOSS_WAYS - 1);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = (_i + (int)s) % 5; i < LOSS_CASES; i += 5) {
            loss_case c = loss_case_at(i, shapes[s][0], shapes[s][1], tolerances[form].dtype);
            c = loss_case_by(_i % (LOSS_WAYS - 1) + 1, c);
            check_case(&c, 2 * tolerances[form].loss, 8 * tolerances[form].gradient);
        }
}
END_TEST

static double weighted_loss(const loss_case *c, const loss_data *data)
{
    double sum = 0.0, *result = calloc((size_t)data->results + 1, sizeof *result);
    SHARD_SCOPE {
        shard_tensor *logits;
        read_values(loss_of_part(c, data, NULL, whole(c), &logits), result);
    }
    for (int64_t i = 0; i < data->results; i++)
        sum += data->dy[i] * result[i];
    free(result);
    return sum;
}

/* Of all cases, and of some in other ways. */
enum { FEW_CASES = LOSS_CASES / 5 };
START_TEST(has_the_gradient_of_its_differences)
{
    int more = _i - LOSS_CASES, way = more < 0 ? 0 : 1 + more / FEW_CASES;
    loss_case c = loss_case_by(way, loss_case_at(more < 0 ? _i : more % FEW_CASES * 5 + way % 5, 5, 4, SHARD_FLOAT64));
    loss_data data = loss_data_make(&c);
    double result[5], gradient[20], step = 1e-5;
    loss_and_gradient(&c, &data, NULL, whole(&c), result, gradient);
    for (int64_t i = 0; i < 20; i++) {
        double x = data.logits[i];
        data.logits[i] = x + step;
        double above = weighted_loss(&c, &data);
        data.logits[i] = x - step;
        double below = weighted_loss(&c, &data);
        data.logits[i] = x;
        check_number(gradient[i], (above - below) / (2 * step), 1e-9, loss_case_text(&c), i);
    }
    loss_data_free(&data);
}
END_TEST

START_TEST(ignores_any_index)
{
    static const int64_t indices[] = {0, 2, 9, -1, -100, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++)
        for (int option = 0; option < LOSS_CASES; option += 2) {
            loss_case c = loss_case_at(option, 9, 10, SHARD_FLOAT64);
            c.ignore_index = indices[i];
            check_case(&c, 1e-13, 1e-14);
        }
}
END_TEST

/* ---- one row, no rows ---- */

static void check_loss(shard_tensor *loss, double expected, double tolerance)
{
    ck_assert_msg(loss, "%s", shard_last_error());
    double value;
    ck_assert_int_eq(shard_numel(loss), 1);
    read_values(loss, &value);
    check_number(value, expected, tolerance, "loss", 0);
}

static shard_tensor *row_of(int64_t count, const double *values, shard_dtype dtype)
{
    shard_tensor *row = tensor_of(values, SHARD_SHAPE(1, count), dtype);
    shard_set_requires_grad(row, true);
    return row;
}

static shard_tensor *labels_of(int64_t count, const int64_t *labels)
{
    return shard_from_host(labels, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

#define ROW(...) (sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}
#define LABELS(...) labels_of(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

START_TEST(takes_one_row_without_a_dimension)
{
    static const double values[] = {1, 2, 3}, expected[] = {0.0900305731703805, -0.755271528945202, 0.665240955774822};
    static const shard_reduction reductions[] = {SHARD_REDUCTION_MEAN, SHARD_REDUCTION_NONE};
    int64_t label = 1;
    SHARD_SCOPE {
        shard_tensor *logits = tensor_of(values, SHARD_SHAPE(3), SHARD_FLOAT64);
        shard_set_requires_grad(logits, true);
        shard_tensor *target = shard_from_host(&label, SHARD_SCALAR, .dtype = SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy(logits, target, .reduction = reductions[_i]);
        check_loss(loss, 1.407605964444380, 1e-14);
        ck_assert_int_eq(shard_tensor_shape(loss).ndim, 0);
        check_ok(shard_backward(loss));
        double gradient[3];
        read_values(shard_grad(logits), gradient);
        for (int i = 0; i < 3; i++)
            check_number(gradient[i], expected[i], 1e-14, "gradient", i);
        shard_tensor *probabilities = tensor_of((const double[]){0, 1, 0}, SHARD_SHAPE(3), SHARD_FLOAT64);
        check_loss(shard_cross_entropy(logits, probabilities), 1.407605964444380, 1e-14);
    }
}
END_TEST

START_TEST(takes_no_rows)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(0, 5), .requires_grad = true);
        shard_tensor *labels = shard_zeros(SHARD_SHAPE(0), .dtype = SHARD_INT64);
        shard_tensor *mean = shard_cross_entropy(logits, labels);
        check_loss(mean, NAN, 0);
        check_loss(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(0, 5))), NAN, 0);
        check_loss(shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM), 0, 0);
        ck_assert_int_eq(shard_numel(shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_NONE)), 0);
        check_ok(shard_backward(mean));
        ck_assert_int_eq(shard_numel(shard_grad(logits)), 0);
    }
}
END_TEST

/* As PyTorch: 0 / 0, with gradients of 0. */
START_TEST(has_no_mean_of_ignored_rows)
{
    SHARD_SCOPE {
        shard_tensor *logits = tensor_of((const double[]){1, 2, 3, 4}, SHARD_SHAPE(2, 2), SHARD_FLOAT32);
        shard_set_requires_grad(logits, true);
        shard_tensor *loss = shard_cross_entropy(logits, LABELS(-100, -100), .label_smoothing = 0.1 * _i);
        check_loss(loss, NAN, 0);
        check_ok(shard_backward(loss));
        double gradient[4];
        read_values(shard_grad(logits), gradient);
        for (int i = 0; i < 4; i++)
            check_number(gradient[i], 0, 0, "gradient", i);
        check_loss(shard_cross_entropy(logits, LABELS(-100, -100), .reduction = SHARD_REDUCTION_SUM), 0, 0);
    }
}
END_TEST

/* ---- logits at the ends of their range ---- */

START_TEST(stands_extreme_logits)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};
    const double inf = INFINITY;
    const struct {
        double logit[4];
        double loss, gradient[4];
    } cases[] = {
        {{1e4, -1e4, 0, 1e4}, log(2), {-0.5, 0, 0, 0.5}},
        {{-1e4, 1e4, 0, 0}, 20000, {-1, 1, 0, 0}},
        {{7, 7, 7, 7}, log(4), {-0.75, 0.25, 0.25, 0.25}},
        {{-1e4, -1e4, -1e4, -1e4}, log(4), {-0.75, 0.25, 0.25, 0.25}},
        {{0, -inf, 0, -inf}, log(2), {-0.5, 0, 0.5, 0}},
        {{-inf, 0, 0, -inf}, inf, {-1, 0.5, 0.5, 0}},
        {{-inf, -inf, -inf, -inf}, NAN, {NAN, NAN, NAN, NAN}},
        {{0, 0, NAN, 0}, NAN, {NAN, NAN, NAN, NAN}},
        {{0, -inf, NAN, -inf}, NAN, {NAN, NAN, NAN, NAN}},
        {{0, inf, 0, 0}, NAN, {NAN, NAN, NAN, NAN}},
        {{inf, 0, 0, 0}, NAN, {NAN, NAN, NAN, NAN}},
    };
    double tolerance[] = {1e-12, 1e-6, 0x1p-8, 0x1p-11};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE {
            shard_tensor *logits = row_of(4, cases[i].logit, dtypes[_i]), *loss = shard_cross_entropy(logits, LABELS(0));
            check_loss(loss, cases[i].loss, tolerance[_i]);
            check_ok(shard_backward(loss));
            double gradient[4];
            read_values(shard_grad(logits), gradient);
            for (int k = 0; k < 4; k++)
                check_number(gradient[k], cases[i].gradient[k], tolerance[_i], "gradient", (int64_t)i * 4 + k);
        }
}
END_TEST

/* A class whose logit is -inf has no part in the loss of another label: the gradient of its logit is 0, also of scaled logits. Of
 * probabilities the loss is NaN, as PyTorch's: 0 times inf. */
START_TEST(leaves_out_masked_classes)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};
    static const double tolerance[] = {1e-12, 1e-6, 0x1p-8, 0x1p-11};
    const double scale = 0.5, p = 1 / (1 + exp(scale)); /* softmax of {1, -inf, 2} times scale at the first class */
    SHARD_SCOPE
    {
        const double gradients[2][3] = {{scale * (p - 1), 0, scale * (1 - p)}, {scale * (p - 0.5), 0, scale * (0.5 - p)}};
        const double losses[] = {-log(p), NAN};
        for (int soft = 0; soft < 2; soft++) {
            shard_tensor *logits = row_of(ROW(1, -INFINITY, 2), dtypes[_i]);
            shard_tensor *target = soft ? row_of(ROW(0.5, 0, 0.5), dtypes[_i]) : LABELS(0);
            shard_tensor *loss = shard_cross_entropy(logits, shard_detach(target), .logit_scale = scale);
            check_loss(loss, losses[soft], tolerance[_i]);
            check_ok(shard_backward(loss));
            double gradient[3];
            read_values(shard_grad(logits), gradient);
            for (int k = 0; k < 3; k++)
                check_number(gradient[k], gradients[soft][k], tolerance[_i], "gradient", k);
        }
    }
}
END_TEST

/* A common size, however large, does not eat up the differences of the loss. */
START_TEST(keeps_the_loss_of_large_equal_logits)
{
    SHARD_SCOPE {
        check_loss(shard_cross_entropy(row_of(ROW(1e30, 1e30, 1e30, 1e30), SHARD_FLOAT32), LABELS(2)), log(4), 1e-6);
        check_loss(shard_cross_entropy(row_of(ROW(-1e300, -1e300), SHARD_FLOAT64), LABELS(1)), log(2), 1e-15);
    }
}
END_TEST

/* An ignored row costs nothing, whatever its logits are; smoothing reaches a -inf. */
START_TEST(ignores_extreme_rows)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 1, 1, 1};
    SHARD_SCOPE {
        shard_tensor *logits = tensor_of(values, SHARD_SHAPE(2, 3), SHARD_FLOAT32);
        check_loss(shard_cross_entropy(logits, LABELS(-100, 0)), log(3), 1e-6);
        check_loss(shard_cross_entropy(logits, LABELS(-100, 0), .label_smoothing = 0.5), log(3), 1e-6);
        shard_tensor *ended = row_of(ROW(0, 0, -INFINITY), SHARD_FLOAT32);
        check_loss(shard_cross_entropy(ended, LABELS(0), .label_smoothing = 0.1), INFINITY, 0);
    }
}
END_TEST

/* Tiny gradients are right relative to their own size. */
START_TEST(sums_a_million_classes)
{
    loss_case c = {.rows = 2, .classes = 1000003, .dtype = SHARD_FLOAT32, .smoothing = 0.1, .ignore_index = -100};
    loss_data data = loss_data_make(&c);
    int64_t count = c.rows * c.classes;
    double result[2], *gradient = calloc((size_t)(2 * count), sizeof *gradient);
    loss_reference(&c, &data, result, gradient);
    loss_and_gradient(&c, &data, NULL, whole(&c), result + 1, gradient + count);
    check_number(result[1], result[0], 1e-6, "loss", 0);
    double part = data.dy[0] / 2 * c.smoothing / (double)c.classes; /* of the gradient, which is a difference */
    for (int64_t i = 0; i < count; i++)
        check_number(gradient[count + i], gradient[i], 4e-6 * (fabs(gradient[i]) + part), "gradient", i);
    free(gradient);
    loss_data_free(&data);
}
END_TEST

/* ---- against PyTorch ---- */

static double *read_numbers(FILE *file, const char *name, int64_t count)
{
    char word[40];
    double *values = calloc((size_t)count, sizeof *values);
    ck_assert_int_eq(fscanf(file, "%39s", word), 1);
    ck_assert_str_eq(word, name);
    for (int64_t i = 0; i < count; i++)
        ck_assert_int_eq(fscanf(file, "%lf", &values[i]), 1);
    return values;
}

static void read_inputs(FILE *file, loss_case *c, loss_data *data)
{
    char dtype[40];
    loss_data_free(data);
    ck_assert_int_eq(fscanf(file, "%39s %" SCNd64 " %" SCNd64, dtype, &c->rows, &c->classes), 3);
    c->dtype = SHARD_DTYPES;
    for (int i = 0; i < SHARD_DTYPES; i++)
        if (strcmp(dtype, shard_dtype_name((shard_dtype)i)) == 0)
            c->dtype = (shard_dtype)i;
    ck_assert(shard_dtype_is_float(c->dtype));
    data->logits = read_numbers(file, "logits", c->rows * c->classes);
    double *labels = read_numbers(file, "labels", c->rows);
    data->labels = calloc((size_t)c->rows, sizeof *data->labels);
    for (int64_t i = 0; i < c->rows; i++)
        data->labels[i] = (int64_t)labels[i];
    free(labels);
    data->probabilities = read_numbers(file, "probabilities", c->rows * c->classes);
    data->weight = read_numbers(file, "weight", c->classes);
    data->dy = calloc((size_t)c->rows, sizeof *data->dy);
    for (int64_t i = 0; i < c->rows; i++)
        data->dy[i] = 0.5 + (double)(i % 3);
}

static void check_numbers(FILE *file, loss_case *c, loss_data *data)
{
    /* PyTorch rounds the log-probabilities of 16-bit types, and computes float32's in float32. */
    static const double close[] = {
        [SHARD_FLOAT64] = 1e-13, [SHARD_FLOAT32] = 2e-6, [SHARD_BFLOAT16] = 0x1p-6, [SHARD_FLOAT16] = 0x1p-9};
    int soft, weighted, reduction;
    ck_assert_int_eq(fscanf(file, "%d %d %lf %d %" SCNd64, &soft, &weighted, &c->smoothing, &reduction, &c->ignore_index), 5);
    c->soft = soft;
    c->weighted = weighted;
    c->ignoring = !soft;
    c->reduction = (shard_reduction)reduction;
    data->results = c->reduction == SHARD_REDUCTION_NONE ? c->rows : 1;
    int64_t count = c->rows * c->classes;
    double *loss = read_numbers(file, "loss", data->results), *gradient = read_numbers(file, "gradient", count);
    double own_loss[8], own_gradient[40];
    loss_and_gradient(c, data, NULL, whole(c), own_loss, own_gradient);
    for (int64_t i = 0; i < data->results; i++)
        check_number(own_loss[i], loss[i], close[c->dtype], loss_case_text(c), i);
    for (int64_t i = 0; i < count; i++)
        check_number(own_gradient[i], gradient[i], close[c->dtype], loss_case_text(c), i);
    free(loss);
    free(gradient);
}

START_TEST(equals_pytorch)
{
    FILE *file = fopen(test_file("golden/cross_entropy.txt"), "r");
    ck_assert_ptr_nonnull(file);
    loss_case c = {0};
    loss_data data = {0};
    char word[40] = "";
    int cases = 0;
    while (fscanf(file, "%39s", word) == 1 && strcmp(word, "end") != 0) {
        if (strcmp(word, "inputs") == 0) {
            read_inputs(file, &c, &data);
        } else {
            ck_assert_str_eq(word, "case");
            check_numbers(file, &c, &data);
            cases++;
        }
    }
    ck_assert_str_eq(word, "end");
    ck_assert_int_gt(cases, 100);
    loss_data_free(&data);
    fclose(file);
}
END_TEST

/* tests/golden/make_losses.py writes the options beside the names. */
static const struct {
    const char *name;
    shard_cross_entropy_options options;
} other_ways[] = {
    {"row_weight", {SHARD_CROSS_ENTROPY_OPTIONS_VALUES}},
    {"z_loss", {SHARD_CROSS_ENTROPY_OPTIONS_VALUES, .z_loss = 0.01, .reduction = SHARD_REDUCTION_SUM}},
    {"logit_scale", {SHARD_CROSS_ENTROPY_OPTIONS_VALUES, .logit_scale = 2.5}},
    {"soft_cap", {SHARD_CROSS_ENTROPY_OPTIONS_VALUES, .soft_cap = 1.5, .label_smoothing = 0.1}},
    {"all", {SHARD_CROSS_ENTROPY_OPTIONS_VALUES, .z_loss = 0.01, .logit_scale = 2.5, .soft_cap = 1.5, .label_smoothing = 0.1}},
};
enum { OTHER_WAYS = sizeof other_ways / sizeof *other_ways };

START_TEST(equals_pytorch_in_other_ways)
{
    SHARD_SCOPE
    {
        golden_case c = golden_read(test_file("golden/losses.txt"), other_ways[_i].name);
        shard_cross_entropy_options options = other_ways[_i].options;
        shard_tensor *logits = golden_tensor(golden_find(&c, "x0"), SHARD_FLOAT64);
        const golden *weight = golden_find(&c, "weight"), *rows = golden_find(&c, "row_weight");
        options.weight = weight ? golden_tensor(weight, SHARD_FLOAT64) : NULL;
        options.row_weight = rows ? golden_tensor(rows, SHARD_FLOAT64) : NULL;
        shard_set_requires_grad(logits, true);
        shard_tensor *labels = golden_tensor(golden_find(&c, "labels"), SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy_with(logits, labels, &options, NULL);
        check_golden(&c, "y", loss, 1e-13);
        check_ok(shard_backward_from(loss, golden_tensor(golden_find(&c, "dy"), SHARD_FLOAT64)));
        check_golden(&c, "d0", shard_grad(logits), 1e-13);
        golden_free(&c);
    }
}
END_TEST

/* ---- memory ---- */

/* The second gradient of logits that are a leaf is written to the memory of the first, without a copy. */
START_TEST(puts_the_gradient_of_a_leaf_in_its_memory)
{
    const int64_t rows = 64, classes = 4096, bytes = rows * classes * (int64_t)sizeof(float);
    double *gradient = calloc((size_t)(3 * rows * classes), sizeof *gradient);
    int64_t *labels = calloc((size_t)rows, sizeof *labels);
    SHARD_SCOPE {
        shard_tensor *logits = shard_normal(SHARD_SHAPE(rows, classes), 0, 1, .requires_grad = true);
        for (int step = 0; step < 3; step++) { /* the last one is added to the gradient before it */
            if (step < 2)
                shard_zero_grad(logits);
            shard_reset_peak_memory(shard_device_open(NULL));
            int64_t before = shard_get_memory_stats(shard_device_open(NULL)).current;
            check_ok(shard_backward(shard_cross_entropy(logits, labels_of(rows, labels))));
            int64_t more = shard_get_memory_stats(shard_device_open(NULL)).peak - before;
            ck_assert_msg(step != 1 || more < bytes / 2, "%lld bytes, of which the logits have %lld", (long long)more,
                          (long long)bytes);
            read_values(shard_grad(logits), gradient + step * rows * classes);
        }
    }
    ck_assert_mem_eq(gradient, gradient + rows * classes, (size_t)(rows * classes) * sizeof *gradient);
    for (int64_t i = 0; i < rows * classes; i++)
        ck_assert_double_eq(gradient[2 * rows * classes + i], 2 * gradient[i]);
    free(gradient);
    free(labels);
}
END_TEST

START_TEST(puts_the_gradient_over_released_logits)
{
    const int64_t rows = 64, classes = 4096, bytes = rows * classes * (int64_t)sizeof(float);
    double *gradient = calloc((size_t)(2 * rows * classes), sizeof *gradient);
    int64_t peak[2], *labels = calloc((size_t)rows, sizeof *labels);
    for (int released = 0; released < 2; released++)
        SHARD_SCOPE {
            shard_manual_seed(5);
            shard_tensor *x = shard_normal(SHARD_SHAPE(rows, classes), 0, 1, .requires_grad = true);
            shard_tensor *logits = shard_add(x, shard_ones(SHARD_SHAPE(classes))); /* whose gradient is the logits' */
            shard_tensor *loss = shard_cross_entropy(logits, labels_of(rows, labels));
            if (released)
                shard_release(logits);
            shard_reset_peak_memory(shard_device_open(NULL));
            check_ok(shard_backward(loss));
            peak[released] = shard_get_memory_stats(shard_device_open(NULL)).peak;
            read_values(shard_grad(x), gradient + released * rows * classes);
        }
    ck_assert_mem_eq(gradient, gradient + rows * classes, (size_t)(rows * classes) * sizeof *gradient);
    ck_assert_int_ge(peak[0], 3 * bytes);
    ck_assert_int_lt(peak[1], 2 * bytes + bytes / 8);
    free(gradient);
    free(labels);
}
END_TEST

/* With no scope open, too. */
START_TEST(leaves_nothing_behind)
{
    int64_t before = shard_get_memory_stats(shard_device_open(NULL)).current;
    shard_tensor *logits = shard_zeros(SHARD_SHAPE(8, 100), .requires_grad = true), *weight = shard_ones(SHARD_SHAPE(100));
    shard_tensor *labels = shard_zeros(SHARD_SHAPE(8), .dtype = SHARD_INT64);
    shard_tensor *wrong = shard_full(SHARD_SHAPE(8), 100, .dtype = SHARD_INT64);
    for (int i = 0; i < 3; i++) {
        shard_tensor *loss = shard_cross_entropy(logits, labels, .weight = weight, .reduction = (shard_reduction)i);
        ck_assert_msg(loss, "%s", shard_last_error());
        ck_assert_int_eq(shard_numel(loss), i == SHARD_REDUCTION_NONE ? 8 : 1);
        if (i != SHARD_REDUCTION_NONE)
            check_ok(shard_backward(loss));
        shard_release(loss);
    }
    shard_release(shard_cross_entropy(logits, wrong, .weight = weight));
    ck_assert_int_ne(shard_synchronize(shard_device_open(NULL)) | shard_last_status(), SHARD_OK);
    shard_clear_error();
    shard_release(logits);
    shard_release(weight);
    shard_release(labels);
    shard_release(wrong);
    ck_assert_int_eq(shard_get_memory_stats(shard_device_open(NULL)).current, before);
}
END_TEST

START_TEST(notices_changed_logits)
{
    SHARD_SCOPE {
        shard_tensor *logits = row_of(ROW(1, 2), SHARD_FLOAT32), *loss = shard_cross_entropy(logits, LABELS(1));
        const float values[] = {3, 4};
        check_ok(shard_copy_from_host(logits, values, sizeof values));
        check_fails(shard_backward(loss), SHARD_ERROR_ARGUMENT,
                    "backward of shard_cross_entropy: * written to after the forward");
    }
}
END_TEST

/* ---- errors ---- */

static void refused(shard_tensor *loss, shard_status status, const char *pattern)
{
    ck_assert_ptr_null(loss);
    check_error(status, pattern);
}

/* Where the device queues, the error is that of the next call that waits for it, and no number is seen. */
static void refused_by_labels(shard_tensor *loss, const char *pattern)
{
    shard_device *device = shard_device_open(NULL);
    if (!device->ops->host_memory) {
        ck_assert_msg(loss && shard_last_status() == SHARD_OK, "%s", shard_last_error());
        ck_assert(isnan(shard_item(loss)));
        loss = NULL;
    }
    refused(loss, SHARD_ERROR_ARGUMENT, pattern);
    check_ok(shard_synchronize(device));
}

START_TEST(refuses_labels)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(4, 1000));
        refused_by_labels(shard_cross_entropy(logits, LABELS(0, 1, 999, 1000)), "*label 1000 at row 3 is outside \\[0, 1000)");
        refused_by_labels(shard_cross_entropy(logits, LABELS(0, -1, 5, 1000)), "*label -1 at row 1 is outside \\[0, 1000)");
        refused_by_labels(shard_cross_entropy(logits, LABELS(0, -100, 5, 6), .ignore_index = 0),
                          "*label -100 at row 1 is outside*");
        refused(shard_cross_entropy(logits, LABELS(0, 1, 2)), SHARD_ERROR_SHAPE, "shard_cross_entropy: labels of shape*");
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(4), .dtype = SHARD_INT32)), SHARD_ERROR_SHAPE,
                "*labels are int32; int64 is needed (shard_cast)");
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(4))), SHARD_ERROR_SHAPE,
                "*a target of shape \\[4] and dtype float32 for logits of shape \\[4, 1000]; labels must be int64: "
                "shard_cast(target, SHARD_INT64)");
        refused(shard_cross_entropy(logits, NULL), SHARD_ERROR_ARGUMENT, "shard_cross_entropy: an operand *");
        refused(shard_cross_entropy(NULL, LABELS(0)), SHARD_ERROR_ARGUMENT, "shard_cross_entropy: an operand *");
    }
}
END_TEST

START_TEST(refuses_probabilities)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3), .requires_grad = true);
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(3, 2))), SHARD_ERROR_SHAPE,
                "shard_cross_entropy: probabilities of shape*");
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64)), SHARD_ERROR_SHAPE,
                "*float64*float32; one dtype is needed (shard_cast)");
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(2, 3), .requires_grad = true)), SHARD_ERROR_UNSUPPORTED,
                "*probabilities require a gradient*shard_detach*");
        refused(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(2, 3)), .ignore_index = 1), SHARD_ERROR_ARGUMENT,
                "*ignore_index 1 with probabilities*");
        SHARD_NO_GRAD {
            check_loss(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(2, 3), .requires_grad = true)), 0, 0);
        }
    }
}
END_TEST

/* NULL for an option is its default; after an error it may be the result of the operation that failed. */
START_TEST(refuses_a_failed_option)
{
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        shard_tensor *sample = shard_sample_classes(labels, logits, 0.5, 1, -1);
        ck_assert_ptr_null(sample);
        ck_assert_ptr_null(shard_cross_entropy(logits, labels, .sample = sample));
        ck_assert_ptr_null(shard_linear_cross_entropy(logits, shard_zeros(SHARD_SHAPE(4, 3)), NULL, labels, .sample = sample));
        for (shard_reduction reduction = SHARD_REDUCTION_MEAN; reduction <= SHARD_REDUCTION_NONE; reduction++)
            ck_assert_ptr_null(shard_binary_cross_entropy_with_logits(logits, shard_zeros(SHARD_SHAPE(2, 3)), .weight = sample,
                                                                      .reduction = reduction));
        /* Backward goes on: other ranks may wait in it for the average of the gradient. */
        shard_tensor *leaf = shard_zeros(SHARD_SHAPE(2, 3), .requires_grad = true);
        shard_tensor *losses[] = {
            shard_cross_entropy(leaf, labels, .sample = sample),
            shard_cross_entropy(leaf, labels, .margin = SHARD_MARGIN(.m2 = 0.5)),
            shard_linear_cross_entropy(leaf, shard_zeros(SHARD_SHAPE(4, 3)), NULL, labels, .sample = sample),
            shard_sum(shard_binary_cross_entropy_with_logits(leaf, shard_zeros(SHARD_SHAPE(2, 3)), .weight = sample,
                                                             .reduction = SHARD_REDUCTION_NONE)),
        };
        for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
            ck_assert_msg(losses[i] != NULL, "loss %zu", i);
            (void)!shard_backward(losses[i]);
            ck_assert(shard_has_grad(leaf));
            shard_zero_grad(leaf);
        }
        SHARD_NO_GRAD
        {
            ck_assert_ptr_null(shard_cross_entropy(leaf, labels, .sample = sample));
            ck_assert_ptr_null(shard_cross_entropy(leaf, labels, .margin = SHARD_MARGIN(.m2 = 0.5)));
        }
        check_error(SHARD_ERROR_ARGUMENT, "shard_sample_classes: *");
    }
}
END_TEST

START_TEST(refuses_row_weights)
{
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        refused(shard_cross_entropy(logits, labels, .row_weight = shard_ones(SHARD_SHAPE(3))), SHARD_ERROR_SHAPE,
                "shard_cross_entropy: row weights of shape \\[3] for logits of shape \\[2, 3]*");
        refused(shard_cross_entropy(logits, labels, .row_weight = labels), SHARD_ERROR_SHAPE,
                "shard_cross_entropy: row weights are int64 on *; a floating dtype on * is needed");
        refused(shard_cross_entropy(logits, labels, .row_weight = shard_ones(SHARD_SHAPE(2), .requires_grad = true)),
                SHARD_ERROR_UNSUPPORTED, "shard_cross_entropy: row weights require a gradient*shard_detach*");
    }
}
END_TEST

/* The weight of a row is a factor, negative and 0 too; all 0 have no mean. */
START_TEST(weighs_rows)
{
    SHARD_SCOPE
    {
        shard_tensor *logits = tensor_of((const double[]){0, 0, 0, 0}, SHARD_SHAPE(2, 2), SHARD_FLOAT64), *labels = LABELS(0, 1);
        shard_tensor *weight = tensor_of((const double[]){-1, 3}, SHARD_SHAPE(2), SHARD_FLOAT64);
        check_loss(shard_cross_entropy(logits, labels, .row_weight = weight, .reduction = SHARD_REDUCTION_SUM), 2 * log(2),
                   1e-15);
        check_loss(shard_cross_entropy(logits, labels, .row_weight = weight), log(2), 1e-15);
        check_loss(shard_cross_entropy(logits, LABELS(-100, 1), .row_weight = weight), log(2), 1e-15);
        shard_tensor *leaf = shard_clone(logits), *infinite = tensor_of((const double[]){2, INFINITY}, SHARD_SHAPE(2), SHARD_FLOAT64);
        shard_set_requires_grad(leaf, true);
        shard_tensor *loss = shard_cross_entropy(leaf, LABELS(0, -100), .row_weight = infinite); /* of a row that does not count */
        double gradient[4], expected[] = {-0.5, 0.5, 0, 0};
        check_loss(loss, log(2), 1e-15);
        check_ok(shard_backward(loss));
        read_values(shard_grad(leaf), gradient);
        for (int i = 0; i < 4; i++)
            ck_assert_double_eq_tol(gradient[i], expected[i], 1e-15);
        check_loss(shard_cross_entropy(logits, labels, .row_weight = shard_zeros(SHARD_SHAPE(2))), NAN, 0);
    }
}
END_TEST

/* Out of float16's range, above and below. */
START_TEST(takes_weights_that_halves_lack)
{
    static const float weights[2][3] = {{70000, 1, 2}, {1e-9f, 2e-9f, 4e-9f}};
    for (int i = 0; i < 2; i++)
        SHARD_SCOPE {
            shard_tensor *half = tensor_of((const double[]){1, 2, 3, 4, 5, 6}, SHARD_SHAPE(2, 3), SHARD_FLOAT16);
            shard_tensor *weight = shard_from_host(weights[i], SHARD_SHAPE(3));
            shard_tensor *wide = shard_cast(shard_detach(half), SHARD_FLOAT32),
                         *labels = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
            shard_tensor *target = shard_full(SHARD_SHAPE(2, 3), 0.25, .dtype = SHARD_FLOAT16), *loss[2];
            shard_set_requires_grad(half, true);
            loss[0] = shard_cross_entropy(half, labels, .weight = weight);
            loss[1] = shard_binary_cross_entropy_with_logits(half, target, .pos_weight = weight);
            ck_assert_double_eq(shard_item(loss[0]), shard_item(shard_cross_entropy(wide, labels, .weight = weight)));
            ck_assert_double_eq(shard_item(loss[1]), shard_item(shard_binary_cross_entropy_with_logits(
                                                         wide, shard_cast(target, SHARD_FLOAT32), .pos_weight = weight)));
            ck_assert(isfinite(shard_item(loss[0])) && isfinite(shard_item(loss[1])));
            check_ok(shard_backward(loss[0]));
            ck_assert_int_eq(shard_tensor_dtype(shard_grad(half)), SHARD_FLOAT16);
        }
}
END_TEST

/* Ranks are those of the logits as they are given, which a cap may make equal. */
START_TEST(ranks_logits_without_the_cap)
{
    static const double values[] = {1000, 2000, 3000, 1, 2, 3};
    SHARD_SCOPE
    {
        shard_tensor *logits = tensor_of(values, SHARD_SHAPE(2, 3), SHARD_FLOAT32), *rank;
        shard_tensor *loss =
            shard_cross_entropy_with_rank(logits, LABELS(1, 1), &rank, .soft_cap = 1, .logit_scale = 2, .label_smoothing = 0.1);
        ck_assert_msg(loss, "%s", shard_last_error());
        ck_assert_int_eq(shard_count_top_k(rank, 1), 0);
        ck_assert_int_eq(shard_count_top_k(rank, 2), 2);
    }
}
END_TEST

START_TEST(refuses_factors)
{
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        refused(shard_cross_entropy(logits, labels, .z_loss = -1), SHARD_ERROR_ARGUMENT, "shard_cross_entropy: z_loss -1*");
        refused(shard_cross_entropy(logits, labels, .logit_scale = 0), SHARD_ERROR_ARGUMENT,
                "shard_cross_entropy: logit_scale 0*");
        refused(shard_cross_entropy(logits, labels, .soft_cap = NAN), SHARD_ERROR_ARGUMENT, "shard_cross_entropy: soft_cap nan*");
        refused(shard_cross_entropy(logits, labels, .soft_cap = 5.0, .margin = SHARD_MARGIN(.m2 = 0.5)), SHARD_ERROR_UNSUPPORTED,
                "shard_cross_entropy: soft_cap 5 with a margin*");
    }
}
END_TEST

START_TEST(refuses_weights)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        refused(shard_cross_entropy(logits, labels, .weight = shard_ones(SHARD_SHAPE(4))), SHARD_ERROR_SHAPE,
                "*class weights of shape \\[4] that are local, for classes \\[0, 3) of 3*");
        refused(shard_cross_entropy(logits, labels, .weight = shard_ones(SHARD_SHAPE(1, 3))), SHARD_ERROR_SHAPE,
                "*class weights*");
        refused(shard_cross_entropy(logits, labels, .weight = shard_ones(SHARD_SHAPE(3), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE,
                "*class weights are int64*a floating dtype*");
        refused(shard_cross_entropy(logits, labels, .weight = shard_ones(SHARD_SHAPE(3), .requires_grad = true)),
                SHARD_ERROR_UNSUPPORTED, "*class weights require a gradient*");
    }
}
END_TEST

START_TEST(refuses_options)
{
    static const double smoothing[] = {-0.1, 1.1, NAN, INFINITY};
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        for (int i = 0; i < 4; i++)
            refused(shard_cross_entropy(logits, labels, .label_smoothing = smoothing[i]), SHARD_ERROR_ARGUMENT,
                    "shard_cross_entropy: label_smoothing * is outside \\[0, 1]");
        refused(shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_BATCH_MEAN), SHARD_ERROR_ARGUMENT,
                "*no reduction 3 here; SHARD_REDUCTION_MEAN, *");
        refused(shard_cross_entropy(logits, labels, .reduction = (shard_reduction)-1), SHARD_ERROR_ARGUMENT,
                "*no reduction -1 *");
        refused(shard_cross_entropy(shard_zeros(SHARD_SHAPE(2, 3, 4)), labels), SHARD_ERROR_SHAPE,
                "*logits of shape \\[2, 3, 4]*");
        refused(shard_cross_entropy(shard_zeros(SHARD_SCALAR), labels), SHARD_ERROR_SHAPE, "*logits of shape \\[]*");
        refused(shard_cross_entropy(shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_INT32), labels), SHARD_ERROR_SHAPE,
                "*int32*");
    }
}
END_TEST

START_TEST(refuses_placements)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = LABELS(0, 1);
        logits->placement.kind = SHARD_PARTIAL;
        refused(shard_cross_entropy(logits, labels), SHARD_ERROR_UNSUPPORTED, "shard_cross_entropy: no rule*partial*");
        logits->placement.kind = SHARD_LOCAL;
        labels->placement = (shard_placement){.kind = SHARD_SPLIT, .whole = 4};
        refused(shard_cross_entropy(logits, labels), SHARD_ERROR_UNSUPPORTED, "*of shape \\[2] that is split along 0*");
        shard_tensor *probabilities = shard_zeros(SHARD_SHAPE(2, 3));
        probabilities->placement = (shard_placement){.kind = SHARD_SPLIT, .dim = 1, .whole = 6};
        refused(shard_cross_entropy(logits, probabilities), SHARD_ERROR_UNSUPPORTED, "*of shape \\[2, 3] that is split along 1*");
    }
}
END_TEST

/* The first error stays, and NULL goes through. */
START_TEST(leaves_the_first_error_alone)
{
    shard_error(SHARD_ERROR_IO, "first");
    ck_assert_ptr_null(shard_cross_entropy(NULL, NULL));
    check_error(SHARD_ERROR_IO, "first");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cross_entropy");
    TCase *values = test_case(suite, "values");
    tcase_add_loop_test(values, follows_the_definition, 0, 4);
    tcase_add_loop_test(values, follows_the_definition_in_other_ways, 0, 4 * (LOSS_WAYS - 1));
    tcase_add_loop_test(values, has_the_gradient_of_its_differences, 0, LOSS_CASES + FEW_CASES * (LOSS_WAYS - 1));
    tcase_add_test(values, ignores_any_index);
    tcase_add_loop_test(values, takes_one_row_without_a_dimension, 0, 2);
    tcase_add_test(values, takes_no_rows);
    tcase_add_loop_test(values, has_no_mean_of_ignored_rows, 0, 2);
    tcase_add_loop_test(values, stands_extreme_logits, 0, 4);
    tcase_add_loop_test(values, leaves_out_masked_classes, 0, 4);
    tcase_add_test(values, keeps_the_loss_of_large_equal_logits);
    tcase_add_test(values, ignores_extreme_rows);
    tcase_add_test(values, sums_a_million_classes);
    tcase_add_test(values, weighs_rows);
    tcase_add_test(values, takes_weights_that_halves_lack);
    tcase_add_test(values, ranks_logits_without_the_cap);
    tcase_add_test(values, equals_pytorch);
    tcase_add_loop_test(values, equals_pytorch_in_other_ways, 0, OTHER_WAYS);
    TCase *memory = test_case(suite, "memory");
    tcase_add_test(memory, puts_the_gradient_over_released_logits);
    tcase_add_test(memory, puts_the_gradient_of_a_leaf_in_its_memory);
    tcase_add_test(memory, leaves_nothing_behind);
    tcase_add_test(memory, notices_changed_logits);
    TCase *errors = test_case(suite, "errors");
    tcase_add_test(errors, refuses_labels);
    tcase_add_test(errors, refuses_probabilities);
    tcase_add_test(errors, refuses_weights);
    tcase_add_test(errors, refuses_a_failed_option);
    tcase_add_test(errors, refuses_row_weights);
    tcase_add_test(errors, refuses_factors);
    tcase_add_test(errors, refuses_options);
    tcase_add_test(errors, refuses_placements);
    tcase_add_test(errors, leaves_the_first_error_alone);
    return test_run(suite);
}
