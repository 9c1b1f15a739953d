/* Ranks that reduce or gather data of the same size in different orders: an error on all ranks, not other parameters' values. */
#include "support/job.h"

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

int main(void)
{
    Suite *suite = suite_create("crossed order");
    TCase *tcase = test_case(suite, "refuses");
    tcase_add_loop_test(tcase, test_crossed_order, 0, (int)(sizeof cases / sizeof *cases));
    return test_run(suite);
}
