/* How options are read: by their size, over the defaults. */
#include "support/job.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* As a header of before had it, without the fields behind momentum; and as one of later will. */
typedef struct older_sgd_options {
    size_t size;
    double lr, momentum;
} older_sgd_options;
typedef struct older_cross_entropy_options {
    size_t size;
    shard_tensor *weight;
    int64_t ignore_index;
    double label_smoothing;
    shard_reduction reduction;
} older_cross_entropy_options;
typedef struct newer_sgd_options {
    shard_sgd_options known;
    double later;
    void *last;
} newer_sgd_options;

static shard_tensors *one_leaf(shard_tensor *leaf)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "w", leaf));
    return list;
}

/* The value of a leaf of ones after a step with a gradient of 1. */
static double stepped(shard_optimizer *(*make)(const shard_tensors *, const void *), const void *options)
{
    shard_tensor *leaf = shard_ones(SHARD_SHAPE(1), .dtype = SHARD_FLOAT64, .requires_grad = true);
    shard_tensors *list = one_leaf(leaf);
    shard_optimizer *optimizer = make(list, options);
    shard_tensors_destroy(list); /* borrowed */
    if (!optimizer)
        return NAN;
    check_ok(shard_backward(shard_sum(leaf)));
    check_ok(shard_step(optimizer));
    shard_optimizer_destroy(optimizer);
    return shard_item(leaf);
}

static shard_optimizer *make_sgd(const shard_tensors *list, const void *options)
{
    return shard_sgd_with(list, options);
}

static shard_optimizer *make_adamw(const shard_tensors *list, const void *options)
{
    return shard_adamw_with(list, options);
}

START_TEST(reads_the_callers_size)
{
    SHARD_SCOPE
    {
        older_sgd_options older = {.size = sizeof older, .lr = 0.25, .momentum = 0.5};
        ck_assert_double_eq(stepped(make_sgd, &older), 0.75);
        newer_sgd_options newer = {.known = SHARD_SGD_OPTIONS_INIT};
        newer.known.size = sizeof newer;
        newer.known.lr = 0.5;
        ck_assert_double_eq(stepped(make_sgd, &newer), 0.5);
        ck_assert_double_eq(stepped(make_sgd, NULL), 1 - 1e-3);
    }
}
END_TEST

/* Fields are never added into the padding of an earlier struct. */
START_TEST(reads_earlier_losses)
{
    SHARD_SCOPE
    {
        union {
            older_cross_entropy_options older;
            shard_cross_entropy_options options;
        } given;
        memset(&given, 0xff, sizeof given); /* behind the older struct, and in its padding */
        given.older =
            (older_cross_entropy_options){.size = sizeof given.older, .ignore_index = -100, .reduction = SHARD_REDUCTION_SUM};
        ck_assert_int_eq(offsetof(shard_cross_entropy_options, row_weight), sizeof given.older);
        memset((char *)&given + sizeof given.older, 0xff, sizeof given - sizeof given.older);
        shard_tensor *labels = shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy_with(shard_zeros(SHARD_SHAPE(3, 4)), labels, &given.options, NULL);
        ck_assert_msg(loss, "%s", shard_last_error());
        ck_assert_double_eq_tol(shard_item(loss), 3 * log(4), 1e-6);
    }
}
END_TEST

START_TEST(refuses_sizes)
{
    SHARD_SCOPE
    {
        shard_sgd_options options = SHARD_SGD_OPTIONS_INIT;
        options.size = 0;
        ck_assert_double_nan(stepped(make_sgd, &options));
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd_options: size is 0*");
        options.size = sizeof options.size - 1;
        ck_assert_double_nan(stepped(make_sgd, &options));
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd_options: size is 7*");
        newer_sgd_options newer = {.known = SHARD_SGD_OPTIONS_INIT, .last = &options};
        newer.known.size = sizeof newer;
        ck_assert_double_nan(stepped(make_sgd, &newer));
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd_options: size is *a field behind *is set*");
        shard_tensor_options tensor = {.size = 0};
        ck_assert_ptr_null(shard_full_with(SHARD_SCALAR, 1, &tensor));
        check_error(SHARD_ERROR_ARGUMENT, "shard_tensor_options: size is 0*");
    }
}
END_TEST

START_TEST(zero_is_zero)
{
    SHARD_SCOPE
    {
        shard_sgd_options sgd = SHARD_SGD_OPTIONS_INIT;
        sgd.lr = 0;
        ck_assert_double_eq(stepped(make_sgd, &sgd), 1);
        shard_adamw_options adamw = SHARD_ADAMW_OPTIONS_INIT;
        ck_assert_double_eq(adamw.weight_decay, 0.01);
        adamw.lr = 0.5, adamw.weight_decay = 0, adamw.eps = 0;
        ck_assert_double_eq(stepped(make_adamw, &adamw), 0.5); /* the first step is lr */
        shard_tensor *images = shard_ones(SHARD_SHAPE(1, 3, 3, 1)), *kernel = shard_ones(SHARD_SHAPE(1, 1, 3, 3));
        shard_tensor *y = shard_conv2d(images, kernel, NULL, .padding = 1, .padding_h = 0);
        ck_assert_int_eq(shard_tensor_size(y, 1), 1);
        ck_assert_int_eq(shard_tensor_size(y, 2), 3);
        ck_assert_ptr_null(shard_conv2d(images, kernel, NULL, .stride = 0));
        check_error(SHARD_ERROR_ARGUMENT, "shard_conv2d: stride 0*");
    }
}
END_TEST

/* A list and a module that is given to the macro stay the caller's. */
START_TEST(borrows)
{
    shard_module *model = shard_nn_linear(2, 1), *head = shard_nn_linear(1, 1);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
    check_ok(shard_optimizer_add_param_group(sgd, head, .prefix = "head."));
    shard_tensors *list = shard_parameters(model);
    ck_assert_ptr_null(shard_sgd(list, .lr = -1));
    check_error(SHARD_ERROR_ARGUMENT, "shard_sgd: lr -1*");
    ck_assert_int_eq(shard_tensors_count(list), 2);
    shard_tensors_destroy(list);
    shard_tensors *state = shard_optimizer_state_dict(sgd);
    ck_assert_ptr_nonnull(shard_tensors_find(state, "head.weight.step"));
    shard_tensors_destroy(state);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    shard_module_destroy(head);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tcase = test_case(suite, "options");
    tcase_add_test(tcase, reads_the_callers_size);
    tcase_add_test(tcase, reads_earlier_losses);
    tcase_add_test(tcase, refuses_sizes);
    tcase_add_test(tcase, zero_is_zero);
    tcase_add_test(tcase, borrows);
    return test_run(suite);
}
