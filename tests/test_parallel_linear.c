/* Parallel linear layers and the conversion into them, against the whole layer. */
#include "support/job.h"
#include "support/scratch.h"
#include "support/options.h"

#include <stdlib.h>

typedef struct layer_case {
    int ranks;
    shard_split split;
    int64_t in, out;
    bool bias;
} layer_case;

/* Results, and gradients of input and parameters, of a module for made-up x and dy. */
static void run_both(shard_module *whole, shard_module *parallel, int64_t rows, int64_t in, int64_t out, shard_group *group)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(2, rows, in), 1, SHARD_FLOAT64);
        shard_tensor *own_x = made_up_leaf(SHARD_SHAPE(2, rows, in), 1, SHARD_FLOAT64);
        shard_tensor *w = made_up(SHARD_SHAPE(2, rows, out), 2, SHARD_FLOAT64);
        shard_tensor *y = shard_forward(whole, x), *own_y = shard_forward(parallel, own_x);
        double *all = values_of(y);
        check_part(own_y, all, 1e-14);
        if (shard_tensor_placement(own_y).kind == SHARD_SPLIT)
            own_y = shard_gather_from_group(own_y, -1, group);
        check_ok(shard_backward(shard_sum(shard_mul(y, w))));
        check_ok(shard_backward(shard_sum(shard_mul(own_y, w))));
        check_close(shard_grad(own_x), shard_grad(x), 1e-13);
        free(all);
    }
    shard_tensors *one = shard_parameters(whole), *other = shard_parameters(parallel);
    ck_assert_int_eq(shard_tensors_count(one), shard_tensors_count(other));
    for (int64_t i = 0; i < shard_tensors_count(one); i++) {
        double *values = values_of(shard_tensors_at(one, i)), *gradient = values_of(shard_grad(shard_tensors_at(one, i)));
        check_part(shard_tensors_at(other, i), values, 0);
        check_part(shard_grad(shard_tensors_at(other, i)), gradient, 1e-13);
        free(values);
        free(gradient);
    }
    shard_tensors_destroy(one);
    shard_tensors_destroy(other);
}

static void equals_whole(shard_group *world, void *context)
{
    const layer_case *c = context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_manual_seed(5);
    shard_module *whole = shard_nn_linear(c->in, c->out, .bias = c->bias, .dtype = SHARD_FLOAT64);
    shard_manual_seed(5);
    shard_module *parallel = shard_nn_parallel_linear(c->in, c->out, c->split, group, .bias = c->bias, .dtype = SHARD_FLOAT64);
    run_both(whole, parallel, 3, c->in, c->out, group);
    shard_tensors *parameters = shard_parameters(parallel);
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *p = shard_tensors_at(parameters, i);
        ck_assert_ptr_null(shard_tensor_replica_group(p));
    }
    shard_tensors_destroy(parameters);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_mesh_destroy(mesh);
}

static layer_case layers[] = {
    {1, SHARD_SPLIT_ROW, 4, 3, true},     {1, SHARD_SPLIT_COLUMN, 4, 3, true},   {2, SHARD_SPLIT_NONE, 4, 3, true},
    {2, SHARD_SPLIT_ROW, 4, 6, true},     {2, SHARD_SPLIT_COLUMN, 4, 6, true},   {2, SHARD_SPLIT_ROW, 5, 3, false},
    {2, SHARD_SPLIT_COLUMN, 4, 7, false}, {3, SHARD_SPLIT_ROW, 7, 5, true},      {3, SHARD_SPLIT_COLUMN, 7, 5, true},
    {4, SHARD_SPLIT_ROW, 9, 10, true},    {4, SHARD_SPLIT_COLUMN, 9, 10, true},  {8, SHARD_SPLIT_ROW, 13, 17, true},
    {8, SHARD_SPLIT_COLUMN, 13, 17, true}, {4, SHARD_SPLIT_ROW, 3, 2, true},     {4, SHARD_SPLIT_COLUMN, 3, 2, true},
};

