/*
 * What data parallel training keeps alike beside the gradients: replicas that differ are
 * told with rank and parameter, buffers become the first replica's or the mean.
 */
#include "support/host.h"
#include "support/job.h"

#include "tensor/tensor.h"
#include "support/options.h"

#include <stdlib.h>

/* ---- replicas that differ ---- */

typedef enum difference { NAME, SHAPE, DTYPE, COUNT } difference;

static const struct {
    difference what;
    const char *text;
} differences[] = {
    {NAME, "rank 2: *: the replicas differ: here it is \"c\" float32 [[]4, 3] local, on ranks 0 and 1 \"b\" float32 [[]4, "
           "3] local"},
    {SHAPE, "rank 2: *: the replicas differ: here it is \"b\" float32 [[]3, 4] local, on ranks 0 and 1 \"b\" float32 [[]4, "
            "3] local"},
    {DTYPE, "rank 2: *: the replicas differ: here it is \"b\" float64 *, on ranks 0 and 1 \"b\" float32 *"},
    {COUNT, "rank 2: *: the replicas differ: here it is nothing more, on ranks 0 and 1 \"b\" float32 *"},
};

static void tells_what_differs(shard_group *world, void *context)
{
    int which = *(const int *)context;
    bool other = shard_group_rank(world) == 2;
    difference what = differences[which].what;
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        shard_tensor *b = shard_ones(other && what == SHAPE ? SHARD_SHAPE(3, 4) : SHARD_SHAPE(4, 3), .requires_grad = true,
                                     .dtype = other && what == DTYPE ? SHARD_FLOAT64 : SHARD_FLOAT32);
        check_ok(shard_tensors_add(list, "a", shard_ones(SHARD_SHAPE(5), .requires_grad = true)));
        if (!(other && what == COUNT))
            check_ok(shard_tensors_add(list, other && what == NAME ? "c" : "b", b));
        ck_assert_ptr_null(shard_data_parallel_create(list));
        check_joint_error(SHARD_ERROR_MISMATCH, differences[which].text);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_differences)
{
    run_job(3, tells_what_differs, &_i);
}
END_TEST

typedef struct values_case {
    bool no_broadcast, no_check, signs, differs;
} values_case;

static const values_case values_cases[] = {
    {.differs = false},
    {.no_broadcast = true, .differs = true},
    {.no_broadcast = true, .signs = true, .differs = true},
    {.no_broadcast = true, .no_check = true},
};

/* On rank 1, one element of many is another (or two have another sign); without the
 * beginning's broadcast the first backward that synchronizes tells so, nothing having moved. */
static void tells_values(shard_group *world, void *context)
{
    const values_case *c = context;
    enum { SIZE = 300001 };
    SHARD_SCOPE
    {
        float *values = calloc(SIZE, sizeof *values);
        for (int i = 0; i < SIZE; i++)
            values[i] = 1.0f;
        if (shard_group_rank(world) == 1 && c->signs)
            values[1001] = values[1003] = -1.0f;
        else if (shard_group_rank(world) == 1)
            values[SIZE - 1] = 1.0000001f;
        shard_tensor *a = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *b = shard_from_host(values, SHARD_SHAPE(SIZE), .requires_grad = true);
        free(values);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        check_ok(shard_tensors_add(list, "b", b));
        shard_data_parallel *dp = shard_data_parallel_create(list, .init_sync = !c->no_broadcast, .check = !c->no_check);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        shard_data_parallel_set_sync(dp, false);
        check_ok(shard_backward(shard_sum(b)));
        shard_data_parallel_set_sync(dp, true);
        shard_status status = shard_backward(shard_add(shard_sum(b), shard_sum(a)));
        if (c->differs) {
            shard_step(sgd);
            ck_assert_double_eq(value_at(b, 0), 1.0);
            check_joint_error(SHARD_ERROR_MISMATCH, "rank 1: *: the replicas differ: here it is \"b\" float32 [[]300001] local "
                                                    "with values of hash *, on ranks 0 and 2 \"b\" *");
            ck_assert_int_eq(status, shard_group_rank(world) == 1 ? SHARD_ERROR_MISMATCH : SHARD_ERROR_PEER);
        } else {
            check_ok(status);
            check_ok(shard_step(sgd));
            ck_assert_double_eq(value_at(b, 0), -1.0);
        }
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_values)
{
    values_case c = values_cases[_i];
    run_job(3, tells_values, &c);
}
END_TEST

/* Stage 3 keeps a range of each: the values are compared while they are whole. */
static void tells_values_in_stage_3(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", shard_ones(SHARD_SHAPE(3), .requires_grad = true)));
        check_ok(shard_tensors_add(list, "b",
                                   shard_full(SHARD_SHAPE(4), shard_group_rank(world) == 1 ? 7 : 1, .requires_grad = true)));
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 3, .init_sync = false));
        check_joint_error(SHARD_ERROR_MISMATCH, "rank 1: *: the replicas differ: here it is \"b\" float32 [[]4] local "
                                                "with values of hash *, on ranks 0 and 2 \"b\" *");
        shard_tensors_destroy(list);
    }
}

