/* 16-bit parameters and state: .rounding, .seed and .state_dtype of the optimizers. */
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"
#include "support/scratch.h"

#include "autograd/deferred.h"
#include "base/dtype.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef shard_optimizer *maker(const shard_tensors *parameters);

static shard_optimizer *stochastic_sgd(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.003, .momentum = 0.9, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 7);
}
static shard_optimizer *stochastic_adamw(const shard_tensors *p)
{
    return shard_adamw(p, .lr = 0.003, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 7, .state_dtype = SHARD_FLOAT32);
}
static shard_optimizer *compensated_adam(const shard_tensors *p)
{
    return shard_adam(p, .lr = 0.003, .amsgrad = true, .rounding = SHARD_ROUNDING_KAHAN);
}
static shard_optimizer *stochastic_lars(const shard_tensors *p)
{
    return shard_lars(p, .lr = 0.5, .momentum = 0.9, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 7);
}
static shard_optimizer *compensated_lamb(const shard_tensors *p)
{
    return shard_lamb(p, .lr = 0.01, .rounding = SHARD_ROUNDING_KAHAN, .state_dtype = SHARD_FLOAT32);
}
static shard_optimizer *rowwise_adam(const shard_tensors *p)
{
    return shard_rowwise_adam(p, .lr = 0.003, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 7);
}
static shard_optimizer *rowwise_adagrad(const shard_tensors *p)
{
    return shard_rowwise_adagrad(p, .lr = 0.003, .rounding = SHARD_ROUNDING_KAHAN);
}

static maker *const makers[] = {stochastic_sgd,   stochastic_adamw, compensated_adam, stochastic_lars,
                                compensated_lamb, rowwise_adam,     rowwise_adagrad};
enum { MAKERS = sizeof makers / sizeof *makers, BY_LAYERS = 3 /* these two take norms of layers */, BY_ROWS = 5 };

static bool takes_norms(maker *of)
{
    return of == makers[BY_LAYERS] || of == makers[BY_LAYERS + 1];
}

