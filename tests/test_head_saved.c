/* Forward and backward of a linear head as calls of their own (shard/head.h): the bits of the recorded functions. */
#include "support/head.h"
#include "support/loss.h"

#include "base/error.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

/* All logits in a stash, of several tiles; or the usual one, which has no place for a tile. */
static void choose_stash(head_call *c, bool whole)
{
    shard_head_tile = whole ? 32 : 0;
    if (whole)
        c->softmax.stash_share = c->binary.stash_share = 1000;
}

static void same_bits(shard_group *world, void *context)
{
    (void)context;
    static head_result expected, found;
    for (int form = 0; form < HEAD_FORMS; form++)
        for (int d = 0; d < 2 * HEAD_DTYPES; d++)
            SHARD_SCOPE
            {
                head_call c;
                head_make(&c, (head_form)form, d % HEAD_DTYPES, world);
                choose_stash(&c, d >= HEAD_DTYPES);
                head_record(&c, 1, &expected);
                head_run(&c, world, NULL, &found);
                head_check_results(&found, &expected, &c, d % HEAD_DTYPES, shard_group_size(world));
                ck_assert(form == GRADIENT_ONLY || found.loss[0] != 0);
                ck_assert_double_ne(found.dx[0], 0);
            }
}

START_TEST(test_same_bits)
{
    run_ranks(_i + 1, same_bits);
}
END_TEST

/* ---- the state ---- */

START_TEST(test_twice)
{
    static head_result first, second;
    for (int form = 0; form < HEAD_FORMS; form++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            choose_stash(&c, _i == 1);
            shard_head_saved *saved;
            shard_tensor *dy = head_dy(head_forward(&c, c.target, &saved, &first)), *dx, *dweight, *dbias;
            second = first;
            head_result *both[] = {&first, &second};
            for (int i = 0; i < 2; i++) {
                check_ok(shard_head_backward(saved, dy, &dx, &dweight, &dbias));
                head_read_features(dx, NULL, both[i]);
                head_read_parameters(&c, dweight, dbias, both[i]);
            }
            shard_head_saved_destroy(saved);
            head_check_results(&second, &first, &c, 0, 1);
        }
}
END_TEST

/* The weight and the sum of its gradients are rows of one tensor. */
START_TEST(test_sum_in_storage_of_weight)
{
    static head_result first, second;
    for (int form = PLAIN; form < HEAD_FORMS; form += BINARY - PLAIN)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            shard_tensor *weight = c.weight, *both = shard_concatenate((shard_tensor *[]){weight, shard_scale(weight, 0)}, 2, 0);
            shard_tensor *sum = shard_narrow(both, 0, HEAD_CLASSES, HEAD_CLASSES), *apart = NULL;
            head_result *result[] = {&first, &second};
            for (int shares = 0; shares < 2; shares++) {
                c.weight = shares ? shard_narrow(both, 0, 0, HEAD_CLASSES) : weight;
                shard_tensor **dweight = shares ? &sum : &apart, *dbias = NULL, *given = *dweight;
                shard_head_saved *saved;
                shard_tensor *dy = head_dy(head_forward(&c, c.target, &saved, result[shares]));
                check_ok(shard_head_backward(saved, dy, NULL, dweight, &dbias, .accumulate = true));
                ck_assert(!given || *dweight == given);
                head_read_parameters(&c, *dweight, dbias, result[shares]);
                shard_head_saved_destroy(saved);
            }
            head_check_bits("dweight", second.dweight, first.dweight, HEAD_CLASSES * HEAD_IN, c.form, 0);
            ck_assert_double_ne(second.dweight[0], 0);
        }
}
END_TEST

static int64_t memory_in_use(void)
{
    return shard_get_memory_stats(shard_default_device()).current;
}

