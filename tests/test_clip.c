/* Clipping of gradients that are replicated, split and shared out: as one process that has
 * them whole. */
#include "support/host.h"
#include "support/layers.h"
#include "support/options.h"

#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const layers_case cases[] = {
    {1, 1, PLAIN, {0}},
    {1, 2, PLAIN, {0}},
    {2, 1, PLAIN, {0}},
    {1, 3, PLAIN, {0}},
    {2, 2, DATA_PARALLEL, {0}},
    {4, 1, DATA_PARALLEL, {0}},
    {2, 1, ZERO, {.stage = 1}},
    {2, 2, ZERO, {.stage = 1, .bucket_mib = 1e-6}},
    {2, 2, ZERO, {.stage = 1, .partition = SHARD_ZERO_WHOLE}},
    {4, 1, ZERO, {.stage = 2}},
    {3, 1, ZERO, {.stage = 2, .bucket_mib = 3e-4}},
    {2, 2, ZERO, {.stage = 2, .partition = SHARD_ZERO_WHOLE, .bucket_mib = 1e-6}},
    {2, 1, ZERO, {.stage = 3}},
    {2, 2, ZERO, {.stage = 3, .bucket_mib = 1e-6}},
};
enum { CASES = sizeof cases / sizeof *cases };

static double norm_of(double power, int turn)
{
    double sum = 0;
    for (int i = 0; i < LAYERS; i++) {
        double *gradient = layer_gradient(i, turn, SHARD_FLOAT32);
        for (int64_t j = 0; j < layer_size(i); j++)
            sum = isinf(power) ? fmax(sum, fabs(gradient[j])) : sum + pow(fabs(gradient[j]), power);
        free(gradient);
    }
    return isinf(power) ? sum : pow(sum, 1 / power);
}

static double clamped(double x, double bound)
{
    return fmin(fmax(x, -bound), bound);
}

/* Fails unless each parameter has moved by its gradient, scaled by factor, in bounds. */
static void check_moved(const layers *l, int turn, double factor, double bound, double **values)
{
    for (int i = 0; i < LAYERS; i++) {
        double *gradient = layer_gradient(i, turn, SHARD_FLOAT32);
        for (int64_t j = 0; j < layer_size(i); j++)
            values[i][j] -= clamped(factor * gradient[j], bound);
        check_part(l->parameter[i], values[i], 1e-6);
        free(gradient);
    }
}

static void check_close_to(double got, double wanted)
{
    ck_assert_msg(fabs(got - wanted) <= 1e-6 * wanted, "a norm of %.17g, not %.17g", got, wanted);
}

/* By norm, by each kind of it, twice, not at all, and by value before and behind. */
static void clip_all(const layers *l, shard_optimizer *sgd)
{
    double *values[LAYERS], norm;
    for (int i = 0; i < LAYERS; i++)
        values[i] = layer_values(i, SHARD_FLOAT32);
    static const double powers[] = {2, 1, 3, INFINITY};
    for (int turn = 0; turn < 4; turn++) {
        double expected = norm_of(powers[turn], turn);
        back_layers(l, turn);
        check_ok(shard_clip_grad_norm(sgd, 0.4 * expected, &norm, .norm_type = powers[turn]));
        check_close_to(norm, expected);
        check_ok(shard_step(sgd));
        check_moved(l, turn, 0.4, INFINITY, values);
    }
    back_layers(l, 4);
    double expected = norm_of(2, 4);
    check_ok(shard_clip_grad_norm(sgd, 0.5 * expected, NULL));
    check_ok(shard_clip_grad_norm(sgd, 0.25 * expected, &norm));
    check_close_to(norm, 0.5 * expected);
    check_ok(shard_clip_grad_norm(sgd, expected, &norm));
    check_close_to(norm, 0.25 * expected);
    check_ok(shard_clip_grad_value(sgd, 0.125)); /* of what is scaled by then */
    check_ok(shard_step(sgd));
    check_moved(l, 4, 0.25, 0.125, values);
    back_layers(l, 5); /* nothing is left of it */
    check_ok(shard_step(sgd));
    check_moved(l, 5, 1, INFINITY, values);
    for (int i = 0; i < LAYERS; i++)
        free(values[i]);
}

