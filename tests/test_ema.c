/* Averages of parameters: their definition, in the parameters' place, saved and loaded, and
 * on ranks among which the parameters are partitioned. */
#include "support/host.h"
#include "support/layers.h"
#include "support/scratch.h"

#include "device/device.h"
#include "tensor/tensor.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

enum { SIZE = 7, UPDATES = 16 /* from the 14th on the warm-up is above the decay */ };

static shard_optimizer *sgd_of(shard_tensor *p)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "p", p));
    return sgd_of_list(list, .lr = 1.0);
}

static void move(shard_optimizer *sgd, shard_tensor *p, int turn)
{
    SHARD_SCOPE
    {
        shard_tensor *g = made_up(shard_tensor_shape(p), (uint64_t)turn + 2, shard_tensor_dtype(p));
        check_ok(shard_backward(shard_sum(shard_mul(p, g))));
    }
    check_ok(shard_step(sgd));
}

START_TEST(test_definition)
{
    bool warmup = _i;
    double average[SIZE] = {0};
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(SIZE), 1, SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.6, .warmup = warmup);
        for (int n = 0; n < UPDATES; n++) {
            move(sgd, p, n);
            check_ok(shard_ema_update(ema));
            double *now = values_of(p), decay = warmup ? fmin(0.6, (1.0 + n) / (10.0 + n)) : 0.6;
            for (int i = 0; i < SIZE; i++)
                average[i] = n == 0 ? now[i] : decay * average[i] + (1 - decay) * now[i];
            check_ok(shard_ema_swap(ema));
            check_part(p, average, 1e-14);
            check_ok(shard_ema_swap(ema));
            check_part(p, now, 0.0);
            free(now);
        }
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* The default decay, and what is added later, whose average begins with its first value. */
START_TEST(test_later)
{
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(1), .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_tensor *late = shard_full(SHARD_SHAPE(1), 5.0, .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd);
        check_ok(shard_ema_update(ema));
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "late", late));
        check_ok(add_group_of(sgd, list));
        check_ok(shard_backward(shard_sum(shard_add(p, late))));
        check_ok(shard_step(sgd));
        check_ok(shard_ema_update(ema));
        check_ok(shard_ema_swap(ema));
        ck_assert_double_eq_tol(value_at(p, 0), 0.999, 1e-15);
        ck_assert_double_eq(value_at(late, 0), 4.0);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* In float32, too, the average is of the weight: near the definition in double where the
 * weight moves about, and the weight itself where it stays. */
START_TEST(test_float32)
{
    const double decay = 0.9999;
    double average[SIZE];
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(SIZE), 1, SHARD_FLOAT32);
        shard_tensor *stays = made_up_leaf(SHARD_SHAPE(SIZE), 2, SHARD_FLOAT32);
        double *mean = values_of(p), *same = values_of(stays);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "stays", stays));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        shard_ema *ema = shard_ema_create(sgd, .decay = decay);
        for (int n = 0; n < 2000; n++) {
            float now[SIZE];
            for (int i = 0; i < SIZE; i++) {
                now[i] = (float)(mean[i] * (1 + 0.01 * sin(13 * n + i)));
                average[i] = n == 0 ? now[i] : decay * average[i] + (1 - decay) * now[i];
            }
            check_ok(shard_copy_from_host(p, now, sizeof now));
            check_ok(shard_ema_update(ema));
        }
        check_ok(shard_ema_swap(ema));
        check_part(p, average, 2e-6);
        check_part(stays, same, 0.0);
        free(mean);
        free(same);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Averages that are copied over continue to the bit; before the first update they are the
 * parameters. */
