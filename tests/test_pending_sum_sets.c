/*
 * The sets of groups over which a gradient has pending sums (autograd/pending_sums.h): how they
 * are joined, what a program that splits by hand says of them, what their sums cost, and
 * which are refused. tests/test_pending_sums.c has the steps that they make right.
 */
#include "support/job.h"

#include "autograd/pending_sums.h"

#include <stdlib.h>

enum { FEATURES = 5, WIDE = 7, CLASSES = 11, ROWS = 25 };

/* Layers: IN is whole, the others are split over the model group. */
enum { IN, COLUMN, ROW, HEAD };

static shard_module *make_layers(shard_group *model)
{
    shard_module *layers =
        shard_nn_sequential(shard_nn_linear(FEATURES, FEATURES, .dtype = SHARD_FLOAT64),
                            shard_nn_parallel_linear(FEATURES, WIDE, SHARD_SPLIT_COLUMN, model, .dtype = SHARD_FLOAT64),
                            shard_nn_parallel_linear(WIDE, FEATURES, SHARD_SPLIT_ROW, model, .dtype = SHARD_FLOAT64),
                            shard_nn_parallel_linear(FEATURES, CLASSES, SHARD_SPLIT_COLUMN, model, .dtype = SHARD_FLOAT64));
    ck_assert_msg(layers != NULL, "%s", shard_last_error());
    return layers;
}

static shard_tensor *layer(shard_module *layers, int which, shard_tensor *x)
{
    return shard_forward(shard_module_child_at(layers, which), x);
}

/* ---- sets of groups ---- */

START_TEST(test_sets)
{
    /* A mesh of five axes of two, as rank 0 sees it, and groups beside it. */
    shard_group axis[5], all = {.size = 4, .world_ranks = (int[]){0, 1, 2, 3}}, again;
    int ranks[5][2];
    for (int i = 0; i < 5; i++) {
        ranks[i][0] = 0;
        ranks[i][1] = 1 << i;
        axis[i] = (shard_group){.size = 2, .world_ranks = ranks[i]};
    }
    again = axis[1];
    shard_pending_sums set = {0}, other = {0};
    for (int i = 0; i < SHARD_PENDING_GROUPS; i++)
        check_ok(shard_pending_sums_add(&set, &axis[i]));
    check_ok(shard_pending_sums_add(&set, &again));
    ck_assert_int_eq(set.count, SHARD_PENDING_GROUPS);
    ck_assert(shard_pending_sums_has(&set, &again));
    ck_assert(!shard_pending_sums_has(&set, &axis[4]));
    check_fails(shard_pending_sums_add(&set, &axis[4]), SHARD_ERROR_UNSUPPORTED, "*more than 4 groups*");
    check_fails(shard_pending_sums_add(&set, &all), SHARD_ERROR_UNSUPPORTED,
                "*2 ranks and of 4 ranks are combined, and 2 ranks are in both groups*");
    ck_assert_int_eq(shard_pending_sums_ranks(&set, NULL), 16);
    ck_assert_int_eq(shard_pending_sums_ranks(&set, &all), 4);
    ck_assert(!shard_pending_sums_equal(&set, &other));
    check_ok(shard_pending_sums_join(&other, &set));
    ck_assert(shard_pending_sums_equal(&set, &other));
    shard_pending_sums_remove(&set, &all);
    ck_assert_int_eq(set.count, 2);
    ck_assert(shard_pending_sums_has(&set, &axis[2]) && shard_pending_sums_has(&set, &axis[3]));
    ck_assert(!shard_pending_sums_equal(&set, &other));
}
END_TEST

/* ---- parts by hand ---- */

/* A program's own columns of a layer, which no tensor says are some of a whole: the model
 * group has no replicas of them, only the data group, which may be this rank alone. */
static void sums_own_parts(shard_group *world, void *context)
{
    (void)world;
    int model = *(const int *)context / 2;
    shard_mesh *mesh = shard_mesh_create(.model = model);
    shard_group *data = shard_mesh_data_group(mesh), *across = shard_mesh_model_group(mesh);
    shard_range rows = shard_split_range(ROWS, shard_group_size(data), shard_group_rank(data));
    shard_range columns = shard_split_range(FEATURES, model, shard_group_rank(across));
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 1, SHARD_FLOAT64);
        shard_tensor *w = made_up_leaf(SHARD_SHAPE(FEATURES, FEATURES), 2, SHARD_FLOAT64);
        check_ok(shard_backward(shard_mean(shard_gelu(shard_linear(x, w, NULL)))));
        shard_tensor *part = shard_narrow(shard_detach(w), 0, columns.start, columns.size);
        double *values = values_of(part);
        shard_tensor *own = shard_from_host(values, shard_tensor_shape(part), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor_set_replica_group(own, data);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "own", own));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        for (int turn = 1; turn <= 2; turn++) {
            shard_tensor *y = shard_copy_to_group(shard_narrow(x, 0, rows.start, rows.size), across);
            y = shard_gather_from_group(shard_gelu(shard_linear(y, own, NULL)), -1, across);
            check_ok(shard_backward(shard_mean(shard_gather_from_group(y, 0, data))));
            shard_tensor *wanted = shard_scale(shard_narrow(shard_grad(w), 0, columns.start, columns.size), turn);
            check_close(shard_grad(own), wanted, 1e-12);
        }
        shard_optimizer *sgd = shard_sgd(list, .lr = 0.5);
        double *gradient = values_of(shard_grad(own));
        check_ok(shard_step(sgd));
        for (int64_t i = 0; i < shard_numel(own); i++)
            values[i] -= 0.5 * gradient[i];
        check_part(own, values, 1e-12);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
        free(values);
        free(gradient);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_sums_own_parts)
{
    int data = _i % 2 + 1, model = _i / 2;
    run_job(data * model, sums_own_parts, &_i);
}
END_TEST

