/* What a step does to rows of matrices on the GPU, as the emulation sees it: which are copied. */
#include "support/job.h"

#include <seen.h>
#include <stdlib.h>

/* ---- a weight whose rows pass by in blocks ---- */

enum { MANY = 20011 };

/* A block's columns of logits are multiplied where they are. */
static void copies_no_columns(shard_group *world, void *context)
{
    shard_module *model = shard_nn_linear(16, MANY);
    shard_optimizer *sgd = shard_zero(shard_sgd(shard_parameters(model), .lr = 0.1), .stage = 3, .bucket_mib = 0.1);
    ck_assert_msg(sgd != NULL, "%s", shard_last_error());
    (void)context;
    for (int step = 0; step < 2; step++) {
        int64_t before = emulation_has_seen.row_copies;
        SHARD_SCOPE
        {
            shard_tensor *x = made_up_leaf(SHARD_SHAPE(3, 16), (uint64_t)(step + 10 * shard_group_rank(world)), SHARD_FLOAT32);
            check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        }
        ck_assert_int_eq(emulation_has_seen.row_copies, before);
        check_ok(shard_step(sgd));
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(row_blocks)
{
    run_job(2, copies_no_columns, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_rows");
    TCase *tcase = test_case(suite, "rows");
    tcase_add_test(tcase, row_blocks);
    return test_run(suite);
}