START_TEST(test_state)
{
    SHARD_SCOPE
    {
        shard_tensor *p[2];
        shard_optimizer *sgd[2];
        shard_ema *ema[2];
        for (int i = 0; i < 2; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(SIZE), 1, SHARD_FLOAT32);
            sgd[i] = sgd_of(p[i]);
            ema[i] = shard_ema_create(sgd[i], .decay = 0.9);
        }
        shard_tensors_destroy(shard_ema_state_dict(ema[0])); /* that it was asked for changes nothing */
        for (int n = 0; n < 3; n++) {
            move(sgd[0], p[0], n);
            check_ok(shard_ema_update(ema[0]));
            if (n == 0) {
                shard_tensors *first = shard_ema_state_dict(ema[0]);
                check_close(shard_tensors_find(first, "p"), p[0], 0.0);
                shard_tensors_destroy(first);
            }
        }
        shard_tensors *from = shard_ema_state_dict(ema[0]), *to = shard_ema_state_dict(ema[1]);
        ck_assert_int_eq(shard_tensors_count(to), 2);
        check_close(shard_tensors_find(to, "p"), p[1], 0.0);
        ck_assert_double_eq(shard_item(shard_tensors_find(from, "n_averaged")), 3);
        for (int64_t i = 0; i < 2; i++)
            copy_elements(shard_tensors_find(from, shard_tensors_name(to, i)), shard_tensors_at(to, i));
        copy_elements(p[0], p[1]);
        for (int i = 0; i < 2; i++) {
            move(sgd[i], p[i], 3);
            check_ok(shard_ema_update(ema[i]));
        }
        check_close(shard_tensors_find(from, "p"), shard_tensors_find(to, "p"), 0.0);
        shard_tensors_destroy(from);
        shard_tensors_destroy(to);
        for (int i = 0; i < 2; i++) {
            shard_ema_destroy(ema[i]);
            shard_optimizer_destroy(sgd[i]);
        }
    }
}
END_TEST

