/* shard_zero: the same bits as the optimizer alone, in every stage, on any number of ranks. */
#include "support/host.h"
#include "support/zero.h"

#include "comm/carrier.h"
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of one case of each stage on one number of ranks; fewer of the others. */
enum { STEPS = 50, FEW_STEPS = 3, LONG_RANKS = 3 };

/* 1e-6 MiB is a bucket for each module; 3e-4 one for a few, with which many steps are made. */
static shard_zero_options cases[] = {
    {.stage = 1},
    {.stage = 1, .bucket_mib = 1e-6, .overlap = true},
    {.stage = 1, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE},
    {.stage = 2},
    {.stage = 2, .bucket_mib = 1e-6},
    {.stage = 2, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE, .overlap = true},
    {.stage = 3},
    {.stage = 3, .bucket_mib = 1e-6, .overlap = true},
    {.stage = 3, .bucket_mib = 3e-4, .partition = SHARD_ZERO_WHOLE},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

static shard_optimizer *sgd_of(shard_tensors *parameters)
{
    return shard_sgd(parameters, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}

static shard_optimizer *zero_sgd_of(shard_tensors *parameters, shard_zero_options options)
{
    shard_optimizer *sgd = sgd_of(parameters), *shared = shard_zero_with(sgd, options);
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
    return shard_group_size(world) <= 2 || ordered ? 0 : 1e-6;
}

/* On a device other than the CPU, whose emulation takes its time, on one number of ranks each. */
static bool takes_long(void)
{
    return getenv("SHARD_DEVICE") != NULL;
}

static void equals_the_optimizer(shard_group *world, void *context)
{
    shard_zero_options options = *(shard_zero_options *)context;
    int steps = shard_group_size(world) == LONG_RANKS && options.bucket_mib > 1e-5 && !takes_long() ? STEPS : FEW_STEPS;
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

/* ---- meshes ---- */

typedef struct mesh_case {
    int data, model;
    shard_split split;
    shard_zero_options options;
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

static void check_models_equal(shard_module *a, shard_module *b, double most)
{
    shard_tensors *x = shard_parameters(a), *y = shard_parameters(b);
    for (int64_t i = 0; i < shard_tensors_count(x); i++) {
        double *values = values_of(shard_tensors_at(x, i)), *others = values_of(shard_tensors_at(y, i));
        for (int64_t j = 0; j < shard_numel(shard_tensors_at(x, i)); j++)
            ck_assert_msg(fabs(values[j] - others[j]) <= most, "%s [%lld] is %.17g and %.17g", shard_tensors_name(x, i),
                          (long long)j, values[j], others[j]);
        free(values);
        free(others);
    }
    shard_tensors_destroy(x);
    shard_tensors_destroy(y);
}

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
        ck_assert_ptr_null(shard_zero(sgd, .group = shard_mesh_model_group(mesh)));
        check_error(shard_last_status(), "*shard_zero: \"weight\" is replicated on 4 ranks, of which 2 are in the group of 2*");
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
    ck_assert_ptr_null(shard_zero(NULL, .stage = 1));
    check_error(shard_last_status(), "*shard_zero: optimizer is NULL*");
    shard_optimizer *sgd = sgd_of(shard_tensors_create());
    ck_assert_ptr_null(shard_zero(sgd, .stage = 4));
    check_error(shard_last_status(), "*no stage 4*");
    ck_assert_ptr_null(shard_zero(sgd, .partition = (shard_zero_partition)7));
    check_error(shard_last_status(), "*no partition 7*");
    ck_assert_ptr_eq(shard_zero(sgd), sgd);
    ck_assert_ptr_null(shard_zero(sgd));
    check_error(shard_last_status(), "*shared out already*");
    shard_optimizer_destroy(sgd);
}
END_TEST

/* ---- who has what ---- */

static int64_t part_of(const shard_optimizer *optimizer, const char *name)
{
    for (int64_t i = 0; i < optimizer->count; i++)
        if (strcmp(optimizer->slots[i].name, name) == 0)
            return shard_numel(optimizer->slots[i].piece.tensor);
    return -1;
}

/* Whole parameters: 407, 35, 19, 13, 9, 5, 3, 1 and 0 elements, in this order to whoever has
 * least, as torch's sorted-greedy deals them. */
static void deals_as_torch(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = zero_sgd_of(list_sorts(&s), (shard_zero_options){.partition = SHARD_ZERO_WHOLE});
        ck_assert_int_eq(part_of(sgd, "large"), rank == 0 ? 407 : 0);
        ck_assert_int_eq(part_of(sgd, "first.weight"), rank == 1 ? 35 : 0);
        ck_assert_int_eq(part_of(sgd, "double"), rank == 2 ? 19 : 0);
        ck_assert_int_eq(part_of(sgd, "last.weight"), rank == 2 ? 9 : 0);
        ck_assert_int_eq(part_of(sgd, "half"), rank == 2 ? 13 : 0);
        ck_assert_int_eq(part_of(sgd, "first.bias"), rank == 1 ? 5 : 0);
        ck_assert_int_eq(part_of(sgd, "unused"), rank == 1 ? 3 : 0);
        ck_assert_int_eq(part_of(sgd, "last.bias"), rank == 2 ? 1 : 0);
        ck_assert_int_eq(part_of(sgd, "frozen"), 4);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_whole)
{
    run_job(3, deals_as_torch, NULL);
}
END_TEST

static void check_aligned(shard_tensor *tensor)
{
    ck_assert_uint_eq((uintptr_t)shard_tensor_memory(tensor) % 64, 0);
}

/* Ranges: each parameter's are one after the other over the ranks, and begin on 64 bytes
 * of their bucket, of which each rank has as much. */
static void deals_evenly(shard_group *world, void *context)
{
    int size = shard_group_size(world);
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = zero_sgd_of(list_sorts(&s), (shard_zero_options){.stage = *(int *)context});
        int64_t own = 0;
        back_sorts(&s, world, 0);
        check_ok(shard_step(sgd));
        for (int64_t i = 0; i < sgd->count; i++) {
            const shard_slot *slot = &sgd->slots[i];
            if (slot->parameter->requires_grad) {
                check_aligned(slot->parameter);
                check_aligned(slot->piece.tensor);
                check_aligned(slot->piece.tensor->grad);
                check_aligned(slot->piece.state[0]);
            }
            shard_range mine = {slot->piece.start, shard_numel(slot->piece.tensor)}, all[size];
            check_ok(shard_group_exchange(world, &mine, sizeof mine, all));
            int64_t covered = 0;
            for (int rank = 0; rank < size && slot->parameter->requires_grad; rank++) {
                ck_assert(all[rank].size == 0 || all[rank].start == covered);
                covered += all[rank].size;
            }
            ck_assert(!slot->parameter->requires_grad || covered == shard_numel(slot->parameter));
            if (slot->parameter->requires_grad && slot->parameter->dtype == SHARD_FLOAT32)
                own += mine.size;
        }
        /* 35, 5, 0, 407, 3, 9 and 1 elements on multiples of 16 */
        int64_t each = (48 + 16 + 416 + 16 + 16 + 16 + 16 * size - 1) / (16 * size) * 16;
        ck_assert_int_le(own, each);
        ck_assert_int_ge(own, each - 5 * 16 - 16 * size);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_even)
{
    int stage = _i % 3 + 1;
    run_job(rank_counts[_i + 1], deals_evenly, &stage);
}
END_TEST

/* ---- with data parallel ---- */

/* Data parallel leaves parameters to it, whichever was first, and turns its averaging off
 * and on: several backwards add up to the same, to rounding where each is reduced. */
typedef struct accumulation {
    int stage;
    bool first; /* data parallel is */
} accumulation;
static accumulation accumulations[] = {{1, true}, {1, false}, {2, true}, {2, false}, {3, true}, {3, false}};

static void accumulates(shard_group *world, void *context)
{
    const accumulation *c = context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp[2] = {average(list_sorts(&a)), c->first ? average(list_sorts(&b)) : NULL};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&a)), zero_sgd_of(list_sorts(&b), (shard_zero_options){.stage = c->stage})};
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

/* Of data parallel's parameters half go to an optimizer that is shared out; it keeps the rest. */
static void shares_with_data_parallel(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp[2] = {average(list_sorts(&a)), average(list_sorts(&b))};
        shard_tensors *all = list_sorts(&b), *half[2] = {shard_tensors_create(), shard_tensors_create()};
        for (int64_t i = 0; i < shard_tensors_count(all) - 1; i++)
            check_ok(shard_tensors_add(half[i % 2], shard_tensors_name(all, i), shard_tensors_at(all, i)));
        shard_tensors_destroy(all);
        shard_optimizer *sgd[3] = {sgd_of(list_sorts(&a)), zero_sgd_of(half[0], (shard_zero_options){.stage = 2}),
                                   sgd_of(half[1])};
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
    run_job(3, shares_with_data_parallel, NULL);
}
END_TEST

/* ---- later ---- */

/* Shared out after some steps, with state, and with a group that comes later still. */
static void begins_late(shard_group *world, void *context)
{
    bool whole = *(int *)context == 2;
    shard_zero_options options = {.stage = *(int *)context, .partition = whole ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN};
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_tensor *late[2] = {made_up_leaf(SHARD_SHAPE(50), 70, SHARD_FLOAT32),
                                 made_up_leaf(SHARD_SHAPE(50), 70, SHARD_FLOAT32)};
        shard_data_parallel *dp[3] = {average(list_sorts(&a)), average(list_sorts(&b))};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&a)), sgd_of(list_sorts(&b))};
        for (int step = 0; step < 6; step++) {
            if (step == 2)
                ck_assert_ptr_nonnull(shard_zero_with(sgd[1], options));
            for (int i = 0; i < 2 && step == 4; i++) {
                shard_tensors *list = shard_tensors_create();
                check_ok(shard_tensors_add(list, "late", late[i]));
                if (i == 0)
                    dp[2] = shard_data_parallel_create(list);
                check_ok(shard_optimizer_add_param_group(sgd[i], list, .lr_scale = 0.5));
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

/* ---- stage 3's values ---- */

/* Evaluation, and a second use in one module after another, find the values; writing to
 * what is kept in parts is refused. */
static void reads_values(shard_group *world, void *context)
{
    (void)context;
    shard_module *a = make_split_model(SHARD_SPLIT_NONE, NULL), *b = make_split_model(SHARD_SPLIT_NONE, NULL);
    shard_optimizer *sgd = zero_sgd_of(shard_parameters(b), (shard_zero_options){.stage = 3, .bucket_mib = 1e-4});
    SHARD_SCOPE
    {
        SHARD_NO_GRAD
        {
            shard_tensor *x = made_up(SHARD_SHAPE(4, 6), 5, SHARD_FLOAT32);
            for (int turn = 0; turn < 2; turn++)
                check_close(shard_forward(a, x), shard_forward(b, x), 0);
        }
        shard_tensors *list = shard_parameters(b);
        shard_tensor *weight = shard_tensors_at(list, 0);
        ck_assert_ptr_null(shard_grad(weight));
        float values[54] = {0};
        ck_assert_int_eq(shard_numel(weight), 54);
        if (shard_group_size(world) > 1) {
            shard_copy_from_host(weight, values, sizeof values);
            check_error(shard_last_status(), "*kept in parts*shard_load*");
        }
        shard_tensors_destroy(list);
    }
    check_models_equal(a, b, 0);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(a);
    shard_module_destroy(b);
}

START_TEST(test_reads_values)
{
    run_job(rank_counts[_i], reads_values, NULL);
}
END_TEST

/* A carrier that could do something in between: what it was asked for, in letters. */
static const shard_carrier *real;
static char asked[200];

static void note(char letter)
{
    asked[strlen(asked)] = letter;
}

static shard_request *start(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                            shard_dtype dtype)
{
    note('s');
    real->all_gather(group, device, mine, all, counts, dtype);
    return (shard_request *)asked;
}

static shard_status await(shard_group *group, shard_device *device, shard_request *request)
{
    (void)group, (void)device;
    ck_assert_ptr_eq(request, (shard_request *)asked);
    note('w');
    return SHARD_OK;
}

/* From the second pass on each gather is started when the one before it is needed. The last
 * layer's values are still there when backward begins, and the first one's it does not need. */
static void gathers_ahead(shard_group *world, void *context)
{
    (void)context;
    if (shard_device_open(NULL)->ops->host_memory)
        return;
    shard_module *layers[5];
    for (int i = 0; i < 5; i++)
        layers[i] = shard_nn_linear(20, 20);
    shard_module *model = shard_nn_sequential_of(5, layers);
    shard_optimizer *sgd = zero_sgd_of(shard_parameters(model), (shard_zero_options){.stage = 3, .bucket_mib = 1e-3});
    shard_carrier carrier = *(real = world->carrier);
    carrier.all_gather_start = start;
    carrier.wait = await;
    carrier.reduce_scatter_start = NULL;
    world->carrier = &carrier;
    for (int pass = 0; pass < 3; pass++) {
        memset(asked, 0, sizeof asked);
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(2, 20), 5, SHARD_FLOAT32);
            for (int i = 0; i < 5; i++) {
                note('|');
                x = shard_forward(layers[i], x);
            }
            note('|');
            check_ok(shard_backward(shard_sum(x)));
        }
        ck_assert_str_eq(asked, pass == 0 ? "|sw|sw|sw|sw|sw|swswsw" : "|sws|ws|ws|ws|ws|wswsw");
        check_ok(shard_step(sgd));
    }
    world->carrier = real;
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(test_gathers_ahead)
{
    run_job(2, gathers_ahead, NULL);
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
        shard_optimizer *sgd = zero_sgd_of(list, (shard_zero_options){.stage = f->stage});
        shard_backward(shard_sum(rank == 1 && !f->before ? shard_matmul(a, NULL) : a));
        if (rank == 1 && f->before)
            shard_matmul(a, NULL);
        shard_step(sgd);
        check_error(shard_last_status(), "rank 1: shard_matmul: *NULL*");
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

/* One rank asks for what there is not: none shares out. */
static void fails_to_share(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = sgd_of(list_sorts(&s));
        ck_assert_ptr_null(shard_zero(sgd, .stage = shard_group_rank(world) == 1 ? 5 : 2));
        check_error(shard_last_status(), "rank 1: shard_zero: there is no stage 5; *");
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
    tcase_add_loop_test(tcase, test_meshes, 0, MESH_CASES);
    tcase = test_case(suite, "shares");
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_refuses_a_group);
    tcase_add_test(tcase, test_whole);
    tcase_add_loop_test(tcase, test_even, 0, RANK_COUNTS - 1);
    tcase = test_case(suite, "beside");
    tcase_add_loop_test(tcase, test_accumulates, 0, (int)(sizeof accumulations / sizeof *accumulations));
    tcase_add_test(tcase, test_shares);
    tcase_add_loop_test(tcase, test_late, 0, 3);
    tcase = test_case(suite, "values");
    add_ranks_test(tcase, test_reads_values);
    tcase_add_test(tcase, test_gathers_ahead);
    tcase = test_case(suite, "failures");
    tcase_add_test(tcase, test_fails_to_share);
    tcase_add_loop_test(tcase, test_fails_jointly, 0, (int)(sizeof failures / sizeof *failures));
    return test_run(suite);
}
