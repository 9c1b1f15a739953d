/* Adam and AdamW: which parameters decay, their state, groups, and what is refused. That
 * they are torch's: test_golden_optimizer.c; their arithmetic: test_device_optimizer.c. */
#include "support/host.h"
#include "support/job.h"

#include "optim/optimizer.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

enum { SIZE = 7 };

static void take_step(shard_optimizer *optimizer, shard_tensor *p, shard_tensor *scale)
{
    SHARD_SCOPE
    {
        check_ok(shard_backward(shard_sum(shard_mul(shard_mul(p, p), scale))));
    }
    check_ok(shard_step(optimizer));
}

static shard_tensors *list_of(shard_tensor *weight, shard_tensor *bias)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "weight", weight));
    if (bias)
        check_ok(shard_tensors_add(list, "bias", bias));
    return list;
}

/* With a gradient of 0 decay alone is left, of biases and norms too unless told. */
START_TEST(test_decay)
{
    SHARD_SCOPE
    {
        for (int way = 0; way < 4; way++) {
            bool matrices = way % 2, decoupled = way / 2;
            shard_tensor *weight = shard_full(SHARD_SHAPE(2, 2), 1.0, .requires_grad = true);
            shard_tensor *bias = shard_full(SHARD_SHAPE(2), 1.0, .requires_grad = true);
            shard_adam_options settings = {SHARD_ADAM_OPTIONS_VALUES, .lr = 0.5, .weight_decay = 0.25, .decay_1d = !matrices};
            shard_optimizer *optimizer =
                WITH_LIST_AND((decoupled ? shard_adamw_with : shard_adam_with), list_of(weight, bias), &settings);
            check_ok(shard_backward(shard_scale(shard_sum(shard_add(weight, bias)), 0.0)));
            check_ok(shard_step(optimizer));
            double decayed = decoupled ? 1 - 0.5 * 0.25 : 0.5; /* Adam's first step is lr whatever the gradient */
            ck_assert_double_eq_tol(value_at(weight, 3), decayed, 1e-6);
            ck_assert_double_eq_tol(value_at(bias, 1), matrices ? 1.0 : decayed, 1e-6);
            shard_optimizer_destroy(optimizer);
        }
    }
}
END_TEST

/* State that is copied over continues to the bit, number of steps and all. */
START_TEST(test_state)
{
    static const char *const names[] = {"weight.step", "weight.exp_avg", "weight.exp_avg_sq", "weight.max_exp_avg_sq"};
    bool amsgrad = _i;
    SHARD_SCOPE
    {
        shard_tensor *scale = made_up(SHARD_SHAPE(SIZE, 1), 2, SHARD_FLOAT32), *p[2];
        shard_optimizer *adam[2];
        for (int i = 0; i < 2; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(SIZE, 1), 1, SHARD_FLOAT32);
            adam[i] = adam_of_list(list_of(p[i], NULL), .lr = 0.1, .amsgrad = amsgrad);
        }
        for (int t = 0; t < 3; t++)
            take_step(adam[0], p[0], scale);
        shard_tensors *from = shard_optimizer_state_dict(adam[0]), *to = shard_optimizer_state_dict(adam[1]);
        ck_assert_int_eq(shard_tensors_count(from), amsgrad ? 4 : 3);
        for (int i = 0; i < (amsgrad ? 4 : 3); i++)
            copy_elements(shard_tensors_find(from, names[i]), shard_tensors_find(to, names[i]));
        ck_assert_double_eq(shard_item(shard_tensors_find(from, "weight.step")), 3);
        copy_elements(p[0], p[1]);
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < 2; i++)
                take_step(adam[i], p[i], scale);
        void *first = host_copy(p[0]), *second = host_copy(p[1]);
        ck_assert_mem_eq(first, second, SIZE * 4);
        free(first);
        free(second);
        shard_tensors_destroy(from);
        shard_tensors_destroy(to);
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(adam[i]);
    }
}
END_TEST

/* A group's learning rate is a multiple of the optimizer's, as it is now. */
START_TEST(test_groups)
{
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_full(SHARD_SHAPE(2, 2), 1.0, .requires_grad = true);
        shard_tensor *slow = shard_full(SHARD_SHAPE(2, 2), 1.0, .requires_grad = true);
        shard_optimizer *adamw = adamw_of_list(list_of(weight, NULL), .lr = 1.0, .weight_decay = 0.1);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "slow", slow));
        check_ok(add_group_of(adamw, list, .lr_scale = 0.5, .weight_decay = 0.4));
        shard_optimizer_set_lr(adamw, 0.25);
        check_ok(shard_backward(shard_scale(shard_sum(shard_add(weight, slow)), 0.0)));
        check_ok(shard_step(adamw));
        ck_assert_double_eq_tol(value_at(weight, 0), 1 - 0.25 * 0.1, 1e-6);
        ck_assert_double_eq_tol(value_at(slow, 0), 1 - 0.125 * 0.4, 1e-6);
        shard_optimizer_destroy(adamw);
    }
}
END_TEST

