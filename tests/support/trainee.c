#include "support/trainee.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>

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
    n->body = shard_nn_sequential(shard_nn_conv2d(CHANNELS, 8, 3, .padding = 1, .bias = false), shard_nn_batch_norm(8),
                                  shard_nn_relu(), shard_nn_global_avg_pool2d());
    n->head = shard_nn_linear(8, CLASSES, .bias = !r->margin);
    shard_module *model = shard_module_create(&net_type, n);
    check_ok(shard_module_add_child(model, "body", n->body));
    check_ok(shard_module_add_child(model, "head", n->head));
    return model;
}

/* All parameters of the body, then, in a group with a rate of its own, those of the head. */
static void add_head(trainee *t)
{
    const net *n = shard_module_data(t->model);
    check_ok(add_group_of(t->optimizer, shard_parameters(n->head), .lr_scale = 0.5, .weight_decay = 0.1, .prefix = "head."));
}

trainee make_trainee(const recipe *r)
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

void drop_trainee(trainee *t)
{
    shard_release(t->loss);
    shard_release(t->images);
    shard_release(t->labels);
    shard_ema_destroy(t->ema);
    shard_optimizer_destroy(t->optimizer);
    shard_data_parallel_destroy(t->parallel);
    shard_module_destroy(t->model);
}

void read_batch(const trainee *t, int number)
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

/* Of cosines of the features and the head's rows. */
static shard_tensor *margin_loss(const trainee *t)
{
    const net *n = shard_module_data(t->model);
    const shard_margin_logits_options *margin = SHARD_MARGIN(.scale = 8, .m2 = 0.5);
    shard_tensor *x = shard_forward(n->body, t->images), *weight = shard_module_tensor(n->head, "weight");
    if (t->recipe->fused)
        return shard_linear_cross_entropy(x, weight, NULL, t->labels, .normalized = true, .margin = margin);
    shard_tensor *cosines = shard_linear(shard_normalize(x, -1, 1e-12), shard_normalize(weight, -1, 1e-12), NULL);
    return shard_cross_entropy(cosines, t->labels, .margin = margin);
}

static shard_tensor *loss_of(const trainee *t)
{
    return t->recipe->margin ? margin_loss(t)
                             : shard_cross_entropy(shard_forward(t->model, t->images), t->labels, .label_smoothing = 0.1);
}

void train(trainee *t)
{
    shard_release(t->loss);
    t->loss = NULL;
    SHARD_SCOPE
    {
        SHARD_AUTOCAST(t->recipe->amp)
        {
            t->loss = shard_keep(loss_of(t));
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

void step_eagerly(trainee *t, int number)
{
    prepare(t, number);
    shard_set_random_state(t->random);
    train(t);
    t->random = shard_get_random_state();
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", t->recipe->name, shard_last_error());
}

void step_by_replay(trainee *t, int number, shard_graph *graph)
{
    prepare(t, number);
    shard_set_random_state(t->random);
    ck_assert_msg(shard_graph_replay(graph) == SHARD_OK, "%s: %s", t->recipe->name, shard_last_error());
    t->random = shard_get_random_state();
}

shard_graph *capture_step(trainee *t)
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

void check_same_trainees(trainee *a, trainee *b)
{
    check_same_tensor(a->recipe, "loss", a->loss, b->loss);
    check_same_list(a->recipe, shard_state_dict(a->model), shard_state_dict(b->model));
    check_same_list(a->recipe, shard_optimizer_state_dict(a->optimizer), shard_optimizer_state_dict(b->optimizer));
    if (a->ema)
        check_same_list(a->recipe, shard_ema_state_dict(a->ema), shard_ema_state_dict(b->ema));
    ck_assert_int_eq(a->random.next_draw, b->random.next_draw);
}

double evaluate(const trainee *t)
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
    return sgd_of_list(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}
static shard_optimizer *plain_sgd(shard_tensors *p)
{
    return sgd_of_list(p, .lr = 0.1);
}
static shard_optimizer *adam(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.1, .weight_decay = 0.01, .amsgrad = true);
}
static shard_optimizer *adamw(shard_tensors *p)
{
    return adamw_of_list(p, .lr = 0.1, .decay_1d = false);
}
static shard_optimizer *lars(shard_tensors *p)
{
    return lars_of_list(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01);
}
static shard_optimizer *lamb(shard_tensors *p)
{
    return lamb_of_list(p, .lr = 0.1, .weight_decay = 0.01);
}
static shard_optimizer *stochastic(shard_tensors *p)
{
    return adamw_of_list(p, .lr = 0.1, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 9, .state_dtype = SHARD_BFLOAT16);
}
static shard_optimizer *rowwise(shard_tensors *p)
{
    return rowwise_adam_of_list(p, .lr = 0.1);
}

const recipe recipes[RECIPES] = {
    {.name = "sgd", .optimizer = sgd},
    {.name = "sgd without momentum, dropout", .optimizer = plain_sgd, .dropout = 0.25},
    {.name = "adam, groups", .optimizer = adam, .groups = true},
    {.name = "adamw, bfloat16, clipping", .optimizer = adamw, .amp = SHARD_BFLOAT16, .clip = 0.05, .dropout = 0.5},
    {.name = "lars, data parallel", .optimizer = lars, .parallel = true, .clip = 0.1},
    {.name = "lamb, average", .optimizer = lamb, .ema = true, .groups = true},
    {.name = "adamw, data parallel", .optimizer = adamw, .parallel = true},
    {.name = "adamw, state rounded at random", .optimizer = stochastic},
    {.name = "row-wise adam, groups", .optimizer = rowwise, .groups = true},
    {.name = "sgd, margin", .optimizer = sgd, .margin = true},
    {.name = "sgd, margin without logits", .optimizer = sgd, .margin = true, .fused = true},
};
