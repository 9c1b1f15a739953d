/*
 * What a captured graph and its replay refuse. Where SHARD_DEVICE is the CPU: any capture.
 */
#include "support/trainee.h"

#include "device/graph.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct refused {
    const char *what;
    void (*call)(trainee *t);
    const char *text;
} refused;

static void read_item(trainee *t)
{
    SHARD_SCOPE
    {
        shard_item(shard_sum(t->images));
    }
}
static void wait_for_device(trainee *t)
{
    shard_synchronize(shard_tensor_device(t->images));
}
static void copy_in(trainee *t)
{
    int64_t labels[BATCH] = {0};
    shard_copy_from_host(t->labels, labels, sizeof labels);
}
static void pin_memory(trainee *t)
{
    shard_device_allocate_host(shard_tensor_device(t->images), 64);
}
static void use_first(trainee *t)
{
    SHARD_SCOPE
    {
        shard_scale(t->loss, 2); /* a tensor that has no memory yet */
    }
}
static void draw_values(trainee *t)
{
    shard_nn_init_uniform(t->images, 0, 1);
}
static void scale_loss(trainee *t)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    SHARD_SCOPE
    {
        shard_grad_scaler_scale(scaler, shard_sum(t->images));
    }
    shard_grad_scaler_destroy(scaler);
}
static void go_back_alone(trainee *t)
{
    SHARD_SCOPE
    {
        shard_backward(shard_sum(shard_forward(t->model, t->images)));
    }
}
static void use_cpu(trainee *t)
{
    (void)t;
    SHARD_SCOPE
    {
        shard_dropout(shard_ones(SHARD_SHAPE(3), .device = shard_device_open("cpu")), 0.5);
    }
}
static void clip_and_read(trainee *t)
{
    double norm;
    go_back_alone(t);
    shard_clip_grad_norm(t->optimizer, 1, &norm);
    shard_step(t->optimizer);
}
static void update_average(trainee *t)
{
    shard_ema *ema = shard_ema_create(t->optimizer);
    shard_ema_update(ema);
    shard_ema_destroy(ema);
}
static void swap_averages(trainee *t)
{
    shard_ema *ema = shard_ema_create(t->optimizer);
    shard_ema_swap(ema);
    shard_ema_destroy(ema);
}
static void record_event(trainee *t)
{
    shard_event *event = shard_event_create(shard_tensor_device(t->images));
    shard_event_record(event);
    shard_event_destroy(event);
}
static void begin_again(trainee *t)
{
    shard_graph_begin(shard_tensor_device(t->images));
}

