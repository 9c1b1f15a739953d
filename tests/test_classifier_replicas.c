/* shard_nn_parallel_classifier under data parallel and ZeRO: replicas gather the rows of their batches, and no rank has the
 * gradient of the whole weight. Against the same training with whole gradients, and against one process. */
#include "support/job.h"
#include "support/loss.h"

#include "autograd/deferred.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/dlpack.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, IN = 10, HIDDEN = 16, CLASSES = 300 };

/* The order of the parameters in the list. */
typedef enum list_order { AS_MADE, HEAD_FIRST, MATRICES_FIRST, BIASES_FIRST } list_order;

/* Of one training. */
typedef struct setting {
    const char *name;
    shard_optimizer *(*optimizer)(const shard_tensors *parameters);
    int stage;
    int batches;                /* of a step; all but the last one with sync off */
    double max_norm, max_value; /* 0: gradients are not clipped */
    shard_dtype dtype;
    bool zero;     /* partitioned by shard_zero_optimizer, which steps during backward */
    bool whole;    /* SHARD_ZERO_WHOLE */
    bool syncs;    /* every batch is reduced */
    bool measures; /* the norm is taken after each reduction */
    list_order order;
    bool biases_apart;   /* without decay, in a group of their own */
    bool two_optimizers; /* the biases have one of their own; with `zero` the weights alone are partitioned */
    bool head_apart;     /* the biases' one has the head, which is stepped last */
    bool second_first;   /* it is stepped before the other one */
    bool weighted, binary, scaled, normalized, no_bias;
    bool reads;  /* shard_grad */
    bool sample; /* the classes are a sample that the replicas share */
} setting;

static shard_optimizer *momentum(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3);
}

static shard_optimizer *sgd(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1);
}

static shard_optimizer *adamw(const shard_tensors *p)
{
    return shard_adamw(p, .lr = 1e-3, .weight_decay = 0.1, .eps = 1e-3);
}

static shard_optimizer *rowwise(const shard_tensors *p)
{
    return shard_rowwise_adam(p, .lr = 1e-3, .eps = 1e-3);
}

static shard_optimizer *stochastic(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1, .momentum = 0.9, .rounding = SHARD_ROUNDING_STOCHASTIC);
}

static shard_optimizer *lamb(const shard_tensors *p)
{
    return shard_lamb(p, .lr = 1e-2, .eps = 1e-3);
}

