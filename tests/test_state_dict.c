/* Collecting whole state dicts from split ones and cutting them up again; with
 * TorchShard's serialization tests done over. */
#include "support/host.h"
#include "support/elements.h"
#include "support/scratch.h"

#include "tensor/tensor.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct member {
    const char *name;
    shard_dtype dtype;
    shard_shape shape;
    int dim; /* split along; -1: whole */
} member;

static const member members[] = {
    {"whole", SHARD_FLOAT32, {2, {3, 4}}, -1},
    {"rows", SHARD_FLOAT32, {2, {11, 5}}, 0},
    {"columns", SHARD_BFLOAT16, {2, {5, 11}}, 1},
    {"middle", SHARD_INT64, {3, {2, 7, 3}}, 1},
    {"few", SHARD_UINT8, {1, {2}}, 0},
    {"none", SHARD_FLOAT64, {2, {4, 0}}, 0},
    {"long", SHARD_FLOAT32, {2, {1300, 4099}}, 0},
    {"wide", SHARD_FLOAT32, {2, {4099, 1300}}, 1},
    {"broad", SHARD_FLOAT32, {2, {2, 5000001}}, -1},
    {"stripes", SHARD_UINT8, {2, {2, 17000001}}, 1},
};
#define MEMBERS ((int)(sizeof members / sizeof *members))
#define SMALL 6

static shard_tensors *make_list(shard_group *group, int count)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < count; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(members[i].shape, members[i].dtype, members[i].dim, group);
            set_elements(x, (uint64_t)i);
            check_ok(shard_tensors_add(list, members[i].name, x));
        }
    return list;
}

static void check_whole(const shard_tensors *whole, int count)
{
    ck_assert_int_eq(shard_tensors_count(whole), count);
    for (int i = 0; i < count; i++) {
        shard_tensor *x = shard_tensors_at(whole, i);
        shard_shape shape = shard_tensor_shape(x);
        ck_assert_str_eq(shard_tensors_name(whole, i), members[i].name);
        ck_assert_int_eq(shard_tensor_placement(x).kind, SHARD_LOCAL);
        ck_assert(shard_shape_equal(&shape, &members[i].shape) && shard_tensor_dtype(x) == members[i].dtype);
        check_elements(members[i].name, x, (uint64_t)i);
    }
}

static void check_parts(const shard_tensors *parts, const shard_tensors *list, int count)
{
    ck_assert_msg(parts != NULL, "%s", shard_last_error());
    ck_assert_int_eq(shard_tensors_count(parts), count);
    for (int i = 0; i < count; i++) {
        shard_placement wanted = shard_tensor_placement(shard_tensors_at(list, i)),
                        got = shard_tensor_placement(shard_tensors_at(parts, i));
        ck_assert(shard_placement_equal(&wanted, &got));
        ck_assert_str_eq(shard_tensors_name(parts, i), members[i].name);
        check_elements(members[i].name, shard_tensors_at(parts, i), (uint64_t)i);
    }
}

typedef struct collect_case {
    int data, model, count;
} collect_case;

static void collects(shard_group *world, void *context)
{
    const collect_case *c = context;
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    shard_tensors *list = make_list(shard_mesh_model_group(mesh), c->count);
    for (int root = -1; root < shard_group_size(world); root++) {
        shard_tensors *whole = shard_collect_state_dict(list, root);
        ck_assert_msg(whole != NULL, "%s", shard_last_error());
        if (root >= 0 && root != shard_group_rank(world)) {
            ck_assert_int_eq(shard_tensors_count(whole), 0);
        } else {
            check_whole(whole, c->count);
            ck_assert_ptr_eq(shard_tensors_at(whole, 0), shard_tensors_at(list, 0)); /* shared */
        }
        bool has = root < 0 || root == shard_group_rank(world);
        shard_tensors *again = shard_relocate_state_dict(list, has ? whole : NULL, .root = root);
        shard_tensors_destroy(whole);
        check_parts(again, list, c->count);
        shard_tensors_destroy(again);
    }
    shard_tensors_destroy(list);
    shard_mesh_destroy(mesh);
}

static collect_case cases[] = {{1, 1, SMALL}, {1, 2, SMALL}, {1, 3, SMALL}, {1, 4, SMALL}, {2, 1, SMALL},  {2, 2, SMALL},
                               {3, 2, SMALL}, {1, 8, SMALL}, {2, 4, SMALL}, {4, 2, SMALL}, {1, 2, MEMBERS}};

START_TEST(test_collect)
{
    run_job(cases[_i].data * cases[_i].model, collects, &cases[_i]);
}
END_TEST