static void clips_as_one_process(shard_group *world, void *context)
{
    (void)world;
    const layers_case *at = context;
    SHARD_SCOPE
    {
        layers l = make_layers(at, SHARD_FLOAT32);
        shard_optimizer *sgd = sgd_of_list(list_layers(&l), .lr = 1.0);
        shard_data_parallel *dp = share_layers(&l, at, sgd);
        clip_all(&l, sgd);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
        free_layers(&l);
    }
}

START_TEST(test_clip)
{
    layers_case at = cases[_i];
    run_job(at.data * at.model, clips_as_one_process, &at);
}
END_TEST

/* Several optimizers by their common norm, of each kind, one with gradients that were scaled before: as one optimizer. */
static void clip_together(const layers *l, shard_optimizer *const *sgd)
{
    static const double powers[] = {2, 1, 3, INFINITY};
    double *values[LAYERS], norm;
    for (int i = 0; i < LAYERS; i++)
        values[i] = layer_values(i, SHARD_FLOAT32);
    for (int turn = 0; turn < 4; turn++) {
        double expected = norm_of(powers[turn], turn);
        back_layers(l, turn);
        check_ok(shard_clip_grad_norm_of(sgd, 3, 0.4 * expected, &norm, .norm_type = powers[turn]));
        check_close_to(norm, expected);
        check_ok(shard_clip_grad_norm_of(sgd, 3, expected, &norm, .norm_type = powers[turn]));
        ck_assert_double_eq_tol(norm, 0.4 * expected, 1e-5 * expected);
        for (int i = 0; i < 3; i++)
            check_ok(shard_step(sgd[i]));
        check_moved(l, turn, 0.4, INFINITY, values);
    }
    double part[3], sum = 0, half;
    back_layers(l, 4);
    check_ok(shard_clip_grad_norm(sgd[0], INFINITY, &half));
    check_ok(shard_clip_grad_norm(sgd[0], 0.5 * half, NULL));
    for (int i = 0; i < 3; i++) {
        check_ok(shard_clip_grad_norm(sgd[i], INFINITY, &part[i]));
        sum += part[i] * part[i];
    }
    ck_assert_double_eq_tol(part[0], 0.5 * half, 1e-5 * half);
    check_ok(shard_clip_grad_norm_of(sgd, 3, 0.25 * sqrt(sum), &norm));
    check_close_to(norm, sqrt(sum));
    for (int i = 0; i < 3; i++) {
        double left;
        check_ok(shard_clip_grad_norm(sgd[i], INFINITY, &left));
        ck_assert_double_eq_tol(left, 0.25 * part[i], 1e-5 * part[i]);
        shard_optimizer_zero_grad(sgd[i]);
    }
    for (int i = 0; i < LAYERS; i++)
        free(values[i]);
}

static void clips_together(shard_group *world, void *context)
{
    (void)world;
    const layers_case *at = context;
    SHARD_SCOPE
    {
        layers l = make_layers(at, SHARD_FLOAT32);
        shard_tensors *all = list_layers(&l);
        shard_optimizer *sgd[3];
        for (int i = 0; i < 3; i++) {
            shard_tensors *list = shard_tensors_create();
            for (int64_t j = i; j < LAYERS; j += 3)
                check_ok(shard_tensors_add(list, shard_tensors_name(all, j), shard_tensors_at(all, j)));
            sgd[i] = sgd_of_list(list, .lr = 1.0);
        }
        const layers_case plain = {at->data, at->model, PLAIN, {0}};
        for (int i = 0; i < 3; i++)
            share_layers(&l, at->way == DATA_PARALLEL ? &plain : at, sgd[i]);
        shard_data_parallel *dp = at->way == DATA_PARALLEL ? share_layers(&l, at, NULL) : NULL;
        clip_together(&l, sgd);
        for (int i = 0; i < 3; i++)
            shard_optimizer_destroy(sgd[i]);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(all);
        free_layers(&l);
    }
}

START_TEST(test_clip_together)
{
    layers_case at = cases[_i];
    run_job(at.data * at.model, clips_together, &at);
}
END_TEST

