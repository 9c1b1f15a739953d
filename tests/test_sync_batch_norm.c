/* batch_norm over a group: the same as one process on all rows. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include <shard/nn.h>

#include "comm/comm.h"

#include <stdlib.h>

enum { ROWS = 13, HEIGHT = 2, CHANNELS = 3, ROW = HEIGHT * CHANNELS };

typedef struct norm {
    bool residual, relu, tracks;
    bool split; /* x says that it is split; else it is this rank's own */
} norm;

/* Rank 2, if there is one, has no rows. */
static shard_range rows_of(const shard_group *group)
{
    int size = shard_group_size(group), rank = shard_group_rank(group);
    if (size < 3)
        return shard_split_range(ROWS, size, rank);
    if (rank == 2)
        return (shard_range){shard_split_range(ROWS, size - 1, 1).start + shard_split_range(ROWS, size - 1, 1).size, 0};
    return shard_split_range(ROWS, size - 1, rank > 2 ? rank - 1 : rank);
}

typedef struct outcome {
    double *y, *dx, *dresidual;
    double dweight[CHANNELS], dbias[CHANNELS], mean[CHANNELS], variance[CHANNELS];
} outcome;

static void copy(shard_tensor *tensor, double *to)
{
    check_ok(shard_copy_to_host(tensor, to, (size_t)shard_numel(tensor) * sizeof *to));
}

/* Rows of made-up images; a leaf. */
static shard_tensor *rows(unsigned seed, shard_range range, bool split, shard_group *group)
{
    double all[ROWS * ROW];
    make_up(all, ROWS * ROW, seed);
    shard_tensor *own =
        shard_from_host(all + range.start * ROW, SHARD_SHAPE(range.size, HEIGHT, CHANNELS), .dtype = SHARD_FLOAT64);
    shard_tensor *x = split ? shard_as_split(own, 0, group, range.start, ROWS) : own;
    shard_set_requires_grad(x, true);
    return x;
}

static outcome run(const norm *how, shard_group *group, shard_range range)
{
    outcome out;
    SHARD_SCOPE
    {
        shard_tensor *x = rows(1, range, how->split, group), *residual = how->residual ? rows(2, range, how->split, group) : NULL;
        shard_tensor *weight = make_up_tensor(SHARD_SHAPE(CHANNELS), 3, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *bias = make_up_tensor(SHARD_SHAPE(CHANNELS), 4, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *mean = how->tracks ? make_up_tensor(SHARD_SHAPE(CHANNELS), 5, .dtype = SHARD_FLOAT64) : NULL;
        shard_tensor *variance = how->tracks ? shard_ones(SHARD_SHAPE(CHANNELS), .dtype = SHARD_FLOAT64) : NULL;
        shard_tensor *y = shard_batch_norm(x, mean, variance, weight, bias, .training = true, .group = group,
                                           .residual = residual, .relu = how->relu);
        ck_assert_msg(y != NULL, "%s", shard_last_error());
        check_ok(shard_backward_from(y, shard_detach(rows(6, range, how->split, group))));
        out.y = values_of(y);
        out.dx = values_of(shard_grad(x));
        out.dresidual = how->residual ? values_of(shard_grad(residual)) : NULL;
        copy(shard_grad(weight), out.dweight);
        copy(shard_grad(bias), out.dbias);
        if (how->tracks) {
            copy(mean, out.mean);
            copy(variance, out.variance);
        }
    }
    return out;
}

static void equals_one_process(shard_group *world, void *context)
{
    const norm *how = context;
    shard_range range = rows_of(world);
    outcome expected = run(how, NULL, (shard_range){0, ROWS}), out = run(how, world, range);
    int64_t from = range.start * ROW, count = range.size * ROW;
    check_doubles(out.y, expected.y + from, count, 1e-12, 0, "y");
    check_doubles(out.dx, expected.dx + from, count, 1e-12, 0, "dx");
    if (how->residual)
        check_doubles(out.dresidual, expected.dresidual + from, count, 0, 0, "dresidual");
    check_ok(shard_group_all_reduce(world, NULL, out.dweight, CHANNELS, SHARD_FLOAT64, SHARD_SUM));
    check_ok(shard_group_all_reduce(world, NULL, out.dbias, CHANNELS, SHARD_FLOAT64, SHARD_SUM));
    check_doubles(out.dweight, expected.dweight, CHANNELS, 1e-12, 0, "dweight");
    check_doubles(out.dbias, expected.dbias, CHANNELS, 1e-12, 0, "dbias");
    if (how->tracks) {
        check_doubles(out.mean, expected.mean, CHANNELS, 1e-12, 0, "running mean");
        check_doubles(out.variance, expected.variance, CHANNELS, 1e-12, 0, "running variance");
    }
    free(out.y);
    free(out.dx);
    free(out.dresidual);
    free(expected.y);
    free(expected.dx);
    free(expected.dresidual);
}

START_TEST(is_the_whole_batch_norm)
{
    for (unsigned i = 0; i < 16; i++)
        run_ranks(rank_counts[_i], equals_one_process,
                  &(norm){.residual = i & 1, .relu = i >> 1 & 1, .tracks = i >> 2 & 1, .split = i >> 3 & 1});
}
END_TEST

/* Running means that differ between the ranks stay apart, but do no harm. */
static void tolerates_other_running_means(shard_group *world, void *context)
{
    (void)context;
    shard_range range = rows_of(world);
    SHARD_SCOPE
    {
        double mean = 10.0 * shard_group_rank(world);
        shard_tensor *x = rows(1, range, false, world), *variance = shard_ones(SHARD_SHAPE(CHANNELS), .dtype = SHARD_FLOAT64);
        shard_tensor *running = shard_full(SHARD_SHAPE(CHANNELS), mean, .dtype = SHARD_FLOAT64);
        shard_tensor *y = shard_batch_norm(x, running, variance, NULL, NULL, .training = true, .group = world);
        shard_tensor *whole =
            shard_batch_norm(rows(1, (shard_range){0, ROWS}, false, NULL), NULL, NULL, NULL, NULL, .training = true);
        double *expected = values_of(whole);
        check_tensor("y", y, expected + range.start * ROW, 1e-12);
        free(expected);
    }
}

START_TEST(needs_no_common_running_mean)
{
    run_ranks(rank_counts[_i], tolerates_other_running_means);
}
END_TEST

/* One value a channel on each rank is enough, one in all is not. */
static void counts_all_rows(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world), rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *one = shard_ones(SHARD_SHAPE(1, CHANNELS)), *none = shard_ones(SHARD_SHAPE(0, CHANNELS));
        if (size > 1)
            ck_assert_ptr_nonnull(shard_batch_norm(one, NULL, NULL, NULL, NULL, .training = true, .group = world));
        check_refused(shard_batch_norm(rank ? none : one, NULL, NULL, NULL, NULL, .training = true, .group = world),
                      SHARD_ERROR_SHAPE, "shard_batch_norm: expected more than 1 value per channel when training*");
        ck_assert_ptr_nonnull(shard_batch_norm(none, NULL, NULL, NULL, NULL, .training = true, .group = world));
    }
}