/* Both read what the next step multiplies gradients by, which holds for that step alone. */
START_TEST(test_grad_scale)
{
    SHARD_SCOPE
    {
        shard_tensor *p[2][2];
        for (int kind = 0; kind < 2; kind++) {
            shard_optimizer *optimizer[2];
            for (int i = 0; i < 2; i++) {
                p[kind][i] = made_up_leaf(SHARD_SHAPE(SIZE, 1), 1, SHARD_FLOAT64);
                optimizer[i] = kind ? adam_of_list(list_of(p[kind][i], NULL), .lr = 0.1, .eps = 0.1)
                                    : sgd_of_list(list_of(p[kind][i], NULL), .lr = 0.1, .momentum = 0.9);
            }
            for (int t = 0; t < 3; t++) {
                shard_tensor *gradient = made_up(SHARD_SHAPE(SIZE, 1), (uint64_t)t + 2, SHARD_FLOAT64);
                check_ok(shard_backward_from(shard_scale(p[kind][0], 1.0), t == 1 ? shard_scale(gradient, 0.25) : gradient));
                check_ok(shard_backward_from(shard_scale(p[kind][1], 1.0), gradient));
                if (t == 1) {
                    double *factor = shard_optimizer_grad_scale(optimizer[1]);
                    ck_assert_ptr_nonnull(factor);
                    check_ok(
                        shard_ops(p[kind][1])->axpby(shard_device_of(p[kind][1]), 1, 0.25, factor, 0.0, factor, SHARD_FLOAT64));
                }
                for (int i = 0; i < 2; i++)
                    check_ok(shard_step(optimizer[i]));
                check_close(p[kind][0], p[kind][1], 1e-15);
            }
            for (int i = 0; i < 2; i++)
                shard_optimizer_destroy(optimizer[i]);
        }
    }
}
END_TEST

/* Betas of 0: each step is of its own gradient alone, to that one's sign. LAMB's is as
 * long as the weight. */
START_TEST(test_without_averages)
{
    static const double scale[] = {1, -3, 0.5};
    shard_adam_options settings = {SHARD_ADAM_OPTIONS_VALUES, .lr = 0.125, .beta1 = 0, .beta2 = 0};
    for (int kind = 0; kind < 3; kind++)
        SHARD_SCOPE
        {
            shard_tensor *p = shard_full(SHARD_SHAPE(1, 1), 2.0, .requires_grad = true, .dtype = SHARD_FLOAT64);
            shard_optimizer *optimizer =
                kind == 2 ? lamb_of_list(list_of(p, NULL), .lr = 0.125, .beta1 = 0, .beta2 = 0)
                          : WITH_LIST_AND((kind ? shard_adamw_with : shard_adam_with), list_of(p, NULL), &settings);
            double value = 2;
            for (int step = 0; step < 3; step++) {
                take_step(optimizer, p, shard_full(SHARD_SHAPE(1, 1), scale[step], .dtype = SHARD_FLOAT64));
                value -= copysign(0.125 * (kind == 2 ? value : 1), scale[step]);
                ck_assert_double_eq_tol(value_at(p, 0), value, 1e-6);
            }
            shard_optimizer_destroy(optimizer);
        }
}
END_TEST

/* With a gradient of 0, AdamW's decay is 0.01 unless said otherwise, also 0; Adam has none. */
START_TEST(test_default_decay)
{
    static const struct {
        double given, adamw;
    } cases[] = {{NAN, 0.01}, {0, 0}, {0.5, 0.5}};
    SHARD_SCOPE
    {
        for (int i = 0; i < 3; i++) {
            shard_tensor *weight = shard_ones(SHARD_SHAPE(2), .dtype = SHARD_FLOAT64, .requires_grad = true);
            double given = cases[i].given;
            shard_optimizer *adamw = isnan(given) ? adamw_of_list(list_of(weight, NULL), .lr = 0.5)
                                                  : adamw_of_list(list_of(weight, NULL), .lr = 0.5, .weight_decay = given);
            check_ok(shard_backward(shard_scale(shard_sum(weight), 0.0)));
            check_ok(shard_step(adamw));
            ck_assert_double_eq(value_at(weight, 1), 1 - 0.5 * cases[i].adamw);
            shard_optimizer_destroy(adamw);
        }
        shard_tensor *weight = shard_ones(SHARD_SHAPE(2), .requires_grad = true);
        shard_optimizer *adam = adam_of_list(list_of(weight, NULL), .lr = 0.5);
        check_ok(shard_backward(shard_scale(shard_sum(weight), 0.0)));
        check_ok(shard_step(adam));
        ck_assert_double_eq(value_at(weight, 1), 1);
        shard_optimizer_destroy(adam);
    }
}
END_TEST

START_TEST(test_refuses)
{
    ck_assert_ptr_null(adam_of_list(shard_tensors_create(), .lr = -1.0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_adam: lr -1*negative*");
    ck_assert_ptr_null(adamw_of_list(shard_tensors_create(), .lr = 1.0, .beta2 = 1.0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_adamw: *beta2 1,*less than 1*");
    ck_assert_ptr_null(adam_of_list(shard_tensors_create(), .lr = NAN));
    check_error(SHARD_ERROR_ARGUMENT, "shard_adam: lr nan*");
    ck_assert_ptr_null(adam_of_list(shard_tensors_create(), .weight_decay = NAN));
    check_error(SHARD_ERROR_ARGUMENT, "shard_adam: *weight decay nan*negative*");
    ck_assert_ptr_null(adamw_of_list(shard_tensors_create(), .weight_decay = NAN));
    check_error(SHARD_ERROR_ARGUMENT, "shard_adamw: *weight decay nan*");
    ck_assert_ptr_null(adam_of_list(NULL, .lr = 1.0));
    check_error(SHARD_ERROR_ARGUMENT, "*parameters is NULL*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("adam");
    TCase *tcase = test_case(suite, "adam");
    tcase_add_test(tcase, test_decay);
    tcase_add_loop_test(tcase, test_state, 0, 2);
    tcase_add_test(tcase, test_groups);
    tcase_add_test(tcase, test_grad_scale);
    tcase_add_test(tcase, test_without_averages);
    tcase_add_test(tcase, test_default_decay);
    tcase_add_test(tcase, test_refuses);
    return test_run(suite);
}
