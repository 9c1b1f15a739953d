/*
 * Data parallel: gradients equal those of one process on the whole batch, for any mesh
 * of data x model parallel groups.
 */
#include "support/host.h"
#include "support/job.h"

#include "comm/comm.h"
#include "tensor/tensor.h"
#include "support/options.h"

#include <stdlib.h>
#include <time.h>

enum { FEATURES = 6, HIDDEN = 7, CLASSES = 11, ROWS = 24 };

typedef struct run_case {
    int data, model;
    shard_split split;
    double bucket_mib;
} run_case;

static shard_tensor *the_labels(int64_t start, int64_t rows)
{
    int64_t labels[ROWS];
    for (int64_t i = 0; i < rows; i++)
        labels[i] = (start + i) * 5 % CLASSES;
    return shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
}

static shard_module *make_model(shard_group *group, shard_split split)
{
    shard_manual_seed(3);
    shard_module *model = shard_nn_sequential(
        shard_nn_linear(FEATURES, HIDDEN, .dtype = SHARD_FLOAT64), shard_nn_gelu(),
        shard_nn_linear(HIDDEN, HIDDEN, .dtype = SHARD_FLOAT64), shard_nn_relu(),
        shard_nn_parallel_linear(HIDDEN, CLASSES, split, group, .dtype = SHARD_FLOAT64));
    ck_assert_msg(model != NULL, "%s", shard_last_error());
    return model;
}

/* All layers but the last, then a gather over the model group, then the last. */
static shard_tensor *loss_of(shard_module *model, shard_tensor *x, shard_tensor *labels, shard_group *group)
{
    int last = shard_module_child_count(model) - 1;
    for (int i = 0; i < last; i++)
        x = shard_forward(shard_module_child_at(model, i), x);
    x = shard_forward(shard_module_child_at(model, last), shard_gather_from_group(x, 0, group));
    return shard_parallel_cross_entropy(x, shard_gather_from_group(labels, 0, group), .label_smoothing = 0.1);
}

/* The gradients of one process on the whole batch, by parameter. */
static shard_tensors *whole_gradients(void)
{
    shard_module *model = make_model(NULL, SHARD_SPLIT_NONE);
    shard_tensors *gradients = shard_tensors_create();
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 9, SHARD_FLOAT64);
        check_ok(shard_backward(loss_of(model, x, the_labels(0, ROWS), NULL)));
    }
    shard_tensors *parameters = shard_parameters(model);
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
        check_ok(shard_tensors_add(gradients, shard_tensors_name(parameters, i), shard_grad(shard_tensors_at(parameters, i))));
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
    return gradients;
}

static void check_gradients(const shard_tensors *parameters, const shard_tensors *gradients, double tolerance)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        double *whole = values_of(shard_tensors_at(gradients, i));
        check_part_at(__FILE__, __LINE__, shard_tensors_name(parameters, i), shard_grad(parameter), whole, tolerance);
        free(whole);
    }
}

