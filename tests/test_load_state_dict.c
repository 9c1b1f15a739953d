/* Loading from tensors in memory, and TorchShard's way of saving and loading: one rank has the
 * whole tensors and the file. */
#include "support/host.h"
#include "support/scratch.h"
#include "support/zero.h"

#include "tensor/tensor.h"
#include "support/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- TorchShard's recipe ---- */

typedef struct recipe {
    int ranks;
    shard_split split;
    int stage;      /* of shard_zero_optimizer; 0: without */
    bool everybody; /* each rank reads the whole file, as TorchShard's programs do; else rank 0 alone */
} recipe;

typedef struct trainee {
    shard_module *model;
    shard_data_parallel *data_parallel;
    shard_optimizer *optimizer;
} trainee;

static trainee make_trainee(const recipe *r, shard_group *group)
{
    trainee t = {.model = make_split_model(r->split, group)};
    shard_tensors *parameters = shard_parameters(t.model);
    if (!r->stage)
        t.data_parallel = shard_data_parallel_create(parameters);
    shard_tensors_destroy(parameters);
    t.optimizer = adam_of_list(shard_parameters(t.model), .lr = 0.01);
    if (r->stage)
        ck_assert_msg(shard_zero_optimizer(t.optimizer, .stage = r->stage) != NULL, "%s", shard_last_error());
    return t;
}

static void destroy_trainee(trainee t)
{
    shard_optimizer_destroy(t.optimizer);
    shard_data_parallel_destroy(t.data_parallel);
    shard_module_destroy(t.model);
}

static void train(trainee *t, shard_group *world, shard_group *group, int from, int to)
{
    for (int turn = from; turn < to; turn++) {
        back_split_model(t->model, world, group, turn);
        check_ok(shard_step(t->optimizer));
    }
}

/* The module's and the optimizer's tensors under prefixes; freed by the caller. */
static shard_tensors *list_state(trainee *t)
{
    shard_tensors *list = shard_tensors_create(), *model = shard_state_dict(t->model),
                  *optimizer = shard_optimizer_state_dict(t->optimizer);
    check_ok(shard_tensors_extend(list, "model.", model));
    check_ok(shard_tensors_extend(list, "optimizer.", optimizer));
    shard_tensors_destroy(model);
    shard_tensors_destroy(optimizer);
    return list;
}

static void save_alone(trainee *t, const char *path)
{
    shard_tensors *state = list_state(t), *whole = shard_collect_state_dict(state, 0);
    ck_assert_msg(whole != NULL, "%s", shard_last_error());
    if (shard_group_rank(shard_world()) == 0)
        check_ok(shard_save(whole, path, NULL, .local = true));
    shard_tensors_destroy(whole);
    shard_tensors_destroy(state);
}

static void load_alone(trainee *t, const char *path, bool everybody)
{
    shard_tensors *state = list_state(t), *whole = NULL;
    if (everybody || shard_group_rank(shard_world()) == 0) {
        whole = shard_inspect(path, NULL);
        check_ok(shard_load(whole, path, .local = true));
    }
    shard_tensors *own = shard_relocate_state_dict(state, whole, .root = everybody ? -1 : 0);
    ck_assert_msg(own != NULL, "%s", shard_last_error());
    shard_tensors_destroy(whole);
    shard_tensors_destroy(state);
    shard_tensors *optimizer = shard_optimizer_state_dict(t->optimizer);
    check_ok(shard_module_load_state_dict(t->model, own, .prefix = "model."));
    check_ok(shard_load_state_dict(optimizer, own, .prefix = "optimizer."));
    shard_tensors_destroy(optimizer);
    shard_tensors_destroy(own);
}