static shard_optimizer *optimizer_of(maker *make, shard_module *module)
{
    shard_tensors *parameters = shard_parameters(module);
    shard_optimizer *optimizer = make(parameters);
    ck_assert_msg(optimizer, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    return optimizer;
}

/* The gradient of the weight is three times its values, that of the bias two times, on any rank. */
static void back(shard_module *module)
{
    shard_tensor *weight = shard_module_tensor(module, "weight"), *bias = shard_module_tensor(module, "bias");
    SHARD_SCOPE
    {
        shard_tensor *sum = shard_scale(shard_sum(shard_mul(weight, weight)), 1.5), *other = shard_sum(shard_mul(bias, bias));
        if (sum->placement.kind == SHARD_PARTIAL)
            sum = shard_reduce_from_group(sum, sum->placement.group);
        if (other->placement.kind == SHARD_PARTIAL)
            other = shard_reduce_from_group(other, other->placement.group);
        check_ok(shard_backward(sum));
        check_ok(shard_backward(other));
    }
}

static void train(shard_module *module, shard_optimizer *optimizer, int steps)
{
    for (int i = 0; i < steps; i++) {
        back(module);
        check_ok(shard_step(optimizer));
    }
}

/* The optimizer's state and the module's parameters. */
static shard_tensors *all_of(shard_optimizer *optimizer, shard_module *module)
{
    shard_tensors *all = shard_optimizer_state_dict(optimizer), *parameters = shard_parameters(module);
    check_ok(shard_tensors_extend(all, "model.", parameters));
    shard_tensors_destroy(parameters);
    return all;
}

/* ---- bits do not depend on how a parameter is divided ---- */

enum { IN = 34, OUT = 21, STEPS = 6 };

static void divides(shard_group *world, void *context)
{
    maker *make = *(maker *const *)context;
    for (shard_split split = SHARD_SPLIT_ROW; split <= SHARD_SPLIT_COLUMN; split++) {
        shard_module *module[2];
        shard_optimizer *optimizer[2];
        if (split == SHARD_SPLIT_ROW && (make == rowwise_adam || make == rowwise_adagrad))
            continue;
        for (int way = 0; way < 2; way++) {
            shard_manual_seed(3);
            module[way] = way ? shard_nn_parallel_linear(IN, OUT, split, world, .dtype = SHARD_BFLOAT16)
                              : shard_nn_linear(IN, OUT, .dtype = SHARD_BFLOAT16);
            fill_made_up(shard_module_tensor(module[way], "bias"), 4);
            optimizer[way] = optimizer_of(make, module[way]);
            train(module[way], optimizer[way], STEPS);
        }
        double tolerance = takes_norms(make) ? 0x1p-8 : 0;
        shard_tensors *state[2] = {all_of(optimizer[0], module[0]), all_of(optimizer[1], module[1])};
        shard_tensors *whole = shard_collect_state_dict(state[1], -1);
        ck_assert_int_eq(shard_tensors_count(whole), shard_tensors_count(state[0]));
        for (int64_t i = 0; i < shard_tensors_count(whole); i++) {
            shard_tensor *expected = shard_tensors_find(state[0], shard_tensors_name(whole, i)),
                         *found = shard_tensors_at(whole, i);
            ck_assert_int_eq(shard_tensor_dtype(found), shard_tensor_dtype(expected));
            check_close(found, expected, tolerance);
        }
        for (int way = 0; way < 2; way++) {
            shard_tensors_destroy(state[way]);
            shard_optimizer_destroy(optimizer[way]);
            shard_module_destroy(module[way]);
        }
        shard_tensors_destroy(whole);
    }
}

START_TEST(test_division)
{
    maker *make = makers[_i % MAKERS];
    run_job(1 + _i / MAKERS, divides, &make);
}
END_TEST

/* ---- resumed, to the bit ---- */

START_TEST(test_resumes)
{
    maker *make = makers[_i];
    shard_module *module[2];
    shard_optimizer *optimizer[2];
    for (int i = 0; i < 2; i++) {
        shard_manual_seed((uint64_t)i);
        module[i] = shard_nn_linear(IN, OUT, .dtype = SHARD_BFLOAT16);
        optimizer[i] = optimizer_of(make, module[i]);
    }
    train(module[0], optimizer[0], 4);
    for (int i = 0; i < 2; i++) {
        shard_tensors *all = all_of(optimizer[i], module[i]);
        check_ok(i ? shard_load(all, scratch_path("rounding.safetensors"))
                   : shard_save(all, scratch_path("rounding.safetensors"), NULL));
        shard_tensors_destroy(all);
    }
    for (int i = 0; i < 2; i++)
        train(module[i], optimizer[i], 3);
    check_close(shard_module_tensor(module[1], "weight"), shard_module_tensor(module[0], "weight"), 0);
    check_close(shard_module_tensor(module[1], "bias"), shard_module_tensor(module[0], "bias"), 0);
    for (int i = 0; i < 2; i++) {
        shard_optimizer_destroy(optimizer[i]);
        shard_module_destroy(module[i]);
    }
}
END_TEST

/* ---- what .seed, names and .rounding change ---- */

/* A vector of bfloat16 after some steps. */
static double *trained(const char *name, shard_dtype dtype, shard_rounding rounding, uint64_t seed)
{
    double *values = NULL;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(400), 1, dtype);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, name, p));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1e-4, .rounding = rounding, .seed = seed);
        for (int i = 0; i < 5; i++) {
            SHARD_SCOPE
            {
                check_ok(shard_backward(shard_sum(shard_mul(p, p))));
            }
            check_ok(shard_step(sgd));
        }
        values = values_of(p);
        shard_optimizer_destroy(sgd);
    }
    return values;
}

static bool equal_and_free(double *a, double *b)
{
    bool equal = memcmp(a, b, 400 * sizeof *a) == 0;
    free(a);
    free(b);
    return equal;
}

