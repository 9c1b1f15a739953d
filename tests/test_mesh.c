/* Meshes: who is in which group, by the group's own rank and size. */
#include "support/host.h"
#include "support/job.h"

#include <limits.h>

typedef struct mesh_case {
    int data, model;
} mesh_case;

static void has_its_groups(shard_group *world, void *context)
{
    const mesh_case *c = context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *model = shard_mesh_model_group(mesh), *data = shard_mesh_data_group(mesh);
    ck_assert_int_eq(model == world, c->data == 1);
    ck_assert_int_eq(data == world, c->model == 1);
    ck_assert_int_eq(shard_group_size(model), c->model);
    ck_assert_int_eq(shard_group_size(data), c->data);
    ck_assert_int_eq(shard_group_rank(model), rank % c->model);
    ck_assert_int_eq(shard_group_rank(data), rank / c->model);
    for (int i = 0; i < c->model; i++)
        ck_assert_int_eq(shard_group_world_rank(model, i), rank / c->model * c->model + i);
    for (int i = 0; i < c->data; i++)
        ck_assert_int_eq(shard_group_world_rank(data, i), rank % c->model + i * c->model);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(3), rank);
        check_ok(shard_all_reduce(x, SHARD_SUM, model));
        int first = rank / c->model * c->model, last = first + c->model - 1;
        ck_assert_double_eq(value_at(x, 2), (first + last) * c->model / 2.0);
        shard_tensor *y = shard_full(SHARD_SHAPE(2), rank);
        check_ok(shard_broadcast(y, c->data - 1, data));
        ck_assert_double_eq(value_at(y, 0), rank % c->model + (c->data - 1) * c->model);
        shard_tensor *part = shard_as_split(x, 0, model, 3 * shard_group_rank(model), 3 * c->model);
        ck_assert_ptr_eq(shard_tensor_replica_group(part), c->model > 1 && c->data > 1 ? data : NULL);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_groups)
{
    static mesh_case cases[] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}, {4, 1}, {2, 4}, {4, 2}, {2, 3}};
    run_job(cases[_i].data * cases[_i].model, has_its_groups, &cases[_i]);
}
END_TEST

typedef struct axes_case {
    shard_mesh_axis axes[SHARD_MESH_AXES];
    int count, size[SHARD_MESH_AXES]; /* as they are to be */
} axes_case;

/* Along each axis: ranks of one distance. Replicas: all that have the coordinate. */
static void has_axes(shard_group *world, void *context)
{
    const axes_case *c = context;
    int rank = shard_group_rank(world), stride = shard_group_size(world);
    shard_mesh *mesh = shard_mesh_create(.axes = {c->axes[0], c->axes[1], c->axes[2], c->axes[3]});
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    for (int axis = 0; axis < c->count; axis++) {
        int size = c->size[axis];
        stride /= size;
        int own = rank / stride % size;
        shard_group *along = shard_mesh_group(mesh, c->axes[axis].name),
                    *same = shard_mesh_replica_group(mesh, c->axes[axis].name);
        ck_assert_int_eq(shard_mesh_coordinate(mesh, c->axes[axis].name), own);
        ck_assert_int_eq(shard_group_size(along), size);
        ck_assert_int_eq(shard_group_rank(along), own);
        for (int i = 0; i < size; i++)
            ck_assert_int_eq(shard_group_world_rank(along, i), rank + (i - own) * stride);
        ck_assert_int_eq(shard_group_size(same), shard_group_size(world) / size);
        for (int i = 0; i < shard_group_size(same); i++)
            ck_assert_int_eq(shard_group_world_rank(same, i) / stride % size, own);
        SHARD_SCOPE
        {
            shard_tensor *part = shard_as_split(shard_ones(SHARD_SHAPE(2)), 0, along, 2 * own, 2 * size);
            ck_assert_ptr_eq(shard_tensor_replica_group(part), size > 1 && along != world ? same : NULL);
            shard_tensor *x = shard_full(SHARD_SHAPE(1), 1);
            check_ok(shard_all_reduce(x, SHARD_SUM, along));
            check_ok(shard_all_reduce(x, SHARD_SUM, same));
            ck_assert_double_eq(value_at(x, 0), shard_group_size(world));
        }
    }
    ck_assert_ptr_null(shard_mesh_group(mesh, "pipeline"));
    check_error(SHARD_ERROR_ARGUMENT, "shard_mesh_group: the mesh has no axis \"pipeline\"; it is *");
    shard_mesh_destroy(mesh);
}

START_TEST(test_axes)
{
    static axes_case cases[] = {
        {{{"all", 3}}, 1, {3}},
        {{{"data", 2}, {"expert", 2}, {"model", 2}}, 3, {2, 2, 2}},
        {{{"rows", -1}, {"columns", 3}}, 2, {2, 3}},
        {{{"a", 2}, {"b", 1}, {"c", -1}, {"d", 2}}, 4, {2, 1, 2, 2}},
    };
    int ranks = 1;
    for (int i = 0; i < cases[_i].count; i++)
        ranks *= cases[_i].size[i];
    run_job(ranks, has_axes, &cases[_i]);
}
END_TEST