static const layers_case cases[] = {
    {1, 2, PLAIN, {0}},
    {2, 2, DATA_PARALLEL, {0}},
    {2, 1, ZERO, {.stage = 1}},
    {3, 1, ZERO, {.stage = 1, .bucket_mib = 1e-6, .overlap = true}},
    {2, 2, ZERO, {.stage = 2, .partition = SHARD_ZERO_WHOLE}},
    {2, 2, ZERO, {.stage = 3}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void check_all(const layers *l, double **expected)
{
    for (int i = 0; i < LAYERS; i++)
        check_part(l->parameter[i], expected[i], 1e-13);
}

/* What is saved is whole averages under the parameters' names. */
static void check_collected(const layers *l, shard_ema *ema, double **expected)
{
    shard_tensors *state = shard_ema_state_dict(ema), *whole = shard_collect_state_dict(state, -1), *list = list_layers(l);
    ck_assert_int_eq(shard_tensors_count(whole), LAYERS + 1);
    for (int i = 0; i < LAYERS; i++) {
        shard_tensor *average = shard_tensors_find(whole, shard_tensors_name(list, i));
        ck_assert_int_eq(shard_numel(average), layer_size(i));
        check_part(average, expected[i], 1e-13);
    }
    ck_assert_double_eq(shard_item(shard_tensors_find(whole, "n_averaged")), 3);
    shard_tensors_destroy(state);
    shard_tensors_destroy(whole);
    shard_tensors_destroy(list);
}

static void averages_as_one_process(shard_group *world, void *context)
{
    const layers_case *at = context;
    (void)world;
    SHARD_SCOPE
    {
        layers l = make_layers(at, SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of_list(list_layers(&l), .lr = 0.5);
        shard_data_parallel *dp = share_layers(&l, at, sgd);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.75);
        double *value[LAYERS], *average[LAYERS];
        for (int i = 0; i < LAYERS; i++) {
            value[i] = layer_values(i, SHARD_FLOAT64);
            average[i] = calloc((size_t)layer_size(i) + 1, sizeof(double));
        }
        for (int n = 0; n < 3; n++) {
            back_layers(&l, n);
            check_ok(shard_step(sgd));
            check_ok(shard_ema_update(ema));
            for (int i = 0; i < LAYERS; i++) {
                double *gradient = layer_gradient(i, n, SHARD_FLOAT64);
                for (int64_t j = 0; j < layer_size(i); j++) {
                    value[i][j] -= 0.5 * gradient[j];
                    average[i][j] = n == 0 ? value[i][j] : 0.75 * average[i][j] + 0.25 * value[i][j];
                }
                free(gradient);
            }
            check_ok(shard_ema_swap(ema));
            check_all(&l, average);
            check_ok(shard_ema_swap(ema));
            check_all(&l, value);
        }
        check_collected(&l, ema, average);
        for (int i = 0; i < LAYERS; i++) {
            free(value[i]);
            free(average[i]);
        }
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
        free_layers(&l);
    }
}

START_TEST(test_ranks)
{
    layers_case at = cases[_i];
    run_job(at.data * at.model, averages_as_one_process, &at);
}
END_TEST

/* Without a second copy of what is large; and what is no multiple of the room goes whole. */
START_TEST(test_takes_little_room)
{
    enum { LARGE = (5 << 20) + 3 };
    shard_device *device = shard_device_open(NULL);
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(LARGE), .requires_grad = true);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd);
        check_ok(shard_ema_update(ema));
        float *numbers = host_copy(p);
        numbers[0] = numbers[(4 << 20) / 4] = numbers[LARGE - 1] = 2;
        check_ok(shard_copy_from_host(p, numbers, LARGE * sizeof *numbers));
        shard_reset_peak_memory(device);
        check_ok(shard_ema_swap(ema));
        shard_memory_stats stats = shard_get_memory_stats(device);
        ck_assert_int_le(stats.peak - stats.current, 4 << 20);
        float *swapped = host_copy(p);
        check_ok(shard_ema_swap(ema));
        float *back = host_copy(p);
        int ones = 0, same = 0;
        for (int i = 0; i < LARGE; i++) {
            ones += swapped[i] == 1;
            same += back[i] == numbers[i];
        }
        ck_assert_int_eq(ones, LARGE);
        ck_assert_int_eq(same, LARGE);
        free(numbers);
        free(swapped);
        free(back);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* A rank that has no memory for one of its averages: no rank has swapped, and all know it. */
static void swap_together(shard_group *world, void *context)
{
    (void)context;
    bool fails = shard_group_rank(world) == 1;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd);
        check_ok(shard_ema_update(ema));
        move(sgd, p, 1);
        double *now = values_of(p);
        if (fails) {
            shard_tensors *list = shard_tensors_create();
            check_ok(shard_tensors_add(list, "huge", shard_empty(SHARD_SHAPE(INT64_C(1) << 52), .requires_grad = true)));
            check_ok(add_group_of(sgd, list));
        }
        ck_assert_int_ne(shard_ema_swap(ema), SHARD_OK);
        check_error(fails ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 1: *");
        check_part(p, now, 0);
        if (!fails) /* refused, were the averages in the parameters' place */
            check_ok(shard_ema_update(ema));
        free(now);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_swaps_together)
{
    run_job(2, swap_together, NULL);
}
END_TEST

/* The last rank has updated its averages once more. */
static void swap_other_averages(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd);
        for (int i = 0; i <= shard_group_rank(world); i++)
            check_ok(shard_ema_update(ema));
        ck_assert_int_eq(shard_ema_swap(ema), SHARD_ERROR_MISMATCH);
        check_error(SHARD_ERROR_MISMATCH, "*averages of 2 updates*averages of 1 updates*");
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_other_averages)
{
    run_job(2, swap_other_averages, NULL);
}
END_TEST

/* A frozen parameter stands for its average, which takes no memory, until it trains, whole or partitioned. An average that was
 * begun stays. */