/* What is loaded goes on as if it had never stopped, and its file is that of a collective save. */
static void follows_recipe(shard_group *world, void *context)
{
    const recipe *r = context;
    char path[2][200];
    snprintf(path[0], sizeof *path, "%s", scratch_path("alone.safetensors"));
    snprintf(path[1], sizeof *path, "%s", scratch_path("together.safetensors"));
    shard_mesh *mesh = shard_mesh_create(.model = r->split == SHARD_SPLIT_NONE ? 1 : r->ranks);
    shard_group *group = shard_mesh_model_group(mesh);
    trainee through = make_trainee(r, group), resumed = make_trainee(r, group);
    train(&through, world, group, 0, 2);
    save_alone(&through, path[0]);
    shard_tensors *state = list_state(&through);
    check_ok(shard_save(state, path[1], NULL));
    shard_tensors_destroy(state);
    if (shard_group_rank(world) == 0) {
        size_t bytes[2];
        void *content[2] = {read_file(path[0], &bytes[0]), read_file(path[1], &bytes[1])};
        ck_assert(bytes[0] == bytes[1] && memcmp(content[0], content[1], bytes[0]) == 0);
        free(content[0]);
        free(content[1]);
    }
    train(&resumed, world, group, 5, 6);                 /* whose values are to be gone, */
    check_models_equal(resumed.model, resumed.model, 0); /* those, too, that this gathers in stage 3 */
    load_alone(&resumed, path[0], r->everybody);
    check_models_equal(through.model, resumed.model, 0);
    train(&through, world, group, 2, 4);
    train(&resumed, world, group, 2, 4);
    check_models_equal(through.model, resumed.model, 0);
    destroy_trainee(through);
    destroy_trainee(resumed);
    shard_mesh_destroy(mesh);
}

static recipe recipes[] = {
    {1, SHARD_SPLIT_COLUMN, 0, false}, {2, SHARD_SPLIT_COLUMN, 0, false}, {3, SHARD_SPLIT_COLUMN, 0, true},
    {1, SHARD_SPLIT_ROW, 0, true},     {2, SHARD_SPLIT_ROW, 0, true},     {3, SHARD_SPLIT_ROW, 0, false},
    {2, SHARD_SPLIT_NONE, 1, false},   {3, SHARD_SPLIT_COLUMN, 1, true},  {2, SHARD_SPLIT_NONE, 2, true},
    {3, SHARD_SPLIT_ROW, 2, false},    {2, SHARD_SPLIT_NONE, 3, false},   {3, SHARD_SPLIT_NONE, 3, true},
    {3, SHARD_SPLIT_COLUMN, 3, false},
};

START_TEST(test_torchshard_recipe)
{
    run_job(recipes[_i].ranks, follows_recipe, &recipes[_i]);
}
END_TEST

/* ---- what fits ---- */

static shard_tensors *list_of(int count, const char *const *names, shard_tensor *const *tensors)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < count; i++)
        check_ok(shard_tensors_add(list, names[i], tensors[i]));
    return list;
}
#define list_one(name, tensor) list_of(1, (const char *const[]){name}, (shard_tensor *const[]){tensor})
#define list_two(a, x, b, y) list_of(2, (const char *const[]){a, b}, (shard_tensor *const[]){x, y})

/* Loads, and frees both lists. */
#define load(to, from, ...)                                                                                                      \
    load_with(to, from, &(shard_load_state_dict_options){SHARD_LOAD_STATE_DICT_OPTIONS_VALUES, ##__VA_ARGS__})
static shard_status load_with(shard_tensors *to, shard_tensors *from, const shard_load_state_dict_options *options)
{
    shard_status status = shard_load_state_dict_with(to, from, options);
    shard_tensors_destroy(to);
    shard_tensors_destroy(from);
    return status;
}

/* A shard of a group that is not there: from 1 on along dim. */
static shard_tensor *as_part(shard_tensor *tensor, int dim, int64_t whole)
{
    tensor->placement = (shard_placement){.kind = SHARD_SPLIT, .dim = dim, .start = 1, .whole = whole};
    return tensor;
}

START_TEST(test_errors)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 3)), *y = shard_ones(SHARD_SHAPE(4));
        shard_tensor *two = shard_full(SHARD_SHAPE(2, 3), 2.0), *wide = shard_full(SHARD_SHAPE(4), 2.0, .dtype = SHARD_FLOAT64);
        load(list_two("x", x, "y", y), list_two("x", two, "z", two));
        check_error(SHARD_ERROR_SHAPE, "shard_load_state_dict: *missing*y*not expected*z*");
        load(list_two("x", x, "y", y), list_two("x", two, "y", two));
        check_error(SHARD_ERROR_SHAPE, "*: 1 of another shape (\"y\" is [[]2, 3] there, [[]4] here)");
        load(list_two("x", x, "y", y), list_two("x", two, "y", wide));
        check_error(SHARD_ERROR_SHAPE, "*: 1 of another dtype (\"y\" is float64 there, float32 here); options: .convert");
        ck_assert(value_at(x, 0) == 1 && value_at(y, 0) == 1);
        shard_tensor *part = as_part(shard_ones(SHARD_SHAPE(1, 3)), 0, 2);
        load(list_two("x", x, "y", y), list_two("x", part, "y", y));
        check_error(SHARD_ERROR_SHAPE, "*: 1 placed otherwise (\"x\" is split along 0 there, local here: call "
                                       "shard_collect_state_dict first)");
        shard_load_state_dict(NULL, NULL);
        check_error(SHARD_ERROR_ARGUMENT, "shard_load_state_dict: tensors *");
        shard_tensors *list = list_one("x", x);
        shard_load_state_dict(list, NULL);
        check_error(SHARD_ERROR_ARGUMENT, "shard_load_state_dict: source *");
        shard_module *linear = shard_nn_linear(3, 2);
        shard_module_load_state_dict(linear, NULL);
        check_error(SHARD_ERROR_ARGUMENT, "shard_module_load_state_dict: source *");
        shard_module_load_state_dict(NULL, list);
        check_error(SHARD_ERROR_ARGUMENT, "shard_module_load_state_dict: module *");
        shard_module_load_state_dict(linear, list);
        check_error(SHARD_ERROR_SHAPE, "shard_module_load_state_dict: the source does not fit: 2 missing there *");
        shard_module_destroy(linear);
        shard_tensors_destroy(list);
        ck_assert(value_at(x, 0) == 1 && value_at(y, 0) == 1);
    }
}
END_TEST

