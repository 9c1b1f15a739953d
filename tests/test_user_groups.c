/*
 * Groups that a program makes for itself: shard_group_create, shard_group_split. Who is in them, what each
 * collective does over them, training on them as on a mesh, and the ranks' mistakes.
 */
#include "support/collectives.h"
#include "support/host.h"
#include "support/job.h"

#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sum_order order(void)
{
    shard_device *device = shard_default_device();
    return device && device->ops->host_memory ? RANK_ORDER : ANY_ORDER;
}

static void check_collectives(shard_group *group)
{
    check_ok(shard_barrier(group));
    check_ok(shard_agree(group));
    check_sizes(group, 1001, order());
    check_all_reduce_start(group, order());
    check_exchange(group);
}

/* The public collectives: each rank brings its rank of the world. */
static void check_tensors(shard_group *group)
{
    int size = shard_group_size(group), rank = shard_group_rank(group);
    double sum = 0;
    for (int i = 0; i < size; i++)
        sum += shard_group_world_rank(group, i);
    SHARD_SCOPE
    {
        double mine = shard_group_world_rank(group, rank);
        shard_tensor *x = shard_full(SHARD_SHAPE(2), mine);
        ck_assert_double_eq(value_at(shard_reduce_from_group(x, group), 1), sum);
        shard_tensor *all = shard_gather_from_group(x, 0, group);
        ck_assert_int_eq(shard_tensor_size(all, 0), 2 * size);
        for (int i = 0; i < size; i++)
            ck_assert_double_eq(value_at(all, 2 * i + 1), shard_group_world_rank(group, i));
        ck_assert_double_eq(value_at(shard_scatter_to_group(all, 0, group), 0), mine);
        ck_assert_double_eq(value_at(shard_copy_to_group(all, group), 0), shard_group_world_rank(group, 0));
        check_ok(shard_broadcast(x, size - 1, group));
        ck_assert_double_eq(value_at(x, 0), shard_group_world_rank(group, size - 1));
        double largest = 0;
        for (int i = 0; i < size; i++)
            largest = fmax(largest, shard_group_world_rank(group, i));
        x = shard_full(SHARD_SHAPE(2), mine);
        check_ok(shard_all_reduce(x, SHARD_MAX, group));
        ck_assert_double_eq(value_at(x, 1), largest);
    }
}

/* Ranks 0 and 2 of four, in any order; and both at once with a group of the others. */
static void creates(shard_group *world, void *context)
{
    (void)context;
    static const int even[] = {2, 0}, odd[] = {1, 3};
    int rank = shard_group_rank(world);
    shard_group *evens = shard_group_create(world, even, 2), *odds = shard_group_create(world, odd, 2);
    check_ok(shard_last_status());
    ck_assert_int_eq(evens != NULL, rank % 2 == 0);
    ck_assert_int_eq(odds != NULL, rank % 2 == 1);
    shard_group *mine = evens ? evens : odds;
    ck_assert_int_eq(shard_group_size(mine), 2);
    ck_assert_int_eq(shard_group_rank(mine), rank / 2);
    ck_assert_int_eq(shard_group_world_rank(mine, 1), 2 + rank % 2);
    ck_assert_str_eq(shard_group_transport(mine), shard_group_transport(world));
    check_collectives(mine);
    check_tensors(mine);
    /* a group of a group, of one rank, and of all */
    shard_group *last = shard_group_create(mine, (const int[]){1}, 1),
                *all = shard_group_create(world, (const int[]){3, 1, 0, 2}, 4);
    ck_assert_int_eq(last != NULL, rank >= 2);
    if (last) {
        ck_assert_int_eq(shard_group_size(last), 1);
        ck_assert_int_eq(shard_group_world_rank(last, 0), rank);
        check_tensors(last);
    }
    ck_assert_int_eq(shard_group_rank(all), rank);
    check_tensors(all);
    shard_group_destroy(last);
    shard_group_destroy(all);
    shard_group_destroy(evens);
    shard_group_destroy(odds);
    shard_group_destroy(NULL);
    check_ok(shard_barrier(world));
}

START_TEST(test_create)
{
    run_job(4, creates, NULL);
}
END_TEST

