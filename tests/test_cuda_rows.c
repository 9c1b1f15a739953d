/* What a step does to rows of matrices on the GPU, as the emulation sees it: which are copied, and how those begin that
 * products read and write. */
#include "support/job.h"
#include "support/options.h"

#include <seen.h>
#include <stdlib.h>

/* ---- a weight whose rows pass by in blocks ---- */

enum { MANY = 20011 };

/* A block's columns of logits are multiplied where they are. */
static void copies_no_columns(shard_group *world, void *context)
{
    shard_module *model = shard_nn_linear(16, MANY);
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(model), .lr = 0.1), .stage = 3, .bucket_mib = 0.1);
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

/* ---- numbers of classes that are no multiple of 8 ---- */

enum { ROWS = 12, IN = 16, ODD = 1001, FEW = 37 };

typedef struct head_case {
    shard_dtype dtype, autocast; /* of parameters; float32: off */
    int64_t classes;             /* of each rank */
    int ranks;
    enum { PLAIN, SEQUENCE, SHIFTED, FROZEN, SEARCHED } form;
} head_case;

static const head_case heads[] = {
    {SHARD_FLOAT32, SHARD_BFLOAT16, ODD, 1, PLAIN},    {SHARD_FLOAT32, SHARD_FLOAT16, FEW, 1, SEQUENCE},
    {SHARD_BFLOAT16, SHARD_FLOAT32, ODD, 1, SHIFTED},  {SHARD_FLOAT16, SHARD_FLOAT32, FEW, 1, FROZEN},
    {SHARD_FLOAT32, SHARD_FLOAT32, ODD, 1, PLAIN},     {SHARD_FLOAT32, SHARD_BFLOAT16, FEW, 2, PLAIN},
    {SHARD_FLOAT32, SHARD_BFLOAT16, ODD, 3, SHIFTED},  {SHARD_BFLOAT16, SHARD_FLOAT32, ODD, 2, SEQUENCE},
    {SHARD_FLOAT32, SHARD_BFLOAT16, ODD, 2, SEARCHED},
};

/* Logits as networks have them: of rows, of a batch of sequences, of all elements of these but the last. */
static shard_tensor *loss_of(shard_tensor *logits, int form)
{
    int64_t labels[ROWS], rows = form == SHIFTED ? ROWS - 1 : ROWS, own = shard_tensor_size(logits, -1);
    for (int i = 0; i < ROWS; i++)
        labels[i] = i * 7 % FEW;
    shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64), *y = logits;
    if (form == SEQUENCE)
        y = shard_reshape(logits, SHARD_SHAPE(ROWS, own));
    if (form == SHIFTED)
        y = shard_narrow(logits, 0, 0, rows);
    if (form == SEARCHED)
        ck_assert(shard_argmax(y, -1, false) && shard_top_k(shard_detach(y), 5, NULL));
    shard_tensor *rank = shard_label_rank(y, target, -100), *loss = shard_cross_entropy(y, target);
    ck_assert_msg(rank && loss, "%s", shard_last_error());
    return loss;
}

/* Weights begin at multiples of 16 bytes, as IN is one of 8, and x does. */
static void multiplies_aligned_rows(shard_group *world, void *context)
{
    const head_case *c = context;
    int64_t classes = c->classes * shard_group_size(world);
    shard_set_allow_tf32(shard_device_open(NULL), true);
    SHARD_SCOPE
    {
        shard_shape shape = c->form == SEQUENCE ? SHARD_SHAPE(3, ROWS / 3, IN) : SHARD_SHAPE(ROWS, IN);
        shard_tensor *x = shard_detach(shard_cast(made_up(shape, 1, SHARD_FLOAT32), c->dtype));
        shard_tensor *weight = shard_full(SHARD_SHAPE(c->classes, IN), 0.25, .dtype = c->dtype);
        shard_tensor *bias = shard_full(SHARD_SHAPE(c->classes), 0.5, .dtype = c->dtype);
        int64_t start = c->classes * shard_group_rank(world);
        if (c->ranks > 1) {
            weight = shard_as_split(weight, 0, world, start, classes);
            bias = shard_as_split(bias, 0, world, start, classes);
        }
        shard_set_requires_grad(x, true);
        shard_set_requires_grad(weight, c->form != FROZEN);
        shard_set_requires_grad(bias, true);
        for (int turn = 0; turn < 2; turn++) {
            emulation_seen before = emulation_has_seen;
            shard_tensor *logits = NULL, *loss = NULL;
            SHARD_AUTOCAST(c->autocast)
            {
                logits = shard_linear(x, weight, bias);
                loss = loss_of(logits, (int)c->form);
            }
            shard_release(logits);
            check_ok(shard_backward(loss));
            ck_assert_int_eq(emulation_has_seen.products - before.products, c->form == FROZEN ? 2 : 3);
            ck_assert_int_eq(emulation_has_seen.unaligned, before.unaligned);
            ck_assert(c->form == SEARCHED || emulation_has_seen.row_copies == before.row_copies);
        }
    }
}

START_TEST(odd_classes)
{
    run_job(heads[_i].ranks, multiplies_aligned_rows, (void *)&heads[_i]);
}
END_TEST

/* The same in blocks of the weight's rows. */
static void blocks_are_aligned(shard_group *world, void *context)
{
    shard_module *model = shard_nn_linear(IN, MANY);
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(model), .lr = 0.1), .stage = 3, .bucket_mib = 0.1);
    (void)context;
    emulation_seen before = emulation_has_seen;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(ROWS, IN), (uint64_t)shard_group_rank(world), SHARD_FLOAT32), *loss = NULL;
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        loss = loss_of(shard_forward(model, x), PLAIN);
        check_ok(shard_backward(loss));
    }
    ck_assert_int_gt(emulation_has_seen.products - before.products, 6);
    ck_assert_int_eq(emulation_has_seen.unaligned, before.unaligned);
    ck_assert_int_eq(emulation_has_seen.row_copies, before.row_copies);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(odd_row_blocks)
{
    run_job(2, blocks_are_aligned, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_rows");
    TCase *tcase = test_case(suite, "rows");
    tcase_add_test(tcase, row_blocks);
    tcase_add_loop_test(tcase, odd_classes, 0, sizeof heads / sizeof *heads);
    tcase_add_test(tcase, odd_row_blocks);
    return test_run(suite);
}
