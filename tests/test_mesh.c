/* Meshes: who is in which group, by the group's own rank and size. */
#include "support/host.h"
#include "support/job.h"

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
        ck_assert_ptr_eq(shard_replica_group(part), c->model > 1 ? data : NULL);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_groups)
{
    static mesh_case cases[] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}, {4, 1}, {2, 4}, {4, 2}, {2, 3}};
    run_job(cases[_i].data * cases[_i].model, has_its_groups, &cases[_i]);
}
END_TEST

static void refuses(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    ck_assert_ptr_null(shard_mesh_create(.model = 2));
    check_error(shard_last_status(), "*shard_mesh_create: model parallel groups of 2 do not divide the 3 ranks");
    ck_assert_ptr_null(shard_mesh_create(.model = 4));
    check_error(shard_last_status(), "*groups of 4 do not divide the 3 ranks");
    ck_assert_ptr_null(shard_mesh_create(.model = -1));
    check_error(shard_last_status(), "*model parallel is not the world's size*");
    ck_assert_ptr_null(shard_mesh_create(.model = 3, .data = 2));
    check_error(shard_last_status(), "*2 data x 3 model parallel is not the world's size, 3*");
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
    check_error(SHARD_ERROR_MISMATCH, "shard_mesh_create: rank 2 asks for 2 data x 2 model parallel, rank 0 for 4 x 1");
    ck_assert_ptr_null(shard_mesh_create(.model = rank == 1 ? 3 : 2));
    check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: *groups of 3 do not divide the 4 ranks*");
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
    check_error(shard_last_status(), "*shard_init*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh");
    TCase *tcase = test_case(suite, "mesh");
    tcase_add_loop_test(tcase, test_groups, 0, 9);
    tcase_add_test(tcase, test_sizes_that_do_not_fit);
    tcase_add_test(tcase, test_grids_that_differ);
    tcase_add_test(tcase, test_without_init);
    return test_run(suite);
}