/* Three ranks, one rank, and one without a group. */
static void splits(shard_group *world, void *context)
{
    (void)context;
    static const int colors[] = {7, 0, 7, -1, 7}, ranks[] = {0, 0, 1, 0, 2}, sizes[] = {3, 1, 3, 1, 3};
    int rank = shard_group_rank(world);
    shard_group *group = shard_group_split(world, colors[rank]);
    check_ok(shard_last_status());
    ck_assert_int_eq(group != NULL, colors[rank] >= 0);
    ck_assert_int_eq(shard_group_size(group), sizes[rank]);
    ck_assert_int_eq(shard_group_rank(group), ranks[rank]);
    if (group) {
        check_collectives(group);
        check_tensors(group);
    }
    shard_group_destroy(group);
}

START_TEST(test_split)
{
    run_job(5, splits, NULL);
}
END_TEST

/* ---- training ---- */

enum { IN = 5, OUT = 7, ROWS = 3, STEPS = 3 };

/* Three steps of a layer that is split over the model groups, averaged over the data groups; its local weight. */
static double *train(shard_group *model, int data_rank, int *count)
{
    double *weights = NULL;
    shard_manual_seed(3);
    shard_module *layer = shard_nn_parallel_linear(IN, OUT, SHARD_SPLIT_COLUMN, model, .dtype = SHARD_FLOAT64);
    shard_tensors *parameters = shard_parameters(layer);
    shard_data_parallel *parallel = shard_data_parallel_create(parameters);
    shard_optimizer *sgd = shard_sgd(layer, .lr = 0.1, .momentum = 0.9);
    ck_assert_msg(parallel && sgd, "%s", shard_last_error());
    for (int step = 0; step < STEPS; step++)
        SHARD_SCOPE
        {
            int64_t labels[ROWS] = {(step + data_rank) % OUT, 1, 6};
            shard_tensor *x = made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)(10 * step + data_rank), SHARD_FLOAT64);
            shard_tensor *loss = shard_parallel_cross_entropy(shard_forward(layer, x),
                                                              shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64));
            check_ok(shard_backward(loss));
            check_ok(shard_step(sgd));
        }
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_tensors_find(parameters, "weight");
        *count = (int)shard_numel(weight);
        weights = values_of(weight);
    }
    shard_tensors_destroy(parameters);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(parallel);
    shard_module_destroy(layer);
    return weights;
}

/* On groups of its own as on a mesh of 2 x 2, to the bit; without replicas each model group trains for itself. */
static void trains(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), count = 0;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    double *wanted = train(shard_mesh_model_group(mesh), rank / 2, &count);
    shard_group *model = shard_group_split(world, rank / 2), *data = shard_group_split(world, rank % 2);
    double *lone = train(model, rank / 2, &count);
    check_ok(shard_group_set_replicas(model, data));
    double *weights = train(model, rank / 2, &count);
    ck_assert_int_eq(memcmp(weights, wanted, (size_t)count * sizeof *weights), 0);
    ck_assert_int_ne(memcmp(lone, wanted, (size_t)count * sizeof *weights), 0);
    free(lone);
    free(weights);
    free(wanted);
    shard_group_destroy(data);
    shard_group_destroy(model);
    shard_mesh_destroy(mesh);
}

START_TEST(test_trains)
{
    run_job(4, trains, NULL);
}
END_TEST

/* Ranks 0 and 2 of three have more than one rank in common with the world, and are not the world. */
static void refuses_overlaps(shard_group *world, void *context)
{
    (void)context;
    shard_group *pair = shard_group_create(world, (const int[]){0, 2}, 2);
    check_ok(shard_last_status());
    if (pair) {
        check_fails(shard_group_set_replicas(pair, world), SHARD_ERROR_ARGUMENT,
                    "shard_group_set_replicas: the groups have 2 ranks in common*");
        check_ok(shard_group_set_replicas(pair, NULL));
    }
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(2), 1, SHARD_FLOAT64);
        shard_tensor *inner = pair ? shard_reduce_from_group(x, pair) : x;
        shard_tensor *loss = shard_sum(shard_reduce_from_group(inner, world));
        ck_assert_int_eq(shard_backward(loss) == SHARD_OK, pair == NULL);
        shard_agree(world);
        ck_assert_msg(strstr(shard_last_error(), "in common"), "%s", shard_last_error());
        shard_clear_error();
    }
    shard_group_destroy(pair);
}

