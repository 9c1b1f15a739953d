/* Ranks whose training differs where no size does, an error on all ranks: they reduce or gather parameters of the same size in
 * different orders, or one of them steps without a gradient that the others have. */
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, COLUMNS = 50 };

typedef struct case_of_order {
    int stage;
    bool same_names;
    const char *reduces; /* the collective of the first call that differs */
} case_of_order;

static const case_of_order cases[] = {
    {.stage = 0, .reduces = "all_reduce of 2000 float32"},
    {.stage = 0, .same_names = true, .reduces = "all_reduce of 2000 float32"},
    {.stage = 1, .reduces = "all_reduce"},
    {.stage = 2, .reduces = "reduce_scatter"},
    {.stage = 3, .reduces = "all_gather"},
    {.stage = 3, .same_names = true, .reduces = "all_gather"},
};

/* w * w, added up: its gradient is 2 w. */
static shard_tensor *loss_of(shard_tensor *w)
{
    return shard_sum(shard_mul(w, w));
}

static shard_data_parallel *parallel_of(shard_tensor *w, const char *name, const case_of_order *c)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, name, w));
    shard_data_parallel *dp = shard_data_parallel_create(list, .stage = c->stage);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_tensors_destroy(list);
    return dp;
}

/* In the first backward of each model the ranks compare their parameters. */
static void train(shard_tensor *const *w)
{
    for (int i = 0; i < 2; i++) {
        shard_zero_grad(w[i]);
        check_ok(shard_backward(loss_of(w[i])));
    }
}

/* Two models: the last rank takes the second one first. */
static void cross(shard_group *world, void *context)
{
    const case_of_order *c = context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    SHARD_SCOPE
    {
        shard_tensor *w[] = {made_up_leaf(SHARD_SHAPE(ROWS, COLUMNS), 1, SHARD_FLOAT32),
                             made_up_leaf(SHARD_SHAPE(ROWS, COLUMNS), 2, SHARD_FLOAT32)};
        shard_data_parallel *dp[] = {parallel_of(w[0], c->same_names ? "weight" : "first.weight", c),
                                     parallel_of(w[1], c->same_names ? "weight" : "second.weight", c)};
        train(w);
        for (int i = 0; i < 2 && shard_last_status() == SHARD_OK; i++) {
            shard_tensor *loss = loss_of(w[last ? 1 - i : i]);
            if (loss)
                (void)shard_backward(loss);
        }
        ck_assert_int_eq(shard_last_status(), SHARD_ERROR_MISMATCH);
        ck_assert_msg(strstr(shard_last_error(), "rank 2 calls ") != NULL, "%s", shard_last_error());
        ck_assert_msg(strstr(shard_last_error(), c->reduces) != NULL, "%s", shard_last_error());
        bool named = strstr(shard_last_error(), " of first.weight") && strstr(shard_last_error(), " of second.weight");
        ck_assert_msg(named || c->same_names, "%s", shard_last_error());
        shard_clear_error();
        train(w);
        shard_data_parallel_destroy(dp[0]);
        shard_data_parallel_destroy(dp[1]);
    }
}

START_TEST(test_crossed_order)
{
    run_job(3, cross, (void *)&cases[_i]);
}
END_TEST

/* Ranks 0 and 1 have two more parameters, replicated over these two, and so more buckets; ranks 2 and 3 have one. */
static void train_with_others(shard_group *world, void *context)
{
    int stage = *(const int *)context, pair = shard_group_rank(world) / 2;
    shard_group *group = shard_group_split(world, pair);
    SHARD_SCOPE
    {
        shard_tensor *shared = made_up_leaf(SHARD_SHAPE(ROWS, COLUMNS), 1, SHARD_FLOAT32);
        shard_tensor *others[] = {made_up_leaf(SHARD_SHAPE(ROWS), 2, SHARD_FLOAT32),
                                  made_up_leaf(SHARD_SHAPE(ROWS), 3, SHARD_FLOAT64)};
        int count = pair == 0 ? 2 : 1;
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "shared", shared));
        for (int i = 0; i < count; i++) {
            shard_tensor_set_replica_group(others[i], group);
            check_ok(shard_tensors_add(list, i == 0 ? "first" : "second", others[i]));
        }
        shard_data_parallel *dp = shard_data_parallel_create(list, .stage = stage);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        shard_optimizer *sgd = sgd_of_list(list, .lr = 0.1);
        for (int step = 0; step < 2; step++) {
            shard_tensor *loss = loss_of(shared);
            for (int i = 0; i < count; i++)
                loss = shard_add(loss, shard_cast(loss_of(others[i]), SHARD_FLOAT32));
            check_ok(shard_backward(loss));
            check_ok(shard_clip_grad_norm(sgd, 1.0, NULL));
            check_ok(shard_step(sgd));
        }
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
    shard_group_destroy(group);
}