static void equals_one_process(shard_group *world, void *context)
{
    const run_case *c = context;
    shard_tensors *gradients = whole_gradients();
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model = make_model(group, c->split);
    shard_tensors *parameters = shard_parameters(model);
    shard_data_parallel *dp = shard_data_parallel_create(parameters, .bucket_mib = c->bucket_mib);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_range mine = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    for (int turn = 0; turn < 2; turn++) { /* buffers and buckets work a second time */
        SHARD_SCOPE
        {
            shard_tensor *all = made_up(SHARD_SHAPE(ROWS, FEATURES), 9, SHARD_FLOAT64);
            shard_tensor *x = shard_narrow(all, 0, mine.start, mine.size);
            shard_tensor *loss = loss_of(model, x, the_labels(mine.start, mine.size), group);
            check_ok(shard_backward(loss));
            check_gradients(parameters, gradients, 1e-14);
        }
        for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
            shard_zero_grad(shard_tensors_at(parameters, i));
    }
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(gradients);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

static run_case cases[] = {
    {1, 1, SHARD_SPLIT_NONE, 0},     {2, 1, SHARD_SPLIT_NONE, 0},     {4, 1, SHARD_SPLIT_NONE, 1e-6}, {3, 1, SHARD_SPLIT_NONE, 2e-4},
    {1, 2, SHARD_SPLIT_NONE, 0},     {1, 2, SHARD_SPLIT_COLUMN, 0},   {1, 4, SHARD_SPLIT_COLUMN, 0},  {1, 2, SHARD_SPLIT_ROW, 0},
    {1, 3, SHARD_SPLIT_ROW, 1e-6},   {2, 2, SHARD_SPLIT_NONE, 0},     {2, 2, SHARD_SPLIT_COLUMN, 0},  {2, 2, SHARD_SPLIT_ROW, 1e-6},
    {2, 4, SHARD_SPLIT_COLUMN, 0},   {4, 2, SHARD_SPLIT_COLUMN, 1e-6}, {4, 2, SHARD_SPLIT_ROW, 0},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

START_TEST(test_gradients)
{
    run_job(cases[_i].data * cases[_i].model, equals_one_process, &cases[_i]);
}
END_TEST

/* Initial values that differ become the first rank's, of what is frozen too; that gets no
 * gradient, and a parameter that the backward does not reach counts as zeros. */
static void begins_alike(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(5), rank + 1.0, .requires_grad = true);
        shard_tensor *unused = shard_full(SHARD_SHAPE(3), 1.0, .requires_grad = true);
        shard_tensor *frozen = shard_full(SHARD_SHAPE(2), rank + 7.0);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        check_ok(shard_tensors_add(list, "unused", unused));
        check_ok(shard_tensors_add(list, "frozen", frozen));
        check_ok(shard_tensors_add(list, "a, tied", a));
        shard_data_parallel *dp = shard_data_parallel_create(list, .bucket_mib = 1e-6);
        ck_assert_ptr_nonnull(dp);
        ck_assert_double_eq(value_at(a, 4), 1.0);
        ck_assert_double_eq(value_at(frozen, 0), 7.0);
        check_ok(shard_backward(shard_sum(shard_scale(a, rank))));
        ck_assert_double_eq_tol(value_at(shard_grad(a), 2), (size - 1) / 2.0, 1e-6);
        if (size > 1)
            ck_assert_double_eq(value_at(shard_grad(unused), 1), 0.0);
        ck_assert_ptr_null(shard_grad(frozen));
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_begins_alike)
{
    run_job(rank_counts[_i], begins_alike, NULL);
}
END_TEST

/* Two backwards without and one with synchronization: the average of the sums. */
static void accumulates(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_data_parallel_set_sync(dp, false);
        check_ok(shard_backward(shard_sum(shard_scale(a, rank))));
        check_ok(shard_backward(shard_sum(shard_scale(a, 2 * rank))));
        ck_assert_double_eq_tol(value_at(shard_grad(a), 2), 3 * rank, 1e-6);
        shard_data_parallel_set_sync(dp, true);
        check_ok(shard_backward(shard_sum(shard_scale(a, 3 * rank))));
        ck_assert_double_eq_tol(value_at(shard_grad(a), 2), 6 * (size - 1) / 2.0, 1e-5);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_accumulates)
{
    run_job(rank_counts[_i], accumulates, NULL);
}
END_TEST

/* Parts of one parameter over the world, of no mesh: each is its rank's own. */
static void leaves_parts_alone(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *part = shard_as_split(shard_full(SHARD_SHAPE(2), rank + 1.0), 0, world, 2 * rank, 2 * size);
        shard_set_requires_grad(part, true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "part", part));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        ck_assert_double_eq(value_at(part, 1), rank + 1.0);
        check_ok(shard_backward(shard_reduce_from_group(shard_sum(shard_scale(part, rank + 1.0)), world)));
        ck_assert_double_eq(value_at(shard_grad(part), 1), rank + 1.0);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_leaves_parts_alone)
{
    run_job(rank_counts[_i], leaves_parts_alone, NULL);
}
END_TEST

/* A part that has no elements: its buffers are counted and given back like any. */
static void takes_empty_parts(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh);
    shard_range part = shard_split_range(1, 2, shard_group_rank(model));
    int64_t before = shard_get_memory_stats(shard_device_open(NULL)).current;
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_as_split(shard_ones(SHARD_SHAPE(part.size, 3)), 0, model, part.start, 1);
        shard_set_requires_grad(weight, true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", weight));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        check_ok(shard_backward(shard_reduce_from_group(shard_sum(weight), model)));
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
    ck_assert_int_eq(shard_get_memory_stats(shard_device_open(NULL)).current, before);
    shard_mesh_destroy(mesh);
}

START_TEST(test_takes_empty_parts)
{
    run_job(4, takes_empty_parts, NULL);
}
END_TEST