START_TEST(test_values_in_stage_3)
{
    run_job(3, tells_values_in_stage_3, NULL);
}
END_TEST

/* Once is enough; and it compares what is replicated, no more: parts of a layer differ. */
static void compares_replicas(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *model = shard_mesh_model_group(mesh);
    for (int differs = 0; differs < 2; differs++)
        SHARD_SCOPE
        {
            int member = shard_group_rank(model);
            shard_tensor *part =
                shard_as_split(shard_full(SHARD_SHAPE(2), member + (differs && rank == 3 ? 0.5 : 0)), 0, model, 2 * member, 4);
            shard_set_requires_grad(part, true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "bias", shard_ones(SHARD_SHAPE(3), .requires_grad = true)));
            check_ok(shard_tensors_add(list, "part", part));
            shard_data_parallel *dp = shard_data_parallel_create(list, .init_sync = false);
            shard_backward(shard_reduce_from_group(shard_sum(part), model));
            if (differs) {
                shard_agree(world);
                check_joint_error(SHARD_ERROR_MISMATCH,
                                  "rank 3: *: the replicas differ: here it is \"part\" float32 [[]4] split*, on rank 1 *");
            } else {
                check_ok(shard_last_status());
                float again[] = {(float)rank, 0};
                check_ok(shard_copy_from_host(part, again, sizeof again));
                check_ok(shard_backward(shard_reduce_from_group(shard_sum(part), model)));
            }
            shard_data_parallel_destroy(dp);
            shard_tensors_destroy(list);
        }
    shard_mesh_destroy(mesh);
}

START_TEST(test_groups)
{
    run_job(4, compares_replicas, NULL);
}
END_TEST

/* ---- frozen parameters ---- */