/* A norm that is not finite makes all gradients of all optimizers 0 or NaN, or is an error. */
static void not_finite_together(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p[] = {shard_ones(SHARD_SHAPE(2), .requires_grad = true),
                             shard_ones(SHARD_SHAPE(2), .requires_grad = true)};
        shard_optimizer *sgd[2];
        for (int i = 0; i < 2; i++) {
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[i]));
            sgd[i] = sgd_of_list(list, .lr = 1.0);
        }
        check_ok(shard_backward(shard_add(shard_sum(p[0]), shard_scale(shard_sum(p[1]), INFINITY))));
        double norm = 5;
        check_fails(shard_clip_grad_norm_of(sgd, 2, -1.0, &norm), SHARD_ERROR_ARGUMENT, "*shard_clip_grad_norm_of: max_norm -1*");
        ck_assert(isnan(norm));
        check_fails(shard_clip_grad_norm_of(sgd, 2, 1.0, &norm, .error_if_nonfinite = true), SHARD_ERROR_ARGUMENT,
                    "shard_clip_grad_norm_of: *inf*");
        ck_assert(isinf(norm));
        for (int i = 0; i < 2; i++)
            shard_optimizer_zero_grad(sgd[i]);
        check_ok(shard_backward(shard_add(shard_sum(p[0]), shard_scale(shard_sum(p[1]), INFINITY))));
        check_ok(shard_clip_grad_norm_of(sgd, 2, 1.0, NULL));
        for (int i = 0; i < 2; i++)
            check_ok(shard_step(sgd[i]));
        float value[2];
        check_ok(shard_copy_to_host(p[0], value, sizeof value));
        ck_assert_float_eq(value[0], 1);
        check_ok(shard_copy_to_host(p[1], value, sizeof value));
        ck_assert(isnan(value[0]));
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(sgd[i]);
    }
}

START_TEST(test_not_finite_together)
{
    run_job(2, not_finite_together, NULL);
}
END_TEST

/* An infinite or NaN gradient on one rank is seen on all. */
static void not_finite(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        for (int turn = 0; turn < 8; turn++) {
            bool nan = turn % 2, error = turn / 2 % 2;
            int size = shard_group_size(world), rank = shard_group_rank(world);
            double bad = rank == size - 1 ? (nan ? NAN : INFINITY) : 1.0, norm;
            shard_tensor *p = shard_as_split(shard_ones(SHARD_SHAPE(2)), 0, world, 2 * rank, 2 * size);
            shard_set_requires_grad(p, true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p));
            shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
            check_ok(shard_backward(shard_scale(shard_sum(p), bad)));
            shard_status status =
                shard_clip_grad_norm(sgd, 1.0, &norm, .norm_type = turn / 4 ? INFINITY : 2.0, .error_if_nonfinite = error);
            ck_assert(nan ? isnan(norm) : isinf(norm));
            if (error)
                check_error(status, "shard_clip_grad_norm: *norm*");
            else
                check_ok(status);
            if (!error) {
                check_ok(shard_step(sgd));
                double value = value_at(p, 0);
                ck_assert(nan || rank == size - 1 ? isnan(value) : value == 1.0); /* 0 * inf */
            }
            shard_optimizer_destroy(sgd);
        }
    }
}

START_TEST(test_not_finite)
{
    run_job(rank_counts[_i], not_finite, NULL);
}
END_TEST

/* Where the norm alone is computed, one that is not finite changes no gradient either. */
static void norm_alone(shard_group *world, void *context)
{
    static const double bad[] = {INFINITY, NAN};
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p[2];
        shard_optimizer *sgd[2];
        for (int i = 0; i < 2; i++) {
            p[i] = shard_ones(SHARD_SHAPE(2), .requires_grad = true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p[i]));
            sgd[i] = sgd_of_list(list, .lr = 1.0);
        }
        for (int turn = 0; turn < 2; turn++) {
            double norm, all;
            check_ok(shard_backward(shard_add(shard_sum(p[0]), shard_scale(shard_sum(p[1]), bad[turn]))));
            check_ok(shard_clip_grad_norm_of(sgd, 2, INFINITY, &all));
            check_ok(shard_clip_grad_norm(sgd[1], INFINITY, &norm));
            ck_assert(turn ? isnan(norm) && isnan(all) : isinf(norm) && isinf(all));
            check_ok(shard_clip_grad_value(sgd[1], 1.0));
            for (int i = 0; i < 2; i++)
                check_ok(shard_step(sgd[i]));
            ck_assert_double_eq(value_at(p[0], 1), -turn);
            ck_assert(turn ? isnan(value_at(p[1], 1)) : value_at(p[1], 1) == 0);
        }
        for (int i = 0; i < 2; i++)
            shard_optimizer_destroy(sgd[i]);
    }
}

START_TEST(test_norm_alone)
{
    run_job(2, norm_alone, NULL);
}
END_TEST

