/* LARS and LAMB against their papers' formulas on whole arrays, however the parameters are
 * held; and what they leave alone and refuse. */
#include "support/host.h"
#include "support/layers.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 4 };

static const layers_case cases[] = {
    {1, 1, PLAIN, {0}},
    {1, 2, PLAIN, {0}},
    {1, 3, PLAIN, {0}},
    {2, 2, DATA_PARALLEL, {0}},
    {2, 1, ZERO, {.stage = 1}},
    {2, 2, ZERO, {.stage = 1, .bucket_mib = 1e-6}},
    {3, 1, ZERO, {.stage = 1, .partition = SHARD_ZERO_WHOLE}},
    {2, 2, ZERO, {.stage = 2}},
    {4, 1, ZERO, {.stage = 2, .partition = SHARD_ZERO_WHOLE, .bucket_mib = 1e-6}},
    {2, 2, ZERO, {.stage = 3}},
};
enum { CASES = sizeof cases / sizeof *cases };

static double norm_of(const double *x, int64_t size)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static double ratio_of(double weight, double update, double ratio)
{
    return weight == 0 || update == 0 ? 1 : ratio;
}

/* One layer: w with gradient g (which it changes), and two states. */
typedef void reference_step(double *w, double *g, double **state, int64_t size, int step, bool adapts, bool decays, double scale);

static const shard_lars_options lars = {SHARD_LARS_OPTIONS_VALUES, .lr = 0.5,   .momentum = 0.9, .weight_decay = 0.05,
                                        .trust_coefficient = 0.1,  .eps = 1e-3, .nesterov = true};

/* Algorithm 1 of the paper, with PyTorch's momentum. */
static void lars_step(double *w, double *g, double **state, int64_t size, int step, bool adapts, bool decays, double scale)
{
    double decay = decays ? lars.weight_decay : 0, weight = norm_of(w, size), gradient = scale * norm_of(g, size);
    double ratio = ratio_of(weight, gradient, lars.trust_coefficient * weight / (gradient + decay * weight + lars.eps));
    for (int64_t i = 0; i < size; i++) {
        double direction = (adapts ? ratio : 1) * (scale * g[i] + decay * w[i]);
        state[0][i] = step == 1 ? direction : lars.momentum * state[0][i] + direction;
        w[i] -= lars.lr * (direction + lars.momentum * state[0][i]);
    }
}

static const shard_lamb_options lamb = {SHARD_LAMB_OPTIONS_VALUES, .lr = 0.2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3,
                                        .weight_decay = 0.05};

/* Algorithm 2 of the paper. */
static void lamb_step(double *w, double *g, double **state, int64_t size, int step, bool adapts, bool decays, double scale)
{
    for (int64_t i = 0; i < size; i++) {
        state[0][i] = lamb.beta1 * state[0][i] + (1 - lamb.beta1) * scale * g[i];
        state[1][i] = lamb.beta2 * state[1][i] + (1 - lamb.beta2) * scale * g[i] * scale * g[i];
        double average = state[0][i] / (1 - pow(lamb.beta1, step)), square = state[1][i] / (1 - pow(lamb.beta2, step));
        g[i] = average / (sqrt(square) + lamb.eps) + (decays ? lamb.weight_decay : 0) * w[i];
    }
    double weight = norm_of(w, size), update = norm_of(g, size), ratio = ratio_of(weight, update, weight / update);
    for (int64_t i = 0; i < size; i++)
        w[i] -= lamb.lr * (adapts ? ratio : 1) * g[i];
}

typedef struct training {
    const layers_case *at;
    bool lamb, all; /* decay_1d and adapt_1d */
} training;

static shard_optimizer *optimizer_of(const training *t, shard_tensors *parameters)
{
    shard_lars_options with_lars = lars;
    shard_lamb_options with_lamb = lamb;
    with_lars.decay_1d = with_lars.adapt_1d = with_lamb.decay_1d = with_lamb.adapt_1d = t->all;
    return t->lamb ? WITH_LIST_AND(shard_lamb_with, parameters, &with_lamb)
                   : WITH_LIST_AND(shard_lars_with, parameters, &with_lars);
}

