/*
 * Data parallel with a stage of ZeRO, made before or after the optimizer: the same bits as without one, and refused
 * where it cannot be. Optimizers that share its buckets, and gradients that are other tensors.
 */
#include "support/host.h"
#include "support/options.h"
#include "support/zero.h"

#include "optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

static shard_optimizer *sgd_of(shard_tensors *parameters)
{
    return sgd_of_list(parameters, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}

static shard_data_parallel *parallel_of(const sorts *s, int stage, shard_zero_partition partition)
{
    shard_tensors *list = list_sorts(s);
    shard_data_parallel *dp = shard_data_parallel_create(list, .stage = stage, .partition = partition, .bucket_mib = 3e-4);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_tensors_destroy(list);
    return dp;
}

static double tolerance(shard_group *world)
{
    bool ordered = strcmp(shard_group_transport(world), "shm") == 0 && !getenv("SHARD_CUDA_EMULATION_DEVICES");
    return (shard_group_size(world) <= 2 || ordered) && products_are_exact() ? 0 : 1e-6;
}

/* ---- orders ---- */

typedef enum order {
    PARALLEL_FIRST,
    OPTIMIZER_FIRST,
    AFTER_STEPS,    /* with state: another data parallel, of stage 0, goes */
    TWO_HANDLES,    /* shard_zero_optimizer, then a data parallel without a stage, which goes again before the steps */
    TWO_OPTIMIZERS, /* each of some of the parameters */
    ORDERS
} order;

enum { STEPS = 5, CHANGE = 2 };

typedef struct case_of_order {
    order order;
    int stage;
} case_of_order;

/* Every second parameter, from the first or the second one on. */
static shard_tensors *half_of(const sorts *s, int first)
{
    shard_tensors *all = list_sorts(s), *half = shard_tensors_create();
    for (int64_t i = first; i < SORTS_PARAMETERS; i += 2)
        check_ok(shard_tensors_add(half, shard_tensors_name(all, i), shard_tensors_at(all, i)));
    shard_tensors_destroy(all);
    return half;
}

typedef struct side {
    sorts s;
    shard_data_parallel *dp;
    shard_optimizer *sgd[2];
} side;

static side make_side(shard_group *world, const case_of_order *c)
{
    side b = {.s = make_sorts(world)};
    shard_zero_partition partition = c->stage == 2 ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN;
    if (c->order == PARALLEL_FIRST || c->order == TWO_OPTIMIZERS)
        b.dp = parallel_of(&b.s, c->stage, partition);
    b.sgd[0] = sgd_of(c->order == TWO_OPTIMIZERS ? half_of(&b.s, 0) : list_sorts(&b.s));
    b.sgd[1] = c->order == TWO_OPTIMIZERS ? sgd_of(half_of(&b.s, 1)) : NULL;
    if (c->order == OPTIMIZER_FIRST)
        b.dp = parallel_of(&b.s, c->stage, partition);
    if (c->order == AFTER_STEPS)
        b.dp = parallel_of(&b.s, 0, SHARD_ZERO_EVEN);
    if (c->order == TWO_HANDLES) {
        ck_assert_ptr_nonnull(shard_zero_optimizer(b.sgd[0], .stage = c->stage, .bucket_mib = 3e-4));
        b.dp = parallel_of(&b.s, 0, SHARD_ZERO_EVEN);
    }
    return b;
}

static void change(side *b, const case_of_order *c)
{
    if (c->order == AFTER_STEPS || c->order == TWO_HANDLES) {
        shard_data_parallel_destroy(b->dp);
        b->dp = c->order == AFTER_STEPS ? parallel_of(&b->s, c->stage, SHARD_ZERO_EVEN) : NULL;
    }
}

static void equals_in_any_order(shard_group *world, void *context)
{
    const case_of_order *c = context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world);
        shard_data_parallel *dp = parallel_of(&a, 0, SHARD_ZERO_EVEN);
        shard_optimizer *alone = sgd_of(list_sorts(&a));
        side b = make_side(world, c);
        for (int step = 0; step < STEPS; step++) {
            if (step == CHANGE)
                change(&b, c);
            back_sorts(&a, world, step);
            back_sorts(&b.s, world, step);
            if (step >= CHANGE)
                ck_assert((c->stage == 1) == (shard_grad(b.s.parameter[0]) != NULL));
            check_ok(shard_step(alone));
            for (int i = 0; i < 2 && b.sgd[i]; i++)
                check_ok(shard_step(b.sgd[i]));
            check_sorts_equal(&a, &b.s, tolerance(world));
        }
        int64_t mine = 0, all = 0;
        for (int64_t i = 0; i < b.sgd[0]->count; i++) {
            const shard_slot *slot = &b.sgd[0]->slots[i];
            if (!slot->parameter->requires_grad)
                continue;
            mine += shard_numel(slot->range.tensor);
            all += shard_numel(slot->parameter);
            ck_assert((c->stage == 3) == (slot->parameter->storage->materializer != NULL));
        }
        ck_assert(mine < all); /* it is partitioned */
        shard_data_parallel_destroy(b.dp);
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(b.sgd[i]);
        check_sorts_equal(&a, &b.s, tolerance(world)); /* parameters outlive it */
        shard_optimizer_destroy(alone);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_orders)
{
    case_of_order c = {.order = (order)(_i % ORDERS), .stage = 1 + _i / ORDERS};
    run_job(2 + _i % 2, equals_in_any_order, &c);
}
END_TEST

