/*
 * Captured training steps: replays give the bits of eager steps, with all that changes from step to
 * step on the host; memory. Where SHARD_DEVICE is the CPU there is nothing to capture.
 */
#include "support/trainee.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 4 };

/* Eager steps before, between and after the replays. */
START_TEST(replays_as_eager)
{
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    const recipe *r = &recipes[_i];
    shard_set_autocast(r->amp); /* all along, so that casts of leaves would stay from step to step */
    trainee captured = make_trainee(r), direct = make_trainee(r);
    int number = 0;
    for (; number < WARMUP; number++) {
        step_eagerly(&direct, number);
        step_eagerly(&captured, number);
    }
    check_same_trainees(&direct, &captured);
    double before = evaluate(&captured);
    shard_graph *graph = capture_step(&captured);
    for (int i = 0; i < STEPS; i++, number++) {
        if (i == STEPS / 2) { /* a partial batch, as it were */
            step_eagerly(&direct, number);
            shard_tensor *of_replay = captured.loss;
            captured.loss = NULL;
            step_eagerly(&captured, number);
            check_same_trainees(&direct, &captured);
            shard_release(captured.loss);
            captured.loss = of_replay;
            number++;
        }
        step_eagerly(&direct, number);
        step_by_replay(&captured, number, graph);
        check_same_trainees(&direct, &captured);
        double after = evaluate(&captured);
        ck_assert_double_ne(after, before);
        ck_assert_double_eq(after, evaluate(&direct));
        before = after;
    }
    shard_graph_destroy(graph);
    shard_set_autocast(SHARD_FLOAT32);
    shard_release(captured.loss);
    captured.loss = NULL;
    step_eagerly(&direct, number);
    step_eagerly(&captured, number);
    check_same_trainees(&direct, &captured);
    drop_trainee(&captured);
    drop_trainee(&direct);
    check_ok(shard_last_status());
    ck_assert_int_eq(shard_finalize(), 0);
}
END_TEST

/* One copy and one launch in place of what a step queues. */
START_TEST(counts_nodes)
{
    trainee t = make_trainee(&recipes[0]);
    step_eagerly(&t, 0);
    shard_graph *graph = capture_step(&t);
    ck_assert_int_gt(shard_graph_nodes(graph), 20);
    shard_graph_destroy(graph);
    drop_trainee(&t);
}
END_TEST

/* Faults of a replay are told as of an eager step. */
START_TEST(tells_of_labels)
{
    trainee t = make_trainee(&recipes[0]);
    step_eagerly(&t, 0);
    shard_graph *graph = capture_step(&t);
    int64_t labels[BATCH] = {0, 1, 2, CLASSES, 4, -1};
    check_ok(shard_copy_from_host(t.labels, labels, sizeof labels));
    check_ok(shard_graph_replay(graph));
    shard_item(t.loss);
    check_error(SHARD_ERROR_ARGUMENT, "shard_cross_entropy: label 11*");
    shard_graph_destroy(graph);
    drop_trainee(&t);
}
END_TEST

/* ---- memory ---- */

START_TEST(counts_memory)
{
    shard_device *device = shard_device_open(NULL);
    trainee t = make_trainee(&recipes[0]);
    for (int i = 0; i < WARMUP; i++)
        step_eagerly(&t, i);
    shard_release(t.loss);
    t.loss = NULL;
    shard_reset_peak_memory(device);
    int64_t before = shard_get_memory_stats(device).current;
    step_eagerly(&t, WARMUP);
    int64_t eager_peak = shard_get_memory_stats(device).peak;
    int64_t eager_activations = shard_get_memory_by_kind(device, SHARD_MEMORY_ACTIVATIONS).peak;
    shard_release(t.loss);
    t.loss = NULL;
    int64_t idle = shard_get_memory_stats(device).current;
    ck_assert_int_eq(idle, before);
    shard_graph *graph = capture_step(&t);
    int64_t values = shard_get_memory_stats(device).current - idle; /* what kernels read, and the loss */
    shard_reset_peak_memory(device);
    ck_assert_int_eq(shard_get_memory_stats(device).peak, idle + values);
    check_ok(shard_graph_replay(graph));
    shard_memory_stats stats = shard_get_memory_stats(device);
    ck_assert_int_eq(stats.current, idle + values);
    ck_assert_int_ge(stats.peak, eager_peak);
    ck_assert_int_le(stats.peak, eager_peak + values);
    ck_assert_int_eq(shard_get_memory_by_kind(device, SHARD_MEMORY_ACTIVATIONS).peak, eager_activations);
    check_ok(shard_synchronize(device));
    int64_t reserved = shard_get_memory_stats(device).reserved;
    ck_assert_int_ge(reserved, stats.peak);
    shard_graph_destroy(graph);
    shard_release(t.loss);
    t.loss = NULL;
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
    shard_trim_memory(device);
    ck_assert_int_lt(shard_get_memory_stats(device).reserved, reserved);
    drop_trainee(&t);
}
END_TEST

/* Results that are kept: no value before the first replay, one after the graph is gone. Memory that the capture
 * releases is still there for the replays. */