START_TEST(test_what_counts)
{
    const shard_rounding stochastic = SHARD_ROUNDING_STOCHASTIC, nearest = SHARD_ROUNDING_NEAREST, kahan = SHARD_ROUNDING_KAHAN;
    const shard_dtype half = SHARD_BFLOAT16, single = SHARD_FLOAT32;
    ck_assert(equal_and_free(trained("a", half, stochastic, 1), trained("a", half, stochastic, 1)));
    ck_assert(!equal_and_free(trained("a", half, stochastic, 1), trained("a", half, stochastic, 2)));
    ck_assert(!equal_and_free(trained("a", half, stochastic, 1), trained("b", half, stochastic, 1)));
    ck_assert(!equal_and_free(trained("a", half, stochastic, 1), trained("a", half, nearest, 1)));
    ck_assert(equal_and_free(trained("a", half, nearest, 1), trained("b", half, nearest, 2)));
    ck_assert(equal_and_free(trained("a", single, nearest, 1), trained("a", single, stochastic, 1)));
    ck_assert(equal_and_free(trained("a", single, nearest, 1), trained("a", single, kahan, 1)));
}
END_TEST

/* ---- state ---- */

START_TEST(test_state)
{
    static const struct {
        shard_dtype value;
        int state;
        shard_rounding rounding;
        shard_dtype expected;
        bool compensated;
    } cases[] = {
        {SHARD_BFLOAT16, -1, SHARD_ROUNDING_NEAREST, SHARD_BFLOAT16, false},
        {SHARD_BFLOAT16, SHARD_FLOAT32, SHARD_ROUNDING_KAHAN, SHARD_FLOAT32, true},
        {SHARD_FLOAT16, SHARD_FLOAT32, SHARD_ROUNDING_KAHAN, SHARD_FLOAT32, true},
        {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_ROUNDING_KAHAN, SHARD_BFLOAT16, false},
        {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_ROUNDING_STOCHASTIC, SHARD_BFLOAT16, false},
        {SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_ROUNDING_STOCHASTIC, SHARD_FLOAT64, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE
        {
            shard_tensor *p = made_up_leaf(SHARD_SHAPE(5, 3), 1, cases[i].value);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p));
            shard_optimizer *adam = adam_of_list(list, .rounding = cases[i].rounding, .state_dtype = cases[i].state);
            shard_tensors *state = shard_optimizer_state_dict(adam);
            ck_assert_int_eq(shard_tensors_count(state), 3 + cases[i].compensated);
            ck_assert_int_eq(shard_tensor_dtype(shard_tensors_find(state, "p.exp_avg_sq")), cases[i].expected);
            shard_tensor *rest = shard_tensors_find(state, "p.compensation");
            ck_assert_int_eq(rest != NULL, cases[i].compensated);
            if (rest)
                ck_assert_int_eq(shard_tensor_dtype(rest), cases[i].value);
            check_ok(shard_backward(shard_sum(shard_mul(p, p))));
            check_ok(shard_step(adam));
            shard_tensors_destroy(state);
            shard_optimizer_destroy(adam);
        }
}
END_TEST

/* One number for each row; of a vector, for each element; no first moment without beta1. */
START_TEST(test_row_state)
{
    SHARD_SCOPE
    {
        shard_module *module = shard_nn_linear(6, 4);
        for (int kind = 0; kind < 3; kind++) {
            shard_optimizer *optimizer = kind == 0   ? shard_rowwise_adagrad(module)
                                         : kind == 1 ? shard_rowwise_adam(module, .beta1 = 0)
                                                     : shard_rowwise_adam(module, .state_dtype = SHARD_BFLOAT16);
            shard_tensors *state = shard_optimizer_state_dict(optimizer);
            const char *name = kind ? "exp_avg_sq" : "sum";
            char path[64];
            ck_assert_int_eq(shard_tensors_count(state), kind == 2 ? 6 : 4);
            for (int i = 0; i < 2; i++) {
                snprintf(path, sizeof path, "%s.%s", i ? "bias" : "weight", name);
                shard_shape shape = shard_tensor_shape(shard_tensors_find(state, path));
                ck_assert_int_eq(shape.ndim, 1);
                ck_assert_int_eq(shape.dim[0], 4);
            }
            shard_tensor *average = shard_tensors_find(state, "weight.exp_avg");
            ck_assert_int_eq(average != NULL, kind == 2);
            if (average)
                ck_assert_int_eq(shard_tensor_dtype(average), SHARD_BFLOAT16);
            shard_tensors_destroy(state);
            shard_optimizer_destroy(optimizer);
        }
        shard_module_destroy(module);
    }
}
END_TEST