/* ---- accumulation ---- */

/* With the sync off for all backwards but the last one. */
static void accumulates(shard_group *world, void *context)
{
    int stage = *(int *)context;
    SHARD_SCOPE
    {
        sorts a = make_sorts(world), b = make_sorts(world);
        shard_data_parallel *dp[2] = {parallel_of(&a, 0, SHARD_ZERO_EVEN), parallel_of(&b, stage, SHARD_ZERO_EVEN)};
        shard_optimizer *sgd[2] = {sgd_of(list_sorts(&a)), sgd_of(list_sorts(&b))};
        for (int turn = 0; turn < 6; turn++) {
            for (int i = 0; i < 2; i++)
                shard_data_parallel_set_sync(dp[i], turn % 3 == 2);
            back_sorts(&a, world, turn);
            back_sorts(&b, world, turn);
            for (int i = 0; i < 2 && turn % 3 == 2; i++)
                check_ok(shard_step(sgd[i]));
        }
        check_sorts_equal(&a, &b, stage == 1 ? tolerance(world) : 2e-6);
        for (int i = 0; i < 2; i++) {
            shard_data_parallel_destroy(dp[i]);
            shard_optimizer_destroy(sgd[i]);
        }
    }
}

START_TEST(test_accumulates)
{
    int stage = _i + 1;
    run_job(3, accumulates, &stage);
}
END_TEST

/* ---- refused ---- */

static shard_tensors *list_of(shard_tensor *p)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "p", p));
    return list;
}

static void refuses(shard_group *world, void *context)
{
    (void)world, (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(50), 1, SHARD_FLOAT32);
        shard_tensors *list = list_of(p);
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 4));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_data_parallel_create: there is no stage 4*");
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 1, .partition = (shard_zero_partition)7));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_data_parallel_create: there is no partition 7");
        /* a gradient would be lost */
        check_ok(shard_backward(shard_sum(p)));
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 2));
        check_error(SHARD_ERROR_ARGUMENT, "*\"p\" has a gradient already*before backward or after shard_step");
        shard_zero_grad(p);
        /* of another stage */
        shard_data_parallel *first = shard_data_parallel_create(list, .stage = 1);
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 2));
        check_error(SHARD_ERROR_ARGUMENT, "*\"p\" is of stage 1 already*make the one with .stage = 2 first");
        shard_optimizer *sgd = sgd_of_list(list_of(p), .lr = 0.5, .momentum = 0.9);
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = 1));
        check_error(SHARD_ERROR_ARGUMENT, "*\"p\" is partitioned already, by a shard_data_parallel with .stage*");
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(first);
        /* a state dict would be of a state that is no more */
        sgd = sgd_of_list(list_of(p), .lr = 0.5, .momentum = 0.9);
        shard_tensors *state = shard_optimizer_state_dict(sgd);
        first = shard_data_parallel_create(list, .stage = 1);
        check_ok(shard_backward(shard_sum(p)));
        check_fails(shard_step(sgd), SHARD_ERROR_ARGUMENT,
                    "*the state of \"p\" is in a state dict*before shard_optimizer_state_dict*");
        shard_tensors_destroy(state);
        check_ok(shard_step(sgd));
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(first);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_refuses)
{
    run_job(2, refuses, NULL);
}
END_TEST

/* Ranks that ask for other stages. */
static void compares_stages(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(50), 1, SHARD_FLOAT32);
        shard_tensors *list = list_of(p);
        ck_assert_ptr_null(shard_data_parallel_create(list, .stage = 1 + shard_group_rank(world)));
        check_error(SHARD_ERROR_MISMATCH, "*stage 2*stage 1*");
        shard_tensors_destroy(list);
    }
}

START_TEST(test_stages_differ)
{
    run_job(2, compares_stages, NULL);
}
END_TEST