START_TEST(keeps_results)
{
    shard_device *device = shard_device_open(NULL);
    shard_tensor *x = shard_keep(shard_full(SHARD_SHAPE(1000), 3)), *y = NULL;
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(x)), 3000);
    }
    shard_graph *graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(x, 2));
    }
    shard_release(x);
    check_ok(shard_graph_end(graph));
    float values[1000] = {0};
    ck_assert_int_eq(shard_copy_to_host(y, values, sizeof values), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*captured graph*");
    SHARD_SCOPE
    {
        shard_ones(SHARD_SHAPE(1000)); /* would have x's memory if it were free */
        check_ok(shard_graph_replay(graph));
        check_ok(shard_graph_replay(graph));
    }
    shard_graph_destroy(graph);
    check_ok(shard_copy_to_host(y, values, sizeof values));
    ck_assert_float_eq(values[0], 6);
    ck_assert_float_eq(values[999], 6);
    shard_release(y);
    check_ok(shard_synchronize(device));
}
END_TEST

static void expect_no_value(shard_tensor *x)
{
    uint16_t values[2000];
    ck_assert_int_eq(shard_copy_to_host(x, values, (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x))),
                     SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*captured graph*");
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_scale(x, 2));
    }
    check_error(SHARD_ERROR_ARGUMENT, "*captured graph*");
}

/* Results that never got a value have no address of a later graph's. Rows of a failed capture are still padded. */
START_TEST(keeps_results_without_value)
{
    bool fails = _i == 0;
    shard_device *device = shard_device_open(NULL);
    shard_tensor *x = shard_keep(shard_full(SHARD_SHAPE(1000), 3)), *never = NULL, *padded = NULL, *y = NULL;
    shard_tensor *weight = shard_keep(shard_ones(SHARD_SHAPE(37, 8), .dtype = SHARD_BFLOAT16));
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(x)), 3000);
        ck_assert_double_gt(shard_item(shard_sum(shard_linear(weight, weight, NULL))), 0);
    }
    shard_graph *graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        never = shard_keep(shard_scale(x, 2));
        padded = shard_keep(shard_linear(weight, weight, NULL));
    }
    if (fails)
        ck_assert_int_ne(shard_synchronize(device), SHARD_OK);
    ck_assert_int_eq(shard_graph_end(graph) != SHARD_OK, fails);
    shard_clear_error();
    expect_no_value(padded);
    shard_graph_destroy(graph);
    graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(x, 5));
    }
    check_ok(shard_graph_end(graph));
    check_ok(shard_graph_replay(graph));
    float values[1000] = {0};
    check_ok(shard_copy_to_host(y, values, sizeof values));
    ck_assert_float_eq(values[999], 15);
    expect_no_value(never);
    expect_no_value(padded);
    shard_release(never);
    shard_release(padded);
    shard_graph_destroy(graph);
    check_ok(shard_copy_to_host(y, values, sizeof values));
    ck_assert_float_eq(values[0], 15);
    shard_release(y);
    shard_release(x);
    shard_release(weight);
    check_ok(shard_synchronize(device));
}
END_TEST

/* The capture of another graph goes on: it keeps the memory of results that were released. */
START_TEST(destroyed_in_capture)
{
    shard_device *device = shard_device_open(NULL);
    int64_t before = shard_get_memory_stats(device).current;
    shard_tensor *x = shard_keep(shard_full(SHARD_SHAPE(1000), 3)), *y = NULL, *z = NULL;
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(x)), 3000);
    }
    shard_graph *first = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(x, 2));
        z = shard_keep(shard_scale(x, 4));
    }
    check_ok(shard_graph_end(first));
    check_ok(shard_graph_replay(first));
    shard_release(y);
    shard_graph *second = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(z, 5));
    }
    shard_graph_destroy(first);
    shard_release(z);
    check_ok(shard_graph_end(second));
    float values[1000] = {0};
    for (int i = 0; i < 3; i++)
        check_ok(shard_graph_replay(second));
    check_ok(shard_copy_to_host(y, values, sizeof values));
    ck_assert_float_eq(values[0], 60);
    ck_assert_float_eq(values[999], 60);
    shard_graph_destroy(second);
    shard_release(y);
    shard_release(x);
    check_ok(shard_synchronize(device));
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
}
END_TEST

/* A copy from the host that nothing has used, and that may be running. */
START_TEST(releases_copy_in_capture)
{
    enum { COUNT = 1 << 20 };
    shard_device *device = shard_device_open(NULL);
    int64_t before = shard_get_memory_stats(device).current;
    float *host = shard_device_allocate_host(device, COUNT * sizeof *host), values[1000];
    ck_assert_msg(host != NULL, "%s", shard_last_error());
    shard_tensor *x = shard_keep(shard_full(SHARD_SHAPE(1000), 3)), *y = NULL;
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(x)), 3000);
    }
    shard_tensor *copies[] = {shard_keep(shard_from_host_async(host, SHARD_SHAPE(COUNT))),
                              shard_keep(shard_from_host_async(host, SHARD_SHAPE(COUNT)))};
    shard_graph *first = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(x, 2));
    }
    shard_release(copies[0]);
    check_ok(shard_graph_end(first));
    check_ok(shard_graph_replay(first));
    shard_graph *second = shard_graph_begin(device);
    shard_release(copies[1]);
    SHARD_SCOPE
    {
        shard_scale(x, 5);
    }
    shard_graph_destroy(first); /* its memory is the second one's, with the wait for the copy */
    check_ok(shard_graph_end(second));
    check_ok(shard_graph_replay(second));
    check_ok(shard_copy_to_host(y, values, sizeof values));
    ck_assert_float_eq(values[0], 6);
    shard_graph_destroy(second);
    shard_release(y);
    shard_release(x);
    check_ok(shard_synchronize(device));
    shard_device_free_host(device, host, COUNT * sizeof *host);
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
}
END_TEST