/* The error lists every kind of difference, each with as many names as fit. */
START_TEST(test_many_differences)
{
    static const char *const patterns[] = {
        "*: the source does not fit: 4 missing there (\"missing.漢*0\", \"missing.漢*1\", \"missing.漢*2\", ...); options: "
        ".prefix .allow_missing",
        "*: the source does not fit: 4 missing there (\"missing.漢*0\", ...); 4 not expected here (\"unexpected.漢*0\", ...); "
        "4 of another shape (\"shape.漢*0\" is [[]3] there, [[]2] here, ...); 4 of another dtype (\"dtype.漢*0\" is float64 "
        "there, float32 here, ...); options: .prefix .allow_missing .allow_unexpected .convert",
        "*: the source does not fit: 4 missing there; 4 not expected here; 4 of another shape; 4 of another dtype; options: "
        ".prefix .allow_missing .allow_unexpected .convert",
    };
    for (int i = 0; i < 3; i++)
        SHARD_SCOPE
        {
            shard_tensors *list = shard_tensors_create(), *source = shard_tensors_create();
            for (int j = 0; j < 4; j++) {
                const char *long_name = i == 2 ? "漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢" : "漢漢漢漢漢漢漢漢";
                char name[4][100];
                snprintf(name[0], sizeof name[0], "missing.%s.%d", long_name, j);
                snprintf(name[1], sizeof name[1], "unexpected.%s.%d", long_name, j);
                snprintf(name[2], sizeof name[2], "shape.%s.%d", long_name, j);
                snprintf(name[3], sizeof name[3], "dtype.%s.%d", long_name, j);
                check_ok(shard_tensors_add(list, name[0], shard_ones(SHARD_SHAPE(2))));
                if (i == 0)
                    continue;
                check_ok(shard_tensors_add(source, name[1], shard_ones(SHARD_SHAPE(2))));
                check_ok(shard_tensors_add(list, name[2], shard_ones(SHARD_SHAPE(2))));
                check_ok(shard_tensors_add(source, name[2], shard_ones(SHARD_SHAPE(3))));
                check_ok(shard_tensors_add(list, name[3], shard_ones(SHARD_SHAPE(2))));
                check_ok(shard_tensors_add(source, name[3], shard_ones(SHARD_SHAPE(2), .dtype = SHARD_FLOAT64)));
            }
            shard_load_state_dict(list, source);
            check_error(SHARD_ERROR_SHAPE, patterns[i]);
            shard_tensors_destroy(list);
            shard_tensors_destroy(source);
        }
}
END_TEST

START_TEST(test_options)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 3)), *y = shard_ones(SHARD_SHAPE(4));
        shard_tensor *two = shard_full(SHARD_SHAPE(2, 3), 2.0), *wide = shard_full(SHARD_SHAPE(4), 2.5, .dtype = SHARD_FLOAT64);
        check_ok(load(list_two("x", x, "y", y), list_two("x", two, "z", two), .allow_missing = true, .allow_unexpected = true));
        ck_assert(value_at(x, 5) == 2 && value_at(y, 3) == 1);
        check_ok(load(list_one("y", y), list_two("m.y", wide, "n.y", two), .prefix = "m.", .convert = true));
        ck_assert(value_at(y, 0) == 2.5 && value_at(y, 3) == 2.5);
        shard_tensor *count = shard_ones(SHARD_SHAPE(4), .dtype = SHARD_INT64);
        load(list_one("y", y), list_one("y", count), .convert = true);
        check_error(SHARD_ERROR_SHAPE, "*\"y\" is int64 there, float32 here)"); /* floats alone, as in shard_load */
        check_ok(load(list_one("y", y), list_one("y", y)));
        ck_assert(value_at(y, 3) == 2.5);
    }
}
END_TEST

