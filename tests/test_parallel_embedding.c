/* Embedding layers, plain and parallel, and the conversion into them: against PyTorch's values
 * (golden/embeddings.txt, which golden/make_embeddings.py wrote), and against one process. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/job.h"
#include "support/scratch.h"

#include "device/device.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 7, DIM = 5 };

static const struct {
    const char *name;
    int64_t padding_idx;
    shard_nn_embedding_options options;
} goldens[] = {
    {"plain", -1, SHARD_NN_EMBEDDING_OPTIONS_INIT},
    {"padding", 2, SHARD_NN_EMBEDDING_OPTIONS_INIT},
    {"max_norm", -1, {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = 1.5}},
    {"max_norm_1", -1, {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = 2.5, .norm_type = 1}},
    {"max_norm_inf", -1, {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = 0.75, .norm_type = INFINITY}},
    {"by_frequency", -1, {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .scale_grad_by_freq = true}},
    {"all", 0, {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = 1.25, .norm_type = 3, .scale_grad_by_freq = true}},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

static shard_tensor *golden_index(const golden_case *start)
{
    const golden *index = golden_find(start, "index");
    int64_t numbers[16], n = 0;
    for (n = 0; n < 8; n++)
        numbers[n] = (int64_t)index->values[n];
    return shard_from_host(numbers, index->shape, .dtype = SHARD_INT64);
}

/* The own shard of a whole value. */
static void fill_shard(shard_tensor *weight, const golden *whole)
{
    SHARD_SCOPE
    {
        shard_placement placement = shard_tensor_placement(weight);
        shard_tensor *all = golden_tensor(whole, SHARD_FLOAT64);
        if (placement.kind == SHARD_SPLIT)
            all = shard_scatter_to_group(all, placement.dim, placement.group);
        double *values = values_of(all);
        check_ok(shard_copy_from_host(weight, values, (size_t)shard_numel(weight) * sizeof *values));
        free(values);
    }
}

typedef struct way {
    int ranks;
    shard_split split;
} way;
static const way ways[] = {
    {1, SHARD_SPLIT_NONE}, {2, SHARD_SPLIT_ROW}, {3, SHARD_SPLIT_ROW}, {2, SHARD_SPLIT_COLUMN}, {3, SHARD_SPLIT_COLUMN}};
enum { WAYS = sizeof ways / sizeof *ways };

static void equals_torch(shard_group *world, void *context)
{
    const way *w = context;
    golden_case start = golden_read(test_file("golden/embeddings.txt"), "start");
    for (int i = 0; i < GOLDENS; i++) {
        golden_case expected = golden_read(test_file("golden/embeddings.txt"), goldens[i].name);
        shard_nn_embedding_options options = goldens[i].options;
        options.dtype = SHARD_FLOAT64;
        shard_module *module =
            w->split ? shard_nn_parallel_embedding_with(COUNT, DIM, goldens[i].padding_idx, w->split, world, &options)
                     : shard_nn_embedding_with(COUNT, DIM, goldens[i].padding_idx, &options);
        shard_tensor *weight = shard_module_tensor(module, "weight");
        fill_shard(weight, golden_find(&start, "weight"));
        SHARD_SCOPE
        {
            shard_tensor *y = shard_forward(module, golden_index(&start));
            ck_assert_msg(y != NULL, "%s: %s", goldens[i].name, shard_last_error());
            check_part(y, golden_find(&expected, "y")->values, 1e-14);
            check_part(weight, golden_find(&expected, "weight")->values, 1e-14);
            check_ok(shard_backward_from(y, golden_tensor(golden_find(&start, "dy"), SHARD_FLOAT64)));
            check_part(shard_grad(weight), golden_find(&expected, "gradient")->values, 1e-14);
            shard_module_set_training(module, false);
        }
        shard_module_destroy(module);
        golden_free(&expected);
    }
    golden_free(&start);
}

