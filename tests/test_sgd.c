/* SGD against its definition (torch.optim.SGD), and its state. */
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"

#include <stdlib.h>

enum { SIZE = 7, STEPS = 12 };

/* The definition, for one parameter of two dimensions. */
static void reference(double *p, const double *scale, shard_sgd_options s, int steps)
{
    double buffer[SIZE] = {0};
    for (int t = 0; t < steps; t++)
        for (int i = 0; i < SIZE; i++) {
            double g = scale[i] * p[i] + s.weight_decay * p[i]; /* of sum scale p^2 / 2 */
            buffer[i] = t == 0 ? g : s.momentum * buffer[i] + (1 - s.dampening) * g;
            double d = s.momentum == 0 ? g : s.nesterov ? g + s.momentum * buffer[i] : buffer[i];
            p[i] -= s.lr * d;
        }
}

static void take_step(shard_optimizer *sgd, shard_tensor *p, shard_tensor *scale)
{
    SHARD_SCOPE
    {
        check_ok(shard_backward(shard_sum(shard_scale(shard_mul(shard_mul(p, p), scale), 0.5))));
    }
    check_ok(shard_step(sgd));
}

static shard_sgd_options settings[] = {
    {SHARD_SGD_OPTIONS_VALUES, .lr = 0.1},
    {SHARD_SGD_OPTIONS_VALUES, .lr = 0.1, .weight_decay = 0.3},
    {SHARD_SGD_OPTIONS_VALUES, .lr = 0.05, .momentum = 0.9},
    {SHARD_SGD_OPTIONS_VALUES, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
    {SHARD_SGD_OPTIONS_VALUES, .lr = 0.05, .momentum = 0.8, .dampening = 0.5, .weight_decay = 0.1},
};

START_TEST(test_definition)
{
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(SIZE, 1), 1, SHARD_FLOAT64);
        shard_tensor *scale = made_up(SHARD_SHAPE(SIZE, 1), 2, SHARD_FLOAT64);
        double *expected = values_of(p), *scales = values_of(scale);
        reference(expected, scales, settings[_i], STEPS);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        shard_optimizer *sgd = WITH_LIST_AND(shard_sgd_with, list, &settings[_i]);
        for (int t = 0; t < STEPS; t++)
            take_step(sgd, p, scale);
        check_part(p, expected, 1e-14);
        ck_assert_ptr_null(shard_grad(p));
        free(expected);
        free(scales);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Weight decay is of all parameters; without biases and norms where that is said. */
START_TEST(test_decay_groups)
{
    SHARD_SCOPE
    {
        for (int matrices = 0; matrices < 2; matrices++) {
            shard_tensor *weight = shard_full(SHARD_SHAPE(2, 2), 1.0, .requires_grad = true);
            shard_tensor *bias = shard_full(SHARD_SHAPE(2), 1.0, .requires_grad = true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "weight", weight));
            check_ok(shard_tensors_add(list, "bias", bias));
            shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0, .weight_decay = 0.25, .decay_1d = !matrices);
            shard_tensor *zero = shard_scale(shard_sum(shard_add(weight, bias)), 0.0);
            check_ok(shard_backward(zero));
            check_ok(shard_step(sgd));
            ck_assert_double_eq(value_at(weight, 3), 0.75);
            ck_assert_double_eq(value_at(bias, 1), matrices ? 1.0 : 0.75);
            shard_optimizer_destroy(sgd);
        }
    }
}
END_TEST

