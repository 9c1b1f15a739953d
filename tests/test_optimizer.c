/* What all optimizers share: groups of parameters, and neighbours that are stepped in one call. */
#include "support/host.h"
#include "support/job.h"

#include "optim/optimizer.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

static shard_tensors *list_of(const char *name, shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, name, tensor));
    return list;
}

static shard_tensor *leaf(double value, shard_shape shape)
{
    return shard_full(shape, value, .requires_grad = true);
}

/* Learning rate and weight decay of each group; a schedule moves all. */
START_TEST(test_groups)
{
    SHARD_SCOPE
    {
        shard_tensor *first = leaf(1, SHARD_SHAPE(2, 2)), *slow = leaf(1, SHARD_SHAPE(2, 2)), *bias = leaf(1, SHARD_SHAPE(2)),
                     *free_of_decay = leaf(1, SHARD_SHAPE(2, 1)), *norm = leaf(1, SHARD_SHAPE(2)), *second = leaf(1, SHARD_SHAPE(2));
        shard_optimizer *all = sgd_of_list(list_of("norm", norm), .lr = 1.0, .weight_decay = 0.25);
        check_ok(add_group_of(all, list_of("second", second), .decay_1d = false));
        check_ok(shard_backward(shard_scale(shard_add(shard_sum(norm), shard_sum(second)), 0)));
        check_ok(shard_step(all));
        ck_assert_double_eq(value_at(norm, 1), 0.75);
        ck_assert_double_eq(value_at(second, 1), 1);
        shard_optimizer_destroy(all);
        shard_optimizer *sgd = sgd_of_list(list_of("first", first), .lr = 1.0, .weight_decay = 0.25, .decay_1d = false);
        check_ok(add_group_of(sgd, list_of("slow", slow), .lr_scale = 0.5, .weight_decay = 0.125));
        check_ok(add_group_of(sgd, list_of("bias", bias), .decay_1d = true));
        check_ok(add_group_of(sgd, list_of("free", free_of_decay), .weight_decay = 0));
        for (int step = 0; step < 2; step++) {
            shard_tensor *sum = shard_add(shard_sum(first), shard_sum(slow));
            check_ok(shard_backward(shard_add(sum, shard_add(shard_sum(bias), shard_sum(free_of_decay)))));
            check_ok(shard_step(sgd));
            check_ok(shard_optimizer_set_lr(sgd, 0.5));
        }
        double after = 1 - 1.25; /* of the first step, then half the rate */
        ck_assert_double_eq_tol(value_at(first, 3), after - 0.5 * (1 + 0.25 * after), 1e-6);
        after = 1 - 0.5 * 1.125;
        ck_assert_double_eq_tol(value_at(slow, 3), after - 0.25 * (1 + 0.125 * after), 1e-6);
        after = 1 - 1.25;
        ck_assert_double_eq_tol(value_at(bias, 1), after - 0.5 * (1 + 0.25 * after), 1e-6);
        ck_assert_double_eq_tol(value_at(free_of_decay, 1), 1 - 1 - 0.5, 1e-6);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Layers whose parameters have the same names: a prefix keeps them apart in the state. */
START_TEST(test_prefix)
{
    SHARD_SCOPE
    {
        shard_module *body = shard_nn_linear(2, 3), *head = shard_nn_linear(3, 2);
        shard_optimizer *sgd = sgd_of_list(shard_parameters(body), .lr = 0.5, .momentum = 0.9);
        char prefix[] = "head.";
        check_ok(add_group_of(sgd, shard_parameters(head), .lr_scale = 2, .prefix = prefix));
        prefix[0] = 'x'; /* was copied */
        shard_tensor *weight = shard_module_tensor(head, "weight");
        double before = value_at(weight, 0);
        shard_tensor *x = shard_ones(SHARD_SHAPE(1, 2)), *y = shard_forward(body, x);
        double input = value_at(y, 0);
        check_ok(shard_backward(shard_sum(shard_forward(head, y))));
        check_ok(shard_step(sgd));
        ck_assert_double_eq_tol(value_at(weight, 0), before - input, 1e-6);
        shard_tensors *state = shard_optimizer_state_dict(sgd);
        static const char *const names[] = {"weight.momentum_buffer", "bias.momentum_buffer", "head.weight.momentum_buffer",
                                            "head.bias.momentum_buffer", "head.weight.step"};
        for (int i = 0; i < 5; i++)
            ck_assert_msg(shard_tensors_find(state, names[i]) != NULL, "no %s", names[i]);
        ck_assert_double_eq_tol(value_at(shard_tensors_find(state, "head.weight.momentum_buffer"), 0), input, 1e-6);
        shard_tensors_destroy(state);
        add_group_of(sgd, list_of("weight", leaf(1, SHARD_SHAPE(2))), .prefix = "head.");
        check_error(SHARD_ERROR_ARGUMENT, "*is called \"head.weight\" already: give this group another .prefix*");
        shard_optimizer_destroy(sgd);
        shard_module_destroy(body);
        shard_module_destroy(head);
    }
}
END_TEST

START_TEST(test_refuses_groups)
{
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(1, SHARD_SHAPE(2)), *b = leaf(1, SHARD_SHAPE(2));
        shard_optimizer *sgd = sgd_of_list(list_of("a", a), .lr = 1.0);
        add_group_of(sgd, list_of("other name", a));
        check_error(SHARD_ERROR_ARGUMENT, "*\"other name\" is in another group of the optimizer already");
        add_group_of(sgd, list_of("a", b));
        check_error(SHARD_ERROR_ARGUMENT,
                    "*another parameter of the optimizer is called \"a\" already: give this group a .prefix*");
        add_group_of(sgd, list_of("b", b), .decay_1d = 2);
        check_error(SHARD_ERROR_ARGUMENT, "shard_optimizer_add_param_group: decay_1d is 2*");
        add_group_of(sgd, list_of("b", b), .lr_scale = NAN);
        check_error(SHARD_ERROR_ARGUMENT, "*lr_scale nan*finite*");
        add_group_of(sgd, NULL);
        check_error(SHARD_ERROR_ARGUMENT, "*parameters is NULL*");
        add_group_of(NULL, list_of("b", b));
        check_error(SHARD_ERROR_ARGUMENT, "*optimizer is NULL*");
        shard_tensors *state = shard_optimizer_state_dict(sgd);
        ck_assert_int_eq(shard_tensors_count(state), 1);
        shard_tensors_destroy(state);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Without a learning rate that of torch.optim; and what is none. */
START_TEST(test_learning_rate)
{
    SHARD_SCOPE
    {
        for (int kind = 0; kind < 5; kind++) {
            shard_tensors *list = list_of("a", leaf(1, SHARD_SHAPE(2, 2)));
            shard_optimizer *optimizer = kind == 0   ? sgd_of_list(list)
                                         : kind == 1 ? adam_of_list(list)
                                         : kind == 2 ? adamw_of_list(list)
                                         : kind == 3 ? lars_of_list(list)
                                                     : lamb_of_list(list);
            ck_assert_double_eq(shard_optimizer_lr(optimizer), 1e-3);
            shard_optimizer_destroy(optimizer);
        }
        shard_tensor *a = leaf(1, SHARD_SHAPE(2, 2));
        shard_optimizer *sgd = sgd_of_list(list_of("a", a));
        check_ok(shard_backward(shard_sum(a)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq_tol(value_at(a, 3), 1 - 1e-3, 1e-7);
        static const double wrong[] = {NAN, INFINITY, -0.5};
        static const char *const text[] = {"*rate is *nan:*", "*rate is inf:*", "*rate is -0.5:*"};
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(shard_optimizer_set_lr(sgd, wrong[i]), SHARD_ERROR_ARGUMENT);
            check_error(SHARD_ERROR_ARGUMENT, text[i]);
            ck_assert_double_eq(shard_optimizer_lr(sgd), 1e-3);
        }
        check_ok(shard_optimizer_set_lr(sgd, 0)); /* the beginning of a warmup */
        ck_assert_double_eq(shard_optimizer_lr(sgd), 0);
        check_ok(shard_backward(shard_sum(a)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq_tol(value_at(a, 3), 1 - 1e-3, 1e-7);
        ck_assert_int_eq(shard_optimizer_set_lr(NULL, 1), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "shard_optimizer_set_lr: optimizer is NULL*");
        ck_assert_ptr_null(sgd_of_list(list_of("b", shard_scale(a, 2))));
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd: \"b\" is the result of an operation*");
        ck_assert_ptr_null(sgd_of_list(list_of("b", a), .lr = INFINITY));
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd: lr inf,*finite*");
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* One of each kind of setting, for each kind of optimizer. */
START_TEST(test_infinite_settings)
{
#define LIST list_of("a", a)
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(1, SHARD_SHAPE(2, 2));
        const shard_optimizer *const made[] = {
            sgd_of_list(LIST, .momentum = INFINITY),      sgd_of_list(LIST, .weight_decay = INFINITY),
            sgd_of_list(LIST, .dampening = -INFINITY),    adam_of_list(LIST, .eps = INFINITY),
            adam_of_list(LIST, .weight_decay = INFINITY), adamw_of_list(LIST, .lr = INFINITY),
            lars_of_list(LIST, .momentum = INFINITY),     lars_of_list(LIST, .trust_coefficient = INFINITY),
            lamb_of_list(LIST, .weight_decay = INFINITY), rowwise_adagrad_of_list(LIST, .eps = INFINITY),
            rowwise_adam_of_list(LIST, .lr = INFINITY),
        };
        check_error(SHARD_ERROR_ARGUMENT, "shard_sgd: *momentum inf,*finite numbers are needed*"); /* the first error is kept */
        for (size_t i = 0; i < sizeof made / sizeof *made; i++)
            ck_assert_msg(!made[i], "case %zu", i);
    }
#undef LIST
}
END_TEST

/* One parameter under two names is stepped once, and has one state. */
START_TEST(test_tied)
{
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(1, SHARD_SHAPE(2));
        shard_tensors *list = list_of("a", a);
        check_ok(shard_tensors_add(list, "tied", a));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 0.25, .momentum = 0.5);
        check_ok(shard_backward(shard_sum(a)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(a, 1), 0.75);
        shard_tensors *state = shard_optimizer_state_dict(sgd);
        ck_assert_int_eq(shard_tensors_count(state), 2);
        shard_tensors_destroy(state);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* ---- neighbours ---- */

enum { PARAMETERS = 6 };
static const int64_t sizes[PARAMETERS] = {7, 0, 16, 1, 33, 100};

static const shard_optimizer_ops *counted;
static int64_t calls, updated;

static shard_status count_step(const shard_optimizer *optimizer, shard_device *device, int64_t count, const shard_update *updates,
                               shard_update_types types)
{
    calls++;
    updated += count;
    return counted->step(optimizer, device, count, updates, types);
}

/* Two optimizers of the same parameters: in flat buffers, or each in its own memory. */
static shard_optimizer *make(int kind, shard_tensor **parameter, shard_data_parallel **dp)
{
    static const char *const names[PARAMETERS] = {"a", "b", "c", "d", "e", "f"};
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < PARAMETERS; i++) {
        parameter[i] = made_up_leaf(SHARD_SHAPE(sizes[i]), (uint64_t)i + 1, SHARD_FLOAT32);
        check_ok(shard_tensors_add(list, names[i], parameter[i]));
    }
    if (dp)
        *dp = shard_data_parallel_create(list);
    /* Of tensors of one dimension the others take no norms. */
    return kind == 0   ? sgd_of_list(list, .lr = 0.125, .momentum = 0.9, .weight_decay = 0.01)
           : kind == 1 ? lars_of_list(list, .lr = 0.125, .momentum = 0.9, .weight_decay = 0.01, .decay_1d = true)
                       : lamb_of_list(list, .lr = 0.125, .weight_decay = 0.01, .decay_1d = true);
}

static void step_once(shard_optimizer *sgd, shard_tensor **parameter, int frozen)
{
    shard_tensor *loss = shard_zeros(SHARD_SCALAR);
    for (int i = 0; i < PARAMETERS; i++) {
        shard_set_requires_grad(parameter[i], i != frozen);
        loss = shard_add(loss, shard_sum(shard_mul(parameter[i], parameter[i])));
    }
    check_ok(shard_backward(loss));
    check_ok(shard_step(sgd));
}

static void steps_neighbours_together(shard_group *world, void *context)
{
    (void)world;
    int kind = *(const int *)context;
    SHARD_SCOPE
    {
        shard_tensor *alone[PARAMETERS], *flat[PARAMETERS];
        shard_data_parallel *dp;
        shard_optimizer *sgd[2] = {make(kind, alone, NULL), make(kind, flat, &dp)};
        shard_optimizer_ops spy = *sgd[1]->ops;
        counted = sgd[1]->ops;
        spy.step = count_step;
        sgd[1]->ops = &spy;
        /* All in one; then what is around a frozen one; then that one, which has made fewer steps. */
        const int frozen[] = {-1, -1, 2, -1}, expected[] = {1, 1, 2, 3};
        for (int step = 0; step < 4; step++) {
            calls = updated = 0;
            step_once(sgd[0], alone, frozen[step]);
            step_once(sgd[1], flat, frozen[step]);
            ck_assert_int_eq(calls, 1);
            ck_assert_int_eq(updated, expected[step]);
        }
        for (int i = 0; i < PARAMETERS; i++) {
            void *x = host_copy(alone[i]), *y = host_copy(flat[i]);
            ck_assert_mem_eq(x, y, (size_t)sizes[i] * 4);
            free(x);
            free(y);
        }
        sgd[1]->ops = counted;
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(sgd[0]);
        shard_optimizer_destroy(sgd[1]);
    }
}

START_TEST(test_neighbours)
{
    run_job(2, steps_neighbours_together, &_i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("optimizer");
    TCase *tcase = test_case(suite, "groups");
    tcase_add_test(tcase, test_groups);
    tcase_add_test(tcase, test_prefix);
    tcase_add_test(tcase, test_refuses_groups);
    tcase_add_test(tcase, test_learning_rate);
    tcase_add_test(tcase, test_infinite_settings);
    tcase_add_test(tcase, test_tied);
    tcase = test_case(suite, "neighbours");
    tcase_add_loop_test(tcase, test_neighbours, 0, 3);
    return test_run(suite);
}
