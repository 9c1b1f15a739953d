/* Every optimizer shared out equals itself alone, with gradients clipped by their norm or
 * not: to the bit where no norm is taken, whose sums are in another order. */
#include "support/host.h"
#include "support/zero.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

typedef enum kind { ADAM, ADAMW, STOCHASTIC, KAHAN, ROWWISE, LARS, LAMB, CLIPPED_SGD, KINDS } kind;

static shard_optimizer *make(kind k, shard_tensors *parameters)
{
    switch (k) {
    case ADAM:
        return adam_of_list(parameters, .lr = 0.01, .weight_decay = 0.1);
    case ADAMW:
        return adamw_of_list(parameters, .lr = 0.01, .weight_decay = 0.1, .amsgrad = true, .decay_1d = false);
    case STOCHASTIC:
        return adamw_of_list(parameters, .lr = 0.01, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 5,
                             .state_dtype = SHARD_BFLOAT16);
    case KAHAN:
        return sgd_of_list(parameters, .lr = 0.001, .momentum = 0.9, .rounding = SHARD_ROUNDING_KAHAN,
                           .state_dtype = SHARD_FLOAT32);
    case ROWWISE:
        return rowwise_adam_of_list(parameters, .lr = 0.01, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 5);
    case LARS:
        return lars_of_list(parameters, .lr = 0.5, .momentum = 0.9, .weight_decay = 0.01, .trust_coefficient = 0.02);
    case LAMB:
        return lamb_of_list(parameters, .lr = 0.01, .weight_decay = 0.1);
    default:
        return sgd_of_list(parameters, .lr = 0.1, .momentum = 0.9);
    }
}

typedef struct zero_case {
    kind kind;
    zero_way options;
} zero_case;

/* Those of Adam, with which many steps are made, in both partitions. */
enum { CASES = 3 * KINDS, ALL_CASES = CASES + 3 };

static zero_case case_of(int index)
{
    if (index >= CASES) {
        zero_case c = case_of((index - CASES) * KINDS + ADAM);
        c.options.partition = c.options.partition == SHARD_ZERO_EVEN ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN;
        return c;
    }
    zero_case c = {.kind = (kind)(index % KINDS), .options = {.stage = index / KINDS + 1}};
    c.options.partition = index % 2 || c.kind == ROWWISE ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN;
    c.options.bucket_mib = index % 3 == 1 ? 3e-4 : 0;
    c.options.overlap = c.kind == ADAM && c.options.stage > 1;
    return c;
}

/* Steps both, after clipping; the norms are the same, too. */
static void step(kind k, shard_optimizer *const *optimizer)
{
    double norm[2];
    for (int i = 0; i < 2; i++) {
        if (k == CLIPPED_SGD)
            check_ok(shard_clip_grad_norm(optimizer[i], 0.5, &norm[i]));
        check_ok(shard_step(optimizer[i]));
    }
    if (k == CLIPPED_SGD) {
        ck_assert_double_gt(norm[0], 0.5);
        ck_assert_double_eq_tol(norm[1], norm[0], 1e-6 * norm[0]);
    }
}

static double tolerance(kind k)
{
    bool through_nccl = getenv("SHARD_CUDA_EMULATION_DEVICES") != NULL;
    return k <= ROWWISE && !through_nccl && products_are_exact() ? 0 : 2e-6;
}