static const setting settings[] = {
    {"momentum", momentum, 0, 1},
    {"no bias, clipped", momentum, 0, 1, .no_bias = true, .max_norm = 0.1},
    {"clipped by value", momentum, 0, 2, .max_norm = 1, .max_value = 0.003},
    {"AdamW, three batches", adamw, 0, 3},
    {"each batch is reduced", momentum, 0, 5, .syncs = true},
    {"each batch is reduced and measured", momentum, 0, 3, .syncs = true, .measures = true},
    {"head first", momentum, 0, 2, .order = HEAD_FIRST},
    {"biases first", momentum, 0, 1, .order = BIASES_FIRST},
    {"row-wise Adam, scaled", rowwise, 0, 2, .scaled = true},
    {"class weights", momentum, 0, 1, .weighted = true},
    {"binary", momentum, 0, 2, .binary = true},
    {"normalized", momentum, 0, 1, .normalized = true, .no_bias = true},
    {"bfloat16, stochastic", stochastic, 0, 1, .dtype = SHARD_BFLOAT16},
    {"bfloat16, clipped", momentum, 0, 1, .dtype = SHARD_BFLOAT16, .max_norm = 0.1},
    {"bfloat16, scaled", adamw, 0, 1, .dtype = SHARD_BFLOAT16, .scaled = true},
    {"float64", momentum, 0, 2, .dtype = SHARD_FLOAT64},
    {"gradient is read", momentum, 0, 2, .reads = true},
    {"sample", sgd, 0, 2, .sample = true, .no_bias = true},
    {"sample, clipped", sgd, 0, 2, .sample = true, .no_bias = true, .max_norm = 0.1},
    {"LAMB", lamb, 0, 1},
    {"stage 1", momentum, 1, 2},
    {"stage 1, whole parameters, clipped", adamw, 1, 1, .whole = true, .max_norm = 0.1},
    {"stage 1, row-wise", rowwise, 1, 1, .whole = true, .scaled = true},
    {"stage 1, gradient is read", momentum, 1, 1, .reads = true},
    {"stage 1, class weights", momentum, 1, 1, .weighted = true},
    {"stage 1, whole parameters, class weights", momentum, 1, 1, .whole = true, .weighted = true},
    {"stage 1, binary, weights", momentum, 1, 1, .binary = true, .weighted = true},
    {"stage 1, binary, each batch is reduced", momentum, 1, 2, .binary = true, .syncs = true},
    {"stage 1, sample", sgd, 1, 1, .sample = true, .no_bias = true},
    {"stage 1, LAMB", lamb, 1, 1},
    {"stage 1, each batch is reduced and measured", momentum, 1, 3, .syncs = true, .measures = true},
    {"stage 1, matrices first", momentum, 1, 1, .order = MATRICES_FIRST},
    {"stage 1, whole parameters, biases first", adamw, 1, 1, .whole = true, .order = BIASES_FIRST},
    {"stage 1, two optimizers", momentum, 1, 2, .syncs = true, .measures = true, .two_optimizers = true},
    {"stage 1, clipped by value, scaled", momentum, 1, 1, .max_value = 0.003, .scaled = true},
    {"stage 1, an optimizer of the head", momentum, 1, 2, .two_optimizers = true, .head_apart = true},
    {"stage 1, whole parameters, biases stepped first", momentum, 1, 1, .whole = true, .two_optimizers = true,
     .second_first = true},
    {"stage 1, clipped by value, two optimizers", momentum, 1, 2, .max_value = 0.003, .two_optimizers = true},
    {"ZeRO-1", momentum, 1, 1, .zero = true},
    {"ZeRO-1, biases apart", momentum, 1, 1, .zero = true, .order = MATRICES_FIRST, .biases_apart = true},
    {"ZeRO-1 of the weight alone", momentum, 1, 2, .zero = true, .two_optimizers = true},
    {"ZeRO-1 of the weight alone, whole", momentum, 1, 1, .zero = true, .whole = true, .two_optimizers = true},
    {"stage 1, bfloat16, stochastic", stochastic, 1, 1, .dtype = SHARD_BFLOAT16},
    {"ZeRO-1, bfloat16", momentum, 1, 1, .zero = true, .dtype = SHARD_BFLOAT16},
    {"stage 2", momentum, 2, 2},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* The job's ranks, along two axes. */
typedef struct grid {
    int data, model;
} grid;

static const grid grids[] = {{2, 2}, {2, 1}, {3, 1}};
enum { GRIDS = sizeof grids / sizeof *grids };

/* What the last layer is made of. */
typedef enum head_way { DEFERRED, WHOLE, ALONE /* all batches on one rank */, PLAIN /* a layer with logits */, WAYS } head_way;

typedef struct training {
    const setting *set;
    head_way way;
    shard_mesh *mesh;
    shard_module *model;
    shard_tensors *parameters;
    shard_data_parallel *parallel;
    shard_optimizer *optimizer, *second; /* NULL: all parameters are the first one's */
    shard_grad_scaler *scaler;
    double norms; /* a sum */
} training;

static shard_tensor *head_tensor(const training *t, const char *name)
{
    return shard_module_optional(shard_module_child(t->model, "2"), name);
}

static void list_in_order(training *t)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {2, 3, 0, 1}, {0, 2, 1, 3}, {1, 3, 0, 2}};
    shard_tensors *made = shard_parameters(t->model);
    t->parameters = shard_tensors_create();
    for (int i = 0; i < 4; i++) {
        int at = orders[t->set->order][i];
        if (at < shard_tensors_count(made))
            check_ok(shard_tensors_add(t->parameters, shard_tensors_name(made, at), shard_tensors_at(made, at)));
    }
    shard_tensors_destroy(made);
}

/* The biases, or the head's parameters; or the others. */
static shard_tensors *part_of(const training *t, bool apart)
{
    shard_tensors *list = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(t->parameters); i++) {
        const char *name = shard_tensors_name(t->parameters, i);
        shard_tensor *parameter = shard_tensors_at(t->parameters, i);
        if ((t->set->head_apart ? name[0] == '2' : parameter->shape.ndim == 1) == apart)
            check_ok(shard_tensors_add(list, name, parameter));
    }
    return list;
}

static void make_optimizers(training *t)
{
    const setting *set = t->set;
    if (!set->biases_apart && !set->two_optimizers) {
        t->optimizer = set->optimizer(t->parameters);
        return;
    }
    shard_tensors *first = part_of(t, false), *apart = part_of(t, true);
    t->optimizer = set->optimizer(first);
    if (set->two_optimizers)
        t->second = set->optimizer(apart);
    else
        check_ok(shard_optimizer_add_param_group(t->optimizer, apart, .weight_decay = 0));
    shard_tensors_destroy(first);
    shard_tensors_destroy(apart);
}

