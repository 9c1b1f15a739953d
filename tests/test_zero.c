/* shard_zero_optimizer: the same bits as the optimizer alone, in every stage, on any number of ranks. */
#include "support/host.h"
#include "support/zero.h"

#include "optim/optimizer.h"
#include "support/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of each partition in each stage on one number of ranks; fewer of the others. */
enum { STEPS = 50, FEW_STEPS = 3, LONG_RANKS = 3 };

/* A bucket for each module, with which few steps are made. 3e-4 is one for a few. */
#define SMALLEST 1e-6

static zero_way cases[] = {
    {.stage = 1},
    {.stage = 1, .bucket_mib = SMALLEST, .overlap = true},
    {.stage = 1, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE},
    {.stage = 2},
    {.stage = 2, .bucket_mib = SMALLEST},
    {.stage = 2, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE, .overlap = true},
    {.stage = 3},
    {.stage = 3, .bucket_mib = SMALLEST, .overlap = true},
    {.stage = 3, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

static shard_optimizer *sgd_of(shard_tensors *parameters)
{
    return sgd_of_list(parameters, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}

static shard_optimizer *zero_sgd_of(shard_tensors *parameters, zero_way options)
{
    shard_optimizer *sgd = sgd_of(parameters), *shared = zero_with(sgd, options);
    ck_assert_msg(shared && shared == sgd, "%s", shard_last_error());
    return shared;
}

static shard_data_parallel *average(shard_tensors *parameters)
{
    shard_data_parallel *dp = shard_data_parallel_create(parameters);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    return dp;
}

/* What shares out sums in the order of ranks over shared memory, and of two in any. */
static double tolerance(shard_group *world)
{
    bool ordered = strcmp(shard_group_transport(world), "shm") == 0 && !getenv("SHARD_CUDA_EMULATION_DEVICES");
    return (shard_group_size(world) <= 2 || ordered) && products_are_exact() ? 0 : 1e-6;
}

/* On a device other than the CPU, whose emulation takes its time, on one number of ranks each. */
static bool takes_long(void)
{
    return getenv("SHARD_DEVICE") != NULL;
}

static void equals_the_optimizer(shard_group *world, void *context)
{
    zero_way options = *(zero_way *)context;
    int steps = shard_group_size(world) == LONG_RANKS && options.bucket_mib != SMALLEST && !takes_long() ? STEPS : FEW_STEPS;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp = average(list_sorts(&a));
        shard_optimizer *alone = sgd_of(list_sorts(&a));
        shard_optimizer *shared = zero_sgd_of(list_sorts(&b), options);
        for (int step = 0; step < steps; step++) {
            back_sorts(&a, world, step);
            back_sorts(&b, world, step);
            check_ok(shard_step(alone));
            check_ok(shard_step(shared));
            if (step < FEW_STEPS || step == steps - 1)
                check_sorts_equal(&a, &b, tolerance(world));
        }
        shard_optimizer_destroy(alone);
        shard_optimizer_destroy(shared);
        shard_data_parallel_destroy(dp);
        check_sorts_equal(&a, &b, tolerance(world)); /* parameters outlive it */
    }
}

START_TEST(test_equals)
{
    int ranks = rank_counts[takes_long() ? (_i + _i / RANK_COUNTS) % RANK_COUNTS : _i / CASES];
    run_job(ranks, equals_the_optimizer, &cases[_i % CASES]);
}
END_TEST

/* ---- any parameters, any options ---- */

static uint64_t state;
static int64_t draw(int64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % below;
}

enum { MOST = 12 };

static void back_all(shard_tensor **parameters, int64_t count, uint64_t seed)
{
    SHARD_SCOPE
    {
        shard_tensor *loss = shard_zeros(SHARD_SCALAR);
        for (int64_t i = 0; i < count; i++) {
            shard_tensor *x = made_up(shard_tensor_shape(parameters[i]), seed + (uint64_t)i, SHARD_FLOAT32);
            shard_tensor *sum = shard_add(parameters[i], x);
            loss = shard_add(loss, shard_sum(shard_mul(sum, sum)));
        }
        check_ok(shard_backward(loss));
    }
}

static void equals_whatever_it_is(shard_group *world, void *context)
{
    state = *(uint64_t *)context;
    zero_way options = {.stage = 1 + (int)draw(3), .partition = (shard_zero_partition)draw(2), .overlap = draw(2)};
    options.bucket_mib = (double)(1 + draw(1500)) / 1048576;
    int64_t count = 1 + draw(MOST);
    SHARD_SCOPE
    {
        shard_tensor *p[2][MOST];
        shard_tensors *list[2] = {shard_tensors_create(), shard_tensors_create()};
        for (int64_t i = 0; i < count; i++) {
            int64_t size = draw(4) ? draw(200) : draw(3);
            char name[20];
            snprintf(name, sizeof name, "%c.%d", (char)('a' + draw(2) * i), (int)i);
            for (int j = 0; j < 2; j++) {
                p[j][i] = made_up_leaf(SHARD_SHAPE(size), (uint64_t)i, SHARD_FLOAT32);
                check_ok(shard_tensors_add(list[j], name, p[j][i]));
            }
        }
        shard_data_parallel *dp = shard_data_parallel_create(list[0]);
        shard_optimizer *sgd[2] = {sgd_of(list[0]), zero_sgd_of(list[1], options)};
        for (int step = 0; step < 3; step++)
            for (int j = 0; j < 2; j++) {
                back_all(p[j], count, (uint64_t)(1000 * step + 100 * shard_group_rank(world)));
                check_ok(shard_step(sgd[j]));
            }
        for (int64_t i = 0; i < count; i++)
            check_close(p[0][i], p[1][i], tolerance(world));
        shard_data_parallel_destroy(dp);
        for (int j = 0; j < 2; j++)
            shard_optimizer_destroy(sgd[j]);
    }
}

START_TEST(test_whatever)
{
    uint64_t seed = (uint64_t)_i * 977 + 5;
    run_job(2 + _i % 4, equals_whatever_it_is, &seed);
}
END_TEST

/* ---- meshes ---- */

typedef struct mesh_case {
    int data, model;
    shard_split split;
    zero_way options;
} mesh_case;

static mesh_case mesh_cases[] = {
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 1, .bucket_mib = 1e-4}},
    {2, 2, SHARD_SPLIT_ROW, {.stage = 2}},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 3, .bucket_mib = 1e-4}},
    {3, 2, SHARD_SPLIT_ROW, {.stage = 1, .partition = SHARD_ZERO_WHOLE}},
    {3, 2, SHARD_SPLIT_COLUMN, {.stage = 2, .bucket_mib = 1e-4, .overlap = true}},
    {3, 2, SHARD_SPLIT_ROW, {.stage = 3}},
    {1, 3, SHARD_SPLIT_COLUMN, {.stage = 3}},
    {4, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 1e-4, .partition = SHARD_ZERO_WHOLE}},
};
#define MESH_CASES ((int)(sizeof mesh_cases / sizeof *mesh_cases))

