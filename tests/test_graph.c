/*
 * Captured training steps: replays give the bits of eager steps, with all that changes from step to
 * step on the host; what a capture refuses; memory. Where SHARD_DEVICE is the CPU, that it refuses.
 */
#include "support/job.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 6, SIDE = 5, CHANNELS = 3, CLASSES = 11, PIXELS = BATCH * SIDE * SIDE * CHANNELS };

/* ---- a model and what trains it ---- */

typedef struct recipe {
    const char *name;
    shard_optimizer *(*optimizer)(shard_tensors *parameters);
    double dropout, clip;
    shard_dtype amp; /* float32: off */
    bool ema, groups, parallel;
} recipe;

typedef struct trainee {
    const recipe *recipe;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
    shard_ema *ema;
    shard_tensor *images, *labels;
    shard_tensor *loss; /* of the last step */
    shard_random_state random;
} trainee;

typedef struct net {
    shard_module *body, *head;
    double dropout;
} net;

static shard_tensor *forward(shard_module *module, shard_tensor *x)
{
    const net *n = shard_module_data(module);
    shard_tensor *y = shard_forward(n->body, x);
    if (n->dropout > 0 && shard_module_is_training(module))
        y = shard_dropout(y, n->dropout);
    return shard_forward(n->head, y);
}

static void free_net(shard_module *module)
{
    free(shard_module_data(module));
}

static const shard_module_type net_type = {.name = "net", .forward = forward, .destroy = free_net};

static shard_module *make_model(const recipe *r)
{
    net *n = calloc(1, sizeof *n);
    n->dropout = r->dropout;
    n->body = shard_nn_sequential(shard_nn_conv2d(CHANNELS, 8, 3, .padding = 1, .no_bias = true), shard_nn_batch_norm(8),
                                  shard_nn_relu(), shard_nn_global_avg_pool2d());
    n->head = shard_nn_linear(8, CLASSES);
    shard_module *model = shard_module_create(&net_type, n);
    check_ok(shard_module_add_child(model, "body", n->body));
    check_ok(shard_module_add_child(model, "head", n->head));
    return model;
}

/* All parameters of the body, then, in a group with a rate of its own, those of the head. */
static void add_head(trainee *t)
{
    const net *n = shard_module_data(t->model);
    check_ok(shard_optimizer_add_param_group(t->optimizer, shard_parameters(n->head), .lr_scale = 0.5, .weight_decay = 0.1,
                                             .prefix = "head."));
}

static trainee make_trainee(const recipe *r)
{
    shard_manual_seed(5);
    trainee t = {.recipe = r,
                 .model = make_model(r),
                 .images = shard_keep(shard_zeros(SHARD_SHAPE(BATCH, SIDE, SIDE, CHANNELS))),
                 .labels = shard_keep(shard_zeros(SHARD_SHAPE(BATCH), .dtype = SHARD_INT64))};
    shard_tensors *parameters = shard_parameters(r->groups ? ((net *)shard_module_data(t.model))->body : t.model);
    t.optimizer = r->optimizer(parameters);
    if (r->groups)
        add_head(&t);
    if (r->parallel) {
        shard_tensors *all = shard_parameters(t.model);
        t.parallel = shard_data_parallel_create(all);
        shard_tensors_destroy(all);
    }
    if (r->ema)
        t.ema = shard_ema_create(t.optimizer, .decay = 0.75);
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", r->name, shard_last_error());
    t.random = shard_get_random_state();
    return t;
}

static void drop_trainee(trainee *t)
{
    shard_release(t->loss);
    shard_release(t->images);
    shard_release(t->labels);
    shard_ema_destroy(t->ema);
    shard_optimizer_destroy(t->optimizer);
    shard_data_parallel_destroy(t->parallel);
    shard_module_destroy(t->model);
}

static void read_batch(const trainee *t, int number)
{
    float images[PIXELS];
    int64_t labels[BATCH];
    for (int i = 0; i < PIXELS; i++)
        images[i] = (float)((i * 37 + number * 11) % 101 - 40) / 32;
    for (int i = 0; i < BATCH; i++)
        labels[i] = i == 2 ? -100 : (i * 5 + number) % CLASSES;
    check_ok(shard_copy_from_host(t->images, images, sizeof images));
    check_ok(shard_copy_from_host(t->labels, labels, sizeof labels));
}

