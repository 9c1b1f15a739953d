/* dropout. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>

static shard_tensor *dropout(shard_tensor *const *x, const void *p)
{
    shard_manual_seed(7);
    return shard_dropout(x[0], *(const double *)p);
}

static const operation operations[] = {
    {"dropout", dropout, &(double){0.4}, 1, {SHARD_SHAPE(5, 3, 4)}},
    {"dropout of none", dropout, &(double){0}, 1, {SHARD_SHAPE(5, 3)}},
    {"dropout of all", dropout, &(double){1}, 1, {SHARD_SHAPE(5, 3)}},
    {"dropout of nothing", dropout, &(double){0.5}, 1, {SHARD_SHAPE(0, 3)}},
    {"dropout of a scalar", dropout, &(double){0.5}, 1, {SHARD_SCALAR}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(drops_a_share)
{
    SHARD_SCOPE {
        int64_t n = 100000, dropped = 0;
        double *values = read_doubles_of(shard_dropout(shard_ones(SHARD_SHAPE(n)), 0.3));
        for (int64_t i = 0; i < n; i++) {
            dropped += values[i] == 0;
            ck_assert(values[i] == 0 || fabs(values[i] - 1 / 0.7) < 1e-7);
        }
        ck_assert_msg(llabs(dropped - 30000) < 600, "%lld", (long long)dropped); /* four deviations */
        free(values);
    }
}
END_TEST

/* Each takes the next draw, and the seed gives the same ones again. */
START_TEST(draws)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_ones(SHARD_SHAPE(64));
        shard_manual_seed(3);
        double *first = read_doubles_of(shard_dropout(x, 0.5)), *second = read_doubles_of(shard_dropout(x, 0.5));
        ck_assert_int_eq(shard_get_random_state().next_draw, 2);
        shard_manual_seed(3);
        check_tensor("first", shard_dropout(x, 0.5), first, 0);
        check_tensor("second", shard_dropout(x, 0.5), second, 0);
        int differ = 0;
        for (int i = 0; i < 64; i++)
            differ += first[i] != second[i];
        ck_assert_int_gt(differ, 10);
        free(first);
        free(second);
    }
}
END_TEST

/* Parts drop what the whole tensor would. */
static void drops_alike(shard_group *world, void *context)
{
    int dim = *(int *)context, size = shard_group_size(world);
    shard_range part = shard_split_range(11, size, shard_group_rank(world));
    SHARD_SCOPE {
        shard_manual_seed(5);
        shard_tensor *whole = shard_dropout(shard_ones(SHARD_SHAPE(11, 3, 11), .dtype = SHARD_FLOAT64), 0.5);
        shard_shape shape = SHARD_SHAPE(11, 3, 11);
        shape.dim[dim] = part.size;
        shard_tensor *own = shard_ones(shape, .dtype = SHARD_FLOAT64);
        shard_manual_seed(5);
        shard_tensor *y = shard_dropout(shard_as_split(own, dim, world, part.start, 11), 0.5);
        double *expected = read_doubles_of(whole), *values = read_doubles_of(y);
        for (int64_t i = 0; i < shape.dim[0]; i++)
            for (int64_t j = 0; j < 3; j++)
                for (int64_t k = 0; k < shape.dim[2]; k++) {
                    int64_t row = dim == 0 ? i + part.start : i, column = dim == 2 ? k + part.start : k;
                    ck_assert(values[(i * 3 + j) * shape.dim[2] + k] == expected[(row * 3 + j) * 11 + column]);
                }
        free(expected);
        free(values);
    }
}

START_TEST(splits)
{
    run_ranks(rank_counts[_i], drops_alike, &(int){0});
    run_ranks(rank_counts[_i], drops_alike, &(int){2});
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_dropout(x, 1.1), SHARD_ERROR_ARGUMENT, "shard_dropout: *1.1*");
        check_refused(shard_dropout(x, -0.1), SHARD_ERROR_ARGUMENT, "shard_dropout: *");
        check_refused(shard_dropout(x, NAN), SHARD_ERROR_ARGUMENT, "shard_dropout: *");
    }
}
END_TEST

/* The index in the whole tensor is known only where the split dimension is the first or the last. */
static void refuses_the_middle(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 3, 4));
        check_refused(shard_dropout(shard_as_split(x, 1, world, 3 * shard_group_rank(world), 6), 0.5), SHARD_ERROR_UNSUPPORTED,
                      "*split along dimension 1 of 3: first or last only");
    }
}

START_TEST(splits_in_the_middle)
{
    run_ranks(2, refuses_the_middle, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dropout");
    TCase *tcase = test_case(suite, "dropout");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, drops_a_share);
    tcase_add_test(tcase, draws);
    add_ranks_test(tcase, splits);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, splits_in_the_middle);
    return test_run(suite);
}
