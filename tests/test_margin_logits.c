/* Margins at the labels' columns: against PyTorch, finite differences and one process; a whole ArcFace and AdaFace head. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/options.h"
#include "support/rules.h"

#include <shard/distributed.h>
#include <shard/loss.h>

#include "device/device.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

enum { CLASSES = 9, IGNORED = -100 };

/* ---- against PyTorch ---- */

/* tests/golden/make_losses.py has the formulas. */
static const struct {
    const char *name;
    shard_margin_logits_options options;
} golden_cases[] = {
    {"combined", {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .m1 = 1.25, .m2 = 0.3, .m3 = 0.2, .rule = SHARD_MARGIN_COSINE}},
    {"cosine", {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .m2 = 0.5, .rule = SHARD_MARGIN_COSINE}},
    {"arcface", {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .m2 = 0.5}},
    {"easy", {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .m2 = 0.5, .rule = SHARD_MARGIN_EASY}},
    {"cosface", {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .m3 = 0.4}},
};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

static shard_tensor *doubles_of(const golden_case *c, const char *name)
{
    return golden_tensor(golden_find(c, name), SHARD_FLOAT64);
}

static void check_golden_margin(const golden_case *c, const shard_margin_logits_options *options)
{
    shard_tensor *x = doubles_of(c, "x0");
    shard_set_requires_grad(x, true);
    shard_tensor *y = shard_margin_logits_with(x, golden_tensor(golden_find(c, "labels"), SHARD_INT64), options);
    check_golden(c, "y", y, 1e-14);
    check_ok(shard_backward_from(y, doubles_of(c, "dy")));
    check_golden(c, "d0", shard_grad(x), 1e-13);
}

START_TEST(equals_pytorch)
{
    SHARD_SCOPE
    {
        golden_case c = golden_read(test_file("golden/losses.txt"), golden_cases[_i].name);
        check_golden_margin(&c, &golden_cases[_i].options);
        golden_free(&c);
    }
}
END_TEST

START_TEST(equals_adaface)
{
    SHARD_SCOPE
    {
        golden_case c = golden_read(test_file("golden/losses.txt"), "adaface");
        shard_tensor *mean = shard_full(SHARD_SHAPE(1), 20, .dtype = SHARD_FLOAT64), *m3;
        shard_tensor *std = shard_full(SHARD_SCALAR, 100, .dtype = SHARD_FLOAT64);
        shard_tensor *m2 = shard_adaface_margins(doubles_of(&c, "norms"), mean, std, &m3);
        check_golden(&c, "m2", m2, 1e-14);
        check_golden(&c, "m3", m3, 1e-14);
        check_golden(&c, "mean", shard_reshape(mean, SHARD_SCALAR), 1e-15);
        check_golden(&c, "std", std, 1e-15);
        shard_margin_logits_options options = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
        options.row_m2 = m2;
        options.row_m3 = m3;
        options.rule = SHARD_MARGIN_CLAMP;
        check_golden_margin(&c, &options);
        golden_free(&c);
    }
}
END_TEST

/* ---- gradients and placements ---- */