/* One rank's call is refused, the first parameter's replicas are not the world: the groups go on with a correct call. */
static void goes_on_after_a_refusal(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh);
    SHARD_SCOPE
    {
        shard_tensor *split = shard_as_split(shard_ones(SHARD_SHAPE(1, 3)), 0, model, shard_group_rank(model), 2);
        shard_tensor *whole = shard_ones(SHARD_SHAPE(3));
        shard_tensors *list = shard_tensors_create();
        shard_set_requires_grad(split, true);
        shard_set_requires_grad(whole, true);
        check_ok(shard_tensors_add(list, "split", split));
        check_ok(shard_tensors_add(list, "whole", whole));
        ck_assert_ptr_null(shard_data_parallel_create(list, .buffer_mode = shard_group_rank(world) == 0 ? 9 : 0));
        check_joint_error(SHARD_ERROR_ARGUMENT, "*buffer_mode 9 is none of*");
        shard_data_parallel *dp = shard_data_parallel_create(list);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        check_ok(shard_backward(shard_reduce_from_group(shard_sum(shard_mul(split, whole)), model)));
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_goes_on_after_a_refusal)
{
    run_job(4, goes_on_after_a_refusal, NULL);
}
END_TEST

/* Parts of which one rank's fill a bucket and the other's do not: all cut theirs alike. */
static void cuts_alike(shard_group *world, void *context)
{
    (void)context;
    enum { WHOLE = 5, WIDTH = 20, SHARE = WHOLE * WIDTH / 2 };
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh);
    shard_range part = shard_split_range(WHOLE, 2, shard_group_rank(model));
    SHARD_SCOPE
    {
        for (int more = 0; more < 2; more++) {
            shard_tensor *weight[2];
            shard_tensors *list = shard_tensors_create();
            for (int i = 0; i < 2; i++) {
                weight[i] = shard_as_split(shard_ones(SHARD_SHAPE(part.size, WIDTH)), 0, model, part.start, WHOLE);
                shard_set_requires_grad(weight[i], true);
                check_ok(shard_tensors_add(list, i ? "b.weight" : "a.weight", weight[i]));
            }
            double mib = (double)(SHARE * sizeof(float) + (size_t)more) / 1048576;
            shard_data_parallel *dp = shard_data_parallel_create(list, .bucket_mib = mib);
            bool together = weight[0]->storage == weight[1]->storage, all[4];
            check_ok(shard_group_exchange(world, &together, sizeof together, all));
            for (int i = 0; i < 4; i++)
                ck_assert(all[i] == (more == 1));
            shard_data_parallel_destroy(dp);
            shard_tensors_destroy(list);
        }
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_cuts_alike)
{
    run_job(4, cuts_alike, NULL);
}
END_TEST

/* Two losses, each with an optimizer of its own, whose forwards are both run before the first
 * step: parameters are one beside the other, and each one's writes are its own. */
static void steps_one_of_two(shard_group *world, void *context)
{
    (void)world, (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p[2];
        shard_optimizer *sgd[2];
        shard_tensors *both = shard_tensors_create();
        for (int i = 0; i < 2; i++) {
            p[i] = shard_full(SHARD_SHAPE(5), i + 1.0, .requires_grad = true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[i]));
            check_ok(shard_tensors_add(both, i ? "q" : "p", p[i]));
            sgd[i] = sgd_of_list(list, .lr = 0.25);
        }
        shard_data_parallel *dp = shard_data_parallel_create(both);
        ck_assert_ptr_eq(p[0]->storage, p[1]->storage);
        shard_tensor *loss[2], *stale = shard_sum(shard_mul(shard_detach(p[1]), p[0]));
        for (int i = 0; i < 2; i++)
            loss[i] = shard_sum(shard_mul(p[i], p[i]));
        for (int i = 0; i < 2; i++) {
            check_ok(shard_backward(loss[i]));
            check_ok(shard_step(sgd[i]));
            ck_assert_double_eq(value_at(p[i], 3), (i + 1.0) / 2);
        }
        shard_backward(stale); /* a view's writes are those of what it is of */
        check_error(SHARD_ERROR_ARGUMENT, "*backward of mul: *was written to after the forward*");
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(both);
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(sgd[i]);
    }
}

START_TEST(test_two_losses)
{
    run_job(1 + _i, steps_one_of_two, NULL);
}
END_TEST

/* One rank's backward fails: all ranks get the same error, and no parameter moves. */
static void fails_jointly(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        shard_tensor *loss = shard_sum(rank == 1 ? shard_matmul(a, NULL) : a);
        shard_backward(loss);
        shard_step(sgd);
        check_joint_error(SHARD_ERROR_ARGUMENT, "*rank 1: shard_matmul: *NULL*");
        ck_assert_double_eq(value_at(a, 0), 1.0);
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_fails_jointly)
{
    run_job(3, fails_jointly, NULL);
}
END_TEST

/* One rank has failed before the loss, and nothing tells it the group of the logits that it
 * has not: those that wait for it there do not wait for the deadline. */