/* A parameter that is split is shared out over its replicas alone, whether no group is
 * named or the world. */
static void equals_on_a_mesh(shard_group *world, void *context)
{
    mesh_case c = *(mesh_case *)context;
    shard_mesh *mesh = shard_mesh_create(.model = c.model);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *a = make_split_model(c.split, group), *b = make_split_model(c.split, group);
    shard_data_parallel *dp = average(shard_parameters(a));
    c.options.group = c.data == 2 ? world : NULL;
    shard_optimizer *alone = sgd_of(shard_parameters(a)), *shared = zero_sgd_of(shard_parameters(b), c.options);
    for (int step = 0; step < 6; step++) {
        back_split_model(a, world, group, step);
        back_split_model(b, world, group, step);
        check_ok(shard_step(alone));
        check_ok(shard_step(shared));
        check_models_equal(a, b, tolerance(world));
    }
    shard_optimizer_destroy(alone);
    shard_optimizer_destroy(shared);
    shard_data_parallel_destroy(dp);
    shard_module_destroy(a);
    shard_module_destroy(b);
    shard_mesh_destroy(mesh);
}

START_TEST(test_meshes)
{
    run_job(mesh_cases[_i].data * mesh_cases[_i].model, equals_on_a_mesh, &mesh_cases[_i]);
}
END_TEST

/* A group that has some of a parameter's replicas only. */
static void refuses_a_part_of_the_replicas(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", shard_ones(SHARD_SHAPE(3), .requires_grad = true)));
        shard_optimizer *sgd = sgd_of(list);
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .group = shard_mesh_model_group(mesh)));
        check_error(SHARD_ERROR_UNSUPPORTED,
                    "*shard_zero_optimizer: \"weight\" is replicated on 4 ranks, of which 2 are in the group of "
                    "2*leave .group NULL for each parameter's replica group");
        shard_optimizer_destroy(sgd);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_refuses_a_group)
{
    run_job(4, refuses_a_part_of_the_replicas, NULL);
}
END_TEST