/* Their values count as the others' do; and which ones they are. */
static void tells_of_frozen(shard_group *world, void *context)
{
    bool which = *(const int *)context, last = shard_group_rank(world) == 2;
    SHARD_SCOPE
    {
        shard_tensor *a = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *b = shard_full(SHARD_SHAPE(4), last && !which ? 2.0 : 1.0, .requires_grad = which && !last);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        check_ok(shard_tensors_add(list, "b", b));
        shard_data_parallel *dp = shard_data_parallel_create(list, .init_sync = false);
        ck_assert(which == !dp);
        if (dp)
            shard_backward(shard_sum(a));
        check_joint_error(SHARD_ERROR_MISMATCH,
                          which ? "rank 2: *: the replicas differ: here it is \"b\" float32 [[]4] local frozen, on ranks 0 and 1 "
                                  "\"b\" float32 [[]4] local"
                                : "rank 2: *: the replicas differ: here it is \"b\" float32 [[]4] local frozen with values "
                                  "of hash *, on ranks 0 and 1 *");
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_frozen_differ)
{
    run_job(3, tells_of_frozen, &_i);
}
END_TEST

/* Among the buffers too, they begin alike and are left where they are then: one backward
 * leaves what the next one needs. Later they may train, without being averaged. */
static void leaves_frozen(shard_group *world, void *context)
{
    shard_buffer_mode mode = *(const shard_buffer_mode *)context;
    int rank = shard_group_rank(world);
    shard_module *model = shard_nn_sequential(shard_nn_linear(3, 4), shard_nn_linear(4, 2));
    shard_tensors *parameters = shard_parameters(model), *state = shard_state_dict(model);
    shard_tensor *frozen = shard_tensors_find(parameters, "1.weight");
    ck_assert_ptr_nonnull(frozen);
    float values[8];
    for (int i = 0; i < 8; i++)
        values[i] = (float)(0.1 + rank); /* a third of three times which is another one */
    check_ok(shard_copy_from_host(frozen, values, sizeof values));
    shard_set_requires_grad(frozen, false);
    shard_set_requires_grad(shard_tensors_find(parameters, "1.bias"), false);
    const void *memory = shard_data(frozen);
    shard_data_parallel *dp = shard_data_parallel_create(parameters, .buffers = state, .buffer_mode = mode);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    ck_assert_ptr_eq(shard_data(frozen), memory);
    SHARD_SCOPE
    {
        shard_tensor *first = shard_sum(shard_forward(model, made_up(SHARD_SHAPE(5, 3), 1, SHARD_FLOAT32)));
        shard_tensor *second = shard_sum(shard_forward(model, made_up(SHARD_SHAPE(5, 3), 2, SHARD_FLOAT32)));
        check_ok(shard_backward(first));
        ck_assert_double_eq(value_at(frozen, 7), (double)0.1f);
        ck_assert_ptr_null(shard_grad(frozen));
        check_ok(shard_backward(second));
        shard_set_requires_grad(frozen, true);
        check_ok(shard_backward(shard_sum(shard_scale(frozen, rank))));
        ck_assert_double_eq(value_at(shard_grad(frozen), 3), rank);
    }
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}

START_TEST(test_frozen_stay)
{
    for (shard_buffer_mode mode = SHARD_BUFFERS_BROADCAST; mode <= SHARD_BUFFERS_LEAVE; mode++)
        run_job(3, leaves_frozen, &mode);
}
END_TEST

/* ---- buffers ---- */

static void check_all(shard_tensor *x, double value)
{
    for (int64_t i = 0; i < shard_numel(x); i++)
        ck_assert_double_eq_tol(value_at(x, i), value, 1e-6);
}

static void keeps_buffers(shard_group *world, void *context)
{
    shard_buffer_mode mode = *(const shard_buffer_mode *)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *mean = shard_full(SHARD_SHAPE(5), rank + 1.0),
                     *wide = shard_full(SHARD_SHAPE(7), rank + 1.0, .dtype = SHARD_FLOAT64);
        shard_tensor *steps = shard_full(SHARD_SCALAR, rank + 1.0, .dtype = SHARD_INT64),
                     *other = shard_full(SHARD_SHAPE(2), rank);
        shard_tensors *parameters = shard_tensors_create(), *state = shard_tensors_create();
        check_ok(shard_tensors_add(parameters, "weight", weight));
        check_ok(shard_tensors_add(state, "weight", weight));
        check_ok(shard_tensors_add(state, "mean", mean));
        check_ok(shard_tensors_add(state, "empty", shard_zeros(SHARD_SHAPE(0))));
        check_ok(shard_tensors_add(state, "wide", wide));
        check_ok(shard_tensors_add(state, "steps", steps));
        check_ok(shard_tensors_add(state, "mean, tied", mean));
        shard_data_parallel *dp = shard_data_parallel_create(parameters, .buffers = state, .buffer_mode = mode);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        shard_tensors_destroy(state);
        bool left = mode == SHARD_BUFFERS_LEAVE;
        check_all(mean, left ? rank + 1 : 1); /* begin alike */
        for (int turn = 0; turn < 2; turn++) {
            float values[5] = {(float)rank, (float)rank, (float)rank, (float)rank, (float)rank};
            int64_t counted = 10 + rank;
            check_ok(shard_copy_from_host(mean, values, sizeof values));
            check_ok(shard_copy_from_host(steps, &counted, sizeof counted));
            shard_data_parallel_set_sync(dp, turn == 1);
            check_ok(shard_backward(shard_sum(weight)));
            bool own = left || turn == 0;
            double average = (size - 1) / 2.0;
            check_all(mean, own ? rank : mode == SHARD_BUFFERS_AVERAGE ? average : 0);
            check_all(wide, left ? rank + 1 : 1);
            ck_assert_int_eq((int64_t)value_at(steps, 0), own ? 10 + rank : 10);
            check_all(other, rank);
        }
        shard_data_parallel_destroy(dp);
        check_all(mean, left ? rank : mode == SHARD_BUFFERS_AVERAGE ? (size - 1) / 2.0 : 0); /* it keeps its memory */
        shard_tensors_destroy(parameters);
    }
}

