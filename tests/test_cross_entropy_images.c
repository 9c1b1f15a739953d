/* The loss and the rank of the label for logits with several leading dimensions: the same as of
 * their rows one after the other, whole and split. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include <shard/distributed.h>
#include <shard/loss.h>

#include "tensor/tensor.h"

#include <stdlib.h>

enum { IGNORED = -100 };

/* Of the elements before the last dimension; one is ignored. Where the middle dimension is split, this rank's. */
static shard_tensor *labels_for(const shard_tensor *x)
{
    shard_shape whole = shard_tensor_whole_shape(x), shape = shard_tensor_shape(x);
    shard_placement placement = shard_tensor_placement(x);
    int64_t classes = whole.dim[--shape.ndim],
            *values = calloc((size_t)shard_shape_product(&shape, 0, shape.ndim) + 1, sizeof *values);
    bool middle = placement.kind == SHARD_SPLIT && placement.dim == 1 && shape.ndim == 2;
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < shard_shape_product(&shape, 0, shape.ndim); i++) {
        int64_t width = shape.dim[shape.ndim - 1], row = i;
        if (middle)
            row = i / width * whole.dim[1] + placement.start + i % width;
        values[i] = row == 3 ? IGNORED : (7 * row + 2) % classes;
    }
    shard_tensor *labels = shard_from_host(values, shape, .dtype = SHARD_INT64);
    free(values);
    return middle ? shard_as_split(labels, 1, placement.group, placement.start, placement.whole) : labels;
}

static shard_tensor *loss(shard_tensor *const *x, const void *reduction)
{
    return shard_cross_entropy(x[0], labels_for(x[0]), .label_smoothing = 0.1, .reduction = *(const shard_reduction *)reduction);
}

static const shard_reduction mean = SHARD_REDUCTION_MEAN, sum = SHARD_REDUCTION_SUM, none = SHARD_REDUCTION_NONE;

#define IMAGES SHARD_SHAPE(2, 3, 5)
static const operation operations[] = {
    {"mean", loss, &mean, 1, {IMAGES}, .needs = 1},
    {"sum", loss, &sum, 1, {SHARD_SHAPE(1, 2, 3, 4)}, .needs = 1},
    {"none", loss, &none, 1, {IMAGES}, .needs = 1},
    {"none of no images", loss, &none, 1, {SHARD_SHAPE(0, 3, 5)}, .needs = 1},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(is_that_of_the_rows)
{
    SHARD_SCOPE
    {
        shard_tensor *x = make_up_tensor(IMAGES, 1, .dtype = SHARD_FLOAT64), *rows = shard_reshape(x, SHARD_SHAPE(6, 5));
        shard_tensor *labels = labels_for(x), *flat = shard_reshape(labels, SHARD_SHAPE(6));
        shard_tensor *y = shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_NONE);
        ck_assert_int_eq(shard_tensor_shape(y).ndim, 2);
        ck_assert_int_eq(shard_tensor_size(y, 1), 3);
        double *expected = values_of(shard_cross_entropy(rows, flat, .reduction = SHARD_REDUCTION_NONE));
        check_tensor("loss", y, expected, 0);
        free(expected);
        shard_tensor *soft = shard_softmax(make_up_tensor(IMAGES, 2, .dtype = SHARD_FLOAT64));
        ck_assert_double_eq(shard_item(shard_cross_entropy(x, soft)),
                            shard_item(shard_cross_entropy(rows, shard_reshape(soft, SHARD_SHAPE(6, 5)))));
        shard_tensor *rank = shard_label_rank(x, labels, IGNORED);
        ck_assert_int_eq(shard_tensor_shape(rank).ndim, 2);
        for (int64_t k = 0; k < 6; k++)
            ck_assert_int_eq(shard_count_top_k(rank, k), shard_count_top_k(shard_label_rank(rows, flat, IGNORED), k));
        ck_assert_int_eq(shard_count_top_k(rank, 5), 5);
    }
}
END_TEST

/* Torch's layout, and no classes. */
START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_INT64);
        check_refused(shard_cross_entropy(shard_zeros(SHARD_SHAPE(2, 5, 3)), labels), SHARD_ERROR_SHAPE,
                      "shard_cross_entropy: labels of shape*");
        check_refused(shard_cross_entropy(shard_zeros(SHARD_SCALAR), labels), SHARD_ERROR_SHAPE,
                      "shard_cross_entropy: logits of shape*");
    }
}
END_TEST

/* Each rank goes on with some rows' losses, which all have. */
static shard_tensor *some_losses(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_group *group = shard_tensor_placement(x[0]).group;
    shard_tensor *y = loss(x, &none);
    shard_range own = shard_split_range(shard_tensor_size(y, 0), shard_group_size(group), shard_group_rank(group));
    y = shard_narrow(y, 0, own.start, own.size);
    return group ? shard_gather_from_group(y, 0, group) : y;
}

/* Without logits: of features, a weight and a bias, whose gradients may be deferred as a classifier's. */
static shard_tensor *head_loss(shard_tensor *const *x, const void *deferred)
{
    x[1]->leaf->defers_grad = x[2]->leaf->defers_grad = *(const bool *)deferred;
    shard_tensor *labels = labels_for(shard_linear(x[0], x[1], x[2]));
    return shard_linear_cross_entropy(x[0], x[1], x[2], labels, .label_smoothing = 0.1, .reduction = SHARD_REDUCTION_NONE);
}

static const bool at_once = false, deferred = true;

#define HEAD                                                                                                                     \
    {                                                                                                                            \
        SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(5, 4), SHARD_SHAPE(5)                                                                  \
    }
static const rule rules[] = {
    {"losses of rows, gathered", some_losses, NULL, 1, {SHARD_SHAPE(5, 9)}, {1}, WHOLE},
    {"mean, classes split", loss, &mean, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, WHOLE},
    {"none, classes split", loss, &none, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, WHOLE},
    {"none, the middle split", loss, &none, 1, {SHARD_SHAPE(2, 9, 4)}, {1}, 1},
    {"sum, the middle split", loss, &sum, 1, {SHARD_SHAPE(2, 9, 4)}, {1}, PARTIAL},
    {"a head, the middle split", head_loss, &at_once, 3, HEAD, {1, WHOLE, WHOLE}, 1},
    {"a head that defers, the middle split", head_loss, &deferred, 3, HEAD, {1, WHOLE, WHOLE}, 1},
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

int main(void)
{
    Suite *suite = suite_create("cross_entropy_images");
    TCase *tcase = test_case(suite, "cross_entropy_images");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, is_that_of_the_rows);
    tcase_add_test(tcase, refuses);
    add_ranks_test(tcase, parts_make_the_whole);
    return test_run(suite);
}
