/* The labels' columns: picked, added to, set in zeros; against finite differences, and split over
 * ranks against one process. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include <shard/distributed.h>
#include <shard/loss.h>

#include "device/device.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum { CLASSES = 9, IGNORED = -100 };

/* Of the rows that x has; one is ignored. Those of split rows are this rank's. */
static shard_tensor *labels_for(const shard_tensor *x)
{
    shard_placement placement = shard_tensor_placement(x);
    shard_shape shape = shard_tensor_shape(x);
    shape.ndim--;
    bool by_rows = placement.kind == SHARD_SPLIT && placement.dim == 0 && shape.ndim > 0;
    int64_t count = shard_shape_product(&shape, 0, shape.ndim);
    int64_t first = by_rows ? placement.start * shard_shape_product(&shape, 1, shape.ndim) : 0;
    int64_t classes = shard_tensor_whole_shape(x).dim[shape.ndim];
    int64_t *values = calloc((size_t)count + 1, sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = first + i == 2 ? IGNORED : (7 * (first + i) + 3) % classes;
    shard_tensor *labels = shard_from_host(values, shape, .dtype = SHARD_INT64);
    free(values);
    return by_rows ? shard_as_split(labels, 0, placement.group, placement.start, placement.whole) : labels;
}

static shard_tensor *pick(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_pick_labels(x[0], labels_for(x[0]), IGNORED);
}

static shard_tensor *add(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add_at_labels(x[0], labels_for(x[0]), x[1], -1.5, IGNORED);
}

static shard_tensor *add_ones(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add_at_labels(x[0], labels_for(x[0]), NULL, -0.25, IGNORED);
}

/* A margin that depends on the label's logit, as ArcFace's does. */
static shard_tensor *margin(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *own = shard_pick_labels(x[0], labels_for(x[0]), IGNORED);
    if (shard_tensor_placement(own).kind == SHARD_PARTIAL)
        own = shard_reduce_from_group(own, shard_tensor_placement(x[0]).group);
    return shard_add_at_labels(x[0], labels_for(x[0]), shard_mul(own, own), -1, IGNORED);
}

/* x where the label is not. */
static shard_tensor *mask(shard_tensor *const *x, const void *options)
{
    (void)options;
    int64_t classes = shard_tensor_whole_shape(x[0]).dim[shard_tensor_shape(x[0]).ndim - 1];
    shard_tensor *labels = shard_one_hot(labels_for(x[0]), classes, .like = x[0]);
    return shard_add(x[0], shard_scale(shard_mul(x[0], labels), -1));
}

static const operation operations[] = {
    {"pick", pick, NULL, 1, {SHARD_SHAPE(4, 5)}},
    {"pick of a vector", pick, NULL, 1, {SHARD_SHAPE(5)}},
    {"pick of images", pick, NULL, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"pick of no rows", pick, NULL, 1, {SHARD_SHAPE(0, 5)}},
    {"add", add, NULL, 2, {SHARD_SHAPE(4, 5), SHARD_SHAPE(4)}},
    {"add to images", add, NULL, 2, {SHARD_SHAPE(2, 3, 5), SHARD_SHAPE(2, 3)}},
    {"add to a vector", add, NULL, 2, {SHARD_SHAPE(5), SHARD_SCALAR}},
    {"add ones", add_ones, NULL, 1, {SHARD_SHAPE(4, 5)}},
    {"add a margin", margin, NULL, 1, {SHARD_SHAPE(4, 5)}, .needs = 0, .rounding = 16},
    {"mask", mask, NULL, 1, {SHARD_SHAPE(4, 5)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Element [i, j] of x is 10 * i + j; the labels are 3, 0, none, 4. */
START_TEST(values_are_those_of_the_rows)
{
    static const double picked[] = {3, 10, 0, 34}, values[] = {1, 2, 3, 4};
    double numbers[20], added[20];
    for (int i = 0; i < 20; i++)
        numbers[i] = added[i] = 10 * (i / 5) + i % 5;
    added[3] -= 1.5;
    added[5] -= 3;
    added[19] -= 6;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(numbers, SHARD_SHAPE(4, 5), .dtype = SHARD_FLOAT64);
        shard_tensor *of_rows = shard_from_host(values, SHARD_SHAPE(4), .dtype = SHARD_FLOAT64);
        check_tensor("pick", pick(&x, NULL), picked, 0);
        check_tensor("add", add((shard_tensor *[]){x, of_rows}, NULL), added, 0);
    }
}
END_TEST

static const rule rules[] = {
    {"pick, rows split", pick, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"pick, classes split", pick, NULL, 1, {SHARD_SHAPE(4, CLASSES)}, {1}, PARTIAL},
    {"pick, few classes split", pick, NULL, 1, {SHARD_SHAPE(2, 3, 2)}, {2}, PARTIAL},
    {"add, rows split", add, NULL, 2, {SHARD_SHAPE(9, 4), SHARD_SHAPE(9)}, {0, 0}, 0},
    {"add, classes split", add, NULL, 2, {SHARD_SHAPE(4, CLASSES), SHARD_SHAPE(4)}, {1, WHOLE}, 1},
    {"add ones, classes split", add_ones, NULL, 1, {SHARD_SHAPE(2, 3, CLASSES)}, {2}, 2},
    {"margin, classes split", margin, NULL, 1, {SHARD_SHAPE(5, CLASSES)}, {1}, 1},
    {"mask, rows split", mask, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"mask, classes split", mask, NULL, 1, {SHARD_SHAPE(4, CLASSES)}, {1}, 1},
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

/* Each rank has the whole gradient of values, not that of the labels in its range. */
static void sums_the_gradient(shard_group *world, void *context)
{
    (void)context;
    static const double expected[] = {-1.5, -1.5, 0, -1.5};
    shard_range part = shard_split_range(CLASSES, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE
    {
        shard_tensor *own = shard_zeros(SHARD_SHAPE(4, part.size), .dtype = SHARD_FLOAT64);
        shard_tensor *x = shard_as_split(own, 1, world, part.start, CLASSES);
        shard_tensor *values = shard_zeros(SHARD_SHAPE(4), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *y = add((shard_tensor *[]){x, values}, NULL);
        check_ok(shard_backward_from(y, shard_ones(SHARD_SHAPE(4, part.size), .dtype = SHARD_FLOAT64)));
        check_tensor("gradient of values", shard_grad(values), expected, 0);
        ck_assert_int_eq(shard_grad(values)->pending.count, 0);
    }
}

START_TEST(values_have_the_whole_gradient)
{
    run_ranks(rank_counts[_i], sums_the_gradient);
}
END_TEST

START_TEST(one_hot_of_each_dtype)
{
    static const int64_t values[] = {2, IGNORED, 0};
    static const double expected[] = {0, 0, 1, 0, 0, 0, 1, 0, 0};
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host(values, SHARD_SHAPE(3), .dtype = SHARD_INT64);
        for (shard_dtype dtype = SHARD_FLOAT32; dtype <= SHARD_UINT8; dtype++) {
            shard_tensor *y = shard_one_hot(labels, 3, .dtype = dtype);
            ck_assert_int_eq(shard_tensor_dtype(y), dtype);
            check_tensor(shard_dtype_name(dtype), y, expected, 0);
        }
        shard_tensor *last = shard_one_hot(labels, 3, .ignore_index = 2);
        ck_assert_ptr_null(shard_device_open(NULL)->ops->host_memory ? last : NULL);
        shard_synchronize(shard_device_open(NULL)); /* a GPU finds it by then */
        check_error(SHARD_ERROR_ARGUMENT, "shard_one_hot: label -100*");
        static const int64_t zeros[] = {0, 1, 0};
        labels = shard_from_host(zeros, SHARD_SHAPE(3), .dtype = SHARD_INT64);
        static const double but_zeros[] = {0, 0, 0, 1, 0, 0};
        shard_tensor *x = shard_ones(SHARD_SHAPE(3, 2), .dtype = SHARD_FLOAT64);
        static const double one[] = {0, 1, 0}, added[] = {1, 1, 1, 3, 1, 1};
        check_tensor("pick, class 0 ignored", shard_pick_labels(x, labels, 0), one, 0);
        check_tensor("add, class 0 ignored", shard_add_at_labels(x, labels, NULL, 2, 0), added, 0);
        check_tensor("class 0 ignored", shard_one_hot(labels, 2, .ignore_index = 0), but_zeros, 0);
        ck_assert_int_eq(shard_numel(shard_one_hot(shard_zeros(SHARD_SHAPE(0), .dtype = SHARD_INT64), 4)), 0);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *labels = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *three = shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64);
        check_refused(shard_pick_labels(x, three, IGNORED), SHARD_ERROR_SHAPE,
                      "shard_pick_labels: labels of shape [[]3] on * for x of shape [[]2, 3] on *");
        check_refused(shard_pick_labels(x, x, IGNORED), SHARD_ERROR_SHAPE, "shard_pick_labels: labels are float32; *");
        check_refused(shard_pick_labels(x, NULL, IGNORED), SHARD_ERROR_ARGUMENT, "shard_pick_labels: an operand *");
        check_refused(shard_add_at_labels(x, labels, shard_zeros(SHARD_SHAPE(3)), 1, IGNORED), SHARD_ERROR_SHAPE,
                      "shard_add_at_labels: values of shape [[]3] on *");
        check_refused(shard_add_at_labels(x, labels, shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_FLOAT64), 1, IGNORED),
                      SHARD_ERROR_SHAPE, "shard_add_at_labels: operand 1 is float64, *");
        check_refused(shard_add_at_labels(shard_zeros(SHARD_SCALAR), labels, NULL, 1, IGNORED), SHARD_ERROR_SHAPE,
                      "shard_add_at_labels: x has shape *");
        check_refused(shard_one_hot(labels, -1), SHARD_ERROR_ARGUMENT, "shard_one_hot: -1 classes for *");
        check_refused(shard_one_hot(labels, 4, .like = x), SHARD_ERROR_SHAPE, "shard_one_hot: 4 classes*");
        check_refused(shard_one_hot(x, 4), SHARD_ERROR_SHAPE, "shard_one_hot: labels are float32; *");
        check_refused(shard_one_hot(NULL, 4), SHARD_ERROR_ARGUMENT, "shard_one_hot: an operand *");
    }
}
END_TEST

/* NULL stands for ones, or for whole classes; but not where it is the result of a maker that has failed. */
START_TEST(passes_failures_on)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *labels = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        ck_assert_ptr_null(shard_add_at_labels(x, labels, shard_exp(labels), 1, IGNORED));
        ck_assert_ptr_null(shard_one_hot(labels, 3, .like = shard_exp(labels)));
        check_refused(NULL, SHARD_ERROR_SHAPE, "shard_exp: *");
    }
}
END_TEST

/* A label that is no class is the device's error: at once, or when it is waited for. */
START_TEST(wrong_labels)
{
    static const int64_t values[] = {0, 3};
    SHARD_SCOPE
    for (int add_to = 0; add_to < 2; add_to++) {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *labels = shard_from_host(values, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *y = add_to ? shard_add_at_labels(x, labels, NULL, 1, IGNORED) : shard_pick_labels(x, labels, IGNORED);
        ck_assert_ptr_null(shard_device_open(NULL)->ops->host_memory ? y : NULL);
        shard_synchronize(shard_device_open(NULL));
        check_error(SHARD_ERROR_ARGUMENT, add_to ? "shard_add_at_labels: label 3*" : "shard_pick_labels: label 3*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("at_labels");
    TCase *tcase = test_case(suite, "at_labels");
    tcase_add_test(tcase, values_are_those_of_the_rows);
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    add_ranks_test(tcase, parts_make_the_whole);
    add_ranks_test(tcase, values_have_the_whole_gradient);
    tcase_add_test(tcase, one_hot_of_each_dtype);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, passes_failures_on);
    tcase_add_test(tcase, wrong_labels);
    return test_run(suite);
}