START_TEST(test_refuses)
{
    ck_assert_ptr_null(shard_zero_optimizer(NULL, .stage = 1));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_zero_optimizer: optimizer is NULL*");
    shard_optimizer *sgd = sgd_of(shard_tensors_create());
    ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = 4));
    check_error(SHARD_ERROR_ARGUMENT, "*no stage 4*");
    ck_assert_ptr_null(shard_zero_optimizer(sgd, .partition = (shard_zero_partition)7));
    check_error(SHARD_ERROR_ARGUMENT, "*no partition 7*");
    ck_assert_ptr_eq(shard_zero_optimizer(sgd), sgd);
    ck_assert_ptr_null(shard_zero_optimizer(sgd));
    check_error(SHARD_ERROR_ARGUMENT, "*is partitioned already*");
    shard_optimizer_destroy(sgd);
}
END_TEST

/* ---- with data parallel ---- */

/* Data parallel leaves parameters to it, whichever was first, and turns its averaging off
 * and on: several backwards add up to the same, to rounding where each is reduced. */
typedef struct accumulation {
    int stage;
    bool first; /* data parallel is */
    bool overlap;
} accumulation;
static accumulation accumulations[] = {{1, true},       {1, false, true}, {2, true},       {2, false},
                                       {2, true, true}, {3, true},        {3, false, true}};

static void accumulates(shard_group *world, void *context)
{
    const accumulation *c = context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp[2] = {average(list_sorts(&a)), c->first ? average(list_sorts(&b)) : NULL};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&a)),
                                   zero_sgd_of(list_sorts(&b), (zero_way){.stage = c->stage, .overlap = c->overlap})};
        if (!c->first)
            dp[1] = average(list_sorts(&b));
        for (int step = 0; step < 3; step++) {
            for (int turn = 0; turn < 3; turn++) {
                for (int i = 0; i < 2; i++)
                    shard_data_parallel_set_sync(dp[i], turn == 2);
                back_sorts(&a, world, 3 * step + turn);
                back_sorts(&b, world, 3 * step + turn);
            }
            for (int i = 0; i < 2; i++)
                check_ok(shard_step(sgd[i]));
            check_sorts_equal(&a, &b, c->stage == 1 ? tolerance(world) : 2e-6);
        }
        for (int i = 0; i < 2; i++) {
            shard_data_parallel_destroy(dp[i]);
            shard_optimizer_destroy(sgd[i]);
        }
    }
}

START_TEST(test_accumulates)
{
    run_job(2 + _i % 2, accumulates, &accumulations[_i]);
}
END_TEST

/* shard_zero_grad of a parameter forgets what it has of the sum, whoever has the range, and no other parameter's gradient. */
static void forgets(shard_group *world, void *context)
{
    int stage = *(int *)context;
    (void)world;
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        shard_tensor *p[] = {shard_zeros(SHARD_SHAPE(5), .requires_grad = true),
                             shard_zeros(SHARD_SHAPE(5), .requires_grad = true)};
        check_ok(shard_tensors_add(list, "forgets", p[0]));
        check_ok(shard_tensors_add(list, "keeps", p[1]));
        shard_data_parallel *dp = shard_data_parallel_create(list, .stage = stage);
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        double values[] = {0, 0};
        for (int turn = 0; turn < 4; turn++) {
            check_ok(shard_backward(shard_add(shard_sum(p[0]), shard_scale(shard_sum(p[1]), 2.0))));
            shard_zero_grad(p[0]);
            if (turn % 2) /* else there is no gradient to step by */
                check_ok(shard_backward(shard_add(shard_scale(shard_sum(p[0]), 4.0), shard_sum(p[1]))));
            check_ok(shard_step(sgd));
            values[0] -= turn % 2 ? 4 : 0;
            values[1] -= turn % 2 ? 3 : 2;
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; j < 5; j++)
                    ck_assert_double_eq(value_at(p[i], j), values[i]);
        }
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_forgets)
{
    run_job(2, forgets, &_i);
}
END_TEST

static zero_way halves[] = {
    {.stage = 2},
    {.stage = 1, .overlap = true},
    {.stage = 2, .overlap = true},
    {.stage = 3, .overlap = true},
};