/* A compensation of values that were overwritten between two steps adds nothing. */
START_TEST(test_compensation_of_overwritten_values)
{
    shard_dtype dtype = _i ? SHARD_FLOAT16 : SHARD_BFLOAT16;
    double *found[2];
    SHARD_SCOPE
    {
        shard_tensor *small = made_up(SHARD_SHAPE(400), 2, dtype);
        size_t bytes = 400 * sizeof(uint16_t);
        uint16_t start[400];
        check_ok(shard_copy_to_host(shard_scale(small, 1e-3), start, bytes));
        for (int way = 0; way < 2; way++) { /* 1: after steps of values a thousand times larger */
            shard_tensor *p = made_up_leaf(SHARD_SHAPE(400), 1, dtype);
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "p", p));
            shard_optimizer *sgd = sgd_of_list(list, .lr = 1e-3, .rounding = SHARD_ROUNDING_KAHAN);
            for (int i = way ? 0 : 5; i < 6; i++) {
                if (i == 5)
                    check_ok(shard_copy_from_host(p, start, bytes));
                SHARD_SCOPE
                {
                    check_ok(shard_backward(shard_sum(shard_mul(p, p))));
                }
                check_ok(shard_step(sgd));
            }
            found[way] = values_of(p);
            shard_optimizer_destroy(sgd);
        }
    }
    double largest = 0;
    for (int i = 0; i < 400; i++) /* half a unit of the last place may be left of the old compensation */
        largest = fmax(largest, fabs(found[1][i] - found[0][i]) / fmax(fabs(found[0][i]), 1e-6));
    ck_assert_double_le(largest, _i ? 0x1p-10 : 0x1p-7);
    free(found[0]);
    free(found[1]);
}
END_TEST

/* ---- a fused classifier ---- */

enum { FEATURES = 40, CLASSES = 90, ROWS = 32, LONG = 50 };

static shard_tensor *classifier_loss(shard_module *classifier, shard_dtype dtype, int step)
{
    int64_t label[ROWS];
    for (int i = 0; i < ROWS; i++)
        label[i] = (step % 5 * 31 + i * 17) % CLASSES;
    shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)(step % 5), SHARD_BFLOAT16);
    return shard_cross_entropy(shard_forward(classifier, shard_cast(x, dtype)),
                               shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64));
}

/* Small values of float16, and their steps, are multiples of few of its units. */
static const struct {
    shard_dtype half;
    double size, lr;
} moved[] = {{SHARD_BFLOAT16, 1, 0.004}, {SHARD_FLOAT16, 0x1p-14, 1e-7}};

/* Fills with made up values of that size. */
static void fill_sized(shard_tensor *tensor, uint64_t seed, double size)
{
    fill_made_up(tensor, seed);
    SHARD_SCOPE
    {
        void *values = host_copy(shard_scale(shard_detach(tensor), size));
        check_ok(
            shard_copy_from_host(tensor, values, (size_t)shard_numel(tensor) * shard_dtype_size(shard_tensor_dtype(tensor))));
        free(values);
    }
}

/* How the weight has moved in 50 steps. */
static double *movement(int which, shard_dtype dtype, shard_rounding rounding, shard_group *group)
{
    shard_module *classifier = shard_nn_parallel_classifier(FEATURES, CLASSES, group, .dtype = dtype);
    shard_tensor *weight = shard_module_tensor(classifier, "weight");
    fill_sized(weight, 1, moved[which].size);
    fill_sized(shard_module_tensor(classifier, "bias"), 2, moved[which].size);
    shard_optimizer *sgd = shard_sgd(classifier, .lr = moved[which].lr, .momentum = 0.9, .rounding = rounding, .seed = 11,
                                     .state_dtype = SHARD_FLOAT32);
    double *before = values_of(weight);
    for (int step = 0; step < LONG; step++) {
        SHARD_SCOPE
        {
            check_ok(shard_backward(classifier_loss(classifier, dtype, step)));
        }
        check_ok(shard_step(sgd));
    }
    double *after = values_of(weight);
    for (int64_t i = 0; i < shard_numel(weight); i++)
        after[i] -= before[i];
    free(before);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(classifier);
    return after;
}

