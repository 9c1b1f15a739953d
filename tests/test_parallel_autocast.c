/* Autocast over ranks: split layers, collectives and data parallel training give what one
 * process gives in the same types, but for roundings that are said. */
#include "support/job.h"
#include "support/options.h"
#include "support/zero.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 12, IN = 14, OUT = 19 };

static const shard_dtype modes[] = {SHARD_BFLOAT16, SHARD_FLOAT16};

/* The relative error of one rounding. */
static double unit(shard_dtype mode)
{
    return mode == SHARD_BFLOAT16 ? 0x1p-8 : 0x1p-11;
}

static shard_tensor *labels_from(int64_t start, int64_t rows)
{
    int64_t labels[ROWS];
    for (int64_t i = 0; i < rows; i++)
        labels[i] = (start + i) * 7 % OUT;
    return shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
}

/* ---- split layers ---- */

/* The layer's result and, if it is split over classes, its loss; else its sum. */
static shard_tensor *run(shard_module *layer, shard_tensor *x, shard_tensor **y, bool classifies)
{
    *y = shard_forward(layer, x);
    shard_tensor *w = made_up(SHARD_SHAPE(ROWS, OUT), 4, SHARD_FLOAT32);
    shard_tensor *loss = classifies ? shard_cross_entropy(*y, labels_from(0, ROWS)) : shard_sum(shard_mul(*y, w));
    ck_assert_msg(loss != NULL, "%s", shard_last_error());
    ck_assert_int_eq(shard_tensor_dtype(loss), SHARD_FLOAT32);
    check_ok(shard_backward(loss));
    return loss;
}

static void check_layer(shard_group *group, shard_split split, shard_dtype mode, bool through_relu)
{
    double rounding = unit(mode) * (split == SHARD_SPLIT_ROW ? shard_group_size(group) + 2 : 2);
    shard_manual_seed(5);
    shard_module *whole = shard_nn_linear(IN, OUT);
    shard_manual_seed(5);
    shard_module *parallel = shard_nn_parallel_linear(IN, OUT, split, group);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(ROWS, IN), 1, SHARD_FLOAT32);
        shard_tensor *own_x = made_up_leaf(SHARD_SHAPE(ROWS, IN), 1, SHARD_FLOAT32);
        shard_tensor *y = NULL, *own_y = NULL, *loss = NULL, *own_loss = NULL;
        bool classifies = split == SHARD_SPLIT_COLUMN;
        SHARD_AUTOCAST(mode)
        {
            loss = run(whole, through_relu ? shard_relu(shard_cast(x, mode)) : x, &y, classifies);
            own_loss = run(parallel, through_relu ? shard_relu(shard_cast(own_x, mode)) : own_x, &own_y, classifies);
        }
        ck_assert_int_eq(shard_tensor_dtype(own_y), mode);
        double *values = values_of(y);
        check_part(own_y, values, rounding);
        check_close(own_loss, loss, rounding * (classifies ? 0.125 : 8)); /* a mean over rows, and its small gradients */
        check_close(shard_grad(own_x), shard_grad(x), rounding * (classifies ? 0.125 : 1));
        free(values);
        shard_tensors *one = shard_parameters(whole), *other = shard_parameters(parallel);
        for (int64_t i = 0; i < shard_tensors_count(one); i++) {
            ck_assert_int_eq(shard_tensor_dtype(shard_grad(shard_tensors_at(other, i))), SHARD_FLOAT32);
            values = values_of(shard_grad(shard_tensors_at(one, i)));
            /* The same 16-bit gradient of y is summed in float32 to the bias', as in one layer. */
            bool sums_alike = split == SHARD_SPLIT_ROW && shard_tensors_find(other, "bias") == shard_tensors_at(other, i);
            check_part(shard_grad(shard_tensors_at(other, i)), values, sums_alike ? 1e-6 : rounding);
            free(values);
        }
        shard_tensors_destroy(one);
        shard_tensors_destroy(other);
    }
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
}

static void layers(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    for (int m = 0; m < 2; m++)
        for (int relu = 0; relu < 2; relu++) {
            check_layer(shard_mesh_model_group(mesh), SHARD_SPLIT_COLUMN, modes[m], relu);
            check_layer(shard_mesh_model_group(mesh), SHARD_SPLIT_ROW, modes[m], relu);
        }
    shard_mesh_destroy(mesh);
}