START_TEST(test_buffers)
{
    for (shard_buffer_mode mode = SHARD_BUFFERS_BROADCAST; mode <= SHARD_BUFFERS_LEAVE; mode++)
        run_job(rank_counts[_i], keeps_buffers, &mode);
}
END_TEST

/* A batch norm's, by its module's own names; what is evaluated is the same everywhere. */
static void keeps_statistics(shard_group *world, void *context)
{
    (void)context;
    shard_manual_seed(1);
    shard_module *model = shard_nn_sequential(shard_nn_batch_norm(4), shard_nn_global_avg_pool2d());
    shard_tensors *parameters = shard_parameters(model), *state = shard_state_dict(model);
    shard_data_parallel *dp = shard_data_parallel_create(parameters, .buffers = state);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    double first = 0;
    for (int turn = 0; turn < 3; turn++)
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(3, 2, 2, 4), (uint64_t)(10 * turn + shard_group_rank(world)), SHARD_FLOAT32);
            check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        }
    shard_module_set_training(model, false);
    SHARD_SCOPE
    SHARD_NO_GRAD
    {
        shard_tensor *y = shard_forward(model, made_up(SHARD_SHAPE(1, 2, 2, 4), 5, SHARD_FLOAT32));
        shard_tensor *all = shard_gather_from_group(y, 0, world);
        first = value_at(all, 0);
        for (int r = 1; r < shard_group_size(world); r++)
            ck_assert_double_eq(value_at(all, 4 * r), first);
    }
    ck_assert_double_eq(value_at(shard_tensors_find(state, "0.num_batches_tracked"), 0), 3);
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}

START_TEST(test_statistics)
{
    run_job(rank_counts[_i], keeps_statistics, NULL);
}
END_TEST

/* ---- several over one parameter ---- */

/* Buffers of the first one stay alike beside a second one, and after it; and what the first is to
 * compare is compared. */
static void looks_on_beside_another(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *p = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensor *q = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true), *buffer = shard_ones(SHARD_SHAPE(3));
        shard_tensors *first = shard_tensors_create(), *both = shard_tensors_create(), *buffers = shard_tensors_create();
        check_ok(shard_tensors_add(first, "p", p));
        check_ok(shard_tensors_add(both, "p", p));
        check_ok(shard_tensors_add(both, "q", q));
        check_ok(shard_tensors_add(buffers, "buffer", buffer));
        shard_data_parallel *dp = shard_data_parallel_create(first, .buffers = buffers);
        shard_data_parallel *other = shard_data_parallel_create(both, .check = false);
        float values[3] = {(float)rank + 1, 2, 3};
        for (int turn = 0; turn < 2; turn++) {
            check_ok(shard_copy_from_host(buffer, values, sizeof values));
            check_ok(shard_backward(shard_add(shard_sum(p), turn ? shard_sum(p) : shard_sum(q))));
            ck_assert_double_eq(value_at(buffer, 0), 1);
            if (turn == 0)
                shard_data_parallel_destroy(other);
        }
        shard_data_parallel_destroy(dp);
        dp = shard_data_parallel_create(first);
        other = shard_data_parallel_create(first, .check = false);
        float differ[5] = {1, 1, 1, 1, rank == 1 ? 2 : 1};
        check_ok(shard_copy_from_host(p, differ, sizeof differ));
        shard_backward(shard_sum(p));
        check_joint_error(SHARD_ERROR_MISMATCH, "rank 1: *: the replicas differ: here it is \"p\" *");
        shard_data_parallel_destroy(dp); /* in any order */
        shard_data_parallel_destroy(other);
        ck_assert_ptr_null(p->leaf->grad_watches);
        shard_tensors_destroy(first);
        shard_tensors_destroy(both);
        shard_tensors_destroy(buffers);
    }
}