static void equals_alone(shard_group *world, void *context)
{
    const zero_case *c = context;
    SHARD_SCOPE
    {
        sorts s[2] = {make_sorts(world), make_sorts(world)};
        shard_tensors *list = list_sorts(&s[0]);
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
        shard_optimizer *optimizer[2] = {make(c->kind, list_sorts(&s[0])), make(c->kind, list_sorts(&s[1]))};
        ck_assert_msg(zero_with(optimizer[1], c->options) != NULL, "%s", shard_last_error());
        int turns = c->kind == ADAM && !getenv("SHARD_DEVICE") ? 50 : 6; /* emulation takes its time */
        for (int turn = 0; turn < turns; turn++) {
            for (int i = 0; i < 2; i++)
                back_sorts(&s[i], world, turn);
            step(c->kind, optimizer);
            check_sorts_equal(&s[0], &s[1], tolerance(c->kind));
        }
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(optimizer[i]);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_alone)
{
    zero_case c = case_of(_i);
    run_job(3, equals_alone, &c);
}
END_TEST

/* Of a layer that is split over a model group and shared out over its replicas there is one norm. */
static void equals_on_a_mesh(shard_group *world, void *context)
{
    const zero_case *c = context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model[2];
    shard_optimizer *optimizer[2];
    shard_tensors *parameters[2];
    for (int i = 0; i < 2; i++) {
        bool columns = c->options.stage % 2 || c->kind == ROWWISE; /* which needs whole rows */
        model[i] = make_split_model(columns ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_ROW, group);
        parameters[i] = shard_parameters(model[i]);
        optimizer[i] = make(c->kind, shard_parameters(model[i]));
    }
    shard_data_parallel *dp = shard_data_parallel_create(parameters[0]);
    ck_assert_msg(zero_with(optimizer[1], c->options) != NULL, "%s", shard_last_error());
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < 2; i++)
            back_split_model(model[i], world, group, turn);
        for (int i = 0; i < 2 && c->kind == CLIPPED_SGD; i++)
            check_ok(shard_clip_grad_norm(optimizer[i], 0.05, NULL));
        for (int i = 0; i < 2; i++)
            check_ok(shard_step(optimizer[i]));
        for (int64_t i = 0; i < shard_tensors_count(parameters[0]); i++)
            check_close(shard_tensors_at(parameters[0], i), shard_tensors_at(parameters[1], i), tolerance(c->kind));
    }
    for (int i = 0; i < 2; i++) {
        shard_tensors_destroy(parameters[i]);
        shard_optimizer_destroy(optimizer[i]);
        shard_module_destroy(model[i]);
    }
    shard_data_parallel_destroy(dp);
    shard_mesh_destroy(mesh);
}

START_TEST(test_mesh)
{
    zero_case c = case_of(_i);
    run_job(4, equals_on_a_mesh, &c);
}
END_TEST

/* Parameters next to each other in a bucket whose groups have rates of their own. */
static void steps_by_groups(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    enum { GROUPS = 4, SIZE = 48 };
    static const double rate[GROUPS] = {1, 0.25, 0, 3};
    for (int way = 0; way <= 4; way++) /* shard_data_parallel, three stages, whole parameters */
        SHARD_SCOPE
        {
            shard_tensors *all = shard_tensors_create();
            shard_optimizer *optimizer = sgd_of_list(shard_tensors_create(), .lr = 0.5, .momentum = 0.5);
            shard_tensor *p[GROUPS];
            for (int i = 0; i < GROUPS; i++) {
                const char name[] = {(char)('a' + i), '\0'};
                p[i] = shard_ones(SHARD_SHAPE(SIZE), .requires_grad = true);
                shard_tensors *list = shard_tensors_create();
                check_ok(shard_tensors_add(all, name, p[i]));
                check_ok(shard_tensors_add(list, name, p[i]));
                check_ok(add_group_of(optimizer, list, .lr_scale = rate[i]));
            }
            shard_data_parallel *dp = way == 0 ? shard_data_parallel_create(all) : NULL;
            zero_way options = {.stage = way % 4, .partition = way == 4 ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN};
            check_ok(way == 0 || zero_with(optimizer, options) ? SHARD_OK : shard_last_status());
            for (int step = 0; step < 2; step++) {
                SHARD_SCOPE
                {
                    shard_tensor *sum = shard_zeros(SHARD_SCALAR);
                    for (int i = 0; i < GROUPS; i++)
                        sum = shard_add(sum, shard_sum(p[i]));
                    check_ok(shard_backward(sum));
                }
                check_ok(shard_step(optimizer));
                for (int i = 0; i < GROUPS; i++)
                    for (int at = 0; at < SIZE; at += SIZE - 1)
                        ck_assert_double_eq(value_at(p[i], at), 1 - 0.5 * rate[i] * (step ? 2.5 : 1));
            }
            shard_optimizer_destroy(optimizer);
            shard_data_parallel_destroy(dp);
            shard_tensors_destroy(all);
        }
}

START_TEST(test_groups)
{
    run_job(2, steps_by_groups, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero optimizers");
    TCase *tcase = test_case(suite, "optimizers");
    tcase_add_loop_test(tcase, test_alone, 0, ALL_CASES);
    tcase_add_loop_test(tcase, test_mesh, 0, CASES);
    tcase_add_test(tcase, test_groups);
    return test_run(suite);
}