static void begins_when_it_trains(shard_group *world, void *context)
{
    int stage = *(int *)context;
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(1), .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_tensor *frozen = shard_full(SHARD_SHAPE(1000), 5.0, .dtype = SHARD_FLOAT64);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "frozen", frozen));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        if (stage)
            ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = stage));
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        int64_t before = shard_get_memory_by_kind(shard_device_open(NULL), SHARD_MEMORY_OPTIMIZER_STATE).current;
        for (int n = 0; n < 2; n++) {
            move(sgd, p, n);
            check_ok(shard_ema_update(ema));
            check_ok(shard_ema_swap(ema));
            ck_assert_double_eq(value_at(frozen, 999), 5);
            check_ok(shard_ema_swap(ema));
            shard_tensors_destroy(shard_ema_state_dict(ema));
        }
        ck_assert_int_lt(shard_get_memory_by_kind(shard_device_open(NULL), SHARD_MEMORY_OPTIMIZER_STATE).current - before, 1000);
        shard_tensors *listed = shard_ema_state_dict(ema);
        shard_set_requires_grad(frozen, true);
        if (stage) {
            check_ok(add_group_of(sgd, shard_tensors_create()));
            ck_assert_ptr_null(shard_ema_state_dict(ema)); /* the first one would have an average that is none */
            check_error(SHARD_ERROR_ARGUMENT, "shard_ema: \"frozen\" was partitioned *while a state dict has the average*");
        }
        shard_tensors_destroy(listed);
        double average = 0, value = 5;
        for (int n = 0; n < 3; n++) {
            shard_set_requires_grad(frozen, n < 2); /* its average goes on when it is frozen again */
            check_ok(shard_backward(shard_add(shard_sum(p), shard_sum(frozen))));
            check_ok(shard_step(sgd));
            check_ok(shard_ema_update(ema));
            value -= n < 2;
            average = n == 0 ? value : (average + value) / 2;
            check_ok(shard_ema_swap(ema));
            ck_assert_double_eq(value_at(frozen, 999), average);
            check_ok(shard_ema_swap(ema));
            ck_assert_double_eq(value_at(frozen, 0), value);
        }
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_frozen)
{
    run_job(_i ? 2 : 1, begins_when_it_trains, &_i); /* 0: without ZeRO */
}
END_TEST

/* An average that began while its parameter was trained stays when that is frozen again, also on a rank without an element of
 * it. */
static void collects_begun_averages(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *frozen = shard_full(SHARD_SHAPE(7), 5.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "frozen", frozen));
        shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(list, .lr = 1.0), .partition = SHARD_ZERO_WHOLE);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        for (int n = 0; n < 3; n++) {
            shard_set_requires_grad(frozen, n == 1);
            check_ok(shard_backward(n == 1 ? shard_add(shard_sum(p), shard_sum(frozen)) : shard_sum(p)));
            check_ok(shard_step(sgd));
            check_ok(shard_ema_update(ema));
        }
        shard_tensors *parts = shard_ema_state_dict(ema), *whole = shard_collect_state_dict(parts, -1);
        ck_assert_msg(whole != NULL, "%s", shard_last_error());
        ck_assert(!shard_tensor_is_idle(shard_tensors_find(parts, "frozen")));
        ck_assert_double_eq(value_at(shard_tensors_find(whole, "frozen"), 6), 4);
        shard_tensors_destroy(parts);
        shard_tensors_destroy(whole);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_collects_begun_averages)
{
    run_job(2, collects_begun_averages, NULL);
}
END_TEST

/* What is frozen after it was shared out has no average, collected and relocated neither. */
static void collects_nothing(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *frozen = shard_full(SHARD_SHAPE(7, 3), 5.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "frozen", frozen));
        shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(list, .lr = 1.0, .momentum = 0.9));
        shard_set_requires_grad(frozen, false);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        move(sgd, p, 0);
        check_ok(shard_ema_update(ema));
        shard_tensors *parts = shard_ema_state_dict(ema), *state = shard_optimizer_state_dict(sgd);
        const char *names[] = {"frozen", "frozen.momentum_buffer"};
        for (int i = 0; i < 2; i++) {
            shard_tensors *whole = shard_collect_state_dict(i ? state : parts, -1);
            shard_tensors *again = shard_relocate_state_dict(i ? state : parts, whole);
            ck_assert_msg(whole && again, "%s", shard_last_error());
            const shard_tensor *all = shard_tensors_find(whole, names[i]), *part = shard_tensors_find(again, names[i]);
            ck_assert_msg(all && part, "%s", names[i]);
            ck_assert_int_eq(shard_numel(all), 21);
            ck_assert(shard_tensor_is_idle(all));
            ck_assert(shard_tensor_is_idle(part));
            ck_assert_int_eq(shard_numel(part), shard_numel(shard_tensors_find(i ? state : parts, names[i])));
            ck_assert_ptr_nonnull(part->leaf->flat_range);
            shard_tensors_destroy(whole);
            shard_tensors_destroy(again);
        }
        shard_tensors_destroy(parts);
        shard_tensors_destroy(state);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_collects_nothing)
{
    run_job(2, collects_nothing, NULL);
}
END_TEST