/* The second step is clipped. */
static void trains_as_one_process(shard_group *world, void *context)
{
    const training *t = context;
    (void)world;
    SHARD_SCOPE
    {
        layers l = make_layers(t->at, SHARD_FLOAT64);
        shard_optimizer *optimizer = optimizer_of(t, list_layers(&l));
        shard_data_parallel *dp = share_layers(&l, t->at, optimizer);
        double *w[LAYERS], *state[LAYERS][2];
        for (int i = 0; i < LAYERS; i++) {
            w[i] = layer_values(i, SHARD_FLOAT64);
            for (int s = 0; s < 2; s++)
                state[i][s] = calloc((size_t)layer_size(i) + 1, sizeof(double));
        }
        for (int step = 1; step <= STEPS; step++) {
            double scale = 1, norm;
            back_layers(&l, step);
            if (step == 2) {
                check_ok(shard_clip_grad_norm(optimizer, 1.5, &norm));
                scale = 1.5 / (norm + 1e-6);
            }
            check_ok(shard_step(optimizer));
            for (int i = 0; i < LAYERS; i++) {
                double *g = layer_gradient(i, step, SHARD_FLOAT64);
                if (i != LAYERS_UNUSED || t->at->way != PLAIN) /* averaging makes it a gradient of 0 */
                    (t->lamb ? lamb_step : lars_step)(w[i], g, state[i], layer_size(i), step, layer_is_matrix(i) || t->all,
                                                      layer_is_matrix(i) || t->all, scale);
                check_part(l.parameter[i], w[i], 1e-12);
                free(g);
            }
        }
        for (int i = 0; i < LAYERS; i++) {
            free(w[i]);
            for (int s = 0; s < 2; s++)
                free(state[i][s]);
        }
        shard_optimizer_destroy(optimizer);
        shard_data_parallel_destroy(dp);
        free_layers(&l);
    }
}

START_TEST(test_trains)
{
    training t = {.at = &cases[_i / 4], .lamb = _i % 2, .all = _i / 2 % 2};
    run_job(t.at->data * t.at->model, trains_as_one_process, &t);
}
END_TEST

static shard_optimizer *of_one(shard_tensor *p, bool with_lamb)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "p", p));
    return with_lamb ? lamb_of_list(list, .lr = 0.5, .beta1 = 0.5, .eps = 1e-12) : lars_of_list(list, .lr = 0.5);
}

/* Where a weight is 0 it moves as if it were not adapted; where its gradient is, not at all. */
START_TEST(test_zeros)
{
    bool with_lamb = _i;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_zeros(SHARD_SHAPE(2, 2), .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_optimizer *optimizer = of_one(p, with_lamb);
        check_ok(shard_backward(shard_scale(shard_sum(p), 4.0)));
        check_ok(shard_step(optimizer));
        ck_assert_double_eq_tol(value_at(p, 0), with_lamb ? -0.5 : -2.0, 1e-9);
        shard_optimizer_destroy(optimizer);
        optimizer = of_one(p, with_lamb);
        double before = value_at(p, 0);
        check_ok(shard_backward(shard_scale(shard_sum(p), 0.0)));
        check_ok(shard_step(optimizer));
        ck_assert_double_eq(value_at(p, 0), before);
        shard_optimizer_destroy(optimizer);
    }
}
END_TEST

/* The settings that are 0, by the formulas: the trust coefficient is 0.001; the betas are 0.9 and 0.999, and eps is
 * 1e-6, as large as a part of the gradient. */
START_TEST(test_defaults)
{
    enum { SIZE = 3 };
    static const double g[3][SIZE] = {{1, 1e-6, -1e-7}, {2, 1e-6, 3e-6}, {-0.5, 0, 1e-6}};
    SHARD_SCOPE
    {
        double w[2][SIZE], average[SIZE] = {0}, square[SIZE] = {0};
        shard_tensor *p[2];
        shard_optimizer *optimizer[2];
        for (int k = 0; k < 2; k++) {
            p[k] = made_up_leaf(SHARD_SHAPE(SIZE, 1), 1, SHARD_FLOAT64);
            for (int i = 0; i < SIZE; i++)
                w[k][i] = value_at(p[k], i);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[k]));
            optimizer[k] = k ? lamb_of_list(list, .lr = 0.5) : lars_of_list(list, .lr = 0.5);
        }
        for (int step = 1; step <= 3; step++) {
            double update[SIZE], rate[2];
            for (int i = 0; i < SIZE; i++) {
                average[i] = 0.9 * average[i] + 0.1 * g[step - 1][i];
                square[i] = 0.999 * square[i] + 0.001 * g[step - 1][i] * g[step - 1][i];
                update[i] = average[i] / (1 - pow(0.9, step)) / (sqrt(square[i] / (1 - pow(0.999, step))) + 1e-6);
            }
            rate[0] = 0.5 * 0.001 * norm_of(w[0], SIZE) / norm_of(g[step - 1], SIZE);
            rate[1] = 0.5 * norm_of(w[1], SIZE) / norm_of(update, SIZE);
            for (int k = 0; k < 2; k++) {
                shard_tensor *gradient = shard_from_host(g[step - 1], SHARD_SHAPE(SIZE, 1), .dtype = SHARD_FLOAT64);
                check_ok(shard_backward(shard_sum(shard_mul(p[k], gradient))));
                check_ok(shard_step(optimizer[k]));
                for (int i = 0; i < SIZE; i++)
                    w[k][i] -= rate[k] * (k ? update : g[step - 1])[i];
                check_part(p[k], w[k], 1e-13);
            }
        }
        for (int k = 0; k < 2; k++)
            shard_optimizer_destroy(optimizer[k]);
    }
}
END_TEST