/* Of data parallel's parameters half go to an optimizer that is partitioned; another one steps the rest. */
static void shares_with_data_parallel(shard_group *world, void *context)
{
    zero_way half_way = *(zero_way *)context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp[2] = {average(list_sorts(&a)), average(list_sorts(&b))};
        shard_tensors *all = list_sorts(&b), *half[2] = {shard_tensors_create(), shard_tensors_create()};
        for (int64_t i = 0; i < shard_tensors_count(all) - 1; i++)
            check_ok(shard_tensors_add(half[i % 2], shard_tensors_name(all, i), shard_tensors_at(all, i)));
        shard_tensors_destroy(all);
        shard_optimizer *sgd[3] = {sgd_of(list_sorts(&a)), zero_sgd_of(half[0], half_way), sgd_of(half[1])};
        for (int step = 0; step < 3; step++) {
            back_sorts(&a, world, step);
            back_sorts(&b, world, step);
            for (int i = 0; i < 3; i++)
                check_ok(shard_step(sgd[i]));
            check_sorts_equal(&a, &b, tolerance(world));
        }
        for (int i = 0; i < 3; i++)
            shard_optimizer_destroy(sgd[i]);
        for (int i = 0; i < 2; i++)
            shard_data_parallel_destroy(dp[i]);
    }
}

START_TEST(test_shares)
{
    run_job(3, shares_with_data_parallel, &halves[_i]);
}
END_TEST

/* ---- later ---- */

static int64_t part_of(const shard_optimizer *optimizer, const char *name)
{
    for (int64_t i = 0; i < optimizer->count; i++)
        if (strcmp(optimizer->slots[i].name, name) == 0)
            return shard_numel(optimizer->slots[i].range.tensor);
    return -1;
}

/* Shared out after some steps, with state, and with a group that comes later still. */
static void begins_late(shard_group *world, void *context)
{
    bool whole = *(int *)context == 2;
    zero_way options = {.stage = *(int *)context, .partition = whole ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN};
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_tensor *late[2] = {made_up_leaf(SHARD_SHAPE(50), 70, SHARD_FLOAT32),
                                 made_up_leaf(SHARD_SHAPE(50), 70, SHARD_FLOAT32)};
        shard_data_parallel *dp[3] = {average(list_sorts(&a)), average(list_sorts(&b))};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&a)), sgd_of(list_sorts(&b))};
        for (int step = 0; step < 6; step++) {
            if (step == 2)
                ck_assert_ptr_nonnull(zero_with(sgd[1], options));
            for (int i = 0; i < 2 && step == 4; i++) {
                shard_tensors *list = shard_tensors_create();
                check_ok(shard_tensors_add(list, "late", late[i]));
                if (i == 0)
                    dp[2] = shard_data_parallel_create(list);
                check_ok(add_group_of(sgd[i], list, .lr_scale = 0.5));
            }
            back_sorts(&a, world, step);
            back_sorts(&b, world, step);
            for (int i = 0; i < 2 && step >= 4; i++)
                check_ok(shard_backward(shard_sum(shard_scale(late[i], shard_group_rank(world) + step))));
            for (int i = 0; i < 2; i++)
                check_ok(shard_step(sgd[i]));
            double most = step < 4 ? tolerance(world) : 1e-6; /* averages are averaged again in the second backward */
            check_sorts_equal(&a, &b, most);
            check_close(late[0], late[1], most);
        }
        ck_assert_int_lt(part_of(sgd[1], "late"), whole && shard_group_rank(world) > 0 ? 51 : 50);
        for (int i = 0; i < 3; i++)
            shard_data_parallel_destroy(dp[i]);
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(sgd[i]);
    }
}

START_TEST(test_late)
{
    int stage = _i + 1;
    run_job(3, begins_late, &stage);
}
END_TEST

/* ---- failures ---- */

typedef struct failure {
    int stage;
    bool before; /* the step, not backward */
} failure;
static failure failures[] = {{1, false}, {2, false}, {3, false}, {2, true}, {3, true}};

static void fails_jointly(shard_group *world, void *context)
{
    const failure *f = context;
    int rank = shard_group_rank(world);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(50), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.stage = f->stage});
        shard_backward(shard_sum(rank == 1 && !f->before ? shard_matmul(a, NULL) : a));
        if (rank == 1 && f->before)
            shard_matmul(a, NULL);
        shard_step(sgd);
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_matmul: *NULL*");
        if (f->stage < 3) /* to gather a needs ranks that have come as far */
            ck_assert_double_eq(value_at(a, 0), 1.0);
        shard_optimizer_destroy(sgd);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    ck_assert_int_lt(end.tv_sec - start.tv_sec, 20);
}

START_TEST(test_fails_jointly)
{
    run_job(3, fails_jointly, &failures[_i]);
}
END_TEST

/* A step that one rank has failed in before its loss is forgiven: the next ones are as if it had
 * not been. Stage 0 is data parallel. */