START_TEST(test_layers)
{
    run_job(layers[_i].ranks, equals_whole, &layers[_i]);
}
END_TEST

/* COLUMN into ROW: the part between them is split, and nothing moves. */
static void chains(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_manual_seed(5);
    shard_module *whole = shard_nn_sequential(shard_nn_linear(6, 11, .dtype = SHARD_FLOAT64), shard_nn_gelu(),
                                              shard_nn_linear(11, 4, .dtype = SHARD_FLOAT64));
    shard_manual_seed(5);
    shard_module *parallel =
        shard_nn_sequential(shard_nn_parallel_linear(6, 11, SHARD_SPLIT_COLUMN, group, .dtype = SHARD_FLOAT64), shard_nn_gelu(),
                            shard_nn_parallel_linear(11, 4, SHARD_SPLIT_ROW, group, .dtype = SHARD_FLOAT64));
    run_both(whole, parallel, 5, 6, 4, group);
    SHARD_SCOPE
    {
        shard_tensor *between = shard_forward(shard_module_child_at(parallel, 0), made_up(SHARD_SHAPE(2, 6), 1, SHARD_FLOAT64));
        shard_placement placement = shard_tensor_placement(between);
        shard_range part = shard_split_range(11, shard_group_size(world), shard_group_rank(world));
        ck_assert_int_eq(shard_tensor_size(between, 1), part.size);
        if (shard_group_size(world) > 1) {
            ck_assert_int_eq(placement.kind, SHARD_SPLIT);
            ck_assert_int_eq(placement.dim, 1);
            ck_assert_int_eq(placement.start, part.start);
            ck_assert_int_eq(placement.whole, 11);
        }
    }
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_mesh_destroy(mesh);
}

START_TEST(test_chain)
{
    run_job(rank_counts[_i], chains, NULL);
}
END_TEST

/* Attention heads that the ranks do not divide: each rank has whole heads, between COLUMN and ROW and for ROW alone. */
enum { HEAD = 4, HEADS = 5 };

static shard_tensor *attend(shard_module *module, shard_tensor *x)
{
    (void)module;
    return shard_reshape(shard_softmax(shard_reshape(x, SHARD_SHAPE(2, 3, -1, HEAD))), shard_tensor_shape(x));
}

/* Split over a group, or whole. */
static shard_module *make_attention(shard_group *group)
{
    static const shard_module_type type = {.name = "heads", .forward = attend};
    shard_split out = group ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_NONE, in = group ? SHARD_SPLIT_ROW : SHARD_SPLIT_NONE;
    shard_manual_seed(5);
    return shard_nn_sequential(
        shard_nn_parallel_linear(6, HEADS * HEAD, out, group, .dtype = SHARD_FLOAT64, .split_multiple = HEAD),
        shard_module_create(&type, NULL),
        shard_nn_parallel_linear(HEADS * HEAD, 6, in, group, .dtype = SHARD_FLOAT64, .split_multiple = HEAD));
}

static void splits_whole_heads(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *whole = make_attention(NULL), *parallel = make_attention(group);
    run_both(whole, parallel, 3, 6, 6, group);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_manual_seed(5);
    whole = shard_nn_linear(HEADS * HEAD, 6, .dtype = SHARD_FLOAT64);
    shard_manual_seed(5);
    parallel =
        shard_nn_parallel_linear(HEADS * HEAD, 6, SHARD_SPLIT_ROW, group, .dtype = SHARD_FLOAT64, .split_multiple = HEAD);
    run_both(whole, parallel, 3, HEADS * HEAD, 6, group);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    ck_assert_ptr_null(shard_nn_parallel_linear(6, 10, SHARD_SPLIT_COLUMN, group, .split_multiple = 4));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_linear: *split_multiple*");
    ck_assert_ptr_null(shard_nn_linear(8, 16, .split_multiple = -3));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_linear: *split_multiple -3");
    ck_assert_ptr_null(shard_nn_linear(8, 16, .split_multiple = 3));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_linear: *split_multiple 3");
    shard_mesh_destroy(mesh);
}