/* A frozen parameter of one data parallel is no buffer of another one. */
static void leaves_frozen_parameters(shard_group *world, void *context)
{
    (void)world, (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensor *q = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensors *first = shard_tensors_create(), *second = shard_tensors_create();
        check_ok(shard_tensors_add(first, "p", p));
        check_ok(shard_tensors_add(second, "q", q));
        shard_data_parallel *dp = shard_data_parallel_create(first, .stage = 1);
        const shard_storage *storage = p->storage;
        shard_set_requires_grad(p, false);
        shard_data_parallel *other = shard_data_parallel_create(second, .buffers = first);
        ck_assert_msg(other != NULL, "%s", shard_last_error());
        ck_assert_ptr_eq(p->storage, storage);
        shard_data_parallel_destroy(other);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(first);
        shard_tensors_destroy(second);
    }
}

START_TEST(test_frozen_beside)
{
    run_job(2, leaves_frozen_parameters, NULL);
}
END_TEST

START_TEST(test_beside)
{
    run_job(2, looks_on_beside_another, NULL);
}
END_TEST

/* One rank's backward does not reach a parameter that is stepped in backward: its bucket is reduced at the end, before the
 * buffers are sent. */
static void sends_buffers_last(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *p = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true);
        shard_tensor *q = shard_full(SHARD_SHAPE(5), 1.0, .requires_grad = true), *buffer = shard_full(SHARD_SHAPE(3), rank);
        shard_tensors *parameters = shard_tensors_create(), *buffers = shard_tensors_create();
        check_ok(shard_tensors_add(parameters, "a.p", p));
        check_ok(shard_tensors_add(parameters, "b.q", q));
        check_ok(shard_tensors_add(buffers, "buffer", buffer));
        shard_optimizer *sgd = shard_zero_optimizer(shard_sgd(parameters, .lr = 1.0), .overlap = true, .bucket_mib = 0);
        shard_data_parallel *dp = shard_data_parallel_create(parameters, .stage = 1, .buffers = buffers);
        ck_assert_msg(sgd && dp, "%s", shard_last_error());
        check_ok(shard_backward(shard_sum(rank == 1 ? p : shard_add(p, q))));
        check_ok(shard_step(sgd));
        check_all(p, 0);
        check_all(q, 0.5);
        check_all(buffer, 0);
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(sgd);
        shard_tensors_destroy(parameters);
        shard_tensors_destroy(buffers);
    }
}

START_TEST(test_buffers_last)
{
    run_job(2, sends_buffers_last, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replicas");
    TCase *tcase = test_case(suite, "replicas");
    tcase_add_loop_test(tcase, test_differences, 0, (int)(sizeof differences / sizeof *differences));
    tcase_add_loop_test(tcase, test_values, 0, (int)(sizeof values_cases / sizeof *values_cases));
    tcase_add_test(tcase, test_values_in_stage_3);
    tcase_add_test(tcase, test_groups);
    tcase_add_loop_test(tcase, test_frozen_differ, 0, 2);
    tcase_add_test(tcase, test_frozen_stay);
    tcase_add_test(tcase, test_beside);
    tcase_add_test(tcase, test_frozen_beside);
    tcase_add_test(tcase, test_buffers_last);
    add_ranks_test(tcase, test_buffers);
    add_ranks_test(tcase, test_statistics);
    return test_run(suite);
}