START_TEST(test_torch)
{
    way w = ways[_i];
    run_job(w.ranks, equals_torch, &w);
}
END_TEST

/* Tokens that depend on the seed. */
static shard_tensor *tokens(shard_shape shape, int64_t count, uint64_t seed)
{
    int64_t numbers[64], n = 1;
    for (int i = 0; i < shape.ndim; i++)
        n *= shape.dim[i];
    for (int64_t i = 0; i < n; i++)
        numbers[i] = (int64_t)((seed * 7 + (uint64_t)i * (uint64_t)i * 5 + (uint64_t)i) % (uint64_t)count);
    return shard_from_host(numbers, shape, .dtype = SHARD_INT64);
}

static shard_module *language_model(int64_t count, int64_t dim)
{
    shard_manual_seed(3);
    return shard_nn_sequential(shard_nn_embedding(count, dim, 1, .dtype = SHARD_FLOAT64, .scale_grad_by_freq = true),
                               shard_nn_layer_norm(dim, 1e-5, .dtype = SHARD_FLOAT64),
                               shard_nn_linear(dim, count, .dtype = SHARD_FLOAT64));
}

/* Loss of a step, which is made. */
static double step(shard_module *model, shard_optimizer *optimizer, int64_t count, uint64_t seed)
{
    double loss;
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(model, tokens(SHARD_SHAPE(12), count, seed));
        shard_tensor *value = shard_cross_entropy(logits, tokens(SHARD_SHAPE(12), count, seed + 1));
        check_ok(shard_backward(value));
        loss = shard_item(value);
    }
    check_ok(shard_step(optimizer));
    return loss;
}

typedef struct training {
    int ranks;
    shard_split split;
    int64_t count, dim;
    int stage; /* of shard_zero_optimizer; 0: none */
    bool made; /* the embedding has values when it is converted */
} training;

/* Converted embedding and head, trained, saved and loaded on each rank, as one process. */
static void trains(shard_group *world, void *context)
{
    const training *t = context;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *whole = language_model(t->count, t->dim), *model = language_model(t->count, t->dim);
    if (t->made)
        ck_assert(shard_data(shard_module_tensor(shard_module_child_at(model, 0), "weight")) != NULL);
    int converted = 0;
    check_ok(shard_convert_parallel_embedding(&model, "0", t->split, group, &converted));
    ck_assert_int_eq(converted, 1);
    check_ok(shard_convert_parallel_linear(&model, "2", SHARD_SPLIT_COLUMN, group, NULL));
    shard_tensor *weight = shard_module_tensor(shard_module_child_at(model, 0), "weight");
    ck_assert(shard_group_size(world) == 1 || shard_tensor_placement(weight).dim == (t->split == SHARD_SPLIT_ROW ? 0 : 1));
    shard_tensors *expected = shard_parameters(whole), *got = shard_parameters(model);
    for (int64_t i = 0; i < shard_tensors_count(expected); i++) {
        double *values = values_of(shard_tensors_at(expected, i));
        ck_assert(i > 0 || (values[t->dim] == 0 && values[2 * t->dim - 1] == 0 && values[0] != 0)); /* row 1 is the padding */
        check_part(shard_tensors_at(got, i), values, 0);
        free(values);
    }
    shard_optimizer *alone = sgd_of_list(shard_parameters(whole), .lr = 0.5, .momentum = 0.9);
    shard_optimizer *split = sgd_of_list(shard_parameters(model), .lr = 0.5, .momentum = 0.9);
    if (t->stage)
        split = shard_zero_optimizer(split, .stage = t->stage);
    for (uint64_t i = 0; i < 3; i++) {
        double one = step(whole, alone, t->count, i), loss = step(model, split, t->count, i);
        ck_assert_double_eq_tol(one, loss, 1e-12);
    }
    const char *path = scratch_path("model.safetensors");
    check_ok(shard_save(got, path, NULL));
    shard_module *again = language_model(t->count, t->dim);
    check_ok(shard_convert_parallel_embedding(&again, NULL, t->split == SHARD_SPLIT_ROW ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_ROW,
                                              group, NULL));
    shard_tensors *loaded = shard_parameters(again);
    check_ok(shard_load(loaded, path));
    for (int64_t i = 0; i < shard_tensors_count(expected); i++) {
        double *values = values_of(shard_tensors_at(expected, i));
        if (t->stage < 3)
            check_part(shard_tensors_at(got, i), values, 1e-12);
        check_part(shard_tensors_at(loaded, i), values, 1e-12);
        free(values);
    }
    shard_tensors_destroy(expected);
    shard_tensors_destroy(got);
    shard_tensors_destroy(loaded);
    shard_optimizer_destroy(alone);
    shard_optimizer_destroy(split);
    shard_module_destroy(whole);
    shard_module_destroy(model);
    shard_module_destroy(again);
    shard_mesh_destroy(mesh);
}