static void refuses(shard_group *world, void *context)
{
    (void)context;
    bool odd = shard_group_rank(world) == 1;
    shard_tensors *list = make_list(world, SMALL), *other = shard_tensors_create();
    ck_assert_ptr_null(shard_collect_state_dict(list, 2));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_collect_state_dict: root 2 of 2 ranks*");
    ck_assert_ptr_null(shard_collect_state_dict(list, odd ? 0 : -1));
    check_joint_error(SHARD_ERROR_MISMATCH, "rank 1: *here it is root 0, on rank 0 root -1");
    ck_assert_ptr_null(shard_collect_state_dict(odd ? list : NULL, 0));
    check_joint_error(SHARD_ERROR_ARGUMENT, "rank 0: shard_collect_state_dict: tensors *");
    ck_assert_ptr_null(shard_relocate_state_dict(list, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_relocate_state_dict: whole *");
    ck_assert_ptr_null(shard_relocate_state_dict(list, other));
    check_error(SHARD_ERROR_ARGUMENT, "shard_relocate_state_dict: *\"whole\"*");
    ck_assert_ptr_null(shard_relocate_state_dict(list, list));
    check_error(SHARD_ERROR_SHAPE,
                "*\"rows\" is split along 0, and a whole tensor is needed: call shard_collect_state_dict first");
    ck_assert_ptr_null(shard_relocate_state_dict(list, list, .root = 2));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_relocate_state_dict: root 2 of 2 ranks*");
    ck_assert_ptr_null(shard_relocate_state_dict(list, list, .root = odd));
    check_joint_error(SHARD_ERROR_MISMATCH, "rank 1: *here it is root 1, on rank 0 root 0");
    ck_assert_ptr_null(shard_relocate_state_dict(list, NULL, .root = 1));
    check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_relocate_state_dict: whole *");
    ck_assert_ptr_null(shard_relocate_state_dict(list, odd ? list : NULL, .root = 1));
    check_joint_error(SHARD_ERROR_SHAPE,
                      "rank 1: *\"rows\" is split along 0, and a whole tensor is needed: call shard_collect_state_dict first");
    ck_assert_ptr_null(shard_relocate_state_dict(odd ? NULL : list, odd ? NULL : other, .root = 0));
    check_joint_error(SHARD_ERROR_ARGUMENT, "*rank *: shard_relocate_state_dict: *");
    shard_tensors_destroy(list);
    shard_tensors_destroy(other);
}

START_TEST(test_refuses)
{
    run_job(2, refuses, NULL);
}
END_TEST

/* ---- TorchShard's tests: its ConvLinearModel, the linear layer converted ---- */

enum { FEATURES = 8, OUT = 16 };

enum { SAVED = 12357 }; /* the seed of the saved model */

static shard_module *make_model(uint64_t seed, shard_split split, shard_group *group)
{
    shard_manual_seed(seed);
    shard_module *model = shard_nn_sequential(shard_nn_conv2d(FEATURES, FEATURES, 1), shard_nn_flatten(),
                                              shard_nn_linear(FEATURES, OUT));
    if (split != SHARD_SPLIT_NONE)
        check_ok(shard_convert_parallel_linear(&model, NULL, split, group, NULL));
    return model;
}

static void check_same(const shard_tensors *one, const shard_tensors *other)
{
    ck_assert_int_eq(shard_tensors_count(one), shard_tensors_count(other));
    for (int64_t i = 0; i < shard_tensors_count(one); i++) {
        ck_assert_str_eq(shard_tensors_name(one, i), shard_tensors_name(other, i));
        check_close(shard_tensors_at(one, i), shard_tensors_at(other, i), 0);
    }
}

/* The collected state dict of a model with a parallel layer is the plain model's. */
static void saves_state_dict(shard_group *world, void *context)
{
    const shard_split splits[] = {SHARD_SPLIT_NONE, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN};
    for (int i = 0; i < 3; i++) {
        shard_module *raw = make_model(SAVED, splits[i], world), *plain = make_model(SAVED, SHARD_SPLIT_NONE, NULL);
        shard_tensors *own = shard_state_dict(raw), *wanted = shard_state_dict(plain);
        shard_tensors *whole = shard_collect_state_dict(own, -1);
        check_same(whole, wanted);
        check_ok(shard_save(whole, context, NULL));
        shard_tensors_destroy(own);
        shard_tensors_destroy(wanted);
        shard_tensors_destroy(whole);
        shard_module_destroy(raw);
        shard_module_destroy(plain);
    }
}

/* A whole state dict from a file, cut up for the model's layers, is what the model
 * gets by loading the file itself; and its output is the plain model's. */
static void loads_state_dict(shard_group *world, void *context)
{
    const shard_split splits[] = {SHARD_SPLIT_NONE, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN};
    for (int i = 0; i < 3; i++) {
        shard_module *raw = make_model(1, splits[i], world), *plain = make_model(SAVED, SHARD_SPLIT_NONE, NULL);
        shard_tensors *own = shard_state_dict(raw), *whole = shard_inspect(context, NULL);
        check_ok(shard_load(whole, context));
        shard_tensors *parts = shard_relocate_state_dict(own, whole);
        ck_assert_msg(parts != NULL, "%s", shard_last_error());
        for (int64_t j = 0; j < shard_tensors_count(own); j++)
            SHARD_NO_GRAD
                copy_elements(shard_tensors_at(parts, j), shard_tensors_at(own, j));
        shard_module *loaded = make_model(2, splits[i], world);
        check_ok(shard_load_module(loaded, context));
        shard_tensors *other = shard_state_dict(loaded);
        check_same(own, other);
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(3, 1, 1, FEATURES), 1, SHARD_FLOAT32);
            shard_tensor *y = shard_forward(raw, x);
            if (splits[i] == SHARD_SPLIT_COLUMN)
                y = shard_gather_from_group(y, -1, world);
            check_close(y, shard_forward(plain, x), 1e-6);
        }
        shard_tensors_destroy(own);
        shard_tensors_destroy(whole);
        shard_tensors_destroy(parts);
        shard_tensors_destroy(other);
        shard_module_destroy(raw);
        shard_module_destroy(plain);
        shard_module_destroy(loaded);
    }
}

START_TEST(test_torchshard_serialization)
{
    char *path = (char *)scratch_path("torchshard.safetensors");
    run_job(rank_counts[_i], saves_state_dict, path);
    run_job(rank_counts[_i], loads_state_dict, path);
    unlink(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_dict");
    TCase *tcase = test_case(suite, "state_dict");
    tcase_add_loop_test(tcase, test_collect, 0, (int)(sizeof cases / sizeof *cases));
    tcase_add_test(tcase, test_refuses);
    add_ranks_test(tcase, test_torchshard_serialization);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