static void begin(training *t)
{
    const setting *set = t->set;
    shard_manual_seed(7);
    shard_group *group = t->way == ALONE ? NULL : shard_mesh_group(t->mesh, "model");
    shard_module *last =
        t->way == PLAIN
            ? shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, group, .bias = !set->no_bias, .dtype = set->dtype)
            : shard_nn_parallel_classifier(HIDDEN, CLASSES, group, .bias = !set->no_bias, .dtype = set->dtype);
    t->model = shard_nn_sequential(shard_nn_linear(IN, HIDDEN, .dtype = set->dtype), shard_nn_relu(), last);
    ck_assert_msg(t->model, "%s", shard_last_error());
    list_in_order(t);
    shard_tensor *head[] = {head_tensor(t, "weight"), head_tensor(t, "bias")};
    for (int i = 0; i < 2 && t->way == WHOLE; i++)
        if (head[i])
            head[i]->leaf->defers_grad = false;
    make_optimizers(t);
    ck_assert_msg(t->optimizer, "%s", shard_last_error());
    if (t->way != ALONE) {
        shard_zero_partition partition = set->whole ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN;
        bool partly = set->zero && set->two_optimizers;
        if (set->zero)
            t->optimizer = shard_zero_optimizer(t->optimizer, .stage = set->stage, .partition = partition);
        int stage = partly ? 0 : set->stage;
        t->parallel = shard_data_parallel_create(t->parameters, .stage = stage, .partition = partition, .bucket_mib = 0.001);
        ck_assert_msg(t->optimizer && t->parallel, "%s", shard_last_error());
    }
    t->scaler = set->scaled ? shard_grad_scaler_create(.init_scale = 1024) : NULL;
}

static void end(training *t)
{
    shard_grad_scaler_destroy(t->scaler);
    shard_data_parallel_destroy(t->parallel);
    shard_optimizer_destroy(t->optimizer);
    shard_optimizer_destroy(t->second);
    shard_tensors_destroy(t->parameters);
    shard_module_destroy(t->model);
}

static int replicas_of(const training *t)
{
    return shard_group_size(shard_mesh_group(t->mesh, "data"));
}

/* Labels of a batch of a replica. */
static void make_labels(int step, int batch, int replica, int64_t *label)
{
    for (int i = 0; i < ROWS; i++)
        label[i] = (step * 131 + batch * 57 + replica * 91 + i * 37) % CLASSES;
}

static shard_tensor *sample_of(const training *t, int step)
{
    int replicas = replicas_of(t);
    int64_t label[8 * 3 * ROWS];
    for (int batch = 0; batch < 3; batch++)
        for (int replica = 0; replica < replicas; replica++)
            make_labels(step, batch, replica, label + (batch * replicas + replica) * ROWS);
    shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(3 * replicas * ROWS), .dtype = SHARD_INT64);
    return shard_sample_classes(labels, head_tensor(t, "weight"), 0.2, 5, step);
}

/* Row 3 belongs to no class. */
static shard_tensor *binary_loss(shard_tensor *logits, const int64_t *label, shard_tensor *weight)
{
    int64_t pair[2 * ROWS];
    int count = 0;
    for (int i = 0; i < ROWS; i++)
        if (i != 3)
            pair[count++] = i;
    for (int i = 0, at = count; i < ROWS; i++)
        if (i != 3)
            pair[at++] = label[i];
    shard_tensor *pairs = shard_from_host(pair, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
    return shard_binary_cross_entropy_with_logits(logits, pairs, .weight = weight, .pos_weight = weight,
                                                  .reduction = SHARD_REDUCTION_BATCH_MEAN);
}

static shard_tensor *features_of(const training *t, int step, int batch, int replica)
{
    return made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)(1 + step * 100 + batch * 10 + replica), t->set->dtype);
}

/* The loss of one replica's batch. */
static shard_tensor *loss_of(const training *t, int step, int batch, int replica)
{
    const setting *set = t->set;
    int64_t label[ROWS];
    make_labels(step, batch, replica, label);
    shard_tensor *logits = shard_forward(t->model, features_of(t, step, batch, replica));
    shard_tensor *weight = set->weighted ? shard_add(made_up(SHARD_SHAPE(CLASSES), 3, set->dtype),
                                                     shard_full(SHARD_SHAPE(CLASSES), 2, .dtype = set->dtype))
                                         : NULL;
    if (set->binary)
        return binary_loss(logits, label, weight);
    shard_tensor *target = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
    return shard_cross_entropy(logits, target, .weight = weight, .normalized = set->normalized,
                               .logit_scale = set->normalized ? 4 : 1, .sample = set->sample ? sample_of(t, step) : NULL,
                               .label_smoothing = set->sample || set->normalized ? 0 : 0.1);
}

/* Whether the gradient was computed, or what it is computed from was gathered. */
static void check_deferred(const training *t, const char *name)
{
    const shard_tensor *gradient = shard_grad(head_tensor(t, name));
    ck_assert_ptr_nonnull(gradient);
    shard_gradient_source *source = shard_source_of(gradient);
    ck_assert_msg(source && source->gathered && !gradient->storage->memory, "%s: the gradient of \"%s\" is in memory",
                  t->set->name, name);
}

static void backward(const training *t, int step, int batch, int replica, double share)
{
    shard_tensor *loss = loss_of(t, step, batch, replica);
    ck_assert_msg(loss, "%s: %s", t->set->name, shard_last_error());
    loss = share == 1 ? loss : shard_scale(loss, share);
    check_ok(shard_backward(t->scaler ? shard_grad_scaler_scale(t->scaler, loss) : loss));
}