/* A step on what lies in images and labels; the loss is kept. */
static void train(trainee *t)
{
    shard_release(t->loss);
    t->loss = NULL;
    SHARD_SCOPE
    {
        SHARD_AUTOCAST(t->recipe->amp)
        {
            t->loss = shard_keep(shard_cross_entropy(shard_forward(t->model, t->images), t->labels, .label_smoothing = 0.1));
        }
        shard_backward(t->loss);
    }
    if (t->recipe->clip > 0)
        shard_clip_grad_norm(t->optimizer, t->recipe->clip, NULL);
    shard_step(t->optimizer);
    if (t->ema)
        shard_ema_update(t->ema);
}

static void prepare(trainee *t, int number)
{
    read_batch(t, number);
    check_ok(shard_optimizer_set_lr(t->optimizer, 0.1 / (1 + number)));
}

static void step_eagerly(trainee *t, int number)
{
    prepare(t, number);
    shard_set_random_state(t->random);
    train(t);
    t->random = shard_get_random_state();
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", t->recipe->name, shard_last_error());
}

static void step_by_replay(trainee *t, int number, shard_graph *graph)
{
    prepare(t, number);
    shard_set_random_state(t->random);
    ck_assert_msg(shard_graph_replay(graph) == SHARD_OK, "%s: %s", t->recipe->name, shard_last_error());
    t->random = shard_get_random_state();
}

static shard_graph *capture_step(trainee *t)
{
    shard_set_random_state(t->random);
    shard_graph *graph = shard_graph_begin(shard_device_open(NULL));
    ck_assert_msg(graph != NULL, "%s: %s", t->recipe->name, shard_last_error());
    ck_assert(shard_is_capturing());
    train(t);
    ck_assert_msg(shard_graph_end(graph) == SHARD_OK, "%s: %s", t->recipe->name, shard_last_error());
    ck_assert(!shard_is_capturing());
    shard_random_state after = shard_get_random_state();
    ck_assert(after.next_draw == t->random.next_draw && after.seed == t->random.seed);
    return graph;
}

/* ---- comparing ---- */

static void check_same_tensor(const recipe *r, const char *name, shard_tensor *a, shard_tensor *b)
{
    size_t bytes = (size_t)shard_numel(a) * shard_dtype_size(shard_tensor_dtype(a));
    unsigned char *x = malloc(bytes), *y = malloc(bytes);
    check_ok(shard_copy_to_host(a, x, bytes));
    check_ok(shard_copy_to_host(b, y, bytes));
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            ck_abort_msg("%s: %s differs at byte %zu", r->name, name, i);
    free(x);
    free(y);
}

static void check_same_list(const recipe *r, shard_tensors *a, shard_tensors *b)
{
    ck_assert_msg(a && b, "%s", shard_last_error());
    ck_assert_int_gt(shard_tensors_count(a), 0);
    ck_assert_int_eq(shard_tensors_count(a), shard_tensors_count(b));
    for (int64_t i = 0; i < shard_tensors_count(a); i++)
        check_same_tensor(r, shard_tensors_name(a, i), shard_tensors_at(a, i), shard_tensors_at(b, i));
    shard_tensors_destroy(a);
    shard_tensors_destroy(b);
}

/* Loss, parameters, running statistics, counters, optimizer states, averages, draws. */
static void check_same(trainee *a, trainee *b)
{
    check_same_tensor(a->recipe, "loss", a->loss, b->loss);
    check_same_list(a->recipe, shard_state_dict(a->model), shard_state_dict(b->model));
    check_same_list(a->recipe, shard_optimizer_state_dict(a->optimizer), shard_optimizer_state_dict(b->optimizer));
    if (a->ema)
        check_same_list(a->recipe, shard_ema_state_dict(a->ema), shard_ema_state_dict(b->ema));
    ck_assert_int_eq(a->random.next_draw, b->random.next_draw);
}

static double evaluate(const trainee *t)
{
    double loss = 0;
    shard_module_set_training(t->model, false);
    SHARD_SCOPE SHARD_AUTOCAST(t->recipe->amp)
    {
        loss = shard_item(shard_cross_entropy(shard_forward(t->model, t->images), t->labels));
    }
    shard_module_set_training(t->model, true);
    return loss;
}

static shard_optimizer *sgd(shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}
static shard_optimizer *plain_sgd(shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1);
}
static shard_optimizer *adam(shard_tensors *p)
{
    return shard_adam(p, .lr = 0.1, .weight_decay = 0.01, .amsgrad = true);
}
static shard_optimizer *adamw(shard_tensors *p)
{
    return shard_adamw(p, .lr = 0.1, .no_decay_1d = true);
}
static shard_optimizer *lars(shard_tensors *p)
{
    return shard_lars(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01);
}
static shard_optimizer *lamb(shard_tensors *p)
{
    return shard_lamb(p, .lr = 0.1, .weight_decay = 0.01);
}