/* Each layer's ratio is of its own group's weight decay, and its own norms. */
START_TEST(test_groups)
{
    enum { PARAMETERS = 4 };
    static const double decay[PARAMETERS] = {0.5, 0.25, 0.5, 0.25};
    SHARD_SCOPE
    {
        shard_tensor *p[PARAMETERS];
        shard_optimizer *optimizer = lars_of_list(shard_tensors_create(), .lr = 1.0, .trust_coefficient = 1.0);
        for (int i = 0; i < PARAMETERS; i++) {
            char name[] = {(char)('a' + i), '\0'};
            p[i] = shard_from_host((double[]){i + 1.0, -0.5 * (i + 1)}, SHARD_SHAPE(1, 2), .requires_grad = true,
                                   .dtype = SHARD_FLOAT64);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, name, p[i]));
            check_ok(add_group_of(optimizer, list, .weight_decay = decay[i]));
            check_ok(shard_backward(shard_scale(shard_sum(p[i]), 3.0)));
        }
        check_ok(shard_step(optimizer));
        for (int i = 0; i < PARAMETERS; i++) {
            const double w[] = {i + 1.0, -0.5 * (i + 1)};
            double norm = norm_of(w, 2), ratio = norm / (3 * sqrt(2) + decay[i] * norm);
            for (int k = 0; k < 2; k++)
                ck_assert_double_eq_tol(value_at(p[i], k), w[k] - ratio * (3 + decay[i] * w[k]), 1e-14);
        }
        shard_optimizer_destroy(optimizer);
    }
}
END_TEST

/* State that is copied over continues to the bit. */
START_TEST(test_state)
{
    bool with_lamb = _i;
    static const char *const names[2][4] = {{"p.step", "p.momentum_buffer"}, {"p.step", "p.exp_avg", "p.exp_avg_sq"}};
    SHARD_SCOPE
    {
        shard_tensor *p[2];
        shard_optimizer *optimizer[2];
        for (int i = 0; i < 2; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(5, 3), 1, SHARD_FLOAT32);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[i]));
            optimizer[i] = with_lamb ? lamb_of_list(list, .lr = 0.1) : lars_of_list(list, .lr = 0.1, .momentum = 0.9);
        }
        for (int turn = 0; turn < 4; turn++) {
            shard_tensor *g = made_up(SHARD_SHAPE(5, 3), (uint64_t)turn + 2, SHARD_FLOAT32);
            for (int i = 0; i < (turn < 2 ? 1 : 2); i++) {
                check_ok(shard_backward(shard_sum(shard_mul(p[i], g))));
                check_ok(shard_step(optimizer[i]));
            }
            if (turn != 1)
                continue;
            shard_tensors *from = shard_optimizer_state_dict(optimizer[0]), *to = shard_optimizer_state_dict(optimizer[1]);
            for (int i = 0; names[with_lamb][i]; i++)
                copy_elements(shard_tensors_find(from, names[with_lamb][i]), shard_tensors_find(to, names[with_lamb][i]));
            copy_elements(p[0], p[1]);
            shard_tensors_destroy(from);
            shard_tensors_destroy(to);
        }
        check_close(p[0], p[1], 0.0);
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(optimizer[i]);
    }
}
END_TEST

/* A rank that cannot step takes the others with it. */
static void one_fails(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(2, 2), .requires_grad = true);
        shard_optimizer *optimizer = of_one(p, true);
        check_ok(shard_backward(shard_sum(p)));
        if (shard_group_rank(world) == 1)
            shard_error(SHARD_ERROR_ARGUMENT, "no more");
        ck_assert_int_ne(shard_step(optimizer), SHARD_OK);
        check_joint_error(SHARD_ERROR_ARGUMENT, "*rank 1*no more*");
        ck_assert_double_eq(value_at(p, 0), 1.0);
        check_ok(shard_step(optimizer));
        shard_optimizer_destroy(optimizer);
    }
}

START_TEST(test_one_fails)
{
    run_job(3, one_fails, NULL);
}
END_TEST

START_TEST(test_refuses)
{
    ck_assert_ptr_null(lars_of_list(shard_tensors_create(), .lr = 1.0, .trust_coefficient = -1.0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_lars: *trust coefficient -1*negative*");
    ck_assert_ptr_null(lars_of_list(shard_tensors_create(), .lr = 1.0, .nesterov = true));
    check_error(SHARD_ERROR_ARGUMENT, "shard_lars: Nesterov*");
    ck_assert_ptr_null(lamb_of_list(shard_tensors_create(), .lr = 1.0, .beta1 = 1.0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_lamb: *beta1 1,*less than 1*");
    ck_assert_ptr_null(lamb_of_list(NULL, .lr = 1.0));
    check_error(SHARD_ERROR_ARGUMENT, "*parameters is NULL*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("large_batch");
    TCase *tcase = test_case(suite, "large_batch");
    tcase_add_loop_test(tcase, test_trains, 0, 4 * CASES);
    tcase_add_loop_test(tcase, test_zeros, 0, 2);
    tcase_add_test(tcase, test_defaults);
    tcase_add_test(tcase, test_groups);
    tcase_add_loop_test(tcase, test_state, 0, 2);
    tcase_add_test(tcase, test_one_fails);
    tcase_add_test(tcase, test_refuses);
    return test_run(suite);
}
