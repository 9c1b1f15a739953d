/* shard_zero: the same bits as the optimizer alone, in every stage, on any number of ranks. */
#include "support/host.h"
#include "support/zero.h"

#include "optim/optimizer.h"

#include <string.h>

/* On one number of ranks; fewer on the others. */
enum { STEPS = 50, LONG_RANKS = 3 };

static shard_zero_options cases[] = {
    {.stage = 1},
    {.stage = 1, .bucket_mib = 1e-6, .overlap = true},
    {.stage = 1, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE},
    {.stage = 2, .bucket_mib = 1e-6},
    {.stage = 2, .bucket_mib = 3e-4, .overlap = true},
    {.stage = 2, .partition = SHARD_ZERO_WHOLE, .bucket_mib = 3e-4, .overlap = true},
    {.stage = 2},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

static shard_optimizer *sgd_of(const sorts *s)
{
    return shard_sgd(list_sorts(s), .lr = 0.02, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}

/* The transports that sum in the order of ranks give the same bits. */
static double tolerance(shard_group *world)
{
    return shard_group_size(world) <= 2 || strcmp(shard_group_transport(world), "shm") == 0 ? 0 : 1e-6;
}

static void equals_the_optimizer(shard_group *world, void *context)
{
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_tensors *list = list_sorts(&a);
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
        shard_optimizer *alone = sgd_of(&a), *shared = sgd_of(&b);
        check_ok(shard_zero_with(shared, *(shard_zero_options *)context) ? SHARD_OK : shard_last_status());
        int steps = shard_group_size(world) == LONG_RANKS ? STEPS : 4;
        for (int step = 0; step < steps; step++) {
            back_sorts(&a, world, step);
            back_sorts(&b, world, step);
            check_ok(shard_step(alone));
            check_ok(shard_step(shared));
            if (step < 3 || step == steps - 1)
                check_sorts_equal(&a, &b, tolerance(world));
        }
        shard_optimizer_destroy(alone);
        shard_optimizer_destroy(shared);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_equals)
{
    run_job(rank_counts[_i / CASES], equals_the_optimizer, &cases[_i % CASES]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero");
    TCase *tcase = test_case(suite, "zero");
    tcase_add_loop_test(tcase, test_equals, 0, RANK_COUNTS * CASES);
    return test_run(suite);
}
