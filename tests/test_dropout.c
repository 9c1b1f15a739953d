/* dropout. */
#include "support/gradcheck.h"
#include "support/job.h"

#include <shard/shard.h>

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
    {"dropout of all", dropout, &(double){1}, 1, {SHARD_SHAPE(5, 3)}, .constant = 1},
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
        double *values = values_of(shard_dropout(shard_ones(SHARD_SHAPE(n)), 0.3));
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
        double *first = values_of(shard_dropout(x, 0.5)), *second = values_of(shard_dropout(x, 0.5));
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
        double *expected = values_of(whole), *values = values_of(y);
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

/* ---- samples of one batch on several ranks ---- */

static shard_tensor *drop_samples(shard_shape whole, shard_range range, shard_group *group)
{
    whole.dim[0] = range.size;
    shard_manual_seed(5);
    return shard_dropout(shard_ones(whole, .dtype = SHARD_FLOAT64), 0.5, .group = group);
}

/* Uneven numbers of samples, and none on some ranks. */
static void drops_batch(shard_group *world, void *context)
{
    (void)context;
    const shard_shape shapes[] = {SHARD_SHAPE(11, 3, 5), SHARD_SHAPE(1, 7), SHARD_SHAPE(9), SHARD_SHAPE(0, 4)};
    for (int i = 0; i < 4; i++)
        SHARD_SCOPE {
            shard_range mine = shard_split_range(shapes[i].dim[0], shard_group_size(world), shard_group_rank(world));
            shard_tensor *whole = drop_samples(shapes[i], (shard_range){0, shapes[i].dim[0]}, NULL);
            check_close(drop_samples(shapes[i], mine, world), shard_narrow(whole, 0, mine.start, mine.size), 0);
        }
}

/* A layer whose features are split over one group has its samples on another. */
static void drops_columns_of_batch(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", shard_group_size(world) / 2}, {"model", 2}});
    shard_group *data = shard_mesh_group(mesh, "data"), *model = shard_mesh_group(mesh, "model");
    SHARD_SCOPE {
        shard_range rows = shard_split_range(5, shard_group_size(data), shard_group_rank(data));
        shard_range columns = shard_split_range(7, 2, shard_group_rank(model));
        shard_tensor *whole = drop_samples(SHARD_SHAPE(5, 7), (shard_range){0, 5}, NULL);
        shard_tensor *x = shard_ones(SHARD_SHAPE(rows.size, columns.size), .dtype = SHARD_FLOAT64);
        shard_manual_seed(5);
        shard_tensor *y = shard_dropout(shard_as_split(x, 1, model, columns.start, 7), 0.5, .group = data);
        whole = shard_narrow(shard_narrow(whole, 0, rows.start, rows.size), 1, columns.start, columns.size);
        check_close(shard_as_placed(y, (shard_placement){0}), whole, 0);
    }
    shard_mesh_destroy(mesh);
}

static void refuses_batch(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 3));
        check_refused(shard_dropout(shard_as_split(x, 0, world, 2 * rank, 4), 0.5, .group = world), SHARD_ERROR_ARGUMENT,
                      "*shard_dropout: .group with an x that is split along 0*");
        check_refused(shard_dropout(rank ? x : NULL, 0.5, .group = world), rank ? SHARD_ERROR_PEER : SHARD_ERROR_ARGUMENT,
                      "*shard_dropout*NULL*");
        check_refused(shard_dropout(x, rank ? 0.5 : 0.25, .group = world), SHARD_ERROR_MISMATCH, "*shard_dropout*p 0.25*");
        shard_manual_seed(3 + (uint64_t)rank);
        check_refused(shard_dropout(x, 0.5, .group = world), SHARD_ERROR_MISMATCH, "*shard_dropout*seed 3, draw 0*");
        shard_manual_seed(3);
        check_refused(shard_dropout(shard_ones(SHARD_SHAPE(2, 3 + rank)), 0.5, .group = world), SHARD_ERROR_MISMATCH,
                      "*shard_dropout*samples of [[]3]*");
    }
}

START_TEST(batches)
{
    run_job(rank_counts[_i], drops_batch, NULL);
}
END_TEST

START_TEST(batches_of_columns)
{
    run_job(4, drops_columns_of_batch, NULL);
}
END_TEST

START_TEST(refuses_batches)
{
    run_job(2, refuses_batch, NULL);
}
END_TEST

enum { SAMPLES = 10, FEATURES = 6, HIDDEN = 8, CLASSES = 5, STEPS = 4 };

/* The losses of the whole batch, of which this rank has a range. group NULL: it has all of it, and trains alone. */
static void train(shard_group *group, double *losses)
{
    shard_manual_seed(1);
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN, .dtype = SHARD_FLOAT64), shard_nn_relu(),
                                              shard_nn_dropout(0.5), shard_nn_linear(HIDDEN, CLASSES, .dtype = SHARD_FLOAT64));
    shard_nn_sync_dropout(model, group);
    shard_data_parallel *data_parallel = group ? shard_data_parallel_create(model) : NULL;
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.3);
    int64_t classes[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        classes[i] = i % CLASSES;
    shard_range mine = shard_split_range(SAMPLES, shard_group_size(group), shard_group_rank(group));
    for (int step = 0; step < STEPS; step++)
        SHARD_SCOPE {
            shard_tensor *x = shard_normal(SHARD_SHAPE(SAMPLES, FEATURES), 0.0, 1.0, .dtype = SHARD_FLOAT64);
            shard_tensor *labels = shard_from_host(classes, SHARD_SHAPE(SAMPLES), .dtype = SHARD_INT64);
            shard_tensor *logits = shard_forward(model, shard_narrow(x, 0, mine.start, mine.size));
            shard_tensor *loss = shard_cross_entropy(logits, shard_narrow(labels, 0, mine.start, mine.size),
                                                     .reduction = SHARD_REDUCTION_SUM);
            check_ok(shard_backward(shard_scale(loss, (double)shard_group_size(group) / SAMPLES)));
            check_ok(shard_step(sgd));
            check_ok(shard_all_reduce(loss, SHARD_SUM, group));
            losses[step] = shard_item(loss) / SAMPLES;
        }
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
}

static void trains_as_one(shard_group *world, void *context)
{
    (void)context;
    double alone[STEPS], together[STEPS];
    train(NULL, alone);
    train(world, together);
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(fabs(alone[i] - together[i]) < 1e-12, "step %d: %.17g, alone %.17g", i, together[i], alone[i]);
}

START_TEST(trains)
{
    run_job(rank_counts[_i], trains_as_one, NULL);
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
    add_ranks_test(tcase, batches);
    tcase_add_test(tcase, batches_of_columns);
    tcase_add_test(tcase, refuses_batches);
    add_ranks_test(tcase, trains);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, splits_in_the_middle);
    return test_run(suite);
}