START_TEST(split_layers)
{
    run_job(_i, layers, NULL);
}
END_TEST

/* ---- collectives ---- */

/* Members' 16-bit summands are added in more bits and rounded once: 1 + (n - 1) / 256 of
 * bfloat16, whose every single addition would leave 1. */
static void rounds_once(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(3), rank == 0 ? 1.0 : 0x1p-8, .dtype = SHARD_BFLOAT16, .requires_grad = true);
        shard_tensor *y = shard_reduce_from_group(x, world);
        double exact = 1 + (size - 1) * 0x1p-8, step = 0x1p-7, *values = values_of(y);
        ck_assert_int_eq(shard_tensor_dtype(y), SHARD_BFLOAT16);
        ck_assert_double_eq(values[1], nearbyint(exact / step) * step);
        free(values);
        check_ok(shard_backward(shard_sum(y)));
        ck_assert_int_eq(shard_tensor_dtype(shard_grad(x)), SHARD_BFLOAT16);
    }
}

START_TEST(sums_round_once)
{
    run_job(rank_counts[_i], rounds_once, NULL);
}
END_TEST

/* ---- data parallel, with a split head ---- */

typedef struct mesh_case {
    int data, model;
    shard_split split;
} mesh_case;

static shard_module *make_model(shard_group *group, shard_split split)
{
    shard_manual_seed(3);
    return shard_nn_sequential(shard_nn_linear(IN, 16), shard_nn_gelu(), shard_nn_layer_norm(16, 1e-5), shard_nn_linear(16, 16),
                               shard_nn_relu(), shard_nn_parallel_linear(16, OUT, split, group));
}

static shard_tensor *loss_of(shard_module *model, shard_tensor *x, shard_tensor *labels, shard_group *group)
{
    int last = shard_module_child_count(model) - 1;
    for (int i = 0; i < last; i++)
        x = shard_forward(shard_module_child_at(model, i), x);
    ck_assert_int_eq(shard_tensor_dtype(x), shard_autocast_dtype());
    x = shard_forward(shard_module_child_at(model, last), shard_gather_from_group(x, 0, group));
    return shard_cross_entropy(x, shard_gather_from_group(labels, 0, group));
}

/* Two micro-batches of the rows [start, start + rows), the mean over both. */
static void accumulate(shard_module *model, shard_data_parallel *dp, shard_range rows, shard_group *group, shard_dtype mode)
{
    for (int part = 0; part < 2; part++)
        SHARD_SCOPE
        {
            shard_tensor *all = made_up(SHARD_SHAPE(2 * ROWS, IN), 9, SHARD_FLOAT32), *loss = NULL;
            SHARD_AUTOCAST(mode)
                loss = shard_scale(loss_of(model, shard_narrow(all, 0, part * ROWS + rows.start, rows.size),
                                           labels_from(part * ROWS + rows.start, rows.size), group),
                                   0.5);
            if (dp)
                shard_data_parallel_set_sync(dp, part == 1);
            check_ok(shard_backward(loss));
        }
}

static void equals_one_process(shard_group *world, void *context)
{
    const mesh_case *c = context;
    for (int m = 0; m < 2; m++) {
        shard_module *whole = make_model(NULL, SHARD_SPLIT_NONE);
        accumulate(whole, NULL, (shard_range){0, ROWS}, NULL, modes[m]);
        shard_mesh *mesh = shard_mesh_create(.model = c->model);
        shard_group *group = shard_mesh_model_group(mesh);
        shard_module *model = make_model(group, c->split);
        shard_tensors *one = shard_parameters(whole), *other = shard_parameters(model);
        shard_data_parallel *dp = shard_data_parallel_create(other);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        accumulate(model, dp, shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world)), group, modes[m]);
        /* Without a split layer the same 16-bit values go into the same float32 sums. */
        double tolerance = c->model == 1 ? 1e-6 : 2 * unit(modes[m]);
        for (int64_t i = 0; i < shard_tensors_count(one); i++) {
            double *values = values_of(shard_grad(shard_tensors_at(one, i)));
            check_part_at(__FILE__, __LINE__, shard_tensors_name(one, i), shard_grad(shard_tensors_at(other, i)), values,
                          tolerance);
            free(values);
        }
        shard_tensors_destroy(one);
        shard_tensors_destroy(other);
        shard_data_parallel_destroy(dp);
        shard_module_destroy(whole);
        shard_module_destroy(model);
        shard_mesh_destroy(mesh);
    }
}