/* Of the rows that x has; one is ignored. Those of split rows are this rank's. */
static shard_tensor *labels_for(const shard_tensor *x, int64_t classes)
{
    shard_placement placement = shard_tensor_placement(x);
    shard_shape shape = shard_tensor_shape(x);
    shape.ndim--;
    bool by_rows = placement.kind == SHARD_SPLIT && placement.dim == 0 && shape.ndim > 0;
    int64_t count = shard_shape_product(&shape, 0, shape.ndim);
    int64_t first = by_rows ? placement.start * shard_shape_product(&shape, 1, shape.ndim) : 0;
    int64_t *values = calloc((size_t)count + 1, sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = first + i == 2 ? IGNORED : (5 * (first + i) + 3) % classes;
    shard_tensor *labels = shard_from_host(values, shape, .dtype = SHARD_INT64);
    free(values);
    return by_rows ? shard_as_split(labels, 0, placement.group, placement.start, placement.whole) : labels;
}

static int64_t classes_of(const shard_tensor *x)
{
    return shard_tensor_whole_shape(x).dim[shard_tensor_shape(x).ndim - 1];
}

/* Cosines of made-up values, which are between -2 and 3. */
static shard_tensor *margin(shard_tensor *const *x, const void *options)
{
    return shard_margin_logits_with(shard_scale(x[0], 0.3), labels_for(x[0], classes_of(x[0])), options);
}

/* Margins of each row, of another dtype. */
static shard_tensor *row_margins(shard_tensor *const *x, const void *options)
{
    shard_margin_logits_options own = *(const shard_margin_logits_options *)options;
    shard_shape shape = shard_tensor_shape(x[0]);
    shape.ndim--;
    shard_tensor *labels = labels_for(x[0], classes_of(x[0]));
    shard_tensor *row = shard_add_scalar(shard_scale(shard_cast(labels, SHARD_FLOAT32), 0.03125), 0.125);
    own.row_m2 = row;
    own.row_m3 = shard_scale(row, 0.5);
    return shard_margin_logits_with(shard_scale(x[0], 0.3), labels, &own);
}

/* The whole head: normalized features and weight, product, margin, loss. */
static shard_tensor *head(shard_tensor *const *x, const void *options)
{
    shard_tensor *weight = shard_normalize(x[1], -1, 1e-12);
    shard_tensor *cosines = shard_linear(shard_normalize(x[0], -1, 1e-12), weight, NULL);
    shard_tensor *labels = labels_for(x[0], shard_tensor_whole_shape(x[1]).dim[0]);
    return shard_cross_entropy(shard_margin_logits_with(cosines, labels, options), labels);
}

/* AdaFace's: margins by the norms of the features. */
static shard_tensor *adaface(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_shape shape = shard_tensor_shape(x[0]);
    shard_tensor *norms = shard_reshape(shard_sqrt(shard_sum_dim(shard_mul(x[0], x[0]), -1, false)), SHARD_SHAPE(shape.dim[0])),
                 *m3;
    shard_tensor *mean = shard_full(SHARD_SCALAR, 2, .dtype = SHARD_FLOAT64), *std = shard_full(SHARD_SCALAR, 3);
    shard_tensor *m2 = shard_adaface_margins(norms, mean, std, &m3, .t_alpha = 0.5);
    const shard_margin_logits_options own = {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .scale = 4, .row_m2 = m2, .row_m3 = m3,
                                             .rule = SHARD_MARGIN_CLAMP};
    return head(x, &own);
}

static const shard_margin_logits_options small = {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .scale = 2, .m2 = 0.5},
                                         mixed = {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .scale = 4, .m1 = 1.25, .m2 = 0.3,
                                                  .m3 = 0.2},
                                         easy = {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .scale = 2, .m2 = 0.5,
                                                 .rule = SHARD_MARGIN_EASY},
                                         clamp = {SHARD_MARGIN_LOGITS_OPTIONS_VALUES, .scale = 2, .rule = SHARD_MARGIN_CLAMP};

static const operation operations[] = {
    {"ArcFace", margin, &small, 1, {SHARD_SHAPE(4, 5)}},
    {"a combined margin", margin, &mixed, 1, {SHARD_SHAPE(4, 5)}, .rounding = 16},
    {"an easy margin", margin, &easy, 1, {SHARD_SHAPE(4, 5)}},
    {"margins of rows", row_margins, &clamp, 1, {SHARD_SHAPE(4, 5)}},
    {"a margin of a vector", margin, &small, 1, {SHARD_SHAPE(5)}},
    {"a margin of images", margin, &small, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"a margin of no rows", margin, &small, 1, {SHARD_SHAPE(0, 5)}},
    {"an ArcFace head", head, &small, 2, {SHARD_SHAPE(4, 6), SHARD_SHAPE(5, 6)}, .needs = 3, .rounding = 64},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

static const rule rules[] = {
    {"rows split", margin, &small, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"classes split", margin, &mixed, 1, {SHARD_SHAPE(4, CLASSES)}, {1}, 1},
    {"few classes split", margin, &small, 1, {SHARD_SHAPE(2, 3, 2)}, {2}, 2},
    {"margins of split rows", row_margins, &clamp, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"margins of rows, classes split", row_margins, &clamp, 1, {SHARD_SHAPE(4, CLASSES)}, {1}, 1},
    {"an ArcFace head, classes split", head, &small, 2, {SHARD_SHAPE(5, 6), SHARD_SHAPE(CLASSES, 6)}, {WHOLE, 0}, WHOLE},
    {"a combined head, classes split", head, &mixed, 2, {SHARD_SHAPE(5, 6), SHARD_SHAPE(CLASSES, 6)}, {WHOLE, 0}, WHOLE},
    {"an AdaFace head, classes split", adaface, NULL, 2, {SHARD_SHAPE(5, 6), SHARD_SHAPE(CLASSES, 6)}, {WHOLE, 0}, WHOLE},
};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
}

START_TEST(parts_make_the_whole)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

/* Each row of a mesh of two rows has a head. */
static void check_rows_of_a_mesh(shard_group *world, void *context)
{
    (void)context;
    int columns = shard_group_size(world) / 2, rank = shard_group_rank(world);
    shard_group *group = shard_group_split(world, rank / columns);
    ck_assert_msg(group, "%s", shard_last_error());
    check_each_rule(rules, sizeof rules / sizeof *rules, group);
    shard_group_destroy(group);
}

START_TEST(works_in_groups)
{
    run_ranks(_i ? 6 : 4, check_rows_of_a_mesh);
}
END_TEST

/* ---- AdaFace's statistics ---- */

/* Norms of split rows have the statistics of all rows. */
static void measures_all_rows(shard_group *world, void *context)
{
    (void)context;
    static const double norms[] = {3, 20, 25, 70, 300, 0, 22};
    shard_range range = shard_split_range(7, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE
    {
        shard_tensor *state[4], *m3[2], *m2[2];
        for (int i = 0; i < 4; i++)
            state[i] = shard_full(SHARD_SCALAR, i % 2 ? 100 : 20, .dtype = SHARD_FLOAT64);
        shard_tensor *whole = shard_from_host(norms, SHARD_SHAPE(7), .dtype = SHARD_FLOAT64);
        shard_tensor *own = shard_from_host(norms + range.start, SHARD_SHAPE(range.size), .dtype = SHARD_FLOAT64);
        for (int step = 0; step < 2; step++) { /* the second one from the statistics of the first */
            m2[0] = shard_adaface_margins(whole, state[0], state[1], &m3[0], .t_alpha = 0.25);
            m2[1] =
                shard_adaface_margins(shard_as_split(own, 0, world, range.start, 7), state[2], state[3], &m3[1], .t_alpha = 0.25);
            ck_assert_msg(m2[0] && m2[1], "%s", shard_last_error());
        }
        double mean = shard_item(state[0]), std = shard_item(state[1]);
        check_tensor("mean", state[2], &mean, 1e-14);
        check_tensor("std", state[3], &std, 1e-14);
        double *angular = values_of(m2[0]), *additive = values_of(m3[0]);
        check_tensor("angular margins", m2[1], angular + range.start, 1e-13);
        check_tensor("additive margins", m3[1], additive + range.start, 1e-13);
        free(angular);
        free(additive);
    }
}

START_TEST(statistics_are_those_of_all_rows)
{
    run_ranks(rank_counts[_i], measures_all_rows);
}
END_TEST

START_TEST(one_row_has_no_deviation)
{
    SHARD_SCOPE
    {
        shard_tensor *mean = shard_full(SHARD_SCALAR, 20), *std = shard_full(SHARD_SCALAR, 100), *m3;
        shard_tensor *m2 = shard_adaface_margins(shard_full(SHARD_SHAPE(1), 30), mean, std, &m3, .t_alpha = 0.5);
        ck_assert_double_eq(shard_item(std), 100);
        ck_assert_double_eq(shard_item(mean), 25);
        ck_assert_double_eq_tol(shard_item(m2), -0.4 * 0.333 * 5 / 100.001, 1e-12);
        ck_assert_double_eq_tol(shard_item(m3), 0.4 + 0.4 * 0.333 * 5 / 100.001, 1e-12);
        ck_assert_ptr_nonnull(shard_adaface_margins(shard_full(SHARD_SHAPE(0), 30), mean, std, NULL));
        ck_assert_double_eq(shard_item(mean), 25);
        shard_tensor *not_finite = shard_from_host((float[]){30, NAN, 10}, SHARD_SHAPE(3));
        ck_assert_double_eq(value_at(shard_adaface_margins(not_finite, mean, std, NULL, .t_alpha = 0), 0), shard_item(m2));
        ck_assert(shard_item(mean) == 25 && shard_item(std) == 100);
        check_refused(shard_adaface_margins(mean, mean, shard_ones(SHARD_SHAPE(2)), &m3), SHARD_ERROR_SHAPE,
                      "shard_adaface_margins: std is a float32 of shape [[]2], local on *");
        ck_assert_ptr_null(m3);
        check_refused(shard_adaface_margins(mean, mean, std, NULL, .t_alpha = 2), SHARD_ERROR_ARGUMENT,
                      "shard_adaface_margins: m 0.4, h 0.333 and t_alpha 2; *");
    }
}
END_TEST

/* ---- the ends of the range ---- */

/* At and outside of -1 and 1 the value is that of the end, and the derivative is bounded; NaN stays. */
START_TEST(ends_of_the_range)
{
    const double cosine[] = {1, 1.0000001, -1, -1.5, NAN, 0.5};
    const double at_one = cos(0.5), at_minus_one = -1 - 0.5 * sin(0.5), at_half = cos(acos(0.5) + 0.5);
    const double value[] = {at_one, at_one, at_minus_one, at_minus_one - 0.5, NAN, at_half};
    const double slope[] = {sin(0.5) / 1e-3, sin(0.5) / 1e-3, 1, 1, NAN, sin(acos(0.5) + 0.5) / sin(acos(0.5))};
    SHARD_SCOPE
    for (int i = 0; i < 6; i++) {
        shard_tensor *x = shard_full(SHARD_SHAPE(1, 2), cosine[i], .dtype = SHARD_FLOAT64);
        shard_set_requires_grad(x, true);
        shard_tensor *y = shard_margin_logits(x, shard_zeros(SHARD_SHAPE(1), .dtype = SHARD_INT64), .scale = 1, .m2 = 0.5);
        check_ok(shard_backward(shard_sum(shard_narrow(y, -1, 0, 1))));
        double *got = values_of(y), *gradient = values_of(shard_grad(x));
        if (isnan(value[i])) {
            ck_assert(isnan(got[0]) && isnan(gradient[0]));
        } else {
            ck_assert_double_eq_tol(got[0], value[i], 1e-14);
            ck_assert_double_eq_tol(gradient[0], slope[i], 1e-10);
        }
        ck_assert(gradient[1] == 0 && (got[1] == cosine[i] || isnan(cosine[i])));
        free(got);
        free(gradient);
    }
}
END_TEST

/* A clamped angle has no gradient, also without a margin, as AdaFace's of a row with the mean norm. */
START_TEST(clamps_without_a_margin)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host((float[]){1, 0}, SHARD_SHAPE(1, 2), .requires_grad = true);
        shard_tensor *y =
            shard_margin_logits(x, shard_zeros(SHARD_SHAPE(1), .dtype = SHARD_INT64), .scale = 1, .rule = SHARD_MARGIN_CLAMP);
        check_ok(shard_backward(shard_sum(y)));
        ck_assert_double_eq(value_at(shard_grad(x), 0), 0);
        ck_assert_double_eq(value_at(shard_grad(x), 1), 1);
    }
}
END_TEST