static void refuses_axes(shard_group *world, void *context)
{
    (void)context;
    ck_assert_ptr_null(shard_mesh_create(.axes = {{"a", 2}, {"a", 1}}));
    check_error(SHARD_ERROR_ARGUMENT, "*two axes are named \"a\"");
    ck_assert_ptr_null(shard_mesh_create(.axes = {{"a", -1}, {"b", -1}}));
    check_error(SHARD_ERROR_ARGUMENT, "*a -1 x b -1: sizes are 1 or more, and -1 for one axis at most*");
    ck_assert_ptr_null(shard_mesh_create(.axes = {{"", 2}}));
    check_error(SHARD_ERROR_ARGUMENT, "*the axis name \"\" is empty*");
    ck_assert_ptr_null(shard_mesh_create(.model = 2, .axes = {{"a", 2}}));
    check_error(SHARD_ERROR_ARGUMENT, "*axes are given, and data or model too*");
    ck_assert_ptr_null(shard_mesh_create(.axes = {{"a", INT_MAX}, {"b", INT_MAX}, {"c", INT_MAX}}));
    check_error(SHARD_ERROR_ARGUMENT, "*is not the world's size, 2*");
    ck_assert_ptr_null(shard_mesh_create(.axes = {{NULL, 0}, {"a", 2}}));
    check_error(SHARD_ERROR_ARGUMENT, "*axis 1, \"a\", follows one without a name*");
    ck_assert_ptr_null(shard_mesh_create(.axes = {{"a", -1}, {NULL, 0}, {NULL, 0}, {"b", 1}}));
    check_error(SHARD_ERROR_ARGUMENT, "*axis 3, \"b\", follows one without a name*");
    bool second = shard_group_rank(world) == 1;
    ck_assert_ptr_null(shard_mesh_create(.axes = {{second ? "b" : "a", 2}}));
    check_error(SHARD_ERROR_MISMATCH, "*rank 1 *shard_mesh_create with *b 2*a 2*");
    shard_mesh *mesh = shard_mesh_create(.axes = {{"a", 2}});
    ck_assert_ptr_nonnull(mesh);
    ck_assert_ptr_null(shard_mesh_data_group(mesh));
    check_error(SHARD_ERROR_ARGUMENT, "*the mesh has no axis \"data\"; it is a 2");
    shard_mesh_destroy(mesh);
}

START_TEST(test_axes_that_do_not_fit)
{
    run_job(2, refuses_axes, NULL);
}
END_TEST

static void refuses(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    ck_assert_ptr_null(shard_mesh_create(.model = 2));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_mesh_create: data -1 x model 2: groups of 2 do not divide the world's 3 ranks");
    ck_assert_ptr_null(shard_mesh_create(.model = 4));
    check_error(SHARD_ERROR_ARGUMENT, "*groups of 4 do not divide the world's 3 ranks");
    ck_assert_ptr_null(shard_mesh_create(.model = -1));
    check_error(SHARD_ERROR_ARGUMENT, "*data -1 x model -1: sizes are 1 or more, and -1 for one axis at most*");
    ck_assert_ptr_null(shard_mesh_create(.model = 3, .data = 2));
    check_error(SHARD_ERROR_ARGUMENT, "*data 2 x model 3 is not the world's size, 3*");
    shard_mesh *mesh = shard_mesh_create(.model = 3); /* the world works on */
    ck_assert_ptr_nonnull(mesh);
    shard_mesh_destroy(mesh);
}

START_TEST(test_sizes_that_do_not_fit)
{
    run_job(3, refuses, NULL);
}
END_TEST

/* Each grid alone would do, and its groups would meet those of another one. */
static void differ(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    ck_assert_ptr_null(shard_mesh_create(.model = rank == 2 ? 2 : 1));
    check_error(SHARD_ERROR_MISMATCH, "rank 2 *with data 2 x model 2 while ranks 0, 1 and 3 *with data 4 x model 1");
    ck_assert_ptr_null(shard_mesh_create(.model = rank == 1 ? 3 : 2));
    check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: *groups of 3 do not divide the world's 4 ranks*");
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_ptr_nonnull(mesh);
    shard_mesh_destroy(mesh);
}

START_TEST(test_grids_that_differ)
{
    run_job(4, differ, NULL);
}
END_TEST

START_TEST(test_without_init)
{
    ck_assert_ptr_null(shard_mesh_create(.model = 1));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_init*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh");
    TCase *tcase = test_case(suite, "mesh");
    tcase_add_loop_test(tcase, test_groups, 0, 9);
    tcase_add_loop_test(tcase, test_axes, 0, 4);
    tcase_add_test(tcase, test_axes_that_do_not_fit);
    tcase_add_test(tcase, test_sizes_that_do_not_fit);
    tcase_add_test(tcase, test_grids_that_differ);
    tcase_add_test(tcase, test_without_init);
    return test_run(suite);
}