/* ---- what it costs ---- */

static const shard_transport *real;
static int reductions, scattered;

static shard_status count_sums(shard_group *group, const shard_collective *call, shard_request **request)
{
    reductions += call->kind == SHARD_COLLECTIVE_ALL_REDUCE;
    scattered += call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
    return call->kind == SHARD_COLLECTIVE_EXCHANGE ? real->post(group, call, request) : SHARD_OK;
}

/* Features gathered over both groups before a split head: their gradient is summed once,
 * by a reduce-scatter over the group that splits the head. */
static void sums_once(shard_group *world, void *context)
{
    shard_set_default_device(shard_device_open("cpu")); /* where the groups' own collectives can be counted */
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *groups[] = {shard_mesh_model_group(mesh), shard_mesh_data_group(mesh)};
    int first = *(const int *)context;
    shard_module *layers = make_layers(groups[0]);
    SHARD_SCOPE
    {
        /* More rows than go with what the members tell each other before a collective. */
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)shard_group_rank(world), SHARD_FLOAT64);
        shard_tensor *labels = shard_full(SHARD_SHAPE(ROWS), 3, .dtype = SHARD_INT64);
        x = shard_gather_from_group(shard_gather_from_group(shard_gelu(layer(layers, IN, x)), 0, groups[first]), 0,
                                    groups[1 - first]);
        labels = shard_gather_from_group(shard_gather_from_group(labels, 0, groups[first]), 0, groups[1 - first]);
        shard_tensor *loss = shard_cross_entropy(layer(layers, HEAD, x), labels);
        uint64_t calls[] = {groups[0]->sequence, groups[1]->sequence, world->sequence};
        shard_transport counting = *(real = groups[0]->transport);
        counting.post = count_sums;
        groups[0]->transport = &counting;
        check_ok(shard_backward(loss));
        groups[0]->transport = real;
        ck_assert_int_eq(reductions, 0);
        ck_assert_int_eq(scattered, 1);
        ck_assert_uint_eq(groups[0]->sequence, calls[0] + 1);
        ck_assert_uint_eq(groups[1]->sequence, calls[1]);
        ck_assert_uint_eq(world->sequence, calls[2]);
    }
    shard_module_destroy(layers);
    shard_mesh_destroy(mesh);
}

START_TEST(test_sums_once)
{
    run_job(4, sums_once, &_i);
}
END_TEST

/* ---- what is refused ---- */

static shard_tensor *own_loss(shard_tensor *x, shard_group *group)
{
    return shard_sum(shard_gather_from_group(x, 0, group));
}

/* Groups that share some ranks of a group, but not all. */
static void refuses_groups(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh), *data = shard_mesh_data_group(mesh);
    shard_module *layers = make_layers(model);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(2, FEATURES), 1, SHARD_FLOAT64);
        /* What comes out of split layers, gathered over more ranks than they are split over. */
        shard_tensor *split = layer(layers, ROW, shard_gelu(layer(layers, COLUMN, x)));
        check_fails(shard_backward(own_loss(split, world)), SHARD_ERROR_UNSUPPORTED,
                    "*reduce: rows or summands of 4 ranks and of 2 ranks are combined, and 2 ranks are in both groups;*");
        check_fails(shard_backward(own_loss(shard_gather_from_group(layer(layers, IN, x), 0, model), world)),
                    SHARD_ERROR_UNSUPPORTED, "*gather: rows or summands of 4 ranks and of 2 ranks are combined*");
        check_fails(shard_backward(own_loss(shard_copy_to_group(layer(layers, IN, x), data), world)), SHARD_ERROR_UNSUPPORTED,
                    "*rows or summands of 4 ranks*");
        /* A copy over more ranks than a layer is split over, whose gradient is no pending sum. */
        shard_tensor *copied = shard_gelu(shard_copy_to_group(layer(layers, IN, x), world));
        check_fails(shard_backward(shard_sum(shard_gather_from_group(layer(layers, COLUMN, copied), -1, model))),
                    SHARD_ERROR_UNSUPPORTED,
                    "backward of copy: a copy over 4 ranks before gather over 2 ranks, of which 2 are in both groups; *");
        /* Two uses of one leaf. */
        shard_tensor *leaf = made_up_leaf(SHARD_SHAPE(2, FEATURES), 1, SHARD_FLOAT64);
        check_fails(shard_backward(shard_add(own_loss(leaf, world), own_loss(leaf, data))), SHARD_ERROR_UNSUPPORTED,
                    "*rows or summands of *");
        /* A parameter that only some of the ranks have whose rows were gathered. */
        shard_tensor *weight = made_up_leaf(SHARD_SHAPE(FEATURES, FEATURES), 2, SHARD_FLOAT64);
        shard_tensor_set_replica_group(weight, data);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", weight));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        check_fails(shard_backward(own_loss(shard_linear(x, weight, NULL), world)), SHARD_ERROR_UNSUPPORTED,
                    "*data parallel: the gradient of a parameter of shape [[]5, 5] is to be summed over ranks of which some, *");
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
    shard_module_destroy(layers);
    shard_mesh_destroy(mesh);
}