/* The one element of a tensor of shape [1], as files of PyTorch 0.3 have it, is a scalar's value: from a file, from memory, and
 * sent by one rank. Nothing else of another shape is. */
static void takes_old_scalars(shard_group *world, void *context)
{
    (void)context;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("old.safetensors"));
    SHARD_SCOPE
    {
        shard_tensor *one = shard_full(SHARD_SHAPE(1), 7.0, .dtype = SHARD_INT64),
                     *two = shard_ones(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *n = shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64);
        shard_tensors *old = list_one("n", one), *list = list_one("n", n), *longer = list_one("n", two);
        check_ok(shard_save(old, path, NULL));
        check_ok(shard_load(list, path));
        ck_assert_int_eq((int64_t)shard_item(n), 7);
        for (int from_root = 0; from_root < 2; from_root++) {
            shard_tensor *again = shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64);
            shard_tensors *fresh = list_one("n", again), *own = shard_relocate_state_dict(fresh, old, .root = from_root - 1);
            ck_assert_msg(own != NULL, "%s", shard_last_error());
            check_ok(shard_load_state_dict(fresh, own));
            ck_assert_int_eq((int64_t)shard_item(again), 7);
            shard_tensors_destroy(fresh);
            shard_tensors_destroy(own);
        }
        check_ok(shard_save(longer, path, NULL));
        shard_load(list, path);
        check_error(SHARD_ERROR_SHAPE, "*1 of another shape (\"n\" is [[]2] there, [[]] here)");
        shard_load_state_dict(list, longer);
        check_error(SHARD_ERROR_SHAPE, "*1 of another shape (\"n\" is [[]2] there, [[]] here)");
        shard_load_state_dict(old, list);
        check_error(SHARD_ERROR_SHAPE, "*1 of another shape (\"n\" is [[]] there, [[]1] here)");
        shard_barrier(world);
        shard_tensors_destroy(old);
        shard_tensors_destroy(list);
        shard_tensors_destroy(longer);
    }
}

START_TEST(test_old_scalars)
{
    run_job(2, takes_old_scalars, NULL);
}
END_TEST

/* Whole tensors are asked for, and what stage 3 of ZeRO keeps in parts is none, whether all ranks have it or one sends it. */
static void relocates_whole_tensors(shard_group *world, void *context)
{
    const recipe r = {.split = SHARD_SPLIT_NONE, .stage = 3};
    (void)context;
    trainee t = make_trainee(&r, NULL);
    shard_module *model = make_split_model(SHARD_SPLIT_COLUMN, world);
    shard_tensors *partitioned = shard_state_dict(t.model), *like = shard_state_dict(model);
    for (int from_root = 0; from_root < 2; from_root++) {
        ck_assert_ptr_null(shard_relocate_state_dict(like, partitioned, .root = from_root - 1));
        check_joint_error(SHARD_ERROR_SHAPE,
                          "*shard_relocate_state_dict: \"*\" is partitioned by shard_zero_optimizer, and a whole tensor is "
                          "needed: call shard_collect_state_dict first");
    }
    SHARD_SCOPE
    {
        shard_tensors *x = list_one("x", shard_ones(SHARD_SHAPE(2, 3))), *y = list_one("x", shard_ones(SHARD_SHAPE(3, 2)));
        ck_assert_ptr_null(shard_relocate_state_dict(x, y));
        check_error(SHARD_ERROR_SHAPE, "shard_relocate_state_dict: *x*[[]3, 2]*");
        shard_tensors_destroy(x);
        shard_tensors_destroy(y);
    }
    shard_tensors_destroy(partitioned);
    shard_tensors_destroy(like);
    shard_module_destroy(model);
    destroy_trainee(t);
}

START_TEST(test_relocates_whole_tensors)
{
    run_job(2, relocates_whole_tensors, NULL);
}
END_TEST