/* A rank whose optimizer has no parameters takes part on the device that others have theirs on. */
static void one_has_none(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world), rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        if (rank > 0) {
            shard_tensor *p = shard_as_split(shard_ones(SHARD_SHAPE(2)), 0, world, 2 * (rank - 1), 2 * (size - 1));
            shard_set_requires_grad(p, true);
            check_ok(shard_tensors_add(list, "p", p));
            check_ok(shard_backward(shard_sum(p)));
        }
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        double norm;
        check_ok(shard_clip_grad_norm(sgd, 1.0, &norm));
        ck_assert_double_eq_tol(norm, 2.0, 1e-12);
        check_ok(shard_step(sgd));
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_one_has_none)
{
    run_job(3, one_has_none, NULL);
}
END_TEST

/* A rank that cannot go on takes the others with it. */
static void one_fails(shard_group *world, void *context)
{
    (void)context;
    bool fails = shard_group_rank(world) == 1;
    shard_optimizer *sgd = sgd_of_list(shard_tensors_create(), .lr = 1.0);
    double norm;
    shard_status status = shard_clip_grad_norm(fails ? NULL : sgd, 1.0, &norm);
    check_error(status, "*rank 1*shard_clip_grad_norm: optimizer is NULL*");
    check_ok(shard_clip_grad_norm(sgd, 1.0, &norm));
    ck_assert_double_eq(norm, 0.0);
    shard_optimizer_destroy(sgd);
}

START_TEST(test_one_fails)
{
    run_job(3, one_fails, NULL);
}
END_TEST

/* A rank that could not limit its gradients does not step by them with the others. */
static shard_device_ops poor;

static shard_status clips_nothing(shard_device *device, int64_t size, double bound, const double *scale, void *x,
                                  shard_dtype dtype)
{
    (void)size, (void)bound, (void)scale, (void)x, (void)dtype;
    return shard_error(SHARD_ERROR_MEMORY, "%s: no memory to clip", device->name);
}

static void one_clips_nothing(shard_group *world, void *context)
{
    bool fails = shard_group_rank(world) == 1;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(2), .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        check_ok(shard_backward(shard_sum(p)));
        shard_device *device = shard_device_open(NULL);
        const shard_device_ops *rich = device->ops;
        poor = *rich;
        poor.clip_value = clips_nothing;
        device->ops = fails ? &poor : rich;
        shard_status status = shard_clip_grad_value(sgd, 0.5);
        device->ops = rich;
        if (fails)
            check_error(status, "*no memory to clip");
        check_ok(shard_last_status());
        check_fails(shard_step(sgd), SHARD_ERROR_MISMATCH, "rank 1 *with no clip value while rank 0 *with clip value 0.5");
        ck_assert_double_eq(value_at(p, 0), 1);
        check_ok(shard_clip_grad_value(sgd, 0.5)); /* again, on all ranks */
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(p, 0), 0.5);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_one_clips_nothing)
{
    run_job(2, one_clips_nothing, NULL);
}
END_TEST

START_TEST(test_refuses)
{
    shard_optimizer *sgd = sgd_of_list(shard_tensors_create(), .lr = 1.0);
    check_fails(shard_clip_grad_norm(sgd, -1.0, NULL), SHARD_ERROR_ARGUMENT, "shard_clip_grad_norm: max_norm -1*negative*");
    check_fails(shard_clip_grad_norm(sgd, 1.0, NULL, .norm_type = -2.0), SHARD_ERROR_ARGUMENT,
                "shard_clip_grad_norm: *norm_type -2*negative*");
    shard_optimizer *twice[] = {sgd, sgd};
    check_fails(shard_clip_grad_norm_of(twice, 2, 1.0, NULL), SHARD_ERROR_ARGUMENT,
                "shard_clip_grad_norm_of: optimizers 0 and 1 are the same*");
    check_fails(shard_clip_grad_norm_of(twice, 0, 1.0, NULL), SHARD_ERROR_ARGUMENT, "shard_clip_grad_norm_of: 0 optimizers*");
    check_fails(shard_clip_grad_norm_of(NULL, 1, 1.0, NULL), SHARD_ERROR_ARGUMENT,
                "shard_clip_grad_norm_of: optimizers is NULL*");
    check_fails(shard_clip_grad_value(sgd, NAN), SHARD_ERROR_ARGUMENT, "shard_clip_grad_value: *nan*");
    check_fails(shard_clip_grad_value(NULL, 1.0), SHARD_ERROR_ARGUMENT, "*optimizer is NULL*");
    shard_optimizer_destroy(sgd);
}
END_TEST