static const refused refusals[] = {
    {"item", read_item, "reading values of the device on the host cannot be captured in a graph"},
    {"synchronize", wait_for_device, "waiting for the device cannot be captured in a graph"},
    {"event", record_event, "recording an event cannot be captured in a graph"},
    {"copy in", copy_in, "copying from the host to the device cannot be captured in a graph"},
    {"pinned memory", pin_memory, "allocating pinned memory cannot be captured in a graph"},
    {"first use", use_first, "the first use of a tensor that was made before the capture cannot be captured"},
    {"random values", draw_values, "shard_nn_init_uniform cannot be captured in a graph"},
    {"scaler", scale_loss, "a gradient scaler, whose scale"},
    {"gradients left", go_back_alone, "shard_graph_end: gradients of 5 tensors are left"},
    {"another device", use_cpu, "shard_dropout: a tensor on cpu in a capture of cuda:0"},
    {"norm", clip_and_read, "reading values of the device on the host cannot be captured in a graph"},
    {"first average", update_average, "shard_ema_update: the first update is in a capture"},
    {"swap", swap_averages, "an exchange of averages and parameters cannot be captured in a graph"},
    {"two captures", begin_again, "shard_graph_begin: this thread captures a graph already"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

static void expect_text(const char *what, const char *text)
{
    ck_assert_msg(shard_last_status() != SHARD_OK, "%s: not refused", what);
    ck_assert_msg(strstr(shard_last_error(), text) != NULL, "%s: %s", what, shard_last_error());
    shard_clear_error();
}

/* The end fails with the same error, or, where that was cleared, with one of its own; the device can be used then. */
START_TEST(refuses)
{
    const refused *r = &refusals[_i];
    trainee t = make_trainee(&recipes[4]);
    for (int i = 0; i < WARMUP; i++)
        step_eagerly(&t, i);
    shard_release(t.loss);
    t.loss = shard_keep(shard_zeros(SHARD_SHAPE(3)));
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    ck_assert_msg(graph != NULL, "%s", shard_last_error());
    r->call(&t);
    ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
    expect_text(r->what, r->text);
    ck_assert_int_ne(shard_graph_replay(graph), SHARD_OK);
    expect_text(r->what, "shard_graph_replay: there is nothing to replay");
    ck_assert_int_eq(shard_graph_nodes(graph), 0);
    shard_graph_destroy(graph);
    shard_optimizer_zero_grad(t.optimizer);
    step_eagerly(&t, WARMUP);
    drop_trainee(&t);
}
END_TEST

START_TEST(refuses_though_cleared)
{
    trainee t = make_trainee(&recipes[0]);
    step_eagerly(&t, 0);
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    read_item(&t);
    shard_clear_error();
    ck_assert_int_eq(shard_graph_end(graph), SHARD_ERROR_UNSUPPORTED);
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_end: *refused*");
    shard_graph_destroy(graph);
    graph = shard_graph_begin(shard_device_open(NULL));
    shard_graph_destroy(graph); /* in the capture */
    step_eagerly(&t, 1);
    drop_trainee(&t);
}
END_TEST

/* First steps: gradients, then states, are not there. */
START_TEST(refuses_first_step)
{
    trainee t = make_trainee(&recipes[0]);
    read_batch(&t, 0);
    SHARD_SCOPE SHARD_NO_GRAD
    {
        shard_item(shard_sum(shard_forward(t.model, t.images)));
    }
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    train(&t);
    ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
    expect_text("first gradient", "the first gradient of a tensor cannot be captured");
    shard_graph_destroy(graph);
    shard_optimizer_zero_grad(t.optimizer);

    go_back_alone(&t);
    shard_optimizer_zero_grad(t.optimizer);
    graph = shard_graph_begin(shard_device_open(NULL));
    train(&t);
    ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
    expect_text("first step", "is in a capture: make one step before shard_graph_begin");
    shard_graph_destroy(graph);
    shard_optimizer_zero_grad(t.optimizer);
    step_eagerly(&t, 0);
    drop_trainee(&t);
}
END_TEST

/* cuBLAS's workspace, which it makes, is there without the graph. */
START_TEST(refuses_first_product)
{
    shard_device *device = shard_device_open(NULL);
    shard_tensor *x = shard_keep(shard_full(SHARD_SHAPE(8, 8), 3));
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(x)), 192);
    }
    shard_graph *graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_linear(x, x, NULL));
    }
    ck_assert_int_eq(shard_graph_end(graph), SHARD_ERROR_UNSUPPORTED);
    expect_text("first product", "the first product on the device cannot be captured in a graph");
    shard_graph_destroy(graph);
    SHARD_SCOPE
    {
        ck_assert_double_eq(shard_item(shard_sum(shard_linear(x, x, NULL))), 4608);
    }
    shard_release(x);
}
END_TEST

/* cuDNN's plan of a shape is made eagerly: then another shape is refused, and this one is not. */
START_TEST(refuses_first_convolution)
{
    shard_device *device = shard_device_open(NULL);
    shard_tensor *image = shard_keep(shard_full(SHARD_SHAPE(1, 4, 4, 8), 1)),
                 *window = shard_keep(shard_full(SHARD_SHAPE(8, 8, 3, 3), 1));
    shard_tensor *wide = shard_keep(shard_full(SHARD_SHAPE(1, 4, 5, 8), 1));
    for (int eager = 0; eager < 2; eager++) {
        SHARD_SCOPE
        {
            ck_assert_double_eq(shard_item(shard_sum(image)) + shard_item(shard_sum(window)) + shard_item(shard_sum(wide)), 864);
            if (eager)
                ck_assert_double_eq(shard_item(shard_sum(shard_conv2d(image, window, NULL))), 4 * 9 * 64);
        }
        shard_graph *graph = shard_graph_begin(device);
        SHARD_SCOPE
        {
            if (eager)
                ck_assert_ptr_nonnull(shard_conv2d(image, window, NULL));
            ck_assert_ptr_null(shard_conv2d(eager ? wide : image, window, NULL));
        }
        ck_assert_int_eq(shard_graph_end(graph), SHARD_ERROR_UNSUPPORTED);
        expect_text("first convolution", "making cuDNN's plan for a convolution (forward, float32, 8 channels to 8 in 1 groups");
        shard_graph_destroy(graph);
    }
    shard_release(image);
    shard_release(window);
    shard_release(wide);
}
END_TEST