static const recipe recipes[] = {
    {.name = "sgd", .optimizer = sgd},
    {.name = "sgd without momentum, dropout", .optimizer = plain_sgd, .dropout = 0.25},
    {.name = "adam, groups", .optimizer = adam, .groups = true},
    {.name = "adamw, bfloat16, clipping", .optimizer = adamw, .amp = SHARD_BFLOAT16, .clip = 0.05, .dropout = 0.5},
    {.name = "lars, data parallel", .optimizer = lars, .parallel = true, .clip = 0.1},
    {.name = "lamb, average", .optimizer = lamb, .ema = true, .groups = true},
    {.name = "adamw, data parallel", .optimizer = adamw, .parallel = true},
};
enum { RECIPES = sizeof recipes / sizeof *recipes, WARMUP = 2, STEPS = 4 };

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
    check_same(&direct, &captured);
    double before = evaluate(&captured);
    shard_graph *graph = capture_step(&captured);
    for (int i = 0; i < STEPS; i++, number++) {
        if (i == STEPS / 2) { /* a partial batch, as it were */
            step_eagerly(&direct, number);
            shard_tensor *of_replay = captured.loss;
            captured.loss = NULL;
            step_eagerly(&captured, number);
            check_same(&direct, &captured);
            shard_release(captured.loss);
            captured.loss = of_replay;
            number++;
        }
        step_eagerly(&direct, number);
        step_by_replay(&captured, number, graph);
        check_same(&direct, &captured);
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
    check_same(&direct, &captured);
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
    check_error(SHARD_ERROR_ARGUMENT, "shard_cross_entropy: label 11 at row 3 is outside [0, 11)");
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
    ck_assert_double_eq(shard_item(shard_sum(x)), 3000);
    shard_graph *graph = shard_graph_begin(device);
    SHARD_SCOPE
    {
        y = shard_keep(shard_scale(x, 2));
    }
    shard_release(x);
    check_ok(shard_graph_end(graph));
    float values[1000] = {0};
    ck_assert_int_eq(shard_copy_to_host(y, values, sizeof values), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT,
                "the tensor is a result of a captured graph: it has a value after the first shard_graph_replay");
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

/* ---- what is refused ---- */

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
static void begin_again(trainee *t)
{
    shard_graph_begin(shard_tensor_device(t->images));
}

static const refused refusals[] = {
    {"item", read_item, "reading values of the device on the host cannot be captured in a graph"},
    {"synchronize", wait_for_device, "waiting for the device cannot be captured in a graph"},
    {"copy in", copy_in, "copying from the host to the device cannot be captured in a graph"},
    {"first use", use_first, "the first use of a tensor that was made before the capture cannot be captured"},
    {"random values", draw_values, "shard_nn_init_uniform cannot be captured in a graph"},
    {"scaler", scale_loss, "a gradient scaler, whose scale"},
    {"gradients left", go_back_alone, "shard_graph_end: gradients of 5 tensors are left"},
    {"another device", use_cpu, "shard_dropout: a tensor on cpu in a capture of cuda:0"},
    {"norm", clip_and_read, "reading values of the device on the host cannot be captured in a graph"},
    {"first average", update_average, "shard_ema_update: the first update is in a capture"},
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
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_end: a call in the capture was refused: there is nothing to replay");
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

/* Before a collective hosts meet: all ranks are told, and go on together. */
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
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_begin: the device is cpu: only work of a GPU can be captured");
    ck_assert(!shard_is_capturing());
    ck_assert_ptr_null(shard_graph_begin(NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_begin: device is NULL");
    ck_assert_int_eq(shard_graph_end(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_end: graph is NULL");
    ck_assert_int_eq(shard_graph_replay(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_graph_replay: graph is NULL");
    shard_graph_destroy(NULL);
    check_ok(shard_last_status());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graph");
    TCase *all = test_case(suite, "all");
    const char *device = getenv("SHARD_DEVICE");
    tcase_add_test(all, refuses_cpu);
    if (device && strncmp(device, "cuda", 4) == 0) {
        tcase_add_loop_test(all, replays_as_eager, 0, RECIPES);
        tcase_add_test(all, counts_nodes);
        tcase_add_test(all, tells_of_labels);
        tcase_add_test(all, counts_memory);
        tcase_add_test(all, keeps_results);
        tcase_add_test(all, keeps_padded_results);
        tcase_add_loop_test(all, refuses, 0, REFUSALS);
        tcase_add_test(all, refuses_though_cleared);
        tcase_add_test(all, refuses_first_step);
        tcase_add_test(all, refuses_warmup);
        tcase_add_test(all, refuses_without_optimizer);
        tcase_add_test(all, refuses_collectives);
    }
    return test_run(suite);
}