/* A product of 37 columns has padded rows in memory. One that is kept is read dense, after each replay. */
START_TEST(keeps_padded_results)
{
    enum { ROWS = 4, IN = 8, OUT = 37 };
    shard_device *device = shard_device_open(NULL);
    shard_tensor *x = shard_keep(shard_ones(SHARD_SHAPE(ROWS, IN), .dtype = SHARD_BFLOAT16)), *y = NULL;
    shard_tensor *weight = shard_keep(shard_ones(SHARD_SHAPE(OUT, IN), .dtype = SHARD_BFLOAT16)), *early = NULL;
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(shard_linear(x, weight, NULL))), ROWS * IN * OUT);
        early = shard_keep(shard_linear(x, weight, NULL));
    }
    shard_graph *graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_linear(x, weight, NULL));
    }
    check_ok(shard_graph_end(graph));
    for (int replay = 1; replay <= 3; replay++)
        SHARD_SCOPE
        {
            shard_tensor *values = shard_full(SHARD_SHAPE(ROWS, IN), replay, .dtype = SHARD_BFLOAT16);
            uint16_t host[ROWS * IN];
            check_ok(shard_copy_to_host(values, host, sizeof host));
            check_ok(shard_copy_from_host(x, host, sizeof host));
            check_ok(shard_graph_replay(graph));
            shard_tensor *wide = shard_cast(y, SHARD_FLOAT32);
            float got[ROWS * OUT];
            check_ok(shard_copy_to_host(wide, got, sizeof got));
            for (int i = 0; i < ROWS * OUT; i++)
                ck_assert_float_eq(got[i], (float)(IN * replay));
        }
    shard_graph_destroy(graph);
    graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_relu(early)); /* made dense by the replays only */
    }
    check_error(SHARD_ERROR_UNSUPPORTED, "the first use of a padded tensor from before the capture*");
    shard_graph_end(graph);
    shard_clear_error();
    shard_graph_destroy(graph);
    shard_release(x);
    shard_release(y);
    shard_release(weight);
    shard_release(early);
}
END_TEST

/* ---- failures ---- */

/* A launch that lacks memory computes nothing: steps, averages, batches and draws are as before, and the next one goes on. */
START_TEST(takes_failed_replay_back)
{
    const recipe *r = &recipes[_i];
    shard_set_autocast(r->amp);
    trainee captured = make_trainee(r), direct = make_trainee(r);
    int number = 0;
    for (; number < WARMUP; number++) {
        step_eagerly(&direct, number);
        step_eagerly(&captured, number);
    }
    shard_graph *graph = capture_step(&captured);
    for (int i = 0; i < STEPS; i++, number++) {
        setenv("SHARD_CUDA_EMULATION_GRAPH_LAUNCH", "1", 1);
        shard_set_random_state(captured.random);
        ck_assert_int_eq(shard_graph_replay(graph), SHARD_ERROR_MEMORY);
        shard_random_state after = shard_get_random_state();
        ck_assert_int_eq(after.next_draw, captured.random.next_draw);
        shard_clear_error();
        unsetenv("SHARD_CUDA_EMULATION_GRAPH_LAUNCH");
        step_eagerly(&direct, number);
        step_by_replay(&captured, number, graph);
        check_same_trainees(&direct, &captured);
    }
    shard_graph_destroy(graph);
    shard_set_autocast(SHARD_FLOAT32);
    drop_trainee(&captured);
    drop_trainee(&direct);
}
END_TEST

int main(void)
{
    const char *device = getenv("SHARD_DEVICE");
    if (!device || strncmp(device, "cuda", 4) != 0)
        return 77; /* skipped */
    Suite *suite = suite_create("graph");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, replays_as_eager, 0, RECIPES);
    tcase_add_test(all, counts_nodes);
    tcase_add_test(all, tells_of_labels);
    tcase_add_test(all, counts_memory);
    tcase_add_test(all, keeps_results);
    tcase_add_loop_test(all, keeps_results_without_value, 0, 2);
    tcase_add_test(all, destroyed_in_capture);
    tcase_add_test(all, releases_copy_in_capture);
    tcase_add_test(all, keeps_padded_results);
    if (cuda_is_emulated())
        tcase_add_loop_test(all, takes_failed_replay_back, 0, RECIPES);
    return test_run(suite);
}