/* A conversion keeps whole heads, too. */
static void converts_whole_heads(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world), rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = size);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *whole = make_attention(NULL), *parallel = make_attention(NULL);
    check_ok(shard_convert_parallel_linear(&parallel, "0", SHARD_SPLIT_COLUMN, group, NULL));
    check_ok(shard_convert_parallel_linear(&parallel, "2", SHARD_SPLIT_ROW, group, NULL));
    int64_t heads = shard_split_range(HEADS, size, rank).size;
    ck_assert_int_eq(shard_tensor_size(shard_module_tensor(shard_module_child(parallel, "0"), "weight"), 0), heads * HEAD);
    ck_assert_int_eq(shard_tensor_size(shard_module_tensor(shard_module_child(parallel, "0"), "bias"), 0), heads * HEAD);
    ck_assert_int_eq(shard_tensor_size(shard_module_tensor(shard_module_child(parallel, "2"), "weight"), 1), heads * HEAD);
    run_both(whole, parallel, 3, 6, 6, group);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_manual_seed(5);
    whole = shard_nn_linear(HEADS * HEAD, 6, .dtype = SHARD_FLOAT64, .split_multiple = HEAD);
    shard_manual_seed(5);
    parallel = shard_nn_linear(HEADS * HEAD, 6, .dtype = SHARD_FLOAT64, .split_multiple = HEAD);
    ck_assert_int_ne(shard_convert_parallel_linear(&parallel, NULL, SHARD_SPLIT_COLUMN, group, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_convert_parallel_linear: 6 features *split_multiple 4*");
    check_ok(shard_convert_parallel_linear(&parallel, NULL, SHARD_SPLIT_ROW, group, NULL));
    run_both(whole, parallel, 3, HEADS * HEAD, 6, group);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_mesh_destroy(mesh);
}

START_TEST(test_heads_of_a_conversion)
{
    run_job(rank_counts[_i], converts_whole_heads, NULL);
}
END_TEST

START_TEST(test_heads)
{
    run_job(rank_counts[_i], splits_whole_heads, NULL);
}
END_TEST

/* ---- conversion ---- */

static shard_module *nested(void)
{
    shard_module *inner = shard_nn_sequential(shard_nn_linear(5, 6, .dtype = SHARD_FLOAT64), shard_nn_relu());
    return shard_nn_sequential(shard_nn_linear(4, 5, .dtype = SHARD_FLOAT64), inner,
                               shard_nn_linear(6, 9, .dtype = SHARD_FLOAT64));
}

typedef struct convert_case {
    shard_split split;
    bool made; /* the layers have values, other ones on each rank */
} convert_case;

static void converts(shard_group *world, void *context)
{
    const convert_case *c = context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_manual_seed(11);
    shard_module *whole = nested();
    shard_manual_seed(11 + (uint64_t)rank); /* rank 0's count */
    shard_module *model = nested();
    if (c->made) {
        shard_tensors *parameters = shard_parameters(model);
        for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
            ck_assert_ptr_nonnull(shard_data(shard_tensors_at(parameters, i)));
        shard_tensors_destroy(parameters);
    }
    int converted = 0;
    check_ok(shard_convert_parallel_linear(&model, NULL, c->split, group, &converted));
    ck_assert_int_eq(converted, 3);
    shard_tensors *expected = shard_parameters(whole), *got = shard_parameters(model);
    for (int64_t i = 0; i < shard_tensors_count(expected); i++) {
        double *values = values_of(shard_tensors_at(expected, i));
        ck_assert_str_eq(shard_tensors_name(got, i), shard_tensors_name(expected, i));
        check_part(shard_tensors_at(got, i), values, 0);
        free(values);
    }
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(3, 4), 1, SHARD_FLOAT64);
        shard_tensor *first = shard_forward(shard_module_child_at(model, 0), x);
        ck_assert_msg(first != NULL, "%s", shard_last_error());
    }
    shard_tensors_destroy(expected);
    shard_tensors_destroy(got);
    shard_module_destroy(whole);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

