/* Schedules of the learning rate by their formulas; under every stage of ZeRO one moves the rate of the steps. */
#include "support/host.h"
#include "support/zero.h"
#include "support/options.h"

#include <math.h>

START_TEST(test_schedules)
{
    shard_schedule constant = {SHARD_SCHEDULE_VALUES, .base_lr = 0.5};
    ck_assert_double_eq(shard_schedule_lr(&constant, 1000), 0.5);
    shard_schedule step = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_STEP, .base_lr = 1.0, .step_size = 30};
    ck_assert_double_eq(shard_schedule_lr(&step, 29), 1.0);
    ck_assert_double_eq_tol(shard_schedule_lr(&step, 30), 0.1, 1e-15);
    ck_assert_double_eq_tol(shard_schedule_lr(&step, 60), 0.01, 1e-15);
    shard_schedule cosine = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_COSINE,
                             .base_lr = 2.0,        .warmup_steps = 4,
                             .total_steps = 104,    .final_lr = 0.2};
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
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_COSINE, .base_lr = 1.0, .warmup_steps = 3},
         0,
         "*SHARD_SCHEDULE_COSINE needs total_steps, not 0"},
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_POLYNOMIAL, .base_lr = 1.0, .total_steps = -2},
         0,
         "*POLYNOMIAL needs total_steps, not -2"},
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_STEP, .base_lr = 1.0},
         0,
         "*SHARD_SCHEDULE_STEP needs a step_size, not 0"},
        {{SHARD_SCHEDULE_VALUES, .kind = (shard_schedule_kind)17, .base_lr = 1.0}, 0, "*there is no kind 17"},
        {{SHARD_SCHEDULE_VALUES}, 0, "*base_lr -1,*"}, /* it is needed */
        {{SHARD_SCHEDULE_VALUES, .base_lr = -1.0}, 0, "*base_lr -1,*"},
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 1.0},
         0,
         "*SHARD_SCHEDULE_MULTI_STEP needs milestones"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = NAN}, 0, "*base_lr nan,*"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = INFINITY}, 0, "*base_lr inf,*"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = 1.0, .final_lr = -0.5}, 0, "*final_lr -0.5,*"},
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 1.0, .gamma = -2}, 0, "*gamma -2,*"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = 1.0, .power = -3}, 0, "*power -3,*"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = 1.0, .warmup_steps = -4}, 0, "*warmup_steps -4,*"},
        {{SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 1.0, .milestones = {30, -60, 80}},
         100,
         "*milestones[[]1] is -60:*"},
        {{SHARD_SCHEDULE_VALUES, .base_lr = 1.0}, -5, "*step -5:*"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert(isnan(shard_schedule_lr(&wrong[i].schedule, wrong[i].step)));
        check_error(SHARD_ERROR_ARGUMENT, wrong[i].error);
    }
    ck_assert(isnan(shard_schedule_lr(NULL, 0)));
    check_error(SHARD_ERROR_ARGUMENT, "*schedule is NULL*");
    shard_schedule short_one = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_COSINE, .base_lr = 1.0, .warmup_steps = 8,
                                .total_steps = 4};
    ck_assert_double_eq(shard_schedule_lr(&short_one, 3), 0.5); /* a run that ends in its warmup */
}
END_TEST

START_TEST(test_milestones)
{
    shard_schedule s = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 2.0,
                        .warmup_steps = 5,     .milestones = {30, 60, 80},        .gamma = 0.5};
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
    shard_schedule linear = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_POLYNOMIAL,
                             .base_lr = 1.0,        .warmup_steps = 10,
                             .total_steps = 110,    .final_lr = 0.5};
    ck_assert_double_eq(shard_schedule_lr(&linear, 4), 0.5);
    ck_assert_double_eq(shard_schedule_lr(&linear, 10), 1.0);
    ck_assert_double_eq_tol(shard_schedule_lr(&linear, 35), 0.875, 1e-15);
    ck_assert_double_eq(shard_schedule_lr(&linear, 110), 0.5);
    ck_assert_double_eq(shard_schedule_lr(&linear, 10000), 0.5);
    shard_schedule square = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_POLYNOMIAL, .base_lr = 3.0, .total_steps = 4,
                             .power = 2.0};
    static const double expected[] = {3, 3 * 0.5625, 0.75, 0.1875, 0, 0};
    for (int t = 0; t < 6; t++)
        ck_assert_double_eq_tol(shard_schedule_lr(&square, t), expected[t], 1e-15);
}
END_TEST

/* A cosine with a warmup, under the optimizer alone and under ZeRO: each step is made at its own rate. */
static zero_way cases[] = {
    {.stage = 1}, {.stage = 2}, {.stage = 3}, {.stage = 1, .overlap = true, .bucket_mib = 3e-4}, {.stage = 3, .overlap = true}};

static void steps_at_the_rate(shard_group *world, void *context)
{
    shard_schedule cosine = {SHARD_SCHEDULE_VALUES, .kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.05, .warmup_steps = 2,
                             .total_steps = 6};
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_tensors *list = list_sorts(&a);
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
        shard_optimizer *alone = sgd_of_list(list_sorts(&a), .lr = 1, .momentum = 0.9);
        shard_optimizer *shared = zero_with(sgd_of_list(list_sorts(&b), .lr = 1, .momentum = 0.9), *(zero_way *)context);
        check_ok(shard_last_status());
        for (int64_t step = 0; step < 6; step++) {
            double lr = shard_schedule_lr(&cosine, step);
            check_ok(shard_optimizer_set_lr(alone, lr)); /* before backward, which may step already */
            check_ok(shard_optimizer_set_lr(shared, lr));
            ck_assert_double_eq(shard_optimizer_lr(shared), lr);
            back_sorts(&a, world, (int)step);
            back_sorts(&b, world, (int)step);
            check_ok(shard_step(alone));
            check_ok(shard_step(shared));
            check_sorts_equal(&a, &b, 0);
        }
        shard_optimizer_destroy(alone);
        shard_optimizer_destroy(shared);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_under_zero)
{
    run_job(2, steps_at_the_rate, &cases[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *tcase = test_case(suite, "rates");
    tcase_add_test(tcase, test_schedules);
    tcase_add_test(tcase, test_refuses_schedules);
    tcase_add_test(tcase, test_milestones);
    tcase_add_test(tcase, test_polynomial);
    tcase_add_loop_test(tcase, test_under_zero, 0, sizeof cases / sizeof *cases);
    return test_run(suite);
}