/* An average that warms up is updated after each replay. */
START_TEST(refuses_warmup)
{
    trainee t = make_trainee(&recipes[0]);
    step_eagerly(&t, 0);
    shard_ema *ema = shard_ema_create(t.optimizer, .warmup = true);
    check_ok(shard_ema_update(ema));
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    ck_assert_int_ne(shard_ema_update(ema), SHARD_OK);
    ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
    expect_text("warm-up", "shard_ema_update: the decay warms up, and is 0.181818 of 0.999");
    shard_graph_destroy(graph);
    check_ok(shard_ema_update(ema));
    shard_ema_destroy(ema);
    drop_trainee(&t);
}
END_TEST

/* A classifier has logits in memory in a capture: the rows of its weight cannot be normalized any more. */
START_TEST(refuses_normalized_rows)
{
    shard_graph *graph = NULL;
    shard_module *layer = shard_nn_parallel_classifier(8, CLASSES, NULL, .bias = false);
    shard_tensor *x = shard_keep(shard_ones(SHARD_SHAPE(BATCH, 8)));
    shard_tensor *labels = shard_keep(shard_zeros(SHARD_SHAPE(BATCH), .dtype = SHARD_INT64));
    for (int capturing = 0; capturing < 2; capturing++)
        SHARD_SCOPE
        {
            graph = capturing ? shard_graph_begin(shard_device_open(NULL)) : NULL;
            shard_tensor *loss = shard_cross_entropy(shard_forward(layer, x), labels, .normalized = true,
                                                     .margin = SHARD_MARGIN(.scale = 8, .m2 = 0.5));
            ck_assert_int_eq(loss == NULL, capturing);
            if (loss)
                check_ok(shard_backward(loss));
        }
    expect_text("normalized rows", "shard_nn_parallel_classifier in training and outside a capture");
    shard_graph_end(graph);
    shard_clear_error();
    shard_graph_destroy(graph);
    shard_module_destroy(layer);
    shard_release(x);
    shard_release(labels);
}
END_TEST

START_TEST(refuses_without_optimizer)
{
    trainee t = make_trainee(&recipes[0]);
    step_eagerly(&t, 0);
    shard_graph *graph = capture_step(&t);
    check_ok(shard_graph_replay(graph));
    drop_trainee(&t);
    ck_assert_int_eq(shard_graph_replay(graph), SHARD_ERROR_ARGUMENT);
    expect_text("optimizer", "an optimizer or an average that was captured has been destroyed");
    shard_graph_destroy(graph);
}
END_TEST

static atomic_bool registered;

static void *forget_others(void *owner)
{
    while (!registered) {
        shard_graph_forget(owner);
        usleep(1);
    }
    return NULL;
}

/* Another thread destroys optimizers, of the CPU as it were, while a capture registers its replays. */
START_TEST(others_end_in_capture)
{
    enum { ROUNDS = 30, REPLAYS = 1 << 16 };
    int own, other;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
        registered = false;
        ck_assert_int_eq(pthread_create(&thread, NULL, forget_others, &other), 0);
        for (int i = 0; i < REPLAYS; i++)
            ck_assert_ptr_eq(shard_graph_on_replay(graph, (shard_replay){.owner = &own}, 0), graph);
        registered = true;
        pthread_join(thread, NULL);
        shard_graph_destroy(graph);
    }
    check_ok(shard_last_status());
}
END_TEST

/* A parameter that an eager step has left out is at another step than those with which it shares what it takes of it. */
START_TEST(refuses_steps_apart)
{
    trainee t = make_trainee(&recipes[3]); /* adamw, whose factors change from step to step */
    step_eagerly(&t, 0);
    shard_graph *graph = capture_step(&t);
    step_by_replay(&t, 1, graph);
    SHARD_SCOPE
    {
        shard_tensors *all = shard_parameters(t.model);
        shard_backward(shard_sum(shard_tensors_at(all, 0)));
        shard_tensors_destroy(all);
    }
    check_ok(shard_step(t.optimizer));
    for (int i = 0; i < 2; i++) { /* a refused replay counts nothing */
        ck_assert_int_eq(shard_graph_replay(graph), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT,
                    "shard_graph_replay: \"*\" is at step 3 and \"*\" at step 4, which were at the same one*");
    }
    shard_graph_destroy(graph);
    shard_release(t.loss);
    t.loss = NULL;
    step_eagerly(&t, 2);
    drop_trainee(&t);
}
END_TEST

