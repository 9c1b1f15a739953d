/* SGD against its definition (torch.optim.SGD), its state, and the schedules. */
#include "support/host.h"
#include "support/job.h"

#include <math.h>
#include <stdlib.h>

enum { SIZE = 7, STEPS = 12 };

/* The definition, for one parameter of two dimensions. */
static void reference(double *p, const double *scale, shard_sgd_settings s, int steps)
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

static shard_sgd_settings settings[] = {
    {.lr = 0.1},
    {.lr = 0.1, .weight_decay = 0.3},
    {.lr = 0.05, .momentum = 0.9},
    {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
    {.lr = 0.05, .momentum = 0.8, .dampening = 0.5, .weight_decay = 0.1},
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
        shard_optimizer *sgd = shard_sgd_with(list, settings[_i]);
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

/* Weight decay leaves biases and norms alone, unless told. */
START_TEST(test_decay_groups)
{
    SHARD_SCOPE
    {
        for (int all = 0; all < 2; all++) {
            shard_tensor *weight = shard_full(SHARD_SHAPE(2, 2), 1.0, .requires_grad = true);
            shard_tensor *bias = shard_full(SHARD_SHAPE(2), 1.0, .requires_grad = true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "weight", weight));
            check_ok(shard_tensors_add(list, "bias", bias));
            shard_optimizer *sgd = shard_sgd(list, .lr = 1.0, .weight_decay = 0.25, .decay_all = all);
            shard_tensor *zero = shard_scale(shard_sum(shard_add(weight, bias)), 0.0);
            check_ok(shard_backward(zero));
            check_ok(shard_step(sgd));
            ck_assert_double_eq(value_at(weight, 3), 0.75);
            ck_assert_double_eq(value_at(bias, 1), all ? 0.75 : 1.0);
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
            sgd[i] = shard_sgd(list, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
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
    return shard_sgd(list, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
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
    ck_assert_ptr_null(shard_sgd(shard_tensors_create(), .lr = -1.0));
    check_error(shard_last_status(), "*lr -1*negative*");
    ck_assert_ptr_null(shard_sgd(shard_tensors_create(), .lr = 1.0, .nesterov = true));
    check_error(shard_last_status(), "*Nesterov*");
    ck_assert_ptr_null(shard_sgd(NULL, .lr = 1.0));
    check_error(shard_last_status(), "*parameters is NULL*");
}
END_TEST

START_TEST(test_schedules)
{
    shard_schedule constant = {.base_lr = 0.5};
    ck_assert_double_eq(shard_schedule_lr(&constant, 1000), 0.5);
    shard_schedule step = {.kind = SHARD_SCHEDULE_STEP, .base_lr = 1.0, .step_size = 30};
    ck_assert_double_eq(shard_schedule_lr(&step, 29), 1.0);
    ck_assert_double_eq_tol(shard_schedule_lr(&step, 30), 0.1, 1e-15);
    ck_assert_double_eq_tol(shard_schedule_lr(&step, 60), 0.01, 1e-15);
    shard_schedule cosine = {
        .kind = SHARD_SCHEDULE_COSINE, .base_lr = 2.0, .warmup_steps = 4, .total_steps = 104, .final_lr = 0.2};
    ck_assert_double_eq(shard_schedule_lr(&cosine, 0), 0.5);
    ck_assert_double_eq(shard_schedule_lr(&cosine, 3), 2.0);
    ck_assert_double_eq(shard_schedule_lr(&cosine, 4), 2.0);
    ck_assert_double_eq_tol(shard_schedule_lr(&cosine, 54), 1.1, 1e-12);
    ck_assert_double_eq(shard_schedule_lr(&cosine, 104), 0.2);
    ck_assert_double_eq(shard_schedule_lr(&cosine, 100000), 0.2);
    for (int t = 5; t <= 104; t++)
        ck_assert(shard_schedule_lr(&cosine, t) < shard_schedule_lr(&cosine, t - 1));
}
END_TEST

START_TEST(test_refuses_schedules)
{
    static const struct {
        shard_schedule schedule;
        int64_t step;
        const char *error;
    } wrong[] = {
        {{.kind = SHARD_SCHEDULE_COSINE, .base_lr = 1.0, .warmup_steps = 3},
         0,
         "*SHARD_SCHEDULE_COSINE needs total_steps, not 0"},
        {{.kind = SHARD_SCHEDULE_POLYNOMIAL, .base_lr = 1.0, .total_steps = -2}, 0, "*POLYNOMIAL needs total_steps, not -2"},
        {{.kind = SHARD_SCHEDULE_STEP, .base_lr = 1.0}, 0, "*SHARD_SCHEDULE_STEP needs a step_size, not 0"},
        {{.kind = (shard_schedule_kind)17, .base_lr = 1.0}, 0, "*there is no kind 17"},
        {{.base_lr = -1.0}, 0, "*base_lr -1,*"},
        {{.base_lr = NAN}, 0, "*base_lr nan,*"},
        {{.base_lr = INFINITY}, 0, "*base_lr inf,*"},
        {{.base_lr = 1.0, .final_lr = -0.5}, 0, "*final_lr -0.5,*"},
        {{.kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 1.0, .gamma = -2}, 0, "*gamma -2,*"},
        {{.base_lr = 1.0, .power = -3}, 0, "*power -3,*"},
        {{.base_lr = 1.0, .warmup_steps = -4}, 0, "*warmup_steps -4,*"},
        {{.base_lr = 1.0}, -5, "*step -5:*"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert(isnan(shard_schedule_lr(&wrong[i].schedule, wrong[i].step)));
        check_error(SHARD_ERROR_ARGUMENT, wrong[i].error);
    }
    ck_assert(isnan(shard_schedule_lr(NULL, 0)));
    check_error(SHARD_ERROR_ARGUMENT, "*schedule is NULL*");
    shard_schedule short_one = {.kind = SHARD_SCHEDULE_COSINE, .base_lr = 1.0, .warmup_steps = 8, .total_steps = 4};
    ck_assert_double_eq(shard_schedule_lr(&short_one, 3), 0.5); /* a run that ends in its warmup */
}
END_TEST

START_TEST(test_milestones)
{
    shard_schedule s = {
        .kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 2.0, .warmup_steps = 5, .milestones = {30, 60, 80}, .gamma = 0.5};
    static const double expected[][2] = {{0, 0.4},  {5, 2},    {29, 2},    {30, 1},     {59, 1},
                                         {60, 0.5}, {79, 0.5}, {80, 0.25}, {1000, 0.25}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        ck_assert_double_eq_tol(shard_schedule_lr(&s, (int64_t)expected[i][0]), expected[i][1], 1e-15);
    for (int i = 0; i < SHARD_SCHEDULE_MILESTONES; i++)
        s.milestones[i] = 10 + i;
    ck_assert_double_eq(shard_schedule_lr(&s, 100), 2.0 / (1 << SHARD_SCHEDULE_MILESTONES));
}
END_TEST

START_TEST(test_polynomial)
{
    shard_schedule linear = {
        .kind = SHARD_SCHEDULE_POLYNOMIAL, .base_lr = 1.0, .warmup_steps = 10, .total_steps = 110, .final_lr = 0.5};
    ck_assert_double_eq(shard_schedule_lr(&linear, 4), 0.5);
    ck_assert_double_eq(shard_schedule_lr(&linear, 10), 1.0);
    ck_assert_double_eq_tol(shard_schedule_lr(&linear, 35), 0.875, 1e-15);
    ck_assert_double_eq(shard_schedule_lr(&linear, 110), 0.5);
    ck_assert_double_eq(shard_schedule_lr(&linear, 10000), 0.5);
    shard_schedule square = {.kind = SHARD_SCHEDULE_POLYNOMIAL, .base_lr = 3.0, .total_steps = 4, .power = 2.0};
    static const double expected[] = {3, 3 * 0.5625, 0.75, 0.1875, 0, 0};
    for (int t = 0; t < 6; t++)
        ck_assert_double_eq_tol(shard_schedule_lr(&square, t), expected[t], 1e-15);
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
    tcase_add_test(tcase, test_schedules);
    tcase_add_test(tcase, test_refuses_schedules);
    tcase_add_test(tcase, test_milestones);
    tcase_add_test(tcase, test_polynomial);
    return test_run(suite);
}