START_TEST(test_refuses_groups)
{
    run_job(4, refuses_groups, NULL);
}
END_TEST

/* The gradient that a program gives of a split tensor is of its part, said or not. */
static void begins_anywhere(shard_group *world, void *context)
{
    (void)context;
    shard_range rows = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE
    {
        shard_tensor *all = made_up(SHARD_SHAPE(ROWS, FEATURES), 1, SHARD_FLOAT64);
        shard_tensor *dy = made_up(SHARD_SHAPE(ROWS, FEATURES), 3, SHARD_FLOAT64);
        shard_tensor *w = made_up_leaf(SHARD_SHAPE(FEATURES, FEATURES), 2, SHARD_FLOAT64);
        check_ok(shard_backward_from(shard_linear(all, w, NULL), dy));
        shard_tensor *own_w = made_up_leaf(SHARD_SHAPE(FEATURES, FEATURES), 2, SHARD_FLOAT64);
        shard_tensor *x = shard_as_split(shard_narrow(all, 0, rows.start, rows.size), 0, world, rows.start, ROWS);
        shard_tensor *own_dy = shard_narrow(dy, 0, rows.start, rows.size);
        check_ok(shard_backward_from(shard_linear(x, own_w, NULL), own_dy));
        ck_assert_int_eq(shard_grad(own_w)->pending.count, 1);
        check_ok(shard_all_reduce(shard_grad(own_w), SHARD_SUM, world));
        check_close(shard_grad(own_w), shard_grad(w), 1e-12);
        ck_assert_int_eq(shard_grad(own_w)->pending.count, 0);
        check_fails(shard_backward_from(shard_linear(x, own_w, NULL), shard_as_split(own_dy, 1, world, 0, FEATURES)),
                    SHARD_ERROR_UNSUPPORTED,
                    "*shard_backward_from: a gradient that is split along 1 for a tensor that is split along 0*");
        check_fails(shard_backward_from(shard_linear(all, own_w, NULL), shard_as_split(dy, 0, world, 0, ROWS)),
                    SHARD_ERROR_UNSUPPORTED, "*a gradient that is split along 0 for a tensor that is local*");
    }
}

START_TEST(test_begins_anywhere)
{
    run_job(3, begins_anywhere, NULL);
}
END_TEST

/* What the backward of one record leaves in a leaf goes into the record before it. */
static void goes_on(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *w = made_up_leaf(SHARD_SHAPE(FEATURES, FEATURES), 2, SHARD_FLOAT64);
        shard_tensor *y = shard_linear(made_up(SHARD_SHAPE(2, FEATURES), 1, SHARD_FLOAT64), w, NULL), *middle = shard_detach(y);
        shard_set_requires_grad(middle, true);
        check_ok(shard_backward(own_loss(middle, world)));
        check_ok(shard_backward_from(y, shard_grad(middle)));
        ck_assert_int_eq(shard_grad(w)->pending.count, 1);
        ck_assert_ptr_eq(shard_grad(w)->pending.group[0], world);
        shard_zero_grad(w);
        ck_assert_int_eq(w->leaf->grad->pending.count, 0);
        /* Two leaves of one gradient. */
        shard_tensor *a = made_up_leaf(SHARD_SHAPE(2), 3, SHARD_FLOAT64), *b = made_up_leaf(SHARD_SHAPE(2), 4, SHARD_FLOAT64);
        check_ok(shard_backward(own_loss(shard_add(a, b), world)));
        ck_assert_int_eq(shard_grad(a)->pending.count, 1);
        ck_assert_int_eq(shard_grad(b)->pending.count, 1);
    }
}

START_TEST(test_goes_on)
{
    run_job(3, goes_on, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pending_sum_sets");
    TCase *tcase = test_case(suite, "pending_sum_sets");
    tcase_add_test(tcase, test_sets);
    tcase_add_loop_test(tcase, test_sums_own_parts, 2, 8); /* a mesh of _i % 2 + 1 times _i / 2 ranks */
    tcase_add_test(tcase, test_begins_anywhere);
    tcase_add_test(tcase, test_goes_on);
    tcase_add_loop_test(tcase, test_sums_once, 0, 2);
    tcase_add_test(tcase, test_refuses_groups);
    return test_run(suite);
}