static convert_case conversions[] = {
    {SHARD_SPLIT_COLUMN, false}, {SHARD_SPLIT_COLUMN, true}, {SHARD_SPLIT_ROW, false}, {SHARD_SPLIT_ROW, true}};

START_TEST(test_conversion)
{
    run_job(rank_counts[_i % RANK_COUNTS], converts, &conversions[_i / RANK_COUNTS]);
}
END_TEST

static void converts_by_name(shard_group *world, void *context)
{
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model = nested();
    int converted = 0;
    check_ok(shard_convert_parallel_linear(&model, "1.*", SHARD_SPLIT_COLUMN, group, &converted));
    ck_assert_int_eq(converted, 1);
    shard_tensors *list = shard_parameters(model);
    ck_assert_int_eq(shard_tensor_placement(shard_tensors_find(list, "0.weight")).kind, SHARD_LOCAL);
    ck_assert_int_eq(shard_tensor_placement(shard_tensors_find(list, "1.0.weight")).kind, SHARD_SPLIT);
    ck_assert_int_eq(shard_tensor_placement(shard_tensors_find(list, "1.0.bias")).kind, SHARD_SPLIT);
    ck_assert_int_eq(shard_convert_parallel_linear(&model, "fc", SHARD_SPLIT_COLUMN, group, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*no linear layer's name matches \"fc\"*");
    shard_module *alone = shard_nn_linear(4, 6); /* the module itself */
    check_ok(shard_convert_parallel_linear(&alone, NULL, SHARD_SPLIT_ROW, group, &converted));
    ck_assert_int_eq(converted, 1);
    ck_assert_int_eq(shard_tensor_placement(shard_module_tensor(alone, "weight")).dim, 1);
    shard_tensors_destroy(list);
    shard_module_destroy(alone);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

START_TEST(test_conversion_by_name)
{
    run_job(3, converts_by_name, NULL);
}
END_TEST

/* A layer that is a child is converted where it is: in its parent. */
static void converts_child(shard_group *world, void *context)
{
    (void)context;
    shard_module *head = shard_nn_linear(4, 6), *outer = shard_nn_sequential(shard_nn_sequential(shard_nn_relu(), head));
    shard_module *model = shard_module_child(outer, "0");
    check_ok(shard_convert_parallel_linear(&head, NULL, SHARD_SPLIT_COLUMN, world, NULL));
    ck_assert_ptr_eq(shard_module_child(model, "1"), head);
    ck_assert_int_eq(shard_tensor_placement(shard_module_tensor(head, "weight")).kind, SHARD_SPLIT);
    SHARD_SCOPE
    {
        shard_tensor *y = shard_forward(outer, made_up(SHARD_SHAPE(2, 4), 1, SHARD_FLOAT32));
        ck_assert_int_eq(shard_tensor_whole_shape(y).dim[1], 6);
    }
    shard_module_destroy(outer);
}

START_TEST(test_conversion_of_a_child)
{
    run_job(2, converts_child, NULL);
}
END_TEST

/* Ranks that do not convert the same; most had no values yet that would not have fitted. */
static void converts_others(shard_group *world, void *context)
{
    (void)context;
    bool odd = shard_group_rank(world) == 1;
    static const char *const texts[] = {
        "*rank 1 converts weight float32 [[]11, 4] (split along 0) of layer \"0\", rank 0 weight float32 [[]10, 4] (split *",
        "*rank 1 converts weight float64 [[]10, 4] (split along 0) of layer \"0\", rank 0 weight float32 [[]10, 4] (split *",
        "*rank 1 converts weight float32 [[]10, 4] (split along 1) of layer \"0\", rank 0 weight float32 [[]10, 4] (split *",
        "*rank 1 converts weight float32 [[]10, 10] (split along 0) of layer \"1\", rank 0 bias float32 [[]10] (split *",
        ("*rank 1 converts weight float32 [[]10, 4] (split along 0 in units of 5) of layer \"0\", rank 0 weight float32 "
         "[[]10, 4] (split along 0) *"),
        "*rank 1 calls shard_convert_parallel_linear while rank 0 calls shard_convert_parallel_linear with other arguments",
    };
    for (int i = 0; i < 6; i++) {
        shard_module *model = shard_nn_sequential(
            shard_nn_linear(4, odd && i == 0 ? 11 : 10, .dtype = odd && i == 1 ? SHARD_FLOAT64 : SHARD_FLOAT32,
                            .bias = !(odd && i == 3), .split_multiple = odd && i == 4 ? 5 : 1),
            shard_nn_linear(10, 10));
        shard_split split = odd && i == 2 ? SHARD_SPLIT_ROW : SHARD_SPLIT_COLUMN;
        ck_assert_int_ne(shard_convert_parallel_linear(&model, odd && i == 5 ? "0" : NULL, split, world, NULL), SHARD_OK);
        check_error(SHARD_ERROR_MISMATCH, texts[i]);
        shard_module_destroy(model);
    }
}

START_TEST(test_conversions_that_differ)
{
    run_job(2, converts_others, NULL);
}
END_TEST

/* After an error on some ranks of a group that is not the world the group can be used again. */
static void converts_others_in_group(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh);
    bool odd = shard_group_rank(model) == 1;
    static const char *const texts[] = {"*", "*no linear layer's name matches \"none\"", "*module*NULL*"};
    for (int i = 0; i < 3; i++) {
        bool shorter = odd && i == 0;
        shard_module *body = shorter ? shard_nn_sequential(shard_nn_linear(4, 10))
                                     : shard_nn_sequential(shard_nn_linear(4, 10), shard_nn_linear(10, 10));
        shard_module *none = NULL, **given = odd && i == 2 ? &none : &body;
        ck_assert_int_ne(shard_convert_parallel_linear(given, odd && i == 1 ? "none" : NULL, SHARD_SPLIT_COLUMN, model, NULL),
                         SHARD_OK);
        check_error(i == 0 ? SHARD_ERROR_MISMATCH : odd ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, texts[i]);
        check_ok(shard_barrier(model));
        shard_module_destroy(body);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_conversions_that_differ_in_a_group)
{
    run_job(4, converts_others_in_group, NULL);
}
END_TEST

/* A fresh layer is split before it has memory: the whole never is anywhere. */
static void never_makes_the_whole(shard_group *world, void *context)
{
    (void)context;
    enum { IN = 64, OUT = 100000 };
    int size = shard_group_size(world);
    shard_mesh *mesh = shard_mesh_create(.model = size);
    shard_device *device = shard_device_open(NULL);
    int64_t before = shard_get_memory_stats(device).peak;
    shard_module *model = shard_nn_sequential(shard_nn_linear(IN, OUT));
    check_ok(shard_convert_parallel_linear(&model, "0", SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh), NULL));
    shard_tensors *list = shard_parameters(model);
    ck_assert_ptr_nonnull(shard_data(shard_tensors_at(list, 0)));
    int64_t own = (OUT / size + 1) * (int64_t)IN * 4;
    ck_assert_int_le(shard_get_memory_stats(device).peak - before, own + 4096);
    shard_tensors_destroy(list);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

START_TEST(test_never_makes_the_whole)
{
    run_job(rank_counts[_i], never_makes_the_whole, NULL);
}
END_TEST

/* A head of fewer classes than ranks: some ranks have no part of it. Trained, saved and loaded as one process's. */
static void small_head(shard_group *world, void *context)
{
    const layer_case *c = context;
    int64_t labels[] = {0, c->out - 1, 0, c->out / 2};
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model[3];
    for (int i = 0; i < 3; i++) {
        shard_manual_seed(5);
        model[i] = shard_nn_sequential(shard_nn_linear(c->in, c->out, .dtype = SHARD_FLOAT64, .bias = c->bias));
        if (i)
            check_ok(shard_convert_parallel_linear(&model[i], NULL, c->split, group, NULL));
    }
    double loss[2];
    int64_t label_rank[2][3][4];
    for (int i = 0; i < 2; i++) {
        shard_optimizer *sgd = sgd_of_list(shard_parameters(model[i]), .lr = 0.5, .momentum = 0.9);
        if (i == 1 && c->ranks == 4) /* partitioned over groups of one rank, and empty */
            sgd = shard_zero_optimizer(sgd, .stage = 2);
        for (int step = 0; step < 3; step++)
            SHARD_SCOPE
            {
                shard_tensor *x = made_up(SHARD_SHAPE(4, c->in), 3, SHARD_FLOAT64);
                shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(4), .dtype = SHARD_INT64);
                shard_tensor *logits = shard_forward(model[i], x), *value = shard_cross_entropy(logits, target);
                shard_tensor *of_labels = shard_label_rank(logits, target, -100);
                check_ok(shard_copy_to_host(of_labels, label_rank[i][step], sizeof label_rank[i][step]));
                ck_assert_int_eq(shard_count_top_k(of_labels, c->out), 4);
                loss[i] = shard_item(value);
                check_ok(shard_backward(value));
                check_ok(shard_clip_grad_norm(sgd, 10, NULL));
                check_ok(shard_step(sgd));
            }
        shard_optimizer_destroy(sgd);
    }
    ck_assert_double_eq_tol(loss[0], loss[1], 1e-13);
    ck_assert_mem_eq(label_rank[0], label_rank[1], sizeof label_rank[0]);
    check_ok(shard_save_module(model[1], scratch_path("head.safetensors")));
    check_ok(shard_load_module(model[2], scratch_path("head.safetensors")));
    shard_tensors *expected = shard_parameters(model[0]), *got = shard_parameters(model[1]), *read = shard_parameters(model[2]);
    shard_tensors *all = shard_collect_state_dict(got, -1);
    for (int64_t i = 0; i < shard_tensors_count(expected); i++) {
        double *values = values_of(shard_tensors_at(expected, i));
        check_part(shard_tensors_at(got, i), values, 1e-13);
        check_part(shard_tensors_at(read, i), values, 1e-13);
        check_part(shard_tensors_at(all, i), values, 1e-13);
        free(values);
    }
    shard_tensors_destroy(expected);
    shard_tensors_destroy(got);
    shard_tensors_destroy(read);
    shard_tensors_destroy(all);
    for (int i = 0; i < 3; i++)
        shard_module_destroy(model[i]);
    shard_mesh_destroy(mesh);
}

static layer_case heads[] = {
    {3, SHARD_SPLIT_COLUMN, 5, 2, true}, {3, SHARD_SPLIT_COLUMN, 5, 1, true}, {3, SHARD_SPLIT_COLUMN, 5, 1, false},
    {3, SHARD_SPLIT_ROW, 2, 5, true},    {3, SHARD_SPLIT_ROW, 1, 2, true},    {3, SHARD_SPLIT_ROW, 1, 1, false},
    {4, SHARD_SPLIT_COLUMN, 5, 2, true}, {4, SHARD_SPLIT_ROW, 1, 2, true},
};

START_TEST(test_small_heads)
{
    run_job(heads[_i].ranks, small_head, &heads[_i]);
}
END_TEST

/* An embedding and a head that share their weight, split along the vocabulary, as one process's. */
static void tied(shard_group *world, void *context)
{
    (void)context;
    enum { COUNT = 8, DIM = 4 };
    int64_t tokens[] = {1, 7, 3, 1, 0};
    shard_module *model[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        shard_manual_seed(5);
        shard_module *embedding =
            shard_nn_parallel_embedding(COUNT, DIM, -1, i ? SHARD_SPLIT_ROW : SHARD_SPLIT_NONE, world, .dtype = SHARD_FLOAT64);
        shard_module *head = shard_nn_parallel_linear(DIM, COUNT, i ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_NONE, world, .bias = false,
                                                      .dtype = SHARD_FLOAT64);
        check_ok(shard_module_set_parameter(head, "weight", shard_module_tensor(embedding, "weight")));
        model[i] = shard_nn_sequential(embedding, head);
        shard_optimizer *sgd = sgd_of_list(shard_parameters(model[i]), .lr = 0.5, .momentum = 0.9);
        for (int step = 0; step < 3; step++)
            SHARD_SCOPE
            {
                shard_tensor *x = shard_from_host(tokens, SHARD_SHAPE(5), .dtype = SHARD_INT64);
                shard_tensor *value = shard_cross_entropy(shard_forward(model[i], x), x);
                loss[i] = shard_item(value);
                check_ok(shard_backward(value));
                check_ok(shard_step(sgd));
            }
        shard_optimizer_destroy(sgd);
    }
    ck_assert_double_eq_tol(loss[0], loss[1], 1e-13);
    double *values = values_of(shard_module_tensor(shard_module_child_at(model[0], 0), "weight"));
    check_part(shard_module_tensor(shard_module_child_at(model[1], 1), "weight"), values, 1e-13);
    free(values);

    /* A conversion makes a new weight for the head: the embedding would keep the whole one. */
    shard_module *plain = shard_nn_sequential(shard_nn_embedding(COUNT, DIM, -1, .dtype = SHARD_FLOAT64),
                                              shard_nn_linear(DIM, COUNT, .bias = false, .dtype = SHARD_FLOAT64));
    const char *path = scratch_path("not_tied.safetensors");
    check_ok(shard_save_module(plain, path));
    ck_assert_int_eq(shard_load_module(model[0], path), SHARD_ERROR_SHAPE);
    check_error(SHARD_ERROR_SHAPE, "*\"0.weight\" and \"1.weight\" are one tensor here, and differ in the file");
    check_ok(shard_module_set_parameter(plain, "1.weight", shard_module_tensor(plain, "0.weight")));
    ck_assert_int_ne(shard_convert_parallel_linear(&plain, "1", SHARD_SPLIT_COLUMN, world, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_convert_parallel_linear: \"1\" shares its weight with \"0.weight\"*");
    SHARD_SCOPE
    {
        shard_tensor *own = shard_full(SHARD_SHAPE(COUNT, DIM), 1, .dtype = SHARD_FLOAT64);
        check_ok(shard_module_set_parameter(plain, "1.weight", own));
    }
    check_ok(shard_convert_parallel_linear(&plain, "1", SHARD_SPLIT_COLUMN, world, NULL));
    shard_module *biased = shard_nn_sequential(shard_nn_linear(DIM, COUNT), shard_nn_linear(COUNT, COUNT));
    check_ok(shard_module_set_parameter(biased, "1.bias", shard_module_tensor(biased, "0.bias")));
    ck_assert_int_ne(shard_convert_parallel_linear(&biased, "0", SHARD_SPLIT_ROW, world, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_convert_parallel_linear: \"0\" shares its bias with \"1.bias\"*");
    shard_module_destroy(biased);
    shard_module_destroy(plain);
    shard_module_destroy(model[0]);
    shard_module_destroy(model[1]);
}

START_TEST(test_tied)
{
    run_job(rank_counts[_i], tied, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_linear");
    TCase *tcase = test_case(suite, "parallel_linear");
    tcase_add_loop_test(tcase, test_layers, 0, (int)(sizeof layers / sizeof *layers));
    add_ranks_test(tcase, test_heads);
    add_ranks_test(tcase, test_heads_of_a_conversion);
    add_ranks_test(tcase, test_chain);
    tcase_add_loop_test(tcase, test_conversion, 0, 4 * RANK_COUNTS);
    tcase_add_test(tcase, test_conversion_by_name);
    tcase_add_test(tcase, test_conversion_of_a_child);
    tcase_add_test(tcase, test_conversions_that_differ);
    tcase_add_test(tcase, test_conversions_that_differ_in_a_group);
    add_ranks_test(tcase, test_never_makes_the_whole);
    tcase_add_loop_test(tcase, test_small_heads, 0, (int)(sizeof heads / sizeof *heads));
    tcase_add_loop_test(tcase, test_tied, 0, 3);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