static training trainings[] = {
    {1, SHARD_SPLIT_ROW, 9, 6, 0, false},   {2, SHARD_SPLIT_ROW, 9, 5, 1, true},     {3, SHARD_SPLIT_ROW, 2, 2, 2, false},
    {3, SHARD_SPLIT_COLUMN, 3, 2, 0, true}, {2, SHARD_SPLIT_COLUMN, 9, 5, 3, false}, {3, SHARD_SPLIT_ROW, 10, 7, 0, true},
};

START_TEST(test_trains)
{
    run_job(trainings[_i].ranks, trains, &trainings[_i]);
}
END_TEST

/* Two model groups, whose replicas shard_zero_optimizer partitions; autocast, both devices' types. */
static void on_a_mesh(shard_group *world, void *context)
{
    int stage = *(int *)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_manual_seed(3);
    shard_module *model =
        shard_nn_sequential(shard_nn_parallel_embedding(9, 6, -1, SHARD_SPLIT_ROW, group), shard_nn_linear(6, 9));
    ck_assert_ptr_eq(shard_tensor_replica_group(shard_module_tensor(shard_module_child_at(model, 0), "weight")),
                     shard_mesh_data_group(mesh));
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(model), .lr = 0.5), .stage = stage);
    double first = 0, loss = 0;
    for (int i = 0; i < 4; i++) {
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        loss = step(model, sgd, 9, (uint64_t)shard_group_rank(shard_mesh_data_group(mesh)));
        first = i ? first : loss;
    }
    ck_assert_double_lt(loss, 0.95 * first);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    (void)world;
}

START_TEST(test_on_a_mesh)
{
    int stage = _i + 1;
    run_job(4, on_a_mesh, &stage);
}
END_TEST

/* max_norm of rows that are split along dim 1 is a collective: a rank that has failed tells the others. */
static void one_rank_fails(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_module *module = shard_nn_parallel_embedding(7, 5, -1, SHARD_SPLIT_COLUMN, world, .max_norm = 1);
        int64_t index[] = {1, shard_group_rank(world) == 1 ? 7 : 2};
        ck_assert_ptr_null(shard_forward(module, shard_from_host(index, SHARD_SHAPE(2), .dtype = SHARD_INT64)));
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_embedding: index 7 (element 1) is outside of *");
        shard_module_destroy(module);
    }
}

START_TEST(test_one_rank_fails)
{
    if (shard_device_open(NULL)->ops->host_memory) /* elsewhere the error comes with the next wait */
        run_job(3, one_rank_fails, NULL);
}
END_TEST

