/* The gradient scaler on several ranks: the same factor and the same steps on all, under shard_zero_optimizer too. */
#include "support/host.h"
#include "support/job.h"
#include "support/single.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

/* A part of the layer overflows on one rank alone, on another one each step; in the first
 * and the last on none. */
static void agree_on_a_skip(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    shard_mesh *mesh = shard_mesh_create(.model = size);
    shard_module *layer = shard_nn_parallel_linear(5, 9, SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh), .bias = false);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(layer), .lr = 0.5, .momentum = 0.9);
    shard_tensors *state = shard_optimizer_state_dict(sgd);
    shard_tensor *weight = shard_module_tensor(layer, "weight");
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 1024);
    for (int step = 0; step <= size + 1; step++) {
        bool overflows = step > 0 && step <= size;
        double *before = values_of(weight), *momentum = values_of(shard_tensors_find(state, "weight.momentum_buffer"));
        SHARD_SCOPE
        {
            shard_tensor *y = shard_forward(layer, shard_ones(SHARD_SHAPE(2, 5)));
            double dy = overflows && rank == step - 1 ? NAN : shard_grad_scaler_get_scale(scaler);
            check_ok(shard_backward_from(y, shard_full(shard_tensor_shape(y), dy)));
        }
        check_ok(shard_grad_scaler_step(scaler, sgd));
        ck_assert_int_eq(shard_optimizer_skipped(sgd), overflows); /* on every rank */
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), ldexp(1024, -(step <= size ? step : size)));
        ck_assert_double_eq(value_at(shard_tensors_find(state, "weight.step"), 0), step <= size ? 1 : 2);
        for (int64_t i = 0; i < shard_numel(weight); i++) {
            double moves = overflows ? 0 : 0.5 * (2 + 0.9 * momentum[i]);
            ck_assert_double_eq_tol(value_at(weight, i), before[i] - moves, 1e-6);
        }
        free(before);
        free(momentum);
    }
    shard_grad_scaler_destroy(scaler);
    shard_tensors_destroy(state);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(layer);
    shard_mesh_destroy(mesh);
}

START_TEST(ranks_agree)
{
    run_job(rank_counts[_i], agree_on_a_skip, NULL);
}
END_TEST

/* An error of this rank alone. */
static void stumble(void)
{
    ck_assert_ptr_null(shard_uniform(SHARD_SHAPE(1), 0, 1, .dtype = SHARD_INT64));
}

static void check_known(int rank)
{
    check_error(shard_group_rank(shard_world()) == rank ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER,
                "*shard_uniform: int64 is not a floating dtype*");
}

/* One that has failed is known to all, whoever is asked first; then the same gradients are
 * stepped by, and w is the same on all. */
static void fail_together(shard_group *world, void *context)
{
    (void)context;
    bool stumbles = shard_group_rank(world) == 1;
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(1, 0);
    for (int way = 0; way < 3; way++) {
        back(scaler, &s, 1);
        if (way == 2)
            check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
        if (stumbles)
            stumble();
        ck_assert_int_ne(way ? shard_grad_scaler_step(scaler, s.sgd) : shard_grad_scaler_unscale(scaler, s.sgd), SHARD_OK);
        check_known(1);
        ck_assert_double_eq(value_at(s.w, 0), 1 - 0.25 * way);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        ck_assert_double_eq(value_at(s.w, 0), 1 - 0.25 * (way + 1));
        check_ok(shard_grad_scaler_update(scaler));
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}

/* One that has an error of its own when it updates has the factor of all afterwards, with which
 * all go on; so they do after a failed step without an update. */
static void update_alike(shard_group *world, void *context)
{
    (void)context;
    bool stumbles = shard_group_rank(world) == 1;
    shard_grad_scaler *scaler = shard_grad_scaler_create(.growth_interval = 1);
    single s = make_single(1, 0);
    for (int step = 0; step < 3; step++) {
        back(scaler, &s, step == 1 ? NAN : 1);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        if (stumbles)
            stumble();
        ck_assert_int_eq(shard_grad_scaler_update(scaler), stumbles ? SHARD_ERROR_ARGUMENT : SHARD_OK);
        shard_clear_error();
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), step == 1 ? 65536 : 131072);
        ck_assert_double_eq(value_at(s.w, 0), step == 2 ? 0.5 : 0.75);
    }
    back(scaler, &s, 1);
    check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
    if (stumbles)
        stumble();
    ck_assert_int_ne(shard_grad_scaler_step(scaler, s.sgd), SHARD_OK);
    check_known(1);
    shard_optimizer_zero_grad(s.sgd);
    back(scaler, &s, 1);
    check_ok(shard_grad_scaler_step(scaler, s.sgd));
    ck_assert_double_eq(value_at(s.w, 0), 0.25);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}

START_TEST(ranks_update_alike)
{
    run_job(2, update_alike, NULL);
}
END_TEST

START_TEST(ranks_fail_together)
{
    run_job(3, fail_together, NULL);
}
END_TEST

/* ---- under shard_zero_optimizer ---- */

enum { LEAVES = 5 };

typedef struct model {
    shard_tensor *w[LEAVES];
    shard_optimizer *sgd;
    shard_grad_scaler *scaler;
} model;

static shard_tensors *list_leaves(const model *m)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < LEAVES; i++)
        check_ok(shard_tensors_add(list, (const char[]){(char)('a' + i), 0}, m->w[i]));
    return list;
}