/* Stage 3 of ZeRO takes its flat range out of a source that has the rank's local shard, also of another dtype. */
static void takes_range_of_shard(shard_group *world, void *context)
{
    const recipe *r = context;
    (void)world;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *group = shard_mesh_model_group(mesh);
    trainee t = make_trainee(r, group);
    shard_module *plain = make_split_model(r->split, group);
    shard_tensors *parameters = shard_parameters(plain);
    for (int wide = 0; wide < 2; wide++) {
        shard_tensors *source = shard_tensors_create();
        SHARD_NO_GRAD
        SHARD_SCOPE
        {
            for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
                shard_tensor *values = shard_scale(shard_tensors_at(parameters, i), 3.0);
                check_ok(shard_tensors_add(source, shard_tensors_name(parameters, i),
                                           wide ? shard_cast(values, SHARD_FLOAT64) : values));
            }
        }
        check_ok(shard_module_load_state_dict(plain, source, .convert = wide));
        check_ok(shard_module_load_state_dict(t.model, source, .convert = wide));
        check_models_equal(t.model, plain, 0);
        shard_tensors_destroy(source);
    }
    shard_tensors_destroy(parameters);
    shard_module_destroy(plain);
    destroy_trainee(t);
    shard_mesh_destroy(mesh);
}

static recipe partitions[] = {{.split = SHARD_SPLIT_COLUMN, .stage = 3}, {.split = SHARD_SPLIT_ROW, .stage = 3}};

START_TEST(test_range_of_shard)
{
    run_job(4, takes_range_of_shard, &partitions[_i]);
}
END_TEST

/* From and to each device that there is, of a part that is rows or columns, with and without
 * another dtype, and over more than one block. */
START_TEST(test_parts)
{
    shard_device *devices[] = {shard_device_open("cpu"), shard_device_open(NULL)};
    const shard_shape shapes[] = {{2, {6, 5}}, {2, {1100, 2000}}, {3, {3, 4, 2}}};
    for (int way = 0; way < (devices[0] == devices[1] ? 1 : 4); way++)
        for (int s = 0; s < 3; s++)
            for (int dim = 0; dim < 2; dim++)
                for (int narrow = 0; narrow < 2; narrow++)
                    SHARD_SCOPE
                    {
                        shard_dtype dtype = narrow ? SHARD_BFLOAT16 : SHARD_FLOAT32;
                        shard_shape shape = shapes[s];
                        int64_t numel = 1;
                        for (int i = 0; i < shape.ndim; i++)
                            numel *= shape.dim[i];
                        float *values = calloc((size_t)numel, sizeof *values);
                        for (int64_t i = 0; i < numel; i++)
                            values[i] = (float)(i % 251);
                        shard_tensor *from = shard_from_host(values, shape, .device = devices[way & 1]);
                        shape.dim[dim] -= 2;
                        shard_tensor *own = shard_empty(shape, .dtype = dtype, .device = devices[way >> 1]);
                        shard_tensor *to = as_part(own, dim, shapes[s].dim[dim]);
                        check_ok(load(list_one("x", to), list_one("x", from), .convert = narrow));
                        int64_t inner = shape.ndim == 3 ? 2 : 1, columns = shape.dim[1], all = shapes[s].dim[1];
                        double *got = values_of(to);
                        for (int64_t i = 0; i < shard_numel(to); i++) {
                            int64_t row = i / inner / columns, column = i / inner % columns;
                            int64_t at = ((row + (dim == 0)) * all + column + (dim == 1)) * inner + i % inner;
                            if (got[i] != (double)values[at])
                                ck_abort_msg("way %d shape %d dim %d: %g at %d, not %g", way, s, dim, got[i], (int)i,
                                             (double)values[at]);
                        }
                        free(got);
                        free(values);
                    }
}
END_TEST

/* Initial values that nobody has needed are never made. */
START_TEST(test_lazy)
{
    SHARD_SCOPE
    {
        shard_module *model = shard_nn_linear(1000, 1000, .bias = false);
        shard_tensor *weight = shard_module_tensor(model, "weight");
        ck_assert_int_eq(weight->leaf->recipe.kind, SHARD_UNIFORM);
        shard_tensors *source = list_one("weight", shard_full(SHARD_SHAPE(1000, 1000), 3.0));
        check_ok(shard_module_load_state_dict(model, source));
        ck_assert_int_eq(weight->leaf->recipe.kind, SHARD_NO_RECIPE);
        ck_assert(value_at(weight, 0) == 3 && value_at(weight, 999999) == 3);
        shard_tensors_destroy(source);
        shard_module_destroy(model);
    }
}
END_TEST