/* An error of one rank after the step, which the others learn of later, keeps no rank's averages back; one that all have does. */
static void errors_of_ranks(shard_group *world, void *context)
{
    (void)context;
    bool fails = shard_group_rank(world) == 1;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(SIZE), 1, SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        for (int turn = 0; turn < 4; turn++) {
            bool all = turn == 2;
            move(sgd, p, turn);
            if (fails && turn > 0)
                shard_error(SHARD_ERROR_IO, "the log cannot be written");
            if (all)
                shard_agree(world);
            shard_status status = shard_ema_update(ema);
            if (turn > 0 && (fails || all))
                check_error(status, "*the log cannot be written");
            else
                check_ok(status);
            shard_agree(world);
            shard_clear_error();
        }
        shard_tensors *state = shard_ema_state_dict(ema);
        ck_assert_double_eq(shard_item(shard_tensors_find(state, "n_averaged")), 3.0);
        check_ok(shard_check_replicas(state));
        shard_tensors_destroy(state);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_errors_of_ranks)
{
    run_job(2, errors_of_ranks, NULL);
}
END_TEST

START_TEST(test_refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(1), .requires_grad = true);
        shard_optimizer *sgd = sgd_of(p);
        ck_assert_ptr_null(shard_ema_create(NULL));
        check_error(SHARD_ERROR_ARGUMENT, "shard_ema_create: optimizer *");
        ck_assert_ptr_null(shard_ema_create(sgd, .decay = 1.0));
        check_error(SHARD_ERROR_ARGUMENT, "shard_ema_create: decay 1 *");
        shard_ema *ema = shard_ema_create(sgd);
        check_ok(shard_ema_swap(ema));
        check_fails(shard_ema_update(ema), SHARD_ERROR_ARGUMENT, "shard_ema_update: *shard_ema_swap them back first");
        ck_assert_ptr_null(shard_ema_state_dict(ema));
        check_error(SHARD_ERROR_ARGUMENT, "shard_ema_state_dict: *shard_ema_swap them back first");
        check_ok(shard_backward(shard_sum(p)));
        check_fails(shard_step(sgd), SHARD_ERROR_ARGUMENT,
                    "shard_step: averages are in the parameters' place, *shard_ema_swap them back first");
        check_ok(shard_ema_swap(ema));
        ck_assert_double_eq(value_at(p, 0), 1);
        shard_optimizer_zero_grad(sgd);
        shard_tensors *state = shard_ema_state_dict(ema);
        check_ok(shard_copy_from_host(shard_tensors_find(state, "n_averaged"), &(int64_t){-10}, sizeof(int64_t)));
        check_fails(shard_ema_update(ema), SHARD_ERROR_ARGUMENT, "shard_ema_update: n_averaged is -10, as it was loaded: *");
        ck_assert_double_eq(value_at(p, 0), 1);
        check_ok(shard_copy_from_host(shard_tensors_find(state, "n_averaged"), &(int64_t){0}, sizeof(int64_t)));

        /* Between two swaps a list of averages has the parameters. */
        const char *path = scratch_path("swapped.safetensors");
        check_ok(shard_save(state, path, NULL));
        check_ok(shard_ema_swap(ema));
        check_fails(shard_save(state, scratch_path("other.safetensors"), NULL), SHARD_ERROR_ARGUMENT,
                    "shard_save: \"p\" is an average *shard_ema_swap first");
        check_fails(shard_load(state, path), SHARD_ERROR_ARGUMENT, "shard_load: \"p\" is an average *");
        check_fails(shard_load_state_dict(state, state), SHARD_ERROR_ARGUMENT, "*\"p\" is an average *");
        ck_assert_ptr_null(shard_collect_state_dict(state, 0));
        check_error(SHARD_ERROR_ARGUMENT, "*\"p\" is an average *");
        check_ok(shard_ema_swap(ema));
        check_ok(shard_load(state, path));
        shard_tensors_destroy(state);
        shard_ema_destroy(ema);
        shard_ema_destroy(NULL);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Swapped in turns, each of two averages would end with values of the other one, and the parameters with an average's. */