/* Operands are released before the backward, and nothing is left after it. */
START_TEST(test_memory)
{
    static head_result r;
    for (int form = 0; form < HEAD_FORMS; form++) /* a device keeps some memory of its first calls */
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            head_run(&c, NULL, NULL, &r);
        }
    for (int form = 0; form < HEAD_FORMS; form++) {
        int64_t before = memory_in_use(), saves, computes;
        shard_head_saved *saved;
        shard_tensor *dy;
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            head_set_requires(&c, true); /* and yet nothing is recorded */
            int64_t operands = memory_in_use();
            dy = shard_keep(head_dy(head_forward(&c, c.target, &saved, &r)));
            saves = memory_in_use() - operands;
            bool sums = c.softmax.soft_cap == 0 || c.softmax.label_smoothing == 0; /* else the backward sweeps again */
            int64_t numbers = form < BINARY ? (int64_t)sizeof(double) * SHARD_CE_NUMBERS * HEAD_ROWS : 0; /* of the loss */
            ck_assert_int_eq(saves > numbers + (int64_t)sizeof(float) * HEAD_ROWS * HEAD_IN, sums);
        }
        SHARD_SCOPE
        {
            shard_tensor *dx, *dweight;
            check_ok(shard_head_backward(saved, dy, &dx, &dweight, NULL));
            computes = memory_in_use();
        }
        ck_assert_int_ge(computes - memory_in_use(), (int64_t)sizeof(float) * (HEAD_ROWS + HEAD_CLASSES) * HEAD_IN);
        shard_head_saved_destroy(saved);
        shard_release(dy);
        ck_assert_int_eq(memory_in_use(), before);
    }
}
END_TEST

/* The loss alone leaves nothing behind. */
START_TEST(test_saves_nothing)
{
    static head_result r, with;
    SHARD_SCOPE
    {
        for (int form = 0; form < HEAD_FORMS; form++) {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            shard_head_saved *saved;
            shard_release(head_forward(&c, c.target, &saved, &with));
            shard_head_saved_destroy(saved);
            int64_t before = memory_in_use();
            shard_release(head_forward(&c, c.target, NULL, &r));
            if (form != RANKED) /* whose ranks are in the scope */
                ck_assert_int_eq(memory_in_use(), before);
            head_check_bits("loss", r.loss, with.loss, HEAD_ROWS, c.form, 0);
        }
    }
}
END_TEST

static void write_to(shard_tensor *tensor)
{
    double bytes[HEAD_CLASSES * HEAD_IN] = {0};
    check_ok(shard_copy_from_host(tensor, bytes, shard_tensor_bytes(tensor)));
}

START_TEST(test_written)
{
    static head_result r;
    for (int which = 0; which < 5; which++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, PLAIN, 0, NULL);
            shard_tensor *written[] = {c.x, c.weight, c.bias, c.target, c.softmax.weight};
            shard_head_saved *saved;
            shard_tensor *dy = head_dy(head_forward(&c, c.target, &saved, &r)), *dx = c.x, *dweight = c.x, *dbias = c.x;
            write_to(written[which]);
            ck_assert_int_eq(shard_head_backward(saved, dy, &dx, &dweight, &dbias), SHARD_ERROR_ARGUMENT);
            check_error(SHARD_ERROR_ARGUMENT, "backward of shard_linear_cross_entropy: * was written to after the forward");
            ck_assert(!dx && !dweight && !dbias);
            shard_head_saved_destroy(saved);
        }
}
END_TEST