static void goes_on(shard_group *world, void *context)
{
    int stage = *(int *)context, rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        sorts s[2] = {make_sorts(world), make_sorts(world)};
        shard_data_parallel *dp[2] = {average(list_sorts(&s[0])), stage ? NULL : average(list_sorts(&s[1]))};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&s[0])), sgd_of(list_sorts(&s[1]))};
        if (stage)
            ck_assert_ptr_nonnull(shard_zero_optimizer(sgd[1], .stage = stage, .bucket_mib = 1e-6));
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < 2; i++) {
                if (i == 1 && step > 0) { /* a failed step first */
                    shard_tensor *loss = shard_sum(shard_cast(s[1].parameter[SORTS_DOUBLE], SHARD_FLOAT32));
                    shard_backward(rank == 1 ? shard_matmul(loss, NULL) : loss);
                    shard_step(sgd[1]);
                    check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_matmul: *NULL*");
                    shard_optimizer_zero_grad(sgd[1]);
                }
                back_sorts(&s[i], world, step);
                check_ok(shard_step(sgd[i]));
            }
            check_sorts_equal(&s[0], &s[1], tolerance(world));
        }
        for (int i = 0; i < 2; i++) {
            shard_optimizer_destroy(sgd[i]);
            shard_data_parallel_destroy(dp[i]);
        }
    }
}

START_TEST(test_goes_on)
{
    run_job(3, goes_on, &_i);
}
END_TEST

/* A rank without memory for its state: none steps, and all can try again. */
static shard_device_ops poor;

static void *allocates_nothing(shard_device *device, size_t bytes)
{
    return shard_fail_null(SHARD_ERROR_MEMORY, "%s: %zu bytes that are not there", device->name, bytes);
}

static void steps_together(shard_group *world, void *context)
{
    bool shared = *(int *)context;
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(50), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "a", a));
        shard_data_parallel *dp = shared ? NULL : shard_data_parallel_create(list);
        shard_optimizer *adam = adam_of_list(list, .lr = 0.25);
        adam = shared ? shard_zero_optimizer(adam) : adam;
        check_ok(shard_backward(shard_sum(a)));
        shard_device *device = shard_device_open(NULL);
        const shard_device_ops *rich = device->ops;
        poor = *rich;
        poor.allocate = allocates_nothing;
        if (shard_group_rank(world) == 1)
            device->ops = &poor;
        shard_step(adam);
        device->ops = rich;
        check_joint_error(SHARD_ERROR_MEMORY, "rank 1: *not there*");
        ck_assert_double_eq(value_at(a, 0), 1);
        ck_assert_double_eq(value_at(a, 49), 1);
        check_ok(shard_step(adam));
        ck_assert_double_eq_tol(value_at(a, 0), 0.75, 1e-6);
        ck_assert_double_eq_tol(value_at(a, 49), 0.75, 1e-6);
        shard_optimizer_destroy(adam);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_steps_together)
{
    run_job(2, steps_together, &(int){_i});
}
END_TEST

/* One rank asks for what there is not: none shares out. */
static void fails_to_share(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = sgd_of(list_sorts(&s));
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = shard_group_rank(world) == 1 ? 5 : 2));
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_zero_optimizer: there is no stage 5; *");
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_fails_to_share)
{
    run_job(3, fails_to_share, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero");
    TCase *tcase = test_case(suite, "equal");
    tcase_add_loop_test(tcase, test_equals, 0, takes_long() ? CASES : RANK_COUNTS * CASES);
    tcase_add_loop_test(tcase, test_whatever, 0, 16);
    tcase_add_loop_test(tcase, test_meshes, 0, MESH_CASES);
    tcase = test_case(suite, "refuses");
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_refuses_a_group);
    tcase = test_case(suite, "beside");
    tcase_add_loop_test(tcase, test_accumulates, 0, (int)(sizeof accumulations / sizeof *accumulations));
    tcase_add_loop_test(tcase, test_forgets, 0, 4);
    tcase_add_loop_test(tcase, test_shares, 0, (int)(sizeof halves / sizeof *halves));
    tcase_add_loop_test(tcase, test_late, 0, 3);
    tcase = test_case(suite, "failures");
    tcase_add_test(tcase, test_fails_to_share);
    tcase_add_loop_test(tcase, test_goes_on, 0, 4);
    tcase_add_loop_test(tcase, test_steps_together, 0, 2);
    tcase_add_loop_test(tcase, test_fails_jointly, 0, (int)(sizeof failures / sizeof *failures));
    return test_run(suite);
}
