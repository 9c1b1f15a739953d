/* concatenate: against finite differences, and as parts of a whole. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include <stdlib.h>

typedef struct together {
    int count, dim;
} together;

static shard_tensor *concatenate(shard_tensor *const *x, const void *options)
{
    const together *how = options;
    return shard_concatenate(x, how->count, how->dim);
}

/* One of them three times, and one that needs no gradient. */
static shard_tensor *again(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *ones = shard_ones(shard_tensor_shape(x[1]), .dtype = shard_tensor_dtype(x[1]));
    return shard_concatenate((shard_tensor *[]){x[0], x[1], x[0], ones, x[0]}, 5, 1);
}

/* Of PARTIAL sums, with a PARTIAL gradient. */
static shard_tensor *of_partial(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *sums = shard_sum_dim(x[0], 1, true);
    return shard_concatenate((shard_tensor *[]){sums, shard_scale(sums, 2)}, 2, 0);
}

static shard_tensor *before_columns(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_linear(shard_concatenate(x, 2, 1), x[2], NULL);
}

static const together rows_of_two = {2, 0}, columns_of_three = {3, -1}, middle_of_four = {4, 1}, one = {1, 0},
                      columns_of_two = {2, 1};

static const operation operations[] = {
    {"rows", concatenate, &rows_of_two, 2, {SHARD_SHAPE(2, 3), SHARD_SHAPE(4, 3)}},
    {"vectors", concatenate, &rows_of_two, 2, {SHARD_SHAPE(2), SHARD_SHAPE(3)}},
    {"columns", concatenate, &columns_of_three, 3, {SHARD_SHAPE(3, 2), SHARD_SHAPE(3, 1), SHARD_SHAPE(3, 4)}},
    {"the middle",
     concatenate,
     &middle_of_four,
     4,
     {SHARD_SHAPE(2, 1, 3), SHARD_SHAPE(2, 2, 3), SHARD_SHAPE(2, 0, 3), SHARD_SHAPE(2, 1, 3)}},
    {"one", concatenate, &one, 1, {SHARD_SHAPE(2, 3)}},
    {"nothing", concatenate, &rows_of_two, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(0, 3)}},
    {"columns of no rows", concatenate, &columns_of_two, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(0, 2)}},
    {"one of them again", again, NULL, 2, {SHARD_SHAPE(3, 2), SHARD_SHAPE(3, 1)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

static const rule rules[] = {
    {"columns of split rows", concatenate, &columns_of_two, 2, {SHARD_SHAPE(9, 2), SHARD_SHAPE(9, 3)}, {0, 0}, 0},
    {"rows of split columns", concatenate, &rows_of_two, 2, {SHARD_SHAPE(2, 9), SHARD_SHAPE(3, 9)}, {1, 1}, 1},
    {"partial sums", of_partial, NULL, 1, {SHARD_SHAPE(2, 9)}, {1}, PARTIAL},
    {"before a COLUMN linear",
     before_columns,
     NULL,
     3,
     {SHARD_SHAPE(3, 1), SHARD_SHAPE(3, 2), SHARD_SHAPE(9, 3)},
     {WHOLE, WHOLE, 0},
     1},
};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
}

START_TEST(parts_make_the_whole)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

/* Many tensors, and integers, which have no gradient. */
START_TEST(many)
{
    enum { MANY = 3000 };
    shard_tensor *x[MANY];
    SHARD_SCOPE
    {
        shard_tensor *leaf = shard_ones(SHARD_SHAPE(1), .requires_grad = true);
        for (int i = 0; i < MANY; i++)
            x[i] = shard_scale(leaf, i);
        check_ok(shard_backward(shard_sum(shard_concatenate(x, MANY, 0))));
        ck_assert_double_eq(shard_item(shard_grad(leaf)), MANY / 2 * (MANY - 1));
        static const int64_t values[] = {3, 4};
        for (int i = 0; i < 3; i++)
            x[i] = shard_from_host(values, SHARD_SHAPE(2, 1), .dtype = SHARD_INT64);
        static const double expected[] = {3, 3, 3, 4, 4, 4};
        check_tensor("integers", shard_concatenate(x, 3, 1), expected, 0);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *other = shard_zeros(SHARD_SHAPE(2, 4));
        shard_tensor *doubles = shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64), *cube = shard_zeros(SHARD_SHAPE(2, 3, 1));
        check_refused(shard_concatenate((shard_tensor *[]){x, other}, 2, 0), SHARD_ERROR_SHAPE,
                      "shard_concatenate: tensor 1 is float32 of shape [[]2, 4] on *, tensor 0 float32 of shape [[]2, 3] on *");
        check_refused(shard_concatenate((shard_tensor *[]){x, doubles}, 2, 0), SHARD_ERROR_SHAPE,
                      "shard_concatenate: tensor 1 is float64 *");
        check_refused(shard_concatenate((shard_tensor *[]){x, cube}, 2, 0), SHARD_ERROR_SHAPE, "shard_concatenate: tensor 1 *");
        check_refused(shard_concatenate((shard_tensor *[]){x, NULL}, 2, 0), SHARD_ERROR_ARGUMENT, "shard_concatenate: *NULL");
        check_refused(shard_concatenate(&x, 0, 0), SHARD_ERROR_ARGUMENT, "shard_concatenate: 0 tensors; *");
        check_refused(shard_concatenate(NULL, 1, 0), SHARD_ERROR_ARGUMENT, "shard_concatenate: *NULL");
        check_refused(shard_concatenate(&x, 1, 2), SHARD_ERROR_ARGUMENT, "shard_concatenate: dimension 2 of *");
    }
}
END_TEST

/* Along the split dimension, or of tensors that are placed in other ways. */
static void check_refusals(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_zeros(SHARD_SHAPE(2, 3)), 0, world, 2 * shard_group_rank(world), 4);
        shard_tensor *whole = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_concatenate((shard_tensor *[]){x, x}, 2, 0), SHARD_ERROR_UNSUPPORTED, "shard_concatenate: no rule *");
        check_refused(shard_concatenate((shard_tensor *[]){x, whole}, 2, 1), SHARD_ERROR_UNSUPPORTED,
                      "shard_concatenate: no rule *");
    }
}

START_TEST(refuses_placements)
{
    run_ranks(2, check_refusals);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("concatenate");
    TCase *tcase = test_case(suite, "concatenate");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_test(tcase, many);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, refuses_placements);
    return test_run(suite);
}