/* Two parameters of one bucket with an optimizer each, of which one steps after each backward and the other one after two:
 * what is added up is the gradient of the second one alone. */
static void steps_at_different_times(shard_group *world, void *context)
{
    zero_way way = {.stage = *(int *)context % 3 + 1, .overlap = *(int *)context / 3};
    SHARD_SCOPE
    {
        shard_tensor *p[2];
        shard_tensors *both = shard_tensors_create(), *list[2] = {shard_tensors_create(), shard_tensors_create()};
        for (int i = 0; i < 2; i++) {
            p[i] = shard_ones(SHARD_SHAPE(50), .requires_grad = true);
            check_ok(shard_tensors_add(both, i ? "q" : "p", p[i]));
            check_ok(shard_tensors_add(list[i], i ? "q" : "p", p[i]));
        }
        shard_data_parallel *dp = shard_data_parallel_create(both);
        shard_optimizer *sgd[2] = {sgd_of_list(list[0], .lr = 1.0), sgd_of_list(list[1], .lr = 1.0)};
        ck_assert_ptr_nonnull(zero_with(sgd[0], way));
        for (int step = 1; step <= 4; step++) {
            shard_tensor *loss = shard_add(shard_sum(p[0]), shard_sum(p[1]));
            check_ok(shard_backward(shard_scale(loss, 2 * shard_group_rank(world))));
            for (int i = 0; i <= (step % 2 == 0); i++)
                check_ok(shard_step(sgd[i]));
            for (int64_t j = 0; j < 50; j += 49) { /* by the average, 1 */
                ck_assert_double_eq(value_at(p[0], j), 1 - step);
                ck_assert_double_eq(value_at(p[1], j), 1 - step / 2 * 2);
            }
        }
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(sgd[i]);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(both);
    }
}

START_TEST(test_different_times)
{
    run_job(2, steps_at_different_times, &_i);
}
END_TEST

/* ---- gradients that are other tensors ---- */

/* A step of lr 1 by the average of `gradient`, which is equal on all ranks. */
static void check_step_by(shard_tensor *p, shard_tensor *gradient, int stage)
{
    shard_tensors *list = list_of(p);
    shard_data_parallel *dp = shard_data_parallel_create(list, .stage = stage);
    shard_optimizer *sgd = shard_sgd(list, .lr = 1.0);
    double *moved = values_of(p);
    check_ok(shard_backward_from(shard_reshape(p, shard_tensor_shape(p)), gradient)); /* before its values are read */
    double *by = values_of(gradient);
    check_ok(shard_step(sgd));
    for (int64_t i = 0; i < shard_numel(p); i++)
        moved[i] -= by[i];
    check_part(p, moved, 1e-6);
    free(moved);
    free(by);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(list);
}

/* A gradient that is the parameter's values, which may be partitioned, goes into the memory that is reduced. */
static void takes_values_as_gradient(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(50), 1, SHARD_FLOAT32);
        check_step_by(p, p, *(int *)context);
    }
}

START_TEST(test_values_as_gradient)
{
    run_job(2, takes_values_as_gradient, &_i);
}
END_TEST

/* So does the deferred gradient of another parameter. */
static void takes_deferred_gradient(shard_group *world, void *context)
{
    (void)world;
    shard_module *classifier = shard_nn_parallel_classifier(4, 6, NULL, .bias = false);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_module_tensor(classifier, "weight");
        shard_tensor *x = made_up(SHARD_SHAPE(3, 4), 2, SHARD_FLOAT32);
        shard_tensor *labels = shard_full(SHARD_SHAPE(3), 5, .dtype = SHARD_INT64);
        check_ok(shard_backward(shard_cross_entropy(shard_forward(classifier, x), labels)));
        check_step_by(made_up_leaf(SHARD_SHAPE(6, 4), 1, SHARD_FLOAT32), shard_grad(weight), *(int *)context);
    }
    shard_module_destroy(classifier);
}

START_TEST(test_deferred_as_gradient)
{
    run_job(2, takes_deferred_gradient, &_i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *tcase = test_case(suite, "engine");
    tcase_add_loop_test(tcase, test_orders, 0, 3 * ORDERS);
    tcase_add_loop_test(tcase, test_accumulates, 0, 3);
    tcase_add_loop_test(tcase, test_different_times, 0, 6);
    tcase_add_loop_test(tcase, test_values_as_gradient, 0, 4); /* stages of ZeRO; 0: none */
    tcase_add_loop_test(tcase, test_deferred_as_gradient, 0, 4);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_stages_differ);
    return test_run(suite);
}