static void fails_before_the_loss(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_module *model = make_model(shard_mesh_model_group(mesh), SHARD_SPLIT_COLUMN);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 1.0);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(3, FEATURES + (rank == 1)), 1, SHARD_FLOAT64);
        shard_backward(shard_cross_entropy(shard_forward(model, x), the_labels(0, 3)));
        shard_step(sgd);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    check_joint_error(SHARD_ERROR_SHAPE, "rank 1: shard_linear: *");
    ck_assert_int_lt(end.tv_sec - start.tv_sec, 5);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

START_TEST(test_fails_before_the_loss)
{
    run_job(4, fails_before_the_loss, NULL);
}
END_TEST

typedef struct recovery {
    int stage, fails; /* the step */
    int model;        /* the ranks of the mesh's model group; 0: no mesh */
} recovery;

/* One rank fails in a step. If that is the very first one, it has not compared the replicas; the next step of all ranks does. */
static void goes_on_after_an_error(shard_group *world, void *context)
{
    const recovery *way = context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = way->model ? shard_mesh_create(.model = way->model) : NULL;
    shard_module *model = make_model(shard_mesh_model_group(mesh), SHARD_SPLIT_COLUMN);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
    shard_data_parallel *dp = shard_data_parallel_create(model, .stage = way->stage, .bucket_mib = 1e-6);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    for (int step = 0; step < 3; step++) {
        bool fails = step == way->fails;
        SHARD_SCOPE
        {
            shard_shape shape = SHARD_SHAPE(1, FEATURES + (fails && rank == 2));
            shard_tensor *x = made_up(shape, way->model > 1 ? 0 : (uint64_t)rank, SHARD_FLOAT64);
            shard_backward(shard_cross_entropy(shard_forward(model, x), the_labels(3, 1)));
            ck_assert_msg((shard_step(sgd) == SHARD_OK) == !fails, "step %d: %s", step, shard_last_error());
        }
        if (fails) {
            check_error(rank == 2 ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER, "rank 2: shard_linear: *");
            shard_optimizer_zero_grad(sgd);
        }
    }
    shard_tensors *list = shard_parameters(model);
    check_ok(shard_check_replicas(list));
    shard_tensors_destroy(list);
    shard_data_parallel_destroy(dp);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

START_TEST(test_goes_on_after_an_error)
{
    static const int models[] = {0, 1, 3};
    run_job(3, goes_on_after_an_error, &(recovery){.stage = _i % 4, .fails = _i / 4 % 2, .model = models[_i / 8]});
}
END_TEST

/* A module stands for the list of its parameters. */
static void takes_a_module(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    shard_module *model = shard_nn_linear(1, 1, .bias = false, .dtype = SHARD_FLOAT64);
    shard_data_parallel *dp = shard_data_parallel_create(model, .bucket_mib = 1e-6);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(1, 1), rank + 1.0, .dtype = SHARD_FLOAT64);
        check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        ck_assert_double_eq_tol(shard_item(shard_grad(shard_module_tensor(model, "weight"))), (size + 1) / 2.0, 1e-14);
    }
    shard_data_parallel_destroy(dp);
    shard_module_destroy(model);
    shard_module *none = NULL;
    ck_assert_ptr_null(shard_data_parallel_create(none));
    shard_clear_error();
}

START_TEST(test_takes_a_module)
{
    run_job(rank_counts[_i], takes_a_module, NULL);
}
END_TEST

static void refuses_a_mode(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_tensors *none = shard_tensors_create();
    ck_assert_ptr_null(shard_data_parallel_create(none, .buffer_mode = (shard_buffer_mode)77));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_data_parallel_create: buffer_mode 77 is none of *");
    shard_tensors_destroy(none);
}

START_TEST(test_refuses_a_mode)
{
    run_job(2, refuses_a_mode, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("data_parallel");
    TCase *tcase = test_case(suite, "data_parallel");
    tcase_add_loop_test(tcase, test_gradients, 0, CASES);
    add_ranks_test(tcase, test_begins_alike);
    add_ranks_test(tcase, test_accumulates);
    add_ranks_test(tcase, test_leaves_parts_alone);
    tcase_add_test(tcase, test_takes_empty_parts);
    tcase_add_test(tcase, test_goes_on_after_a_refusal);
    tcase_add_test(tcase, test_cuts_alike);
    tcase_add_loop_test(tcase, test_two_losses, 1, 3);
    tcase_add_test(tcase, test_fails_jointly);
    tcase_add_test(tcase, test_fails_before_the_loss);
    tcase_add_loop_test(tcase, test_goes_on_after_an_error, 0, 24);
    add_ranks_test(tcase, test_takes_a_module);
    tcase_add_test(tcase, test_refuses_a_mode);
    return test_run(suite);
}