/* The part of float32's movement that the weight has made, 1 if all, and the root mean square distance from it. */
static void compare_movement(const double *of, const double *with, int64_t count, double *part, double *distance)
{
    double product = 0, square = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
        product += of[i] * with[i];
        square += with[i] * with[i];
        difference += (of[i] - with[i]) * (of[i] - with[i]);
    }
    *part = product / square;
    *distance = sqrt(difference / square);
}

static void check_movement(int which, shard_group *world)
{
    int64_t count = FEATURES * (CLASSES / shard_group_size(world));
    double *single = movement(which, SHARD_FLOAT32, SHARD_ROUNDING_NEAREST, world), part[3], distance[3];
    for (int rounding = 0; rounding < 3; rounding++) {
        double *half = movement(which, moved[which].half, (shard_rounding)rounding, world);
        compare_movement(half, single, count, &part[rounding], &distance[rounding]);
        free(half);
    }
    ck_assert_msg(fabs(part[SHARD_ROUNDING_STOCHASTIC] - 1) < 0.05 && fabs(part[SHARD_ROUNDING_KAHAN] - 1) < 0.05 &&
                      part[SHARD_ROUNDING_NEAREST] < 0.3,
                  "moved by %g, %g and %g of float32's way", part[0], part[1], part[2]);
    ck_assert_msg(distance[SHARD_ROUNDING_STOCHASTIC] < 0.6 * distance[SHARD_ROUNDING_NEAREST] &&
                      distance[SHARD_ROUNDING_KAHAN] < 0.3 * distance[SHARD_ROUNDING_NEAREST],
                  "%g, %g and %g from float32", distance[0], distance[1], distance[2]);
    free(single);
}

static void moves(shard_group *world, void *context)
{
    (void)context;
    for (int which = 0; which < 2; which++)
        check_movement(which, world);
}

START_TEST(test_classifier_moves)
{
    run_job(_i + 1, moves, NULL);
}
END_TEST

typedef struct taken {
    float *gradient;
    int64_t columns;
} taken;

static shard_status take(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const taken *t = context;
    return device->ops->copy_out(device, t->gradient + first * t->columns, gradient,
                                 (size_t)(count * t->columns) * sizeof(float));
}

/* The gradient that a step takes from a bfloat16 classifier was not rounded to bfloat16; the one in memory is rounded once. */
START_TEST(test_gradient_is_not_rounded)
{
    shard_module *classifier = shard_nn_parallel_classifier(FEATURES, CLASSES, NULL, .bias = false, .dtype = SHARD_BFLOAT16);
    shard_tensor *weight = shard_module_tensor(classifier, "weight");
    taken t = {calloc(FEATURES * CLASSES, sizeof(float)), FEATURES};
    double largest = 0;
    int64_t unrounded = 0;
    SHARD_SCOPE
    {
        check_ok(shard_backward(classifier_loss(classifier, SHARD_BFLOAT16, 0)));
        shard_tensor *gradient = shard_grad(weight);
        shard_gradient_source *source = shard_source_of_matrix(gradient);
        ck_assert_ptr_nonnull(source);
        source->references++;
        check_ok(shard_source_pass(source, (shard_range){.size = CLASSES}, &(shard_row_receiver){.take = take, .context = &t}));
        shard_gradient_source_unref(source);
        double *rounded = values_of(gradient);
        for (int64_t i = 0; i < FEATURES * CLASSES; i++)
            largest = fmax(largest, fabs(rounded[i]));
        for (int64_t i = 0; i < FEATURES * CLASSES; i++) {
            unrounded += t.gradient[i] != shard_bfloat16_to_float(shard_float_to_bfloat16(t.gradient[i]));
            ck_assert_double_le(fabs(rounded[i] - (double)t.gradient[i]), 0x1p-8 * fabs((double)t.gradient[i]) + 1e-6 * largest);
        }
        free(rounded);
    }
    ck_assert_int_gt(unrounded, FEATURES * CLASSES / 2);
    free(t.gradient);
    shard_module_destroy(classifier);
}
END_TEST