START_TEST(test_other_parameters)
{
    int stage = _i;
    run_job(4, train_with_others, &stage);
}
END_TEST

/* Without sync each replica moves by its own gradients, of which the last rank lacks one. */
static void step_locally(shard_group *world, void *context)
{
    (void)context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    SHARD_SCOPE
    {
        shard_tensor *w[] = {made_up_leaf(SHARD_SHAPE(ROWS), 1, SHARD_FLOAT32),
                             made_up_leaf(SHARD_SHAPE(ROWS), 2, SHARD_FLOAT32)};
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "first", w[0]));
        check_ok(shard_tensors_add(list, "second", w[1]));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *sgd = sgd_of_list(list, .lr = 0.1);
        double *before[] = {values_of(w[0]), values_of(w[1])};
        shard_data_parallel_set_sync(dp, false);
        check_ok(shard_backward(loss_of(w[0])));
        if (!last)
            check_ok(shard_backward(loss_of(w[1])));
        check_ok(shard_step(sgd));
        for (int i = 0; i < 2; i++) {
            double *after = values_of(w[i]), moved = i == 1 && last ? 1 : 0.8;
            for (int64_t k = 0; k < ROWS; k++)
                ck_assert_double_eq_tol(after[k], moved * before[i][k], 1e-6);
            free(after);
            free(before[i]);
        }
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_local_steps)
{
    run_job(3, step_locally, NULL);
}
END_TEST

/* Ways in which the last rank steps differently. */
typedef enum other_step { FREEZES, CLEARS, CLEARS_BEFORE_CLIPPING, OTHER_OPTIMIZER, OTHER_STEPS } other_step;

static const char *const step_errors[OTHER_STEPS] = {
    [FREEZES] = "rank 2 calls shard_step with gradients of 1 of 2 parameters, not of \"second\" while "
                "ranks 0 and 1 call shard_step with gradients of all 2 parameters from \"first\" on",
    [CLEARS] = "rank 2 calls shard_step with gradients of 1 of 2 parameters, not of \"second\" while *",
    [CLEARS_BEFORE_CLIPPING] =
        "rank 2 calls shard_clip_grad_norm * with gradients of 1 of 2 parameters, not of \"second\" while *",
    [OTHER_OPTIMIZER] = "rank 2 calls shard_step with gradients of all 1 parameters from \"second\" on while ranks 0 and 1 "
                        "call shard_step with gradients of all 1 parameters from \"first\" on",
};

static shard_tensors *list_of(shard_tensor *const *w, int first, int count)
{
    static const char *const names[] = {"first", "second"};
    shard_tensors *list = shard_tensors_create();
    for (int i = first; i < first + count; i++)
        check_ok(shard_tensors_add(list, names[i], w[i]));
    return list;
}

static void step_otherwise(shard_group *world, void *context)
{
    other_step way = *(const other_step *)context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    SHARD_SCOPE
    {
        shard_tensor *w[] = {made_up_leaf(SHARD_SHAPE(ROWS, COLUMNS), 1, SHARD_FLOAT32),
                             made_up_leaf(SHARD_SHAPE(ROWS, COLUMNS), 2, SHARD_FLOAT32)};
        shard_tensors *list = list_of(w, 0, 2);
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *sgd = sgd_of_list(list, .lr = 0.1);
        shard_optimizer *each[] = {sgd_of_list(list_of(w, 0, 1)), sgd_of_list(list_of(w, 1, 1))};
        train(w);
        check_ok(shard_clip_grad_norm(sgd, 1.0, NULL));
        check_ok(shard_step(sgd));
        if (way == FREEZES && last)
            shard_set_requires_grad(w[1], false);
        check_ok(shard_backward(shard_add(loss_of(w[0]), loss_of(w[1]))));
        if ((way == CLEARS || way == CLEARS_BEFORE_CLIPPING) && last)
            shard_zero_grad(w[1]);
        shard_status status = way == CLEARS_BEFORE_CLIPPING ? shard_clip_grad_norm(sgd, 1.0, NULL)
                              : way == OTHER_OPTIMIZER      ? shard_step(each[last])
                                                            : shard_step(sgd);
        ck_assert_int_eq(status, SHARD_ERROR_MISMATCH);
        check_error(status, step_errors[way]);
        shard_optimizer_destroy(each[0]);
        shard_optimizer_destroy(each[1]);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_other_steps)
{
    other_step way = (other_step)_i;
    run_job(3, step_otherwise, &way);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crossed order");
    TCase *tcase = test_case(suite, "refuses");
    tcase_add_loop_test(tcase, test_crossed_order, 0, (int)(sizeof cases / sizeof *cases));
    tcase_add_loop_test(tcase, test_other_steps, 0, OTHER_STEPS);
    tcase_add_loop_test(tcase, test_other_parameters, 0, 4);
    tcase_add_test(tcase, test_local_steps);
    return test_run(suite);
}