/* A replay would step the averages that are in the parameters' place. */
START_TEST(refuses_swapped)
{
    int number = 0;
    while (!recipes[number].ema)
        number++;
    trainee t = make_trainee(&recipes[number]);
    int step = 0;
    while (step < WARMUP)
        step_eagerly(&t, step++);
    shard_graph *graph = capture_step(&t);
    step_by_replay(&t, step++, graph);
    check_ok(shard_ema_swap(t.ema));
    for (int i = 0; i < 2; i++)
        check_fails(shard_graph_replay(graph), SHARD_ERROR_ARGUMENT,
                    "shard_graph_replay: averages are in the parameters' place*");
    check_ok(shard_ema_swap(t.ema));
    step_by_replay(&t, step, graph);
    shard_graph_destroy(graph);
    drop_trainee(&t);
}
END_TEST

/* The same of a graph that has the update alone. */
START_TEST(refuses_swapped_update)
{
    int number = 0;
    while (!recipes[number].ema)
        number++;
    trainee t = make_trainee(&recipes[number]);
    for (int step = 0; step < WARMUP; step++)
        step_eagerly(&t, step);
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    check_ok(shard_ema_update(t.ema));
    check_ok(shard_graph_end(graph));
    check_ok(shard_graph_replay(graph));
    check_ok(shard_ema_swap(t.ema));
    check_fails(shard_graph_replay(graph), SHARD_ERROR_ARGUMENT, "shard_graph_replay: averages are in the parameters' place*");
    check_ok(shard_ema_swap(t.ema));
    check_ok(shard_graph_replay(graph));
    shard_graph_destroy(graph);
    drop_trainee(&t);
}
END_TEST

/* The error that the thread has comes before what is wrong with the graph. */
START_TEST(refuses_after_an_error)
{
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    ck_assert_msg(graph != NULL, "%s", shard_last_error());
    SHARD_SCOPE
    {
        shard_zeros(SHARD_SHAPE(3));
    }
    shard_error(SHARD_ERROR_IO, "the disk is full");
    check_fails(shard_graph_replay(graph), SHARD_ERROR_IO, "the disk is full");
    check_fails(shard_graph_replay(graph), SHARD_ERROR_ARGUMENT, "*a replay cannot be captured");
    check_ok(shard_graph_end(graph));
    shard_graph_destroy(graph);
}
END_TEST

/* A collective begins with a preflight check on the hosts: all ranks receive the refusal, and continue together. */
static void refuse_collective(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(10), 2);
        check_ok(shard_all_reduce(x, SHARD_SUM, world));
        shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
        ck_assert_msg(graph != NULL, "%s", shard_last_error());
        ck_assert_int_ne(shard_all_reduce(x, SHARD_SUM, world), SHARD_OK);
        ck_assert_int_ne(shard_graph_end(graph), SHARD_OK);
        expect_text("collective", "a collective of several ranks, whose preflight check is the hosts', cannot be captured");
        shard_graph_destroy(graph);
        check_ok(shard_all_reduce(x, SHARD_SUM, world));
        float values[10];
        check_ok(shard_copy_to_host(x, values, sizeof values));
        ck_assert_float_eq(values[9], 8);
    }
}

START_TEST(refuses_collectives)
{
    run_job(2, refuse_collective, NULL);
}
END_TEST

START_TEST(refuses_cpu)
{
    ck_assert_ptr_null(shard_graph_begin(shard_device_open("cpu")));
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_begin: *cpu*");
    ck_assert(!shard_is_capturing());
    ck_assert_ptr_null(shard_graph_begin(NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_begin: device *");
    ck_assert_int_eq(shard_graph_end(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_end: graph *");
    ck_assert_int_eq(shard_graph_replay(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_replay: graph *");
    shard_graph_destroy(NULL);
    check_ok(shard_last_status());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graph_refuses");
    TCase *all = test_case(suite, "all");
    const char *device = getenv("SHARD_DEVICE");
    tcase_add_test(all, refuses_cpu);
    if (device && strncmp(device, "cuda", 4) == 0) {
        tcase_add_loop_test(all, refuses, 0, REFUSALS);
        tcase_add_test(all, refuses_though_cleared);
        tcase_add_test(all, refuses_first_step);
        tcase_add_test(all, refuses_first_product);
        tcase_add_test(all, refuses_first_convolution);
        tcase_add_test(all, refuses_warmup);
        tcase_add_test(all, refuses_normalized_rows);
        tcase_add_test(all, refuses_without_optimizer);
        tcase_add_test(all, others_end_in_capture);
        tcase_add_test(all, refuses_steps_apart);
        tcase_add_test(all, refuses_swapped);
        tcase_add_test(all, refuses_swapped_update);
        tcase_add_test(all, refuses_after_an_error);
        tcase_add_test(all, refuses_collectives);
    }
    return test_run(suite);
}