START_TEST(wants_two_rows_in_all)
{
    run_ranks(rank_counts[_i], counts_all_rows);
}
END_TEST

/* A member whose operand is missing or wrong tells the others, forward and backward. */
static void fails_with_the_others(shard_group *world, void *context)
{
    (void)context;
    bool bad = shard_group_rank(world) == 1;
    SHARD_SCOPE
    {
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(4, CHANNELS), 1, .requires_grad = true), *c = shard_ones(SHARD_SHAPE(2));
        shard_tensor *missing = bad ? shard_reshape(x, SHARD_SHAPE(5)) : x;
        check_refused(shard_batch_norm(missing, NULL, NULL, NULL, NULL, .training = true, .group = world),
                      bad ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER, "rank 1: shard_reshape: *");
        check_refused(shard_batch_norm(x, NULL, NULL, bad ? c : NULL, bad ? c : NULL, .training = true, .group = world),
                      bad ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER, "rank 1: shard_batch_norm: weight and bias *");
        shard_module *module = shard_nn_batch_norm(CHANNELS, .group = world);
        check_refused(shard_nn_batch_norm_relu(module, bad ? shard_reshape(x, SHARD_SHAPE(5)) : x, NULL),
                      bad ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER, "rank 1: shard_reshape: *");
        ck_assert_double_eq(shard_item(shard_module_tensor(module, "num_batches_tracked")), 0.0);
        shard_module_destroy(module);
        shard_tensor *y = shard_batch_norm(x, NULL, NULL, NULL, NULL, .training = true, .group = world);
        if (bad)
            shard_copy_from_host(x, (float[4 * CHANNELS]){0}, sizeof(float[4 * CHANNELS]));
        ck_assert_int_ne(shard_backward_from(y, y), SHARD_OK);
        check_error(bad ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: backward of batch_norm: *written to*");
    }
}

START_TEST(fails_together)
{
    run_ranks(3, fails_with_the_others);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sync_batch_norm");
    TCase *tcase = test_case(suite, "sync_batch_norm");
    add_ranks_test(tcase, is_the_whole_batch_norm);
    add_ranks_test(tcase, needs_no_common_running_mean);
    add_ranks_test(tcase, wants_two_rows_in_all);
    tcase_add_test(tcase, fails_together);
    return test_run(suite);
}