static mesh_case meshes[] = {{2, 1, SHARD_SPLIT_NONE},
                             {4, 1, SHARD_SPLIT_NONE},
                             {2, 2, SHARD_SPLIT_COLUMN},
                             {2, 2, SHARD_SPLIT_ROW},
                             {1, 3, SHARD_SPLIT_COLUMN}};

START_TEST(data_parallel)
{
    mesh_case *c = &meshes[_i];
    run_job(c->data * c->model, equals_one_process, c);
}
END_TEST

/* ---- under shard_zero_optimizer ---- */

enum { LAYERS = 6, SIDE = 64 };

static shard_module *make_layers(void)
{
    shard_module *layer[LAYERS];
    shard_manual_seed(4);
    for (int i = 0; i < LAYERS; i++)
        layer[i] = shard_nn_linear(SIDE, SIDE, .bias = i % 2 == 0);
    return shard_nn_sequential_of(LAYERS, layer);
}

/* A step; returns what the forward has left in memory. */
static int64_t step_layers(shard_module *model, shard_optimizer *sgd, int rank)
{
    int64_t kept = 0;
    SHARD_SCOPE SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        shard_tensor *x = made_up(SHARD_SHAPE(2, SIDE), (uint64_t)rank, SHARD_FLOAT32);
        int64_t before = shard_get_memory_stats(shard_tensor_device(x)).current;
        shard_tensor *y = shard_forward(model, x);
        kept = shard_get_memory_stats(shard_tensor_device(x)).current - before;
        check_ok(shard_backward(shard_sum(shard_mul(y, y))));
        check_ok(shard_step(sgd)); /* copies of old values are of no use in the next one */
        check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        check_ok(shard_step(sgd));
    }
    return kept;
}

/* Steps and forwards in one stretch of autocast see the new values, also a rank that has no part of a bucket; and stage 3 keeps
 * no 16-bit copies of the values that it frees. */
static const zero_way shared_ways[] = {{.stage = 3, .bucket_mib = 1e-6},
                                       {.stage = 1, .bucket_mib = 1e-6, .partition = SHARD_ZERO_WHOLE},
                                       {.stage = 2, .bucket_mib = 1e-6, .partition = SHARD_ZERO_WHOLE}};
enum { SHARED_WAYS = sizeof shared_ways / sizeof *shared_ways };

static void shares_values_out(shard_group *world, void *context)
{
    const zero_way *way = context;
    shard_module *one = make_layers(), *other = make_layers();
    shard_tensors *a = shard_parameters(one), *b = shard_parameters(other);
    shard_data_parallel *dp = shard_data_parallel_create(a);
    shard_optimizer *alone = sgd_of_list(shard_parameters(one), .lr = 0.01),
                    *shared = sgd_of_list(shard_parameters(other), .lr = 0.01);
    ck_assert_msg(dp && zero_with(shared, *way), "%s", shard_last_error());
    for (int step = 0; step < 3; step++) {
        int64_t layer = SIDE * SIDE * 4, whole = step_layers(one, alone, shard_group_rank(world)),
                kept = step_layers(other, shared, shard_group_rank(world));
        ck_assert_msg(way->stage < 3 || kept <= whole - LAYERS * layer / 2 + layer + 1024,
                      "the forward leaves %lld bytes, and %lld without shard_zero_optimizer", (long long)kept, (long long)whole);
        for (int64_t i = 0; i < shard_tensors_count(a); i++)
            check_close(shard_tensors_at(b, i), shard_tensors_at(a, i), 1e-6);
    }
    shard_tensors_destroy(a);
    shard_tensors_destroy(b);
    shard_optimizer_destroy(alone);
    shard_optimizer_destroy(shared);
    shard_data_parallel_destroy(dp);
    shard_module_destroy(one);
    shard_module_destroy(other);
}

START_TEST(values_shared_out)
{
    run_job(2 + _i % 2, shares_values_out, (void *)&shared_ways[_i / 2]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_autocast");
    TCase *tcase = test_case(suite, "parallel_autocast");
    tcase_add_loop_test(tcase, split_layers, 1, 5);
    add_ranks_test(tcase, sums_round_once);
    tcase_add_loop_test(tcase, data_parallel, 0, sizeof meshes / sizeof *meshes);
    tcase_add_loop_test(tcase, values_shared_out, 0, 2 * SHARED_WAYS);
    return test_run(suite);
}