static void check_gathered(const training *t)
{
    const setting *set = t->set;
    if (t->way != DEFERRED || set->stage == 2 || (set->zero && set->two_optimizers))
        return;
    check_deferred(t, "weight");
    if (!set->no_bias)
        check_deferred(t, "bias");
}

/* Takes the norm of all gradients. */
static void measure(training *t)
{
    double norm[2] = {0};
    check_ok(shard_clip_grad_norm(t->optimizer, INFINITY, &norm[0]));
    if (t->second)
        check_ok(shard_clip_grad_norm(t->second, INFINITY, &norm[1]));
    t->norms += hypot(norm[0], norm[1]);
    check_gathered(t);
}

static void take_step(training *t, int step)
{
    const setting *set = t->set;
    int replicas = replicas_of(t), mine = shard_mesh_coordinate(t->mesh, "data");
    for (int batch = 0; batch < set->batches; batch++)
        SHARD_SCOPE
        {
            bool last = batch + 1 == set->batches;
            if (t->way == ALONE) {
                for (int replica = 0; replica < replicas; replica++)
                    backward(t, step, batch, replica, 1.0 / replicas);
                continue;
            }
            shard_data_parallel_set_sync(t->parallel, last || set->syncs);
            backward(t, step, batch, mine, 1);
            if (last || set->syncs)
                check_gathered(t);
            if (set->measures)
                measure(t);
            if (set->reads && last && step % 2 == 0)
                free(values_of(shard_grad(head_tensor(t, "weight"))));
        }
    if (set->max_norm > 0)
        check_ok(shard_clip_grad_norm(t->optimizer, set->max_norm, NULL));
    if (set->max_value > 0) {
        check_ok(shard_clip_grad_value(t->optimizer, set->max_value));
        if (t->second)
            check_ok(shard_clip_grad_value(t->second, set->max_value));
        check_gathered(t);
    }
    if (set->second_first)
        check_ok(shard_step(t->second));
    check_ok(t->scaler ? shard_grad_scaler_step(t->scaler, t->optimizer) : shard_step(t->optimizer));
    if (t->second && !set->second_first)
        check_ok(shard_step(t->second));
    if (t->scaler)
        check_ok(shard_grad_scaler_update(t->scaler));
}

/* Compares what a rank has of the parameters with those of another training, or with the local shard of the whole ones. */
static void compare(const training *found, const training *expected, double tolerance)
{
    for (int64_t i = 0; i < shard_tensors_count(found->parameters); i++) {
        shard_tensor *x = shard_tensors_at(found->parameters, i), *y = shard_tensors_at(expected->parameters, i);
        double *a = values_of(x), *b = values_of(y);
        bool part = shard_is_split(x, 0) && !shard_is_split(y, 0);
        int64_t start = part ? x->placement.start * (shard_numel(x) / x->shape.dim[0]) : 0;
        check_doubles(a, b + start, shard_numel(x), tolerance, 0, "%s, as of way %d: \"%s\"", found->set->name,
                      (int)expected->way, shard_tensors_name(found->parameters, i));
        free(a);
        free(b);
    }
}