START_TEST(test_overlaps)
{
    run_job(3, refuses_overlaps, NULL);
}
END_TEST

/* ---- mistakes ---- */

static void differ(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    ck_assert_ptr_null(shard_group_create(world, (const int[]){0, rank == 1 ? 1 : 2}, 2));
    check_error(SHARD_ERROR_MISMATCH, "rank 1 calls shard_group_create *0, 1 while *0, 2");
    ck_assert_ptr_null(rank == 2 ? shard_group_split(world, 0) : shard_group_create(world, (const int[]){0}, 1));
    check_error(SHARD_ERROR_MISMATCH, "rank 2 calls shard_group_split while ranks 0 and 1 call shard_group_create*");
    static const struct {
        int ranks[2], count;
        const char *error;
    } wrong[] = {
        {{0, 3}, 2, "*rank 3 in a list for a parent of 3 ranks*"},
        {{-1, 0}, 2, "*rank -1 in a list*"},
        {{1, 1}, 2, "*rank 1 is twice in the list"},
        {{0, 1}, 0, "*a list of 0 ranks*"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool mine = rank == 0;
        shard_group *group =
            mine ? shard_group_create(world, wrong[i].ranks, wrong[i].count) : shard_group_create(world, (const int[]){0, 1}, 2);
        ck_assert_ptr_null(group);
        check_error(mine ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, wrong[i].error);
    }
    ck_assert_ptr_null(shard_group_split(world, rank == 0 ? -2 : -1));
    check_error(rank == 0 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "*color -2; colors are 0 or more, -1 for no group");
    shard_error(SHARD_ERROR_SHAPE, "an earlier error");
    ck_assert_ptr_null(shard_group_split(world, 0));
    check_error(SHARD_ERROR_SHAPE, "*an earlier error");
    check_ok(shard_barrier(world));
}

START_TEST(test_differ)
{
    run_job(3, differ, NULL);
}
END_TEST

static void refuses_to_destroy(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group_destroy(world);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_destroy: *world*");
    shard_group_destroy(shard_mesh_model_group(mesh));
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_destroy: *mesh's*");
    check_ok(shard_barrier(shard_mesh_model_group(mesh)));
    check_fails(shard_group_set_replicas(shard_mesh_model_group(mesh), NULL), SHARD_ERROR_ARGUMENT, "*the group is a mesh's*");
    shard_mesh_destroy(mesh);
}

START_TEST(test_owned_groups)
{
    run_job(4, refuses_to_destroy, NULL);
}
END_TEST

/* A group that outlives its job can be destroyed, and nothing else. */
static void outlives(shard_group *none, void *context)
{
    (void)none, (void)context;
    check_ok(shard_init(NULL, NULL));
    shard_group *world = shard_world(), *pair = shard_group_create(world, (const int[]){0, 1}, 2);
    check_tensors(pair);
    ck_assert_int_eq(shard_finalize(), 0);
    check_fails(shard_barrier(pair), SHARD_ERROR_ARGUMENT, "*after shard_finalize*");
    ck_assert_ptr_null(shard_group_create(pair, (const int[]){0, 1}, 2));
    check_error(SHARD_ERROR_ARGUMENT, "*after shard_finalize*");
    ck_assert_ptr_null(shard_group_split(pair, 0));
    check_error(SHARD_ERROR_ARGUMENT, "*after shard_finalize*");
    shard_group_destroy(pair);
    check_ok(shard_last_status());
}

START_TEST(test_outlives)
{
    run_ranks(2, outlives, .bare = true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("user_groups");
    TCase *tcase = test_case(suite, "user_groups");
    tcase_add_test(tcase, test_create);
    tcase_add_test(tcase, test_split);
    tcase_add_test(tcase, test_trains);
    tcase_add_test(tcase, test_overlaps);
    tcase_add_test(tcase, test_differ);
    tcase_add_test(tcase, test_owned_groups);
    tcase_add_test(tcase, test_outlives);
    return test_run(suite);
}