START_TEST(test_two_averages)
{
    SHARD_SCOPE
    {
        shard_tensor *p = shard_zeros(SHARD_SHAPE(1), .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ema[] = {shard_ema_create(sgd, .decay = 0.5), shard_ema_create(sgd, .decay = 0.25)};
        for (int step = 0; step < 2; step++) {
            check_ok(shard_ema_update(ema[0]));
            check_ok(shard_ema_update(ema[1]));
            check_ok(shard_backward(shard_sum(p)));
            check_ok(shard_step(sgd));
        }
        for (int i = 0; i < 2; i++) {
            shard_ema *other = ema[1 - i];
            check_ok(shard_ema_swap(ema[i]));
            ck_assert_double_eq(value_at(p, 0), i ? -0.75 : -0.5);
            check_fails(shard_ema_swap(other), SHARD_ERROR_ARGUMENT,
                        "shard_ema_swap: another shard_ema's averages are in the parameters' place*");
            check_fails(shard_ema_update(other), SHARD_ERROR_ARGUMENT, "shard_ema_update: another shard_ema's averages*");
            ck_assert_ptr_null(shard_ema_state_dict(other));
            check_error(SHARD_ERROR_ARGUMENT, "shard_ema_state_dict: another shard_ema's averages*");
            check_ok(shard_ema_swap(ema[i]));
            ck_assert_double_eq(value_at(p, 0), -2);
        }
        shard_ema_destroy(ema[0]);
        shard_ema_destroy(ema[1]);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Averages that stay in the parameters' place are what training goes on with, once nothing can swap them back. */
START_TEST(test_steps_after_end)
{
    SHARD_SCOPE
    {
        shard_tensor *p = shard_zeros(SHARD_SHAPE(1), .requires_grad = true, .dtype = SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        shard_ema *ended = shard_ema_create(sgd, .decay = 0.5);
        check_ok(shard_ema_update(ended));
        check_ok(shard_backward(shard_sum(p)));
        check_ok(shard_step(sgd));
        check_ok(shard_ema_update(ended));
        check_ok(shard_ema_swap(ended));
        ck_assert_double_eq(value_at(p, 0), -0.5);
        check_ok(shard_backward(shard_sum(p)));
        check_fails(shard_step(sgd), SHARD_ERROR_ARGUMENT, "shard_step: averages are in the parameters' place*");
        shard_ema_destroy(ended);
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(p, 0), -1.5);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* Steps of an overlap are made by the backward. */
static void swapped_during_overlap(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(SIZE), 1, SHARD_FLOAT64);
        shard_optimizer *sgd = sgd_of(p);
        check_ok(shard_zero_optimizer(sgd, .stage = 2, .overlap = true) ? SHARD_OK : shard_last_status());
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        check_ok(shard_ema_update(ema));
        double before = value_at(p, 0);
        check_ok(shard_ema_swap(ema));
        check_fails(shard_backward(shard_sum(p)), SHARD_ERROR_ARGUMENT,
                    "*shard_backward: averages are in the parameters' place*");
        shard_optimizer_zero_grad(sgd);
        check_ok(shard_ema_swap(ema));
        ck_assert_double_eq(value_at(p, 0), before);
        check_ok(shard_backward(shard_sum(p)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(p, 0), before - 1);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_overlap)
{
    run_job(2, swapped_during_overlap, NULL);
}
END_TEST

static void shared_out_later(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_optimizer *sgd = sgd_of(made_up_leaf(SHARD_SHAPE(40), 1, SHARD_FLOAT32));
        shard_ema *ema = shard_ema_create(sgd);
        check_ok(shard_ema_update(ema));
        ck_assert_ptr_nonnull(shard_zero_optimizer(sgd));
        check_fails(shard_ema_update(ema), SHARD_ERROR_ARGUMENT,
                    "shard_ema: \"p\" was partitioned *shard_zero_optimizer or *first");
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_shared_out_later)
{
    run_job(2, shared_out_later, NULL);
}
END_TEST

static const shard_device_ops *counted;
static int64_t calls;

static shard_status count_axpby(shard_device *device, int64_t n, double alpha, const void *x, double beta, void *y,
                                shard_dtype dtype)
{
    calls++;
    return counted->axpby(device, n, alpha, x, beta, y, dtype);
}

/* Of adjacent parameters, as data parallel makes them: all averages in one call, but the one that begins later. */
static void blends_neighbours_together(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    SHARD_SCOPE
    {
        shard_device *device = shard_default_device();
        shard_device_ops spy = *device->ops;
        const char *names[] = {"a", "b", "c"};
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < 3; i++)
            check_ok(shard_tensors_add(list, names[i], made_up_leaf(SHARD_SHAPE(SIZE), (uint64_t)i, SHARD_FLOAT32)));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *sgd = shard_sgd(list, .lr = 1.0);
        shard_ema *ema = shard_ema_create(sgd, .decay = 0.5);
        counted = device->ops;
        spy.axpby = count_axpby;
        const int64_t expected[] = {1, 1, 2, 2};
        for (int turn = 0; turn < 4; turn++) {
            shard_set_requires_grad(shard_tensors_find(list, "a"), turn >= 2);
            for (int i = 0; i < 3; i++) {
                float values[SIZE];
                for (int j = 0; j < SIZE; j++)
                    values[j] = (float)(turn + i);
                check_ok(shard_copy_from_host(shard_tensors_find(list, names[i]), values, sizeof values));
            }
            calls = 0;
            device->ops = &spy;
            shard_status status = shard_ema_update(ema);
            device->ops = counted;
            check_ok(status);
            ck_assert_int_eq(calls, expected[turn]);
        }
        shard_tensors *averages = shard_ema_state_dict(ema);
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq(value_at(shard_tensors_find(averages, names[i]), SIZE - 1), i ? 2.125 + i : 2.5);
        shard_tensors_destroy(averages);
        shard_ema_destroy(ema);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_neighbours)
{
    run_job(2, blends_neighbours_together, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("ema");
    TCase *tcase = test_case(suite, "ema");
    tcase_add_loop_test(tcase, test_definition, 0, 2);
    tcase_add_test(tcase, test_later);
    tcase_add_test(tcase, test_float32);
    tcase_add_test(tcase, test_state);
    tcase_add_loop_test(tcase, test_ranks, 0, CASES);
    tcase_add_test(tcase, test_takes_little_room);
    tcase_add_test(tcase, test_swaps_together);
    tcase_add_test(tcase, test_other_averages);
    tcase_add_loop_test(tcase, test_frozen, 0, 4);
    tcase_add_test(tcase, test_collects_nothing);
    tcase_add_test(tcase, test_collects_begun_averages);
    tcase_add_test(tcase, test_errors_of_ranks);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_two_averages);
    tcase_add_test(tcase, test_steps_after_end);
    tcase_add_test(tcase, test_overlap);
    tcase_add_test(tcase, test_shared_out_later);
    tcase_add_test(tcase, test_neighbours);
    int result = test_run(suite);
    scratch_close();
    return result;
}