/* Rows that are stepped a few at a time are rounded as those of a gradient in memory: float32's gradients have the same bits. */
START_TEST(test_rows_are_rounded_as_the_whole)
{
    enum { MANY = 900 }; /* classes: of several runs of rows */
    double *found[2];
    for (int whole = 0; whole < 2; whole++) {
        shard_manual_seed(3);
        shard_module *head = shard_nn_parallel_classifier(FEATURES, MANY, NULL, .bias = false);
        shard_tensors *parameters = shard_parameters(head);
        shard_tensor *weight = shard_module_tensor(head, "weight");
        shard_optimizer *adamw =
            shard_adamw(parameters, .lr = 0.01, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 7, .state_dtype = SHARD_BFLOAT16);
        SHARD_SCOPE
        {
            check_ok(shard_backward(classifier_loss(head, SHARD_FLOAT32, 0)));
            if (whole)
                ck_assert_ptr_nonnull(shard_data(shard_grad(weight)));
            ck_assert(!weight->leaf->grad->storage->memory == !whole);
        }
        check_ok(shard_step(adamw));
        shard_tensors *state = shard_optimizer_state_dict(adamw);
        SHARD_SCOPE
        {
            found[whole] = values_of(shard_cast(shard_tensors_find(state, "weight.exp_avg"), SHARD_FLOAT32));
        }
        shard_tensors_destroy(state);
        shard_optimizer_destroy(adamw);
        shard_tensors_destroy(parameters);
        shard_module_destroy(head);
    }
    int64_t differ = 0;
    for (int64_t i = 0; i < FEATURES * MANY; i++)
        differ += found[0][i] != found[1][i];
    ck_assert_int_eq(differ, 0);
    free(found[0]);
    free(found[1]);
}
END_TEST

/* ---- errors ---- */

START_TEST(test_refuses)
{
    SHARD_SCOPE
    {
        shard_module *module = shard_nn_linear(3, 2);
        ck_assert_ptr_null(shard_sgd(module, .rounding = (shard_rounding)3));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_sgd: rounding 3*");
        ck_assert_ptr_null(shard_adam(module, .state_dtype = SHARD_FLOAT16));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_adam: state_dtype 3 (float16)*");
        ck_assert_ptr_null(shard_rowwise_adam(module, .beta1 = 1));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_rowwise_adam*beta1 1*");
        ck_assert_ptr_null(shard_rowwise_adagrad(module, .eps = -1.0));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_rowwise_adagrad*eps -1*");
        shard_module_destroy(module);
    }
}
END_TEST

static void refuses_on_ranks(shard_group *world, void *context)
{
    (void)context;
    shard_module *rows = shard_nn_parallel_linear(6, 4, SHARD_SPLIT_ROW, world), *plain = shard_nn_linear(5, 3);
    ck_assert_ptr_null(shard_rowwise_adam(rows));
    check_error(SHARD_ERROR_UNSUPPORTED, "*\"weight\" is split along dimension 1 over 2 ranks*SHARD_SPLIT_COLUMN*");
    shard_optimizer *optimizer = shard_rowwise_adagrad(plain);
    ck_assert_ptr_null(shard_zero_optimizer(optimizer));
    check_error(SHARD_ERROR_UNSUPPORTED, "*one number for each row*SHARD_ZERO_WHOLE*");
    shard_optimizer_destroy(optimizer);
    optimizer = shard_sgd(plain, .lr = 0.1, .seed = (uint64_t)shard_group_rank(world));
    ck_assert_int_eq(shard_step(optimizer), SHARD_ERROR_MISMATCH);
    check_error(SHARD_ERROR_MISMATCH, "*seed 0*");
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(rows);
    shard_module_destroy(plain);
}

START_TEST(test_refuses_on_ranks)
{
    run_job(2, refuses_on_ranks, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("rounding");
    TCase *tcase = test_case(suite, "rounding");
    tcase_add_loop_test(tcase, test_division, 0, 3 * MAKERS);
    tcase_add_loop_test(tcase, test_resumes, 0, MAKERS);
    tcase_add_test(tcase, test_what_counts);
    tcase_add_test(tcase, test_state);
    tcase_add_test(tcase, test_row_state);
    tcase_add_loop_test(tcase, test_compensation_of_overwritten_values, 0, 2);
    tcase_add_loop_test(tcase, test_classifier_moves, 0, 2);
    tcase_add_test(tcase, test_gradient_is_not_rounded);
    tcase_add_test(tcase, test_rows_are_rounded_as_the_whole);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_refuses_on_ranks);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