/* A worse feature never has the better logit, also where the angle with the margin leaves [0, pi]. */
START_TEST(falls_with_the_angle)
{
    static const double margins[][2] = {{1, 0.5}, {1, 2.5}, {1.35, 0}, {1.5, 0.3}, {4, 0}, {0.5, -0.3}, {1.35, -0.2}};
    static const shard_margin_rule falling[] = {SHARD_MARGIN_LINEAR, SHARD_MARGIN_CLAMP};
    enum { ANGLES = 1000 };
    double cosine[ANGLES];
    for (int i = 0; i < ANGLES; i++)
        cosine[i] = cos(acos(-1) * i / (ANGLES - 1));
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(cosine, SHARD_SHAPE(ANGLES, 1), .dtype = SHARD_FLOAT64);
        double *y = values_of(shard_margin_logits(x, shard_zeros(SHARD_SHAPE(ANGLES), .dtype = SHARD_INT64), .scale = 1,
                                                  .m1 = margins[_i / 2][0], .m2 = margins[_i / 2][1], .rule = falling[_i % 2]));
        for (int i = 1; i < ANGLES; i++)
            ck_assert_msg(y[i] <= y[i - 1] + 1e-12, "m1 %g, m2 %g: %g follows %g at %d", margins[_i / 2][0], margins[_i / 2][1],
                          y[i], y[i - 1], i);
        free(y);
    }
}
END_TEST