static model make_model(void)
{
    model m;
    for (int i = 0; i < LEAVES; i++)
        m.w[i] = made_up_leaf(SHARD_SHAPE(3 + 7 * i), (uint64_t)i, SHARD_FLOAT32);
    m.sgd = sgd_of_list(list_leaves(&m), .lr = 0.25, .momentum = 0.5);
    m.scaler = shard_grad_scaler_create(.init_scale = 1024, .growth_interval = 2);
    return m;
}

/* In two of three steps the last rank's gradient of one leaf, of which other ranks have
 * the part, overflows. */
static void step_model(model *m, shard_group *world, int step)
{
    int rank = shard_group_rank(world), last = shard_group_size(world) - 1;
    SHARD_SCOPE
    {
        shard_tensor *loss = shard_zeros(SHARD_SCALAR);
        for (int i = 0; i < LEAVES; i++) {
            bool overflows = step % 3 != 0 && i == step % LEAVES && rank == last;
            shard_tensor *x = made_up(shard_tensor_shape(m->w[i]), (uint64_t)(10 * step + rank + 50), SHARD_FLOAT32);
            loss = shard_add(loss, shard_sum(shard_mul(shard_mul(m->w[i], x), shard_scale(m->w[i], overflows ? INFINITY : 1))));
        }
        check_ok(shard_backward(shard_grad_scaler_scale(m->scaler, loss)));
    }
    check_ok(shard_grad_scaler_step(m->scaler, m->sgd));
    check_ok(shard_grad_scaler_update(m->scaler));
}

static zero_way ways[] = {
    {.stage = 1}, {.stage = 2, .bucket_mib = 1e-5}, {.stage = 2, .partition = SHARD_ZERO_WHOLE}, {.stage = 3}};

static void equals_whole(shard_group *world, void *context)
{
    SHARD_SCOPE
    {
        model a = make_model(), b = make_model();
        shard_tensors *list = list_leaves(&a);
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
        ck_assert_msg(dp && zero_with(b.sgd, *(zero_way *)context), "%s", shard_last_error());
        int changed = 0;
        for (int step = 0; step < 6; step++) {
            double *before = values_of(a.w[0]);
            step_model(&a, world, step);
            step_model(&b, world, step);
            changed += value_at(a.w[0], 0) != before[0];
            free(before);
            ck_assert_double_eq(shard_grad_scaler_get_scale(b.scaler), shard_grad_scaler_get_scale(a.scaler));
            for (int i = 0; i < LEAVES; i++)
                check_close(b.w[i], a.w[i], 1e-6);
        }
        ck_assert_int_eq(changed, 2);
        shard_optimizer_destroy(a.sgd);
        shard_optimizer_destroy(b.sgd);
        shard_grad_scaler_destroy(a.scaler);
        shard_grad_scaler_destroy(b.scaler);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(works_under_zero)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        run_job(_i, equals_whole, &ways[i]);
}
END_TEST

static void refuse_overlap(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        model m = make_model();
        check_ok(shard_zero_optimizer(m.sgd, .stage = 1, .overlap = true) ? SHARD_OK : shard_last_status());
        ck_assert_int_ne(shard_grad_scaler_unscale(m.scaler, m.sgd), SHARD_OK);
        check_error(SHARD_ERROR_UNSUPPORTED,
                    "*shard_grad_scaler_unscale: shard_zero_optimizer steps this optimizer *leave .overlap off");
        ck_assert_int_ne(shard_grad_scaler_step(m.scaler, m.sgd), SHARD_OK);
        check_error(SHARD_ERROR_UNSUPPORTED,
                    "*shard_grad_scaler_step: shard_zero_optimizer steps this optimizer *leave .overlap off");
        shard_optimizer_destroy(m.sgd);
        shard_grad_scaler_destroy(m.scaler);
    }
    (void)world;
}

START_TEST(refuses_overlap)
{
    run_job(2, refuse_overlap, NULL);
}
END_TEST

/* A rank that fails in the middle of a stage 3 forward leaves nothing gathered that others have not. */
static void goes_on_after_an_error(shard_group *world, void *context)
{
    (void)context;
    shard_module *layers[3];
    for (int i = 0; i < 3; i++)
        layers[i] = shard_nn_linear(4, 4);
    shard_module *net = shard_nn_sequential_of(3, layers);
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(net), .lr = 0.01), .stage = 3, .bucket_mib = 1e-6);
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    ck_assert_msg(sgd && scaler, "%s", shard_last_error());
    for (int turn = 0; turn < 6; turn++) {
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(2, 4), (uint64_t)turn, SHARD_FLOAT32);
            for (int i = 0; i < 3; i++) {
                if (turn == 1 && i == 1 && shard_group_rank(world) == 1)
                    x = shard_matmul(x, NULL);
                x = shard_forward(layers[i], x);
            }
            shard_backward(shard_grad_scaler_scale(scaler, shard_sum(x)));
        }
        shard_grad_scaler_step(scaler, sgd);
        if (turn == 1)
            check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: shard_matmul: *NULL*");
        else
            check_ok(shard_grad_scaler_update(scaler));
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(net);
}

START_TEST(goes_on)
{
    run_job(2, goes_on_after_an_error, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_grad_scaler");
    TCase *tcase = test_case(suite, "parallel_grad_scaler");
    add_ranks_test(tcase, ranks_agree);
    tcase_add_test(tcase, ranks_fail_together);
    tcase_add_test(tcase, ranks_update_alike);
    tcase_add_loop_test(tcase, works_under_zero, 2, 5);
    tcase_add_test(tcase, refuses_overlap);
    tcase_add_test(tcase, goes_on);
    return test_run(suite);
}