START_TEST(test_refuses)
{
    static head_result r;
    SHARD_SCOPE
    {
        head_call c;
        head_make(&c, PLAIN, 0, NULL);
        shard_head_saved *saved;
        shard_tensor *dy = head_dy(head_forward(&c, c.target, &saved, &r)), *dweight = c.bias, *dx = c.x;
        ck_assert_int_eq(shard_head_backward(saved, c.bias, &dx, NULL, NULL), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: dy is float32 of shape [[]301] *");
        ck_assert(!dx);
        ck_assert_int_eq(shard_head_backward(saved, shard_cast(dy, SHARD_FLOAT64), NULL, &dweight, NULL), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: dy is float64 *");
        dweight = c.bias;
        ck_assert_int_eq(shard_head_backward(saved, dy, NULL, &dweight, NULL, .accumulate = true), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_head_backward: a gradient is added to float32 of shape [[]301] *");
        ck_assert_ptr_eq(dweight, c.bias);
        check_ok(shard_head_backward(saved, dy, &dx, NULL, NULL)); /* what failed left nothing behind */
        shard_head_saved_destroy(saved);

        c.form = BINARY;
        c.binary.reduction = SHARD_REDUCTION_NONE;
        shard_tensor *pairs = head_target(BINARY, 0);
        ck_assert(!shard_linear_binary_cross_entropy_forward_with(c.x, c.weight, c.bias, pairs, &c.binary, &saved));
        check_error(SHARD_ERROR_UNSUPPORTED, "shard_linear_binary_cross_entropy_forward: *SHARD_REDUCTION_NONE has logits*");
        ck_assert(!saved);
        shard_tensor *dense = shard_zeros(SHARD_SHAPE(HEAD_ROWS, HEAD_CLASSES));
        ck_assert(!shard_linear_binary_cross_entropy_forward(c.x, c.weight, c.bias, dense, &saved));
        check_error(SHARD_ERROR_UNSUPPORTED, "*a float32 target has logits*");
    }
}
END_TEST

/* An error of the last rank is that of all, in no time. */
static void fails_together(shard_group *world, void *context)
{
    (void)context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    for (int way = 0; way < 3; way++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, way == 2 ? BINARY : PLAIN, 0, world);
            shard_head_saved *saved;
            shard_tensor *loss, *target = c.target, *x = c.x;
            if (last && way == 0)
                target = shard_zeros(SHARD_SHAPE(HEAD_ROWS, HEAD_CLASSES));
            if (last && way == 1)
                x = shard_zeros(SHARD_SHAPE(HEAD_ROWS, HEAD_IN + 1));
            if (last && way == 2)
                target = shard_zeros(SHARD_SHAPE(HEAD_ROWS, c.weight->shape.dim[0]));
            loss = way == 2 ? shard_linear_binary_cross_entropy_forward_with(x, c.weight, c.bias, target, &c.binary, &saved)
                            : shard_linear_cross_entropy_forward_with(x, c.weight, c.bias, target, &c.softmax, &saved, NULL);
            ck_assert(!loss && !saved);
            check_error(!last      ? SHARD_ERROR_PEER
                        : way == 2 ? SHARD_ERROR_UNSUPPORTED
                                   : SHARD_ERROR_SHAPE,
                        "rank 2: shard_linear_*_forward: *");
            check_ok(shard_barrier(world));
        }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together);
}
END_TEST

/* Rows that are split over ranks, with a whole weight. */
static void splits_rows(shard_group *world, void *context)
{
    (void)context;
    static head_result expected, found;
    SHARD_SCOPE
    {
        head_call c;
        head_make(&c, EACH_ROW, 0, NULL);
        int rank = shard_group_rank(world);
        c.target = head_target(EACH_ROW, rank);
        c.x = shard_as_split(c.x, 0, world, HEAD_ROWS * rank, HEAD_ROWS * shard_group_size(world));
        c.target = shard_as_split(c.target, 0, world, HEAD_ROWS * rank, HEAD_ROWS * shard_group_size(world));
        head_record(&c, 1, &expected);
        shard_head_saved *saved;
        memset(&found, 0, sizeof found);
        shard_tensor *loss = head_forward(&c, c.target, &saved, &found), *dx, *dweight, *dbias;
        check_ok(shard_head_backward(saved, head_dy(loss), &dx, &dweight, &dbias));
        shard_head_saved_destroy(saved);
        ck_assert(shard_placement_equal(&dx->placement, &c.x->placement) && shard_is_local(dweight));
        read_values(dx, found.dx);
        head_read_parameters(&c, dweight, dbias, &found);
        head_check_results(&found, &expected, &c, 0, 1);
    }
}

START_TEST(test_splits_rows)
{
    run_ranks(2, splits_rows);
}
END_TEST

/* Under autocast the gradients have the types of the operands. */
START_TEST(test_autocast)
{
    static head_result expected, found;
    for (int form = 0; form < HEAD_FORMS; form++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, (head_form)form, 0, NULL);
            SHARD_AUTOCAST(SHARD_BFLOAT16)
            {
                head_record(&c, 1, &expected);
                head_run(&c, NULL, NULL, &found);
                head_check_results(&found, &expected, &c, 0, 1);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("head_saved");
    TCase *tcase = test_case(suite, "head_saved");
    tcase_add_loop_test(tcase, test_same_bits, 0, 3);
    tcase_add_loop_test(tcase, test_twice, 0, 2);
    tcase_add_test(tcase, test_sum_in_storage_of_weight);
    tcase_add_test(tcase, test_memory);
    tcase_add_test(tcase, test_saves_nothing);
    tcase_add_test(tcase, test_written);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_fails_together);
    tcase_add_test(tcase, test_splits_rows);
    tcase_add_test(tcase, test_autocast);
    return test_run(suite);
}