/* A step before the load: what backward saved is stale, and it says so. */
START_TEST(test_stale)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(3), .requires_grad = true), *two = shard_full(SHARD_SHAPE(3), 2.0);
        shard_tensor *loss = shard_sum(shard_mul(x, x));
        check_ok(load(list_one("x", x), list_one("x", two)));
        ck_assert_int_ne(shard_backward(loss), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "*written to*");
    }
}
END_TEST

/* ---- one rank alone ---- */

/* What fails on the rank that saves or loads alone is told to the others at the next collective. */
static void fails_alone(shard_group *world, void *context)
{
    (void)context;
    bool first = shard_group_rank(world) == 0;
    SHARD_SCOPE
    {
        shard_tensor *part = shard_as_split(shard_ones(SHARD_SHAPE(2, 3)), 0, world, 2 * shard_group_rank(world), 4);
        shard_tensors *list = list_one("part", part), *whole = list_one("x", shard_ones(SHARD_SHAPE(3)));
        if (first)
            ck_assert_int_eq(shard_save(list, scratch_path("x.safetensors"), NULL, .local = true), SHARD_ERROR_SHAPE);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_SHAPE, "rank 0: shard_save: *part*shard_collect_state_dict*");
        if (first)
            shard_save(whole, "/nowhere/x.safetensors", NULL, .local = true);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_IO, "rank 0: *nowhere*");
        if (first)
            shard_save(whole, scratch_path("."), NULL, .local = true);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_IO, "rank 0: cannot write *: it is there already and is not a regular file");
        if (first)
            shard_load(whole, "/nowhere/x.safetensors", .local = true);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_IO, "rank 0: *nowhere*");
        if (first)
            shard_save(NULL, "x", NULL, .local = true);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 0: shard_save: tensors *");
        if (first)
            shard_save(whole, NULL, NULL, .local = true);
        shard_agree(world);
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 0: shard_save: path *");
        ck_assert_int_eq(scratch_count("x.safetensors"), 0);
        shard_tensors_destroy(list);
        shard_tensors_destroy(whole);
    }
}

START_TEST(test_alone)
{
    run_job(2, fails_alone, NULL);
}
END_TEST

static void *refuse_memory(shard_device *device, size_t bytes)
{
    return shard_fail_null(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes", device->name, bytes);
}

/* A part of another dtype is first copied out of the whole. */
START_TEST(test_no_memory_for_part)
{
    SHARD_SCOPE
    {
        shard_device *cpu = shard_cpu();
        const shard_device_ops *ops = cpu->ops;
        shard_device_ops refusing = *ops;
        refusing.allocate = refuse_memory;
        shard_tensor *from = shard_full(SHARD_SHAPE(4, 3), 2.0, .dtype = SHARD_FLOAT64, .device = cpu);
        shard_tensor *to = as_part(shard_ones(SHARD_SHAPE(2, 3), .device = cpu), 0, 4);
        ck_assert(shard_data(from) && shard_data(to));
        shard_tensors *list = list_one("x", to), *source = list_one("x", from);
        cpu->ops = &refusing;
        shard_load_state_dict(list, source, .convert = true);
        cpu->ops = ops;
        check_error(SHARD_ERROR_MEMORY, "*no memory for *");
        check_ok(shard_load_state_dict(list, source, .convert = true));
        ck_assert(value_at(to, 0) == 2 && value_at(to, 5) == 2);
        shard_tensors_destroy(list);
        shard_tensors_destroy(source);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("load_state_dict");
    TCase *tcase = test_case(suite, "load_state_dict");
    tcase_add_loop_test(tcase, test_torchshard_recipe, 0, (int)(sizeof recipes / sizeof *recipes));
    tcase_add_test(tcase, test_errors);
    tcase_add_test(tcase, test_many_differences);
    tcase_add_test(tcase, test_options);
    tcase_add_test(tcase, test_old_scalars);
    tcase_add_test(tcase, test_relocates_whole_tensors);
    tcase_add_loop_test(tcase, test_range_of_shard, 0, (int)(sizeof partitions / sizeof *partitions));
    tcase_add_test(tcase, test_parts);
    tcase_add_test(tcase, test_no_memory_for_part);
    tcase_add_test(tcase, test_lazy);
    tcase_add_test(tcase, test_stale);
    tcase_add_test(tcase, test_alone);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