static void refuses(shard_group *world, void *context)
{
    (void)context;
    ck_assert_ptr_null(shard_nn_parallel_embedding(7, 5, 7, SHARD_SPLIT_ROW, world));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_embedding: 7 rows of 5, padding_idx 7;*");
    ck_assert_ptr_null(shard_nn_embedding(0, 5, -1));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_embedding: 0 rows of 5*");
    ck_assert_ptr_null(shard_nn_parallel_embedding(7, 5, -1, (shard_split)9, world));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_embedding: 9 is no split*");
    shard_module *model = language_model(7, 5);
    static const shard_split none[] = {SHARD_SPLIT_NONE, (shard_split)9};
    static const char *const texts[] = {"*SHARD_SPLIT_NONE splits no layer*", "*9 is no split*"};
    for (int i = 0; i < 2; i++) {
        int converted = -1;
        ck_assert_int_ne(shard_convert_parallel_linear(&model, NULL, none[i], world, &converted), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, texts[i]);
        ck_assert_int_ne(shard_convert_parallel_embedding(&model, NULL, none[i], world, &converted), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, texts[i]);
        ck_assert_int_eq(converted, -1);
    }
    ck_assert_int_ne(shard_convert_parallel_embedding(&model, "2", SHARD_SPLIT_ROW, world, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_convert_parallel_embedding: no embedding layer's name matches \"2\"");
    check_ok(shard_convert_parallel_embedding(&model, NULL, SHARD_SPLIT_ROW, world, NULL));
    ck_assert_int_ne(shard_convert_parallel_embedding(&model, NULL, SHARD_SPLIT_ROW, world, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*every embedding layer whose name matches \"*\" (1) is parallel already");
    shard_module_destroy(model);
    static const shard_nn_embedding_options wrong[] = {{SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = -1},
                                                       {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = NAN},
                                                       {SHARD_NN_EMBEDDING_OPTIONS_VALUES, .max_norm = 1, .norm_type = -2}};
    for (int i = 0; i < 3; i++)
        SHARD_SCOPE
        {
            ck_assert_ptr_null(shard_nn_embedding_with(7, 5, -1, &wrong[i]));
            check_error(SHARD_ERROR_ARGUMENT, "shard_nn_embedding: max_norm *, norm_type *: a max_norm that is not negative*");
            ck_assert_ptr_null(shard_embedding(shard_ones(SHARD_SHAPE(7, 5)), tokens(SHARD_SHAPE(3), 7, 1), -1,
                                               .max_norm = wrong[i].max_norm, .norm_type = wrong[i].norm_type));
            check_error(SHARD_ERROR_ARGUMENT, "shard_embedding: max_norm *, norm_type *: a max_norm that is not negative*");
        }
    SHARD_SCOPE
    {
        shard_tensor *table = shard_ones(SHARD_SHAPE(7, 5)), *index = tokens(SHARD_SHAPE(3), 7, 1);
        shard_tensor *split = shard_as_split(index, 0, world, 3 * shard_group_rank(world), 6);
        ck_assert_ptr_null(shard_embedding(table, split, -1, .scale_grad_by_freq = true));
        check_error(SHARD_ERROR_UNSUPPORTED, "shard_embedding with scale_grad_by_freq: no rule *");
    }
    shard_module *stage3 = shard_nn_sequential(shard_nn_embedding(7, 5, -1, .max_norm = 1));
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(stage3)), .stage = 3);
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_forward(stage3, tokens(SHARD_SHAPE(3), 7, 1)));
        check_error(SHARD_ERROR_UNSUPPORTED, "shard_embedding: max_norm * shard_zero_optimizer (stage 3)*");
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(stage3);
}

START_TEST(test_refuses)
{
    run_job(2, refuses, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_embedding");
    TCase *tcase = test_case(suite, "parallel_embedding");
    tcase_add_loop_test(tcase, test_torch, 0, WAYS);
    tcase_add_loop_test(tcase, test_trains, 0, (int)(sizeof trainings / sizeof *trainings));
    tcase_add_loop_test(tcase, test_on_a_mesh, 0, 3);
    tcase_add_test(tcase, test_one_rank_fails);
    tcase_add_test(tcase, test_refuses);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