/* ---- errors ---- */

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *labels = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        check_refused(shard_margin_logits(x, shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE,
                      "shard_margin_logits: labels of shape [[]3] for logits of shape [[]2, 3]*");
        check_refused(shard_margin_logits(x, x), SHARD_ERROR_SHAPE, "shard_margin_logits: labels are float32; *");
        check_refused(shard_margin_logits(x, NULL), SHARD_ERROR_ARGUMENT, "shard_margin_logits: an operand *");
        check_refused(shard_margin_logits(x, labels, .scale = 0), SHARD_ERROR_ARGUMENT, "shard_margin_logits: scale 0*");
        check_refused(shard_margin_logits(x, labels, .m2 = NAN), SHARD_ERROR_ARGUMENT, "shard_margin_logits: m2 nan; a finite *");
        check_refused(shard_margin_logits(x, labels, .rule = (shard_margin_rule)4), SHARD_ERROR_ARGUMENT,
                      "shard_margin_logits: *rule 4*");
        check_refused(shard_margin_logits(x, labels, .row_m2 = shard_zeros(SHARD_SHAPE(3))), SHARD_ERROR_SHAPE,
                      "shard_margin_logits: row_m2 of shape [[]3] for logits of shape [[]2, 3]*");
        check_refused(shard_margin_logits(x, labels, .row_m3 = labels), SHARD_ERROR_SHAPE,
                      "shard_margin_logits: row_m3 are int64 *");
        ck_assert_ptr_null(shard_margin_logits(x, labels, .row_m2 = shard_exp(labels)));
        check_refused(NULL, SHARD_ERROR_SHAPE, "shard_exp: *");
        static const int64_t wrong[] = {0, 3};
        shard_tensor *y = shard_margin_logits(x, shard_from_host(wrong, SHARD_SHAPE(2), .dtype = SHARD_INT64));
        ck_assert_ptr_null(shard_device_open(NULL)->ops->host_memory ? y : NULL);
        shard_synchronize(shard_device_open(NULL)); /* a GPU finds it by then */
        check_error(SHARD_ERROR_ARGUMENT, "shard_margin_logits: label 3*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("margin_logits");
    TCase *tcase = test_case(suite, "margin_logits");
    tcase_add_loop_test(tcase, equals_pytorch, 0, GOLDEN_CASES);
    tcase_add_test(tcase, equals_adaface);
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_loop_test(tcase, works_in_groups, 0, 2);
    add_ranks_test(tcase, statistics_are_those_of_all_rows);
    tcase_add_test(tcase, one_row_has_no_deviation);
    tcase_add_test(tcase, clamps_without_a_margin);
    tcase_add_test(tcase, ends_of_the_range);
    tcase_add_loop_test(tcase, falls_with_the_angle, 0, 14);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