/* Under overlap there is nothing left to clip. */
static void overlaps(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        layers_case at = {2, 1, ZERO, {.stage = 1, .overlap = true}};
        layers l = make_layers(&at, SHARD_FLOAT32);
        shard_optimizer *sgd = sgd_of_list(list_layers(&l), .lr = 1.0), *lamb = lamb_of_list(list_layers(&l), .lr = 1.0);
        share_layers(&l, &at, sgd);
        check_fails(shard_clip_grad_norm(sgd, 1.0, NULL), SHARD_ERROR_UNSUPPORTED,
                    "*shard_clip_grad_norm: shard_zero_optimizer steps this optimizer during backward *leave .overlap off");
        check_fails(shard_clip_grad_value(sgd, 1.0), SHARD_ERROR_UNSUPPORTED,
                    "shard_clip_grad_value: shard_zero_optimizer steps this optimizer *leave .overlap off");
        ck_assert_ptr_null(shard_zero_optimizer(lamb, .overlap = true));
        check_error(SHARD_ERROR_UNSUPPORTED, "*shard_lamb takes norms of whole layers first*");
        shard_optimizer_destroy(sgd);
        shard_optimizer_destroy(lamb);
        free_layers(&l);
    }
}

START_TEST(test_overlap)
{
    run_job(2, overlaps, NULL);
}
END_TEST

enum { ORDERED = 11 /* a prime */ };

/* The norm of gradients that are made in another order, so that they are elsewhere in memory. */
static double norm_in_order(int stride)
{
    double norm = 0;
    SHARD_SCOPE
    {
        shard_tensor *p[ORDERED];
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < ORDERED; i++) {
            char name[16];
            snprintf(name, sizeof name, "p%d", i);
            p[i] = made_up_leaf(SHARD_SHAPE(1), 0, SHARD_FLOAT64);
            check_ok(shard_tensors_add(list, name, p[i]));
        }
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        for (int turn = 0; turn < ORDERED; turn++) {
            int i = turn * stride % ORDERED;
            check_ok(shard_backward(shard_scale(shard_sum(p[i]), 1.0 / (i + 3.0))));
        }
        check_ok(shard_clip_grad_norm(sgd, 1.0, &norm));
        shard_optimizer_destroy(sgd);
    }
    return norm;
}

/* Gradients are added up in the parameters' order, wherever they are in memory: the norm has the same bits. */
START_TEST(test_order)
{
    double norm = norm_in_order(1);
    for (int stride = 2; stride < ORDERED; stride++)
        ck_assert_double_eq(norm_in_order(stride), norm);
}
END_TEST

/* A norm reads the gradients, so that values which backward needs stay; limiting them makes these stale. */
START_TEST(test_writes)
{
    for (int by_value = 0; by_value < 2; by_value++)
        SHARD_SCOPE
        {
            shard_tensor *w = shard_full(SHARD_SHAPE(3), 2.0, .requires_grad = true),
                         *v = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "w", w));
            shard_optimizer *sgd = shard_sgd(list, .lr = 1.0);
            check_ok(shard_backward(shard_sum(shard_mul(w, w))));
            shard_tensor *product = shard_mul(v, shard_grad(w));
            check_ok(by_value ? shard_clip_grad_value(sgd, 100) : shard_clip_grad_norm(sgd, 1.0, NULL));
            shard_status status = shard_backward(shard_sum(product));
            if (by_value)
                check_error(status, "backward of mul: *was written to*");
            else
                ck_assert_double_eq(value_at(shard_grad(v), 0), 4);
            shard_optimizer_destroy(sgd);
            shard_tensors_destroy(list);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clip");
    TCase *tcase = test_case(suite, "clip");
    tcase_add_loop_test(tcase, test_clip, 0, CASES);
    tcase_add_loop_test(tcase, test_clip_together, 0, CASES);
    add_ranks_test(tcase, test_not_finite);
    tcase_add_test(tcase, test_not_finite_together);
    tcase_add_test(tcase, test_norm_alone);
    tcase_add_test(tcase, test_one_has_none);
    tcase_add_test(tcase, test_one_fails);
    tcase_add_test(tcase, test_one_clips_nothing);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_overlap);
    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_writes);
    return test_run(suite);
}