/* Replicas are the same to the bit. */
static void compare_replicas(const training *t)
{
    shard_group *data = shard_mesh_group(t->mesh, "data");
    for (int64_t i = 0; i < shard_tensors_count(t->parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(t->parameters, i);
        size_t bytes = (size_t)shard_numel(parameter) * sizeof(double);
        double *mine = values_of(parameter), *first = malloc(bytes);
        memcpy(first, mine, bytes);
        check_ok(shard_group_broadcast(data, NULL, first, shard_numel(parameter), SHARD_FLOAT64, 0));
        ck_assert_msg(memcmp(first, mine, bytes) == 0, "%s: replicas differ in \"%s\"", t->set->name,
                      shard_tensors_name(t->parameters, i));
        free(mine);
        free(first);
    }
}

typedef struct trial {
    grid grid;
    const setting *set;
} trial;

enum { STEPS = 4 };

/* With SHARD_TEST_EVERY=1 more, but of bfloat16, whose roundings add up. The binary loss of large steps multiplies them. */
static int steps_of(const setting *set)
{
    if (!getenv("SHARD_TEST_EVERY") || set->dtype == SHARD_BFLOAT16)
        return STEPS;
    return set->binary ? 20 : 50;
}

static void trains(shard_group *world, void *context)
{
    (void)world;
    const trial *of = context;
    const setting *set = of->set;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", of->grid.data}, {"model", of->grid.model}});
    /* A bit of another rounding, and a step by stochastic rounding then differs by a unit. */
    double tolerance = set->dtype == SHARD_BFLOAT16 ? 0x1p-6 : set->dtype == SHARD_FLOAT64 ? 1e-13 : 1e-6;
    tolerance *= steps_of(set) / STEPS;
    double most = set->dtype == SHARD_FLOAT32 ? 1e-5 : INFINITY;
    int ways = set == &settings[0] ? WAYS : PLAIN;
    training t[WAYS];
    for (int way = 0; way < ways; way++) {
        t[way] = (training){.set = set, .way = (head_way)way, .mesh = mesh};
        begin(&t[way]);
        for (int step = 0; step < steps_of(set); step++)
            take_step(&t[way], step);
    }
    compare_replicas(&t[DEFERRED]);
    compare(&t[DEFERRED], &t[WHOLE], fmin(tolerance, most));
    ck_assert_msg(is_within(t[DEFERRED].norms, t[WHOLE].norms, 1e-5 * t[WHOLE].norms), "%s: norms add up to %.9g, not %.9g",
                  set->name, t[DEFERRED].norms, t[WHOLE].norms);
    if (set->max_norm == 0 && set->optimizer != lamb && set->dtype != SHARD_BFLOAT16)
        compare(&t[DEFERRED], &t[ALONE], fmin(2 * tolerance, most));
    if (ways == WAYS)
        compare(&t[DEFERRED], &t[PLAIN], fmin(2 * tolerance, most));
    for (int way = 0; way < ways; way++)
        end(&t[way]);
    shard_mesh_destroy(mesh);
}

START_TEST(test_trains)
{
    trial of = {grids[_i % GRIDS], &settings[_i / GRIDS]};
    run_job(of.grid.data * of.grid.model, trains, &of);
}
END_TEST

/* ---- replicas that differ ---- */

typedef enum difference {
    UNEVEN,        /* batches have other numbers of rows, one has none */
    TOO_MANY,      /* the rows of all replicas are more than the gradient's */
    NOT_REACHED,   /* the backward of one replica does not reach the layer */
    OTHER_WEIGHTS, /* class weights */
    OTHER_OPTIONS,
    OTHER_POSITIVE, /* weights of the positive terms of the binary loss */
    OTHER_SAMPLES,
    MANY_OF_SAMPLE,    /* as TOO_MANY, with one sample: the gradient stays deferred */
    OTHER_CORRECTIONS, /* of one sample */
    DIFFERENCES
} difference;

static const setting identical = {"replicas that differ", momentum, 0, 1};
static const setting identical_partitioned = {"replicas that differ, stage 1", momentum, 1, 1};
static const setting identical_first = {"replicas that differ, head first", momentum, 0, 1, .order = HEAD_FIRST};
static const setting identical_biases_first = {"replicas that differ, stage 1, biases first", momentum, 1, 1,
                                               .order = BIASES_FIRST};
static const setting without_bias = {"samples that differ", momentum, 0, 1, .no_bias = true};
static const setting sampled = {"one sample", sgd, 0, 1, .sample = true, .no_bias = true};
static const setting sampled_partitioned = {"one sample, stage 1", sgd, 1, 1, .sample = true, .no_bias = true};

static bool is_of(difference d, const setting *set)
{
    return set->sample ? d == MANY_OF_SAMPLE || d == OTHER_CORRECTIONS : set->no_bias ? d == OTHER_SAMPLES : d < OTHER_SAMPLES;
}

/* Each replica's pairs, and weights of its own. */
static shard_tensor *other_positive(const training *t, shard_tensor *x, const int64_t *label, shard_tensor *weights)
{
    int64_t pair[2 * ROWS];
    for (int i = 0; i < ROWS; i++) {
        pair[i] = i;
        pair[ROWS + i] = label[i];
    }
    return shard_binary_cross_entropy_with_logits(shard_forward(t->model, x),
                                                  shard_from_host(pair, SHARD_SHAPE(2, ROWS), .dtype = SHARD_INT64),
                                                  .pos_weight = weights, .reduction = SHARD_REDUCTION_SUM);
}

/* The replicas' sample is of the labels of both, and each corrects by its own. */
static shard_tensor *other_corrections(const training *t, shard_tensor *x, shard_tensor *target, int step)
{
    int64_t both[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++)
        both[i] = (step * 131 + i / ROWS * 91 + i % ROWS * 37) % CLASSES;
    shard_tensor *labels = shard_from_host(both, SHARD_SHAPE(2 * ROWS), .dtype = SHARD_INT64);
    shard_tensor *sample = shard_sample_classes(labels, head_tensor(t, "weight"), 0.2, 5, step);
    return shard_cross_entropy(shard_forward(t->model, x), target, .reduction = SHARD_REDUCTION_SUM, .sample = sample,
                               .sample_correction = shard_sample_correction(sample, target, 0.2));
}

static shard_tensor *different_loss(const training *t, difference d, int step)
{
    enum { MANY = CLASSES };
    static int64_t label[MANY];
    int replica = shard_mesh_coordinate(t->mesh, "data");
    bool first = replica == 0;
    int64_t rows = d == UNEVEN ? 4 * replica : d == TOO_MANY || d == MANY_OF_SAMPLE ? MANY : ROWS;
    int64_t classes = d == MANY_OF_SAMPLE ? ROWS : CLASSES; /* all replicas have all labels of the sample */
    for (int64_t i = 0; i < rows; i++)
        label[i] = (step * 131 + replica * 91 + i * 37) % classes;
    shard_tensor *x = made_up(SHARD_SHAPE(rows, IN), (uint64_t)(1 + step * 10 + replica), SHARD_FLOAT32);
    shard_tensor *target = shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
    shard_tensor *weights = shard_full(SHARD_SHAPE(CLASSES), 2 + replica), *weight = head_tensor(t, "weight");
    if (d == NOT_REACHED && first)
        return shard_mean(shard_forward(shard_module_child(t->model, "0"), x));
    if (d == OTHER_POSITIVE)
        return other_positive(t, x, label, weights);
    if (d == OTHER_CORRECTIONS)
        return other_corrections(t, x, target, step);
    bool samples = d == OTHER_SAMPLES || d == MANY_OF_SAMPLE;
    return shard_cross_entropy(shard_forward(t->model, x), target, .reduction = SHARD_REDUCTION_SUM,
                               .weight = d == OTHER_WEIGHTS ? weights : NULL,
                               .label_smoothing = d == OTHER_OPTIONS && first ? 0.1 : 0,
                               .sample = samples ? shard_sample_classes(target, weight, 0.2, 5, step) : NULL);
}

static void trains_apart(shard_group *world, void *context)
{
    (void)world;
    const setting *set = context;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", 2}, {"model", 2}});
    for (int d = 0; d < DIFFERENCES; d++) {
        if (!is_of((difference)d, set))
            continue;
        training t[2];
        for (int way = 0; way < 2; way++) {
            t[way] = (training){.set = set, .way = (head_way)way, .mesh = mesh};
            begin(&t[way]);
            for (int step = 0; step < steps_of(set); step++)
                SHARD_SCOPE
                {
                    check_ok(shard_backward(different_loss(&t[way], (difference)d, step)));
                    if (way == DEFERRED && (d == UNEVEN || d == MANY_OF_SAMPLE))
                        check_deferred(&t[way], "weight");
                    check_ok(shard_step(t[way].optimizer));
                }
        }
        compare_replicas(&t[DEFERRED]);
        double many_rows = d == MANY_OF_SAMPLE ? 4 : 1; /* the rounding errors of long sums */
        compare(&t[DEFERRED], &t[WHOLE], many_rows * 1e-6 * steps_of(set) / STEPS);
        end(&t[0]);
        end(&t[1]);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_trains_apart)
{
    const setting *sets[] = {&identical, &identical_partitioned, &identical_first, &identical_biases_first,
                             &without_bias, &sampled, &sampled_partitioned};
    run_job(4, trains_apart, (void *)sets[_i]);
}
END_TEST

/* ---- overflow, errors, memory ---- */

/* The gradient of one replica is not finite: no rank steps. */
static void overflows(shard_group *world, void *context)
{
    static const setting scaled = {"overflow", momentum, 0, 1, .scaled = true};
    (void)world;
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", 2}, {"model", 2}});
    training t = {.set = &scaled, .mesh = mesh};
    begin(&t);
    take_step(&t, 0);
    double *before = values_of(head_tensor(&t, "weight"));
    SHARD_SCOPE
    {
        int replica = shard_mesh_coordinate(mesh, "data");
        shard_tensor *loss = shard_scale(loss_of(&t, 1, 0, replica), replica == 1 ? 1e38 : 1);
        check_ok(shard_backward(shard_grad_scaler_scale(t.scaler, loss)));
    }
    check_deferred(&t, "weight");
    check_ok(shard_grad_scaler_step(t.scaler, t.optimizer));
    check_ok(shard_grad_scaler_update(t.scaler));
    ck_assert_double_eq(shard_grad_scaler_get_scale(t.scaler), 512);
    double *after = values_of(head_tensor(&t, "weight"));
    ck_assert_mem_eq(before, after, (size_t)shard_numel(head_tensor(&t, "weight")) * sizeof *before);
    free(before);
    free(after);
    take_step(&t, 2);
    end(&t);
    shard_mesh_destroy(mesh);
}

START_TEST(test_overflows)
{
    run_job(4, overflows, NULL);
}
END_TEST

/* One rank has written to its weight between two micro-batches and the gathering, or after it: all ranks fail at once, and no
 * rank steps. */
static void fails(shard_group *world, void *context)
{
    static const setting accumulates = {"fails", momentum, 0, 2};
    bool before = *(bool *)context, last = shard_group_rank(world) == 3;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", 2}, {"model", 2}});
    training t = {.set = &accumulates, .mesh = mesh};
    begin(&t);
    shard_tensor *weight = head_tensor(&t, "weight");
    int replica = shard_mesh_coordinate(mesh, "data");
    double *values = values_of(weight);
    SHARD_SCOPE
    {
        shard_data_parallel_set_sync(t.parallel, !before);
        backward(&t, 0, 0, replica, 1);
        shard_data_parallel_set_sync(t.parallel, true);
        if (last)
            shard_tensor_count_write(weight);
        if (before)
            shard_backward(shard_mean(shard_forward(shard_module_child(t.model, "0"), features_of(&t, 0, 1, replica))));
        shard_step(t.optimizer);
    }
    check_joint_error(SHARD_ERROR_ARGUMENT, last ? "*computed when it is needed*was written to*" : "*rank 3*was written to*");
    double *now = values_of(weight);
    ck_assert_mem_eq(values, now, (size_t)shard_numel(weight) * sizeof *now);
    free(values);
    free(now);
    end(&t);
    shard_mesh_destroy(mesh);
}

START_TEST(test_fails)
{
    bool before = _i;
    run_job_of((ranks_run){.size = 4, .body = fails, .context = &before, .deadline = 30});
}
END_TEST

/* No rank has memory for a whole gradient, also while gradients are clipped, scaled and accumulated. */
static void takes_no_memory(shard_group *world, void *context)
{
    enum { MANY = 20000, WIDE = 64 };
    (void)world;
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", 2}, {"model", 2}});
    shard_device *device = shard_default_device();
    int64_t weight_bytes = MANY / 2 * WIDE * (int64_t)sizeof(float);
    if (!device->head) /* a GPU's tile of its own choice has room for the whole weight */
        shard_head_tile = shard_head_part = 1024;
    for (int stage = 0; stage < 2; stage++) {
        shard_module *head = shard_nn_parallel_classifier(WIDE, MANY, shard_mesh_group(mesh, "model"));
        shard_tensors *parameters = shard_parameters(head);
        shard_optimizer *optimizer = shard_sgd(parameters, .lr = 0.1, .momentum = 0.9);
        int64_t before = shard_get_memory_by_kind(device, SHARD_MEMORY_GRADIENTS).current, all = 0;
        shard_reset_peak_memory(device);
        shard_data_parallel *parallel = shard_data_parallel_create(parameters, .stage = stage);
        shard_grad_scaler *scaler = shard_grad_scaler_create();
        ck_assert(parallel && scaler);
        for (int step = 0; step < 3; step++) {
            if (step == 1) { /* after the optimizer has made its state */
                shard_reset_peak_memory(device);
                all = shard_get_memory_stats(device).current;
            }
            for (int batch = 0; batch < 2; batch++)
                SHARD_SCOPE
                {
                    int64_t label[] = {step, 77 * batch, MANY - 1, 5000};
                    shard_tensor *x = made_up_leaf(SHARD_SHAPE(4, WIDE), (uint64_t)(1 + step), SHARD_FLOAT32);
                    shard_tensor *target = shard_from_host(label, SHARD_SHAPE(4), .dtype = SHARD_INT64);
                    shard_tensor *loss = shard_cross_entropy(shard_forward(head, x), target);
                    shard_data_parallel_set_sync(parallel, batch == 1);
                    check_ok(shard_backward(shard_grad_scaler_scale(scaler, loss)));
                }
            check_ok(shard_grad_scaler_unscale(scaler, optimizer));
            check_ok(shard_clip_grad_norm(optimizer, 0.1, NULL));
            check_ok(shard_clip_grad_value(optimizer, 1e-3));
            check_ok(shard_grad_scaler_step(scaler, optimizer));
            check_ok(shard_grad_scaler_update(scaler));
        }
        int64_t peak = shard_get_memory_by_kind(device, SHARD_MEMORY_GRADIENTS).peak - before;
        ck_assert_msg(peak < weight_bytes / 10, "stage %d: %lld bytes of gradients, of a weight of %lld", stage, (long long)peak,
                      (long long)weight_bytes);
        int64_t more = shard_get_memory_stats(device).peak - all;
        ck_assert_msg(more < weight_bytes / 3, "stage %d: %lld bytes of all kinds, of a weight of %lld", stage, (long long)more,
                      (long long)weight_bytes);
        shard_grad_scaler_destroy(scaler);
        shard_data_parallel_destroy(parallel);
        shard_optimizer_destroy(optimizer);
        shard_tensors_destroy(parameters);
        shard_module_destroy(head);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_takes_no_memory)
{
    run_job(4, takes_no_memory, NULL);
}
END_TEST

/* The hash of class weights that nobody has written to is kept: only a write that is counted is seen by the comparison. */
static void keeps_hash(shard_group *world, void *context)
{
    (void)context;
    shard_module *head = shard_nn_parallel_classifier(HIDDEN, CLASSES, NULL);
    shard_tensors *parameters = shard_parameters(head);
    shard_data_parallel *parallel = shard_data_parallel_create(parameters);
    shard_tensor *weights[] = {shard_keep(shard_ones(SHARD_SHAPE(CLASSES))),
                               shard_keep(shard_ones(SHARD_SHAPE(CLASSES), .dtype = SHARD_FLOAT64))};
    for (int i = 0; i < 2; i++)
        for (int turn = 0; turn < 4; turn++)
            SHARD_SCOPE
            {
                double other = shard_group_rank(world) + 2;
                shard_device *device = shard_default_device();
                shard_tensor *labels = shard_zeros(SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
                shard_tensor *x = made_up(SHARD_SHAPE(ROWS, HIDDEN), 1, SHARD_FLOAT32);
                if (turn == 1)
                    check_ok(device->ops->fill(device, 1, other, weights[i]->storage->memory, weights[i]->dtype));
                if (turn == 2)
                    shard_tensor_count_write(weights[i]);
                check_ok(shard_backward(shard_cross_entropy(shard_forward(head, x), labels, .weight = weights[i])));
                bool deferred = shard_source_of(shard_grad(shard_module_tensor(head, "weight"))) != NULL;
                ck_assert_msg(deferred == (turn < 2), "weights %d, turn %d: the gradient is %s", i, turn,
                              deferred ? "deferred" : "in memory");
                if (deferred) {
                    ck_assert_ptr_null(shard_to_dlpack(shard_grad(shard_module_tensor(head, "weight"))));
                    check_error(SHARD_ERROR_UNSUPPORTED, "*a classifier's gradient with data parallel*: export a shard_clone");
                }
                for (int j = 0; j < 2; j++)
                    shard_zero_grad(shard_tensors_at(parameters, j));
            }
    for (int i = 0; i < 2; i++)
        shard_release(weights[i]);
    shard_data_parallel_destroy(parallel);
    shard_tensors_destroy(parameters);
    shard_module_destroy(head);
}

START_TEST(test_keeps_hash)
{
    run_job(2, keeps_hash, NULL);
}
END_TEST

/* ---- row-wise state ---- */

static void compare_values(shard_tensor *found, shard_tensor *expected, const char *name)
{
    double *a = values_of(found), *b = values_of(expected);
    ck_assert_int_eq(shard_numel(found), shard_numel(expected));
    check_doubles(a, b, shard_numel(found), 1e-6, 0, "%s", name);
    free(a);
    free(b);
}

/* State of rows that was made before whole rows are divided evenly over the replicas goes on, and is collected. */
static void deals_rows_with_state(shard_group *world, void *context)
{
    (void)context;
    shard_module *head[2];
    shard_tensors *parameters[2], *state[2], *whole[2];
    shard_optimizer *adam[2];
    shard_data_parallel *dp[2];
    for (int i = 0; i < 2; i++) {
        shard_manual_seed(7);
        head[i] = shard_nn_parallel_classifier(HIDDEN, CLASSES, NULL);
        parameters[i] = shard_parameters(head[i]);
        adam[i] = shard_rowwise_adam(parameters[i], .lr = 1e-2, .eps = 1e-3);
        dp[i] = shard_data_parallel_create(parameters[i]);
    }
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            shard_data_parallel_destroy(dp[1]);
            dp[1] = shard_data_parallel_create(parameters[1], .stage = 1);
            ck_assert_msg(dp[1], "%s", shard_last_error());
        }
        for (int i = 0; i < 2; i++) {
            SHARD_SCOPE
            {
                int64_t label[ROWS];
                make_labels(step, 0, shard_group_rank(world), label);
                shard_tensor *x =
                    made_up(SHARD_SHAPE(ROWS, HIDDEN), (uint64_t)(10 * step + shard_group_rank(world)), SHARD_FLOAT32);
                shard_tensor *target = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
                check_ok(shard_backward(shard_cross_entropy(shard_forward(head[i], x), target)));
            }
            check_ok(shard_step(adam[i]));
        }
        compare_values(shard_module_tensor(head[1], "weight"), shard_module_tensor(head[0], "weight"), "weight");
    }
    for (int i = 0; i < 2; i++) {
        state[i] = shard_optimizer_state_dict(adam[i]);
        whole[i] = shard_collect_state_dict(state[i], -1);
        ck_assert_msg(whole[i], "%s", shard_last_error());
    }
    compare_values(shard_tensors_find(whole[1], "weight.exp_avg_sq"), shard_tensors_find(whole[0], "weight.exp_avg_sq"),
                   "weight.exp_avg_sq");
    for (int i = 0; i < 2; i++) {
        shard_tensors_destroy(state[i]);
        shard_tensors_destroy(whole[i]);
        shard_data_parallel_destroy(dp[i]);
        shard_optimizer_destroy(adam[i]);
        shard_tensors_destroy(parameters[i]);
        shard_module_destroy(head[i]);
    }
}

START_TEST(test_deals_rows_with_state)
{
    run_job(2 + _i, deals_rows_with_state, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classifier_replicas");
    TCase *tcase = test_case(suite, "classifier_replicas");
    tcase_add_loop_test(tcase, test_trains, 0, GRIDS * SETTINGS);
    tcase_add_loop_test(tcase, test_trains_apart, 0, 7);
    tcase_add_test(tcase, test_overflows);
    tcase_add_loop_test(tcase, test_fails, 0, 2);
    tcase_add_test(tcase, test_keeps_hash);
    tcase_add_test(tcase, test_takes_no_memory);
    tcase_add_loop_test(tcase, test_deals_rows_with_state, 0, 2);
    return test_run(suite);
}