/* State that is copied over continues to the bit. */
START_TEST(test_state)
{
    SHARD_SCOPE
    {
        shard_tensor *scale = made_up(SHARD_SHAPE(SIZE, 1), 2, SHARD_FLOAT32), *p[2];
        shard_optimizer *sgd[2];
        for (int i = 0; i < 2; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(SIZE, 1), 1, SHARD_FLOAT32);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[i]));
            sgd[i] = sgd_of_list(list, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
        }
        for (int t = 0; t < 3; t++)
            take_step(sgd[0], p[0], scale);
        shard_tensors *from = shard_optimizer_state_dict(sgd[0]), *to = shard_optimizer_state_dict(sgd[1]);
        ck_assert_int_eq(shard_tensors_count(from), 2);
        ck_assert_ptr_nonnull(shard_tensors_find(from, "p.momentum_buffer"));
        ck_assert_double_eq(shard_item(shard_tensors_find(from, "p.step")), 3);
        copy_elements(shard_tensors_find(from, "p.step"), shard_tensors_find(to, "p.step"));
        copy_elements(shard_tensors_find(from, "p.momentum_buffer"), shard_tensors_find(to, "p.momentum_buffer"));
        copy_elements(p[0], p[1]);
        for (int i = 0; i < 2; i++)
            take_step(sgd[i], p[i], scale);
        void *first = host_copy(p[0]), *second = host_copy(p[1]);
        ck_assert_mem_eq(first, second, SIZE * 4);
        free(first);
        free(second);
        shard_tensors_destroy(from);
        shard_tensors_destroy(to);
        shard_optimizer_destroy(sgd[0]);
        shard_optimizer_destroy(sgd[1]);
    }
}
END_TEST

static shard_optimizer *sgd_of_two(shard_tensor *early, shard_tensor *late)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "early", early));
    check_ok(shard_tensors_add(list, "late", late));
    return sgd_of_list(list, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
}

/* `late` gets its first gradient in the second step, which begins its buffer with the
 * whole gradient: also if its state was listed before, or saved and loaded. */
START_TEST(test_late_start)
{
    SHARD_SCOPE
    {
        enum { PLAIN, LISTED, LOADED, WAYS };
        for (int way = 0; way < WAYS; way++) {
            shard_tensor *early = shard_full(SHARD_SHAPE(2), 1.0, .requires_grad = true);
            shard_tensor *late = shard_full(SHARD_SHAPE(2), 1.0, .requires_grad = true);
            shard_optimizer *sgd = sgd_of_two(early, late);
            check_ok(shard_backward(shard_sum(early)));
            check_ok(shard_step(sgd));
            if (way != PLAIN) {
                shard_optimizer *other = way == LOADED ? sgd_of_two(early, late) : NULL;
                shard_tensors *from = shard_optimizer_state_dict(sgd), *to = other ? shard_optimizer_state_dict(other) : NULL;
                for (int64_t i = 0; i < shard_tensors_count(to); i++)
                    copy_elements(shard_tensors_find(from, shard_tensors_name(to, i)), shard_tensors_at(to, i));
                shard_tensors_destroy(from);
                shard_tensors_destroy(to);
                if (other) {
                    shard_optimizer_destroy(sgd);
                    sgd = other;
                }
            }
            check_ok(shard_backward(shard_sum(shard_add(early, late))));
            check_ok(shard_step(sgd));
            ck_assert_double_eq_tol(value_at(early, 1), 0.9 - 0.1 * (0.9 + 0.5), 1e-6);
            ck_assert_double_eq_tol(value_at(late, 1), 0.9, 1e-6);
            shard_optimizer_destroy(sgd);
        }
    }
}
END_TEST

START_TEST(test_refuses)
{
    ck_assert_ptr_null(sgd_of_list(shard_tensors_create(), .lr = -1.0));
    check_error(SHARD_ERROR_ARGUMENT, "*lr -1*negative*");
    ck_assert_ptr_null(sgd_of_list(shard_tensors_create(), .lr = 1.0, .nesterov = true));
    check_error(SHARD_ERROR_ARGUMENT, "*Nesterov*");
    ck_assert_ptr_null(sgd_of_list(NULL, .lr = 1.0));
    check_error(SHARD_ERROR_ARGUMENT, "*parameters is NULL*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sgd");
    TCase *tcase = test_case(suite, "sgd");
    tcase_add_loop_test(tcase, test_definition, 0, (int)(sizeof settings / sizeof *settings));
    tcase_add_test(tcase, test_decay_groups);
    tcase_add_test(tcase, test_state);
    tcase_add_test(tcase, test_late_start);
    tcase_add_test(tcase, test_refuses);
    return test_run(suite);
}
