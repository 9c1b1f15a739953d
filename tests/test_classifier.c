/* shard_nn_parallel_classifier against shard_nn_parallel_linear: losses and parameters of training with every
 * optimizer, and the memory that logits and the weight's gradient do not take. */
#include "support/kernels.h"
#include "support/loss.h"

#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/dlpack.h>
#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define ADDRESS_SANITIZER 0
#endif

enum {
    ROWS = 12,
    IN = 20,
    HIDDEN = 24,
    CLASSES = 130,
    STEPS = 50,
    WHOLE_STASH = 1000 /* a share that keeps all logits */,
    NONE = -1
};

/* Of one training. */
typedef struct setting {
    const char *name;
    shard_optimizer *(*optimizer)(const shard_tensors *parameters);
    int batches;      /* of a step */
    double max_norm;  /* 0: gradients are not clipped */
    double norm_type; /* 0: 2 */
    double max_value; /* the same */
    shard_reduction reduction;
    double smoothing;
    shard_dtype dtype;            /* of the classifier */
    double soft_cap, logit_scale; /* 0: the default */
    bool binary;                  /* binary cross-entropy */
    bool weighted, scaled, uses_logits, reads_gradient, no_bias, tied;
    bool clips_twice, reads_clipped; /* by value; the gradient is read after it */
    double share;                    /* of the stash; 0: all logits are kept, NONE: none */
    bool enlarges;                   /* roundings: an unstable training */
} setting;

static shard_optimizer *sgd(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.1);
}

static shard_optimizer *momentum(const shard_tensors *p)
{
    return shard_sgd(p, .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true);
}

static shard_optimizer *adam(const shard_tensors *p)
{
    return shard_adam(p, .lr = 1e-3);
}

static shard_optimizer *adamw(const shard_tensors *p)
{
    return shard_adamw(p, .lr = 1e-3, .weight_decay = 0.1);
}

static shard_optimizer *lars(const shard_tensors *p)
{
    return shard_lars(p, .lr = 0.5, .momentum = 0.9);
}

static shard_optimizer *lamb(const shard_tensors *p)
{
    return shard_lamb(p, .lr = 1e-2);
}

static shard_optimizer *rowwise_adam(const shard_tensors *p)
{
    return shard_rowwise_adam(p, .lr = 1e-3, .weight_decay = 0.1);
}

static shard_optimizer *rowwise_adagrad(const shard_tensors *p)
{
    return shard_rowwise_adagrad(p, .lr = 1e-2);
}

static shard_optimizer *stochastic(const shard_tensors *p)
{
    return shard_adamw(p, .lr = 1e-3, .rounding = SHARD_ROUNDING_STOCHASTIC, .state_dtype = SHARD_BFLOAT16);
}

static shard_optimizer *kahan(const shard_tensors *p)
{
    return shard_rowwise_adam(p, .lr = 1e-3, .beta1 = 0, .rounding = SHARD_ROUNDING_KAHAN);
}

static const setting settings[] = {
    {"SGD", sgd, 1},
    {"SGD, no bias", sgd, 1, .no_bias = true},
    {"SGD, sum", sgd, 1, .reduction = SHARD_REDUCTION_SUM, .max_norm = 0.5},
    {"momentum", momentum, 1, .smoothing = 0.1},
    {"momentum, three batches", momentum, 3, .weighted = true},
    {"binary", momentum, 1, .binary = true, .reduction = SHARD_REDUCTION_BATCH_MEAN},
    {"binary, three batches, weighted", momentum, 3, .binary = true, .weighted = true, .reduction = SHARD_REDUCTION_BATCH_MEAN,
     .enlarges = true},
    {"binary, AdamW, clipped", adamw, 2, .binary = true, .max_norm = 0.1},
    {"momentum, capped", momentum, 1, .soft_cap = 3, .logit_scale = 2},
    {"momentum, capped, smoothed", momentum, 2, .soft_cap = 3, .smoothing = 0.1},
    {"momentum, logits are scaled", momentum, 2, .logit_scale = 3, .smoothing = 0.1},
    {"momentum, no stash", momentum, 1, .share = NONE},
    {"momentum, some of the stash", momentum, 1, .share = 0.25},
    {"momentum, smoothed, weighted", momentum, 1, .smoothing = 0.1, .weighted = true},
    {"binary, no stash", momentum, 1, .binary = true, .reduction = SHARD_REDUCTION_BATCH_MEAN, .share = NONE},
    {"binary, weighted", momentum, 1, .binary = true, .weighted = true, .reduction = SHARD_REDUCTION_BATCH_MEAN},
    {"Adam", adam, 1},
    {"AdamW, two batches, clipped", adamw, 2, .max_norm = 0.1},
    {"SGD, clipped by the largest", sgd, 1, .max_norm = 0.003, .norm_type = INFINITY},
    {"momentum, two batches, clipped by the 3-norm", momentum, 2, .max_norm = 0.02, .norm_type = 3},
    {"SGD, clipped by the 1-norm", sgd, 1, .max_norm = 0.5, .norm_type = 1},
    {"momentum, clipped by value", momentum, 1, .max_value = 0.01},
    {"Adam, two batches, clipped by norm and by value", adam, 2, .max_norm = 0.1, .max_value = 0.003},
    {"momentum, scaled, clipped by value", momentum, 1, .scaled = true, .max_value = 0.01},
    {"momentum, clipped by value twice", momentum, 1, .max_value = 0.01, .clips_twice = true},
    {"momentum, clipped by value, no bias, read", momentum, 2, .max_value = 0.01, .no_bias = true, .reads_clipped = true},
    {"binary, clipped by value", momentum, 1, .binary = true, .reduction = SHARD_REDUCTION_BATCH_MEAN, .max_value = 0.003},
    {"LAMB, clipped by value", lamb, 1, .max_value = 0.01},
    {"bfloat16, clipped by value", momentum, 1, .dtype = SHARD_BFLOAT16, .max_value = 0.01},
    {"momentum, scaled", momentum, 2, .scaled = true},
    {"momentum, logits are used", momentum, 1, .uses_logits = true},
    {"momentum, gradient is read", momentum, 2, .reads_gradient = true},
    {"momentum, weight has another use", momentum, 1, .tied = true},
    {"LARS", lars, 1},
    {"LAMB", lamb, 1},
    {"bfloat16", momentum, 1, .dtype = SHARD_BFLOAT16},
    {"row-wise Adam, clipped", rowwise_adam, 1, .max_norm = 0.5},
    {"row-wise Adagrad, scaled, two batches", rowwise_adagrad, 2, .scaled = true},
    {"bfloat16, stochastic", stochastic, 1, .dtype = SHARD_BFLOAT16},
    {"bfloat16, row-wise, compensated", kahan, 1, .dtype = SHARD_BFLOAT16},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

typedef struct training {
    const setting *set;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_grad_scaler *scaler;
    double loss[STEPS];
} training;

static void begin(training *t, shard_group *group, bool classifier)
{
    const setting *set = t->set;
    shard_manual_seed(7);
    shard_module *last =
        classifier
            ? shard_nn_parallel_classifier(HIDDEN, CLASSES, group, .bias = !set->no_bias, .dtype = set->dtype)
            : shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, group, .bias = !set->no_bias, .dtype = set->dtype);
    t->model = shard_nn_sequential(shard_nn_linear(IN, HIDDEN, .dtype = set->dtype), shard_nn_relu(), last);
    ck_assert_msg(t->model, "%s", shard_last_error());
    shard_tensors *parameters = shard_parameters(t->model);
    t->optimizer = set->optimizer(parameters);
    t->scaler = set->scaled ? shard_grad_scaler_create(.init_scale = 1024) : NULL;
    shard_tensors_destroy(parameters);
    ck_assert_msg(t->optimizer, "%s", shard_last_error());
}

static void end(training *t)
{
    shard_grad_scaler_destroy(t->scaler);
    shard_optimizer_destroy(t->optimizer);
    shard_module_destroy(t->model);
}

static shard_tensor *weight_of(const training *t)
{
    return shard_module_tensor(shard_module_child(t->model, "2"), "weight");
}

/* A part of the loss: the mean of the squares, of all ranks' elements. */
static shard_tensor *mean_square(shard_tensor *x)
{
    shard_tensor *mean = shard_mean(shard_mul(x, x));
    return mean && mean->placement.kind == SHARD_PARTIAL ? shard_reduce_from_group(mean, mean->placement.group) : mean;
}

/* Row 3 belongs to no class, the others to some. */
static shard_tensor *pairs_of(uint64_t seed)
{
    int64_t pair[2 * ROWS * CLASSES], row[ROWS * CLASSES], column[ROWS * CLASSES], count = 0;
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t class = 0; class < CLASSES; class ++)
            if (i != 3 && ((uint64_t) class + seed * 13 + (uint64_t)i * 29) % 43 == 0) {
                row[count] = i;
                column[count++] = class;
            }
    for (int64_t i = 0; i < count; i++) {
        pair[i] = row[i];
        pair[count + i] = column[i];
    }
    return shard_from_host(pair, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
}

static double share_of(const setting *set)
{
    return set->share == NONE ? 0 : set->share > 0 ? set->share : WHOLE_STASH;
}

static shard_tensor *softmax_loss(const setting *set, shard_tensor *logits, const int64_t *label, const double *weight)
{
    return shard_cross_entropy(logits, shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64),
                               .weight = set->weighted ? tensor_of(weight, SHARD_SHAPE(CLASSES), set->dtype) : NULL,
                               .label_smoothing = set->smoothing, .reduction = set->reduction, .soft_cap = set->soft_cap,
                               .logit_scale = set->logit_scale != 0 ? set->logit_scale : 1, .stash_share = share_of(set));
}

static shard_tensor *binary_loss(const setting *set, shard_tensor *logits, uint64_t seed, const double *weight)
{
    shard_tensor *weights = set->weighted ? tensor_of(weight, SHARD_SHAPE(CLASSES), set->dtype) : NULL;
    return shard_binary_cross_entropy_with_logits(logits, pairs_of(seed), .weight = weights, .pos_weight = weights,
                                                  .reduction = set->reduction, .stash_share = share_of(set));
}

static shard_tensor *loss_of(const training *t, int step, int batch)
{
    const setting *set = t->set;
    double x[ROWS * IN], weight[CLASSES];
    int64_t label[ROWS];
    uint64_t seed = (uint64_t)(step * 10 + batch);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = noise(seed, i);
    for (int i = 0; i < ROWS; i++)
        label[i] = i == 3 ? -100 : (int64_t)((seed * 31 + (uint64_t)i * 17) % CLASSES);
    for (int i = 0; i < CLASSES; i++)
        weight[i] = 1 + 0.5 * noise(99, i);
    shard_tensor *logits = shard_forward(t->model, tensor_of(x, SHARD_SHAPE(ROWS, IN), set->dtype));
    shard_tensor *loss = set->binary ? binary_loss(set, logits, seed, weight) : softmax_loss(set, logits, label, weight);
    ck_assert(!logits->storage->materializer || !logits->storage->memory);
    ck_assert_msg(loss, "%s", shard_last_error());
    if (set->uses_logits) /* and the gradient of a second use of them */
        loss = shard_add(loss, shard_scale(mean_square(logits), 0.01));
    if (set->tied)
        loss = shard_add(loss, shard_scale(mean_square(weight_of(t)), 0.1));
    return loss;
}

static void take_step(training *t, int step)
{
    const setting *set = t->set;
    for (int batch = 0; batch < set->batches; batch++)
        SHARD_SCOPE
        {
            shard_tensor *loss = loss_of(t, step, batch);
            double value;
            read_values(loss, &value);
            t->loss[step] += value;
            check_ok(shard_backward(t->scaler ? shard_grad_scaler_scale(t->scaler, loss) : loss));
            if (set->reads_gradient && batch == 0 && step % 2 == 0)
                ck_assert_ptr_nonnull(shard_data(shard_grad(weight_of(t))));
        }
    if (set->max_norm > 0)
        check_ok(shard_clip_grad_norm(t->optimizer, set->max_norm, NULL, .norm_type = set->norm_type > 0 ? set->norm_type : 2));
    if (set->clips_twice)
        check_ok(shard_clip_grad_value(t->optimizer, 2 * set->max_value));
    if (set->max_value > 0)
        check_ok(shard_clip_grad_value(t->optimizer, set->max_value));
    if (set->reads_clipped && step % 2 == 0) {
        shard_tensor *gradient = shard_grad(weight_of(t));
        double *values = calloc((size_t)shard_numel(gradient) + 1, sizeof *values);
        read_values(gradient, values);
        for (int64_t i = 0; i < shard_numel(gradient); i++)
            ck_assert_double_le(fabs(values[i]), set->max_value * (1 + 1e-6));
        free(values);
    }
    if (t->scaler) {
        check_ok(shard_grad_scaler_step(t->scaler, t->optimizer));
        check_ok(shard_grad_scaler_update(t->scaler));
    } else {
        check_ok(shard_step(t->optimizer));
    }
}

static void compare_values(const char *of, const char *name, shard_tensor *found, shard_tensor *expected, double tolerance)
{
    double *a = values_of(found), *b = values_of(expected);
    check_doubles(a, b, shard_numel(found), tolerance, 0, "%s: %s", of, name);
    free(a);
    free(b);
}

static void train_both(const setting *set, shard_group *group, int steps)
{
    training fused = {.set = set}, plain = {.set = set};
    double tolerance = set->dtype == SHARD_BFLOAT16 ? 0x1p-5 : set->enlarges ? 3e-5 : 1e-5;
    shard_head_tile = 8;
    begin(&fused, group, true);
    begin(&plain, group, false);
    for (int step = 0; step < steps; step++) {
        take_step(&fused, step);
        take_step(&plain, step);
        ck_assert_msg(is_within(fused.loss[step], plain.loss[step], tolerance * fabs(plain.loss[step])),
                      "%s: loss %.9g in step %d, not %.9g", set->name, fused.loss[step], step, plain.loss[step]);
    }
    shard_tensors *found = shard_parameters(fused.model), *expected = shard_parameters(plain.model);
    for (int64_t i = 0; i < shard_tensors_count(found); i++)
        compare_values(set->name, shard_tensors_name(found, i), shard_tensors_at(found, i), shard_tensors_at(expected, i),
                       tolerance);
    shard_tensors_destroy(found);
    shard_tensors_destroy(expected);
    end(&fused);
    end(&plain);
    shard_head_tile = 0;
}

/* Roundings to bfloat16 add up. */
static int steps_of(const setting *set)
{
    return set->dtype == SHARD_BFLOAT16 ? 5 : STEPS;
}

START_TEST(test_trains_as_plain)
{
    train_both(&settings[_i], NULL, steps_of(&settings[_i]));
}
END_TEST

/* With SHARD_TEST_EVERY=1 as many steps as one process. */
static void trains_on_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < SETTINGS; i++)
        train_both(&settings[i], world, getenv("SHARD_TEST_EVERY") ? steps_of(&settings[i]) : 4);
}

START_TEST(test_trains_on_ranks)
{
    run_ranks(rank_counts[_i], trains_on_ranks);
}
END_TEST

/* ---- memory ---- */

static int64_t peak(shard_memory_kind kind)
{
    return shard_get_memory_by_kind(shard_default_device(), kind).peak;
}

START_TEST(test_takes_no_memory)
{
    enum { WIDE = 64, MANY = 40000, FEW = 64 };
    const int64_t weight_bytes = (int64_t)WIDE * MANY * 4, logit_bytes = (int64_t)FEW * MANY * 4;
    if (!shard_default_device()->head) /* a GPU's tile of its own choice has room for all of these logits */
        shard_head_tile = shard_head_part = 1024;
    for (int clipped = 0; clipped < 3; clipped++) {
        shard_module *model = shard_nn_parallel_classifier(WIDE, MANY, NULL);
        shard_tensors *parameters = shard_parameters(model);
        shard_optimizer *optimizer = shard_sgd(parameters, .lr = 0.1, .momentum = 0.9);
        int64_t before = 0;
        for (int step = 0; step < 3; step++) {
            if (step == 1) {
                shard_reset_peak_memory(shard_default_device());
                before = shard_get_memory_stats(shard_default_device()).current;
            }
            SHARD_SCOPE
            {
                shard_tensor *x = shard_normal(SHARD_SHAPE(FEW, WIDE), 0, 1);
                shard_tensor *labels = shard_zeros(SHARD_SHAPE(FEW), .dtype = SHARD_INT64);
                shard_set_requires_grad(x, true);
                check_ok(shard_backward(shard_cross_entropy(shard_forward(model, x), labels)));
                if (clipped)
                    check_ok(shard_clip_grad_norm(optimizer, 1.0, NULL));
                if (clipped == 2)
                    check_ok(shard_clip_grad_value(optimizer, 1e-3));
                check_ok(shard_step(optimizer));
            }
        }
        /* The bias's gradient and, in a tile, some logits are in memory. */
        ck_assert_int_lt(peak(SHARD_MEMORY_GRADIENTS), weight_bytes / 20);
        ck_assert_int_lt(peak(SHARD_MEMORY_ACTIVATIONS), logit_bytes / 4);
        int64_t more = shard_get_memory_stats(shard_default_device()).peak - before; /* of all kinds */
        ck_assert_int_lt(more, weight_bytes / 4);
        shard_optimizer_destroy(optimizer);
        shard_tensors_destroy(parameters);
        shard_module_destroy(model);
    }
    shard_head_tile = shard_head_part = 0;
}
END_TEST

/* Memory of a step is that of the step before. */
START_TEST(test_touches_no_new_page)
{
    enum { WIDE = 64, MANY = 40000, FEW = 64, WARM = 4, COUNTED = 8, PAGES_OF_WEIGHT = WIDE * MANY * 4 / 4096 };
    struct rusage before, after;
    if (on_other_device() || ADDRESS_SANITIZER) /* whose own memory grows */
        return;
    for (int narrow = 0; narrow < 2; narrow++) {
        shard_dtype dtype = narrow ? SHARD_BFLOAT16 : SHARD_FLOAT32;
        shard_module *model = shard_nn_parallel_classifier(WIDE, MANY, NULL, .dtype = dtype);
        shard_optimizer *optimizer = shard_sgd(model, .lr = 0.1, .momentum = 0.9);
        for (int step = 0; step < WARM + COUNTED; step++) {
            if (step == WARM)
                getrusage(RUSAGE_SELF, &before);
            SHARD_SCOPE
            {
                shard_tensor *x = shard_normal(SHARD_SHAPE(FEW, WIDE), 0, 1, .dtype = dtype);
                shard_tensor *labels = shard_zeros(SHARD_SHAPE(FEW), .dtype = SHARD_INT64);
                shard_set_requires_grad(x, true);
                check_ok(shard_backward(shard_cross_entropy(shard_forward(model, x), labels)));
                check_ok(shard_step(optimizer));
            }
        }
        getrusage(RUSAGE_SELF, &after);
        ck_assert_int_lt(after.ru_minflt - before.ru_minflt, PAGES_OF_WEIGHT / 50);
        shard_optimizer_destroy(optimizer);
        shard_module_destroy(model);
    }
}
END_TEST

/* ---- what is computed late ---- */

START_TEST(test_written_weight_is_an_error)
{
    const setting set = {"SGD", sgd, 1};
    training t = {.set = &set};
    begin(&t, NULL, true);
    SHARD_SCOPE
    {
        check_ok(shard_backward(loss_of(&t, 0, 0)));
        check_ok(shard_nn_init_zeros(weight_of(&t)));
        ck_assert_int_eq(shard_step(t.optimizer), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "shard_linear_cross_entropy: *written to after*");
        shard_optimizer_zero_grad(t.optimizer);
        check_ok(shard_backward(loss_of(&t, 0, 0)));
        check_ok(shard_step(t.optimizer));
        shard_tensor *logits = shard_forward(t.model, shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1));
        check_ok(shard_nn_init_zeros(weight_of(&t)));
        ck_assert_ptr_null(shard_data(logits));
        check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_classifier: *written to since*");
    }
    end(&t);
}
END_TEST

START_TEST(test_evaluation_is_plain)
{
    const setting set = {"SGD", sgd, 1};
    training t = {.set = &set};
    begin(&t, NULL, true);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1), *late = shard_forward(t.model, x), *plain;
        ck_assert_ptr_null(late->storage->memory);
        SHARD_NO_GRAD
        {
            plain = shard_forward(t.model, x);
        }
        ck_assert_ptr_nonnull(plain->storage->memory);
        compare_values("late", "logits", late, plain, 0);
        ck_assert_ptr_nonnull(late->storage->memory);
        shard_module_set_training(t.model, false);
        ck_assert_ptr_nonnull(shard_forward(t.model, x)->storage->memory);
    }
    end(&t);
}
END_TEST

/* One rank needs the values of the logits, the others do not: the loss is computed in the same way on all. */
static void one_rank_reads(shard_group *world, void *context)
{
    (void)context;
    const setting set = {"SGD", sgd, 1};
    training t = {.set = &set};
    begin(&t, world, true);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(t.model, shard_zeros(SHARD_SHAPE(ROWS, IN)));
        if (shard_group_rank(world) == 0)
            ck_assert_ptr_nonnull(shard_data(logits));
        check_ok(shard_backward(shard_cross_entropy(logits, shard_zeros(SHARD_SHAPE(ROWS), .dtype = SHARD_INT64))));
        check_ok(shard_step(t.optimizer));
    }
    end(&t);
}

START_TEST(test_one_rank_reads)
{
    run_ranks(rank_counts[_i], one_rank_reads);
}
END_TEST

/* ---- other tensors than the result of the forward ---- */

typedef shard_tensor *variant(training *t, shard_tensor *x);

static shard_tensor *x_of_noise(void)
{
    double x[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = noise(11, i);
    return tensor_of(x, SHARD_SHAPE(ROWS, IN), SHARD_FLOAT32);
}

static shard_tensor *labels_of(int64_t rows)
{
    return shard_zeros(SHARD_SHAPE(rows), .dtype = SHARD_INT64);
}

/* Where the head's weight has the only gradient, and it is not finite, no step is made. */
START_TEST(test_overflow_of_the_weight_alone)
{
    shard_module *head = shard_nn_parallel_classifier(IN, CLASSES, NULL, .bias = false);
    shard_tensors *parameters = shard_parameters(head);
    shard_optimizer *optimizer = sgd(parameters);
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 1024);
    shard_tensor *weight = shard_module_tensor(head, "weight");
    double *before = values_of(weight), x[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = i == 5 ? (double)NAN : noise(11, i);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(head, tensor_of(x, SHARD_SHAPE(ROWS, IN), SHARD_FLOAT32));
        check_ok(shard_backward(shard_grad_scaler_scale(scaler, shard_cross_entropy(logits, labels_of(ROWS)))));
        check_ok(shard_grad_scaler_step(scaler, optimizer));
    }
    ck_assert(shard_optimizer_skipped(optimizer));
    double *after = values_of(weight);
    ck_assert_mem_eq(before, after, (size_t)shard_numel(weight) * sizeof *before);
    free(before);
    free(after);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(optimizer);
    shard_tensors_destroy(parameters);
    shard_module_destroy(head);
}
END_TEST

/* The detached logits give the backbone and the weight nothing. */
static shard_tensor *detached(training *t, shard_tensor *x)
{
    shard_tensor *logits = shard_forward(t->model, x);
    shard_tensor *aside = shard_cross_entropy(shard_detach(logits), shard_full(SHARD_SHAPE(ROWS), 1, .dtype = SHARD_INT64));
    return shard_add(shard_cross_entropy(logits, labels_of(ROWS)), aside);
}

static shard_tensor *reshaped(training *t, shard_tensor *x)
{
    shard_tensor *logits = shard_forward(t->model, shard_reshape(x, SHARD_SHAPE(2, ROWS / 2, IN)));
    return shard_cross_entropy(shard_reshape(logits, SHARD_SHAPE(ROWS, shard_tensor_size(logits, -1))), labels_of(ROWS));
}

static shard_tensor *narrowed(training *t, shard_tensor *x)
{
    return shard_cross_entropy(shard_narrow(shard_forward(t->model, x), 0, 2, 5), labels_of(5));
}

/* The gradient of the bias has no summand of the second batch. */
static shard_tensor *frozen_later(training *t, shard_tensor *x)
{
    shard_tensor *bias = shard_module_tensor(shard_module_child(t->model, "2"), "bias");
    check_ok(shard_backward(shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS))));
    shard_set_requires_grad(bias, false);
    check_ok(shard_backward(shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS))));
    shard_set_requires_grad(bias, true);
    return shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS));
}

/* The products are float32, as the forward was. */
static shard_tensor *autocast_later(training *t, shard_tensor *x)
{
    shard_tensor *logits = shard_forward(t->model, x), *loss;
    SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        loss = shard_cross_entropy(logits, labels_of(ROWS));
    }
    return loss;
}

/* The labels' ranks need no logits. */
static shard_tensor *ranked(training *t, shard_tensor *x)
{
    int64_t label[ROWS], found[ROWS], expected[ROWS];
    for (int i = 0; i < ROWS; i++)
        label[i] = i == 2 ? -100 : i * 31 % CLASSES;
    shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64), *rank = NULL;
    shard_tensor *logits = shard_forward(t->model, x), *loss = shard_cross_entropy_with_rank(logits, labels, &rank);
    ck_assert_msg(rank, "%s", shard_last_error());
    if (logits->storage->materializer)
        ck_assert_ptr_null(logits->storage->memory);
    check_ok(shard_copy_to_host(rank, found, sizeof found));
    check_ok(shard_copy_to_host(shard_label_rank(logits, labels, -100), expected, sizeof expected));
    for (int i = 0; i < ROWS; i++)
        ck_assert_int_eq(found[i], expected[i]);
    return loss;
}

/* Calls with other options each have their own in one deferred gradient. */
static shard_tensor *two_scales(training *t, shard_tensor *x)
{
    check_ok(shard_backward(shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS), .logit_scale = 3)));
    return shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS), .logit_scale = 0.5);
}

static shard_tensor *two_caps(training *t, shard_tensor *x)
{
    check_ok(shard_backward(shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS), .soft_cap = 0.5)));
    return shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS), .soft_cap = 5);
}

static shard_tensor *two_smoothings(training *t, shard_tensor *x)
{
    check_ok(shard_backward(shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS), .label_smoothing = 0.3)));
    return shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS));
}

/* The bound is that of the first call's gradient, to which the second one's is added. */
static shard_tensor *clipped_between(training *t, shard_tensor *x)
{
    check_ok(
        shard_backward(shard_cross_entropy(shard_forward(t->model, x), shard_full(SHARD_SHAPE(ROWS), 1, .dtype = SHARD_INT64))));
    check_ok(shard_clip_grad_value(t->optimizer, 1e-3));
    return shard_cross_entropy(shard_forward(t->model, x), labels_of(ROWS));
}

/* The first classes need no logits where no gradient is wanted; under autocast the products are float32, as the forward was. */
static shard_tensor *first_classes(training *t, shard_tensor *x)
{
    int64_t found[ROWS * 5], expected[ROWS * 5];
    shard_tensor *logits = shard_forward(t->model, x), *index, *of_values, *late;
    SHARD_NO_GRAD
    {
        ck_assert_msg(shard_top_k(logits, 5, &index), "%s", shard_last_error());
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        {
            late = shard_top_k(logits, 5, NULL);
        }
        ck_assert_msg(late, "%s", shard_last_error());
        if (logits->storage->materializer)
            ck_assert_ptr_null(logits->storage->memory);
        shard_tensor *values = shard_top_k(shard_add_scalar(logits, 0), 5, &of_values);
        compare_values("late", "largest logits", late, values, 1e-6);
    }
    check_ok(shard_copy_to_host(index, found, sizeof found));
    check_ok(shard_copy_to_host(of_values, expected, sizeof expected));
    for (int i = 0; i < ROWS * 5; i++)
        ck_assert_int_eq(found[i], expected[i]);
    return shard_cross_entropy(logits, labels_of(ROWS));
}

static variant *const variants[] = {detached,      reshaped,   narrowed, frozen_later,   autocast_later, ranked,
                                    first_classes, two_scales, two_caps, two_smoothings, clipped_between};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void vary(variant *of, shard_group *group)
{
    const setting set = {"variant", sgd, 1};
    training t[2] = {{.set = &set}, {.set = &set}};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        begin(&t[i], group, i == 0);
        SHARD_SCOPE
        {
            shard_tensor *result = of(&t[i], x_of_noise());
            ck_assert_msg(result, "%s", shard_last_error());
            read_values(result, &loss[i]);
            check_ok(shard_backward(result));
            check_ok(shard_step(t[i].optimizer));
        }
    }
    ck_assert_double_eq_tol(loss[0], loss[1], 1e-5);
    shard_tensors *found = shard_parameters(t[0].model), *expected = shard_parameters(t[1].model);
    for (int64_t i = 0; i < shard_tensors_count(found); i++)
        compare_values(set.name, shard_tensors_name(found, i), shard_tensors_at(found, i), shard_tensors_at(expected, i), 1e-6);
    shard_tensors_destroy(found);
    shard_tensors_destroy(expected);
    end(&t[0]);
    end(&t[1]);
}

static void varies_on_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < VARIANTS; i++)
        vary(variants[i], world);
}

START_TEST(test_varies)
{
    run_ranks(rank_counts[_i], varies_on_ranks);
}
END_TEST

/* A layer of one 16-bit type under the autocast of the other computes in its own, and keeps no logits. */
START_TEST(test_casts_16_bits)
{
    static const shard_dtype types[] = {SHARD_BFLOAT16, SHARD_FLOAT16};
    shard_module *models[] = {shard_nn_parallel_classifier(IN, CLASSES, NULL, .dtype = types[_i]),
                              shard_nn_parallel_classifier(IN, CLASSES, NULL, .dtype = types[_i])};
    shard_tensor *loss[2], *weight[2];
    SHARD_SCOPE
    {
        for (int i = 0; i < 2; i++) {
            weight[i] = shard_module_tensor(models[i], "weight");
            shard_manual_seed(3);
            check_ok(shard_nn_init_normal(weight[i], 0, 0.3));
            check_ok(shard_nn_init_zeros(shard_module_tensor(models[i], "bias")));
            SHARD_AUTOCAST(types[i == 0 ? 1 - _i : _i])
            {
                shard_tensor *logits = shard_forward(models[i], x_of_noise());
                loss[i] = shard_cross_entropy(logits, labels_of(ROWS));
                ck_assert_int_eq(shard_tensor_dtype(logits), types[_i]);
                ck_assert_ptr_null(logits->storage->memory);
            }
            check_ok(shard_backward(loss[i]));
        }
        compare_values("16 bits", "loss", loss[0], loss[1], 0);
        compare_values("16 bits", "gradient", shard_grad(weight[0]), shard_grad(weight[1]), 0);
    }
    for (int i = 0; i < 2; i++)
        shard_module_destroy(models[i]);
}
END_TEST

/* Between forward and loss x or the weight is written to: an error, or the values of the forward. */
START_TEST(test_written_before_the_loss)
{
    for (int read = 0; read < 2; read++)
        for (int weight = 0; weight < 2; weight++) {
            shard_module *model = shard_nn_parallel_classifier(IN, CLASSES, NULL);
            SHARD_SCOPE
            {
                shard_tensor *x = x_of_noise(), *logits = shard_forward(model, x), *loss, *expected;
                SHARD_NO_GRAD
                {
                    expected = shard_cross_entropy(shard_forward(model, x), labels_of(ROWS));
                }
                if (read)
                    ck_assert_ptr_nonnull(shard_data(logits));
                check_ok(shard_nn_init_zeros(weight ? shard_module_tensor(model, "weight") : x));
                loss = shard_cross_entropy(logits, labels_of(ROWS));
                if (read)
                    compare_values("a row", "loss", loss, expected, 1e-6);
                else
                    check_error(SHARD_ERROR_ARGUMENT, "*written to since*");
            }
            shard_module_destroy(model);
        }
}
END_TEST

START_TEST(test_exports)
{
    const setting set = {"SGD", sgd, 1};
    training t = {.set = &set};
    begin(&t, NULL, true);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(t.model, x_of_noise());
        check_ok(shard_backward(shard_cross_entropy(logits, labels_of(ROWS))));
        shard_tensor *all[] = {shard_detach(logits), shard_grad(weight_of(&t))};
        for (int i = 0; i < 2; i++) {
            DLManagedTensorVersioned *exported = shard_to_dlpack(all[i]);
            ck_assert_msg(exported, "%s", shard_last_error());
            ck_assert_ptr_eq(exported->dl_tensor.data, shard_data(all[i]));
            exported->deleter(exported);
        }
    }
    end(&t);
}
END_TEST

static void converts(shard_group *world, void *context)
{
    (void)context;
    int converted = 0;
    shard_module *model = shard_nn_sequential(shard_nn_linear(IN, HIDDEN), shard_nn_relu(), shard_nn_linear(HIDDEN, CLASSES));
    check_ok(shard_convert_parallel_classifier(&model, "2", world, &converted));
    ck_assert_int_eq(converted, 1);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(model, shard_zeros(SHARD_SHAPE(ROWS, IN)));
        ck_assert_ptr_null(logits->storage->memory);
        ck_assert_int_eq(shard_tensor_whole_shape(logits).dim[1], CLASSES);
    }
    shard_module_destroy(model);
}

START_TEST(test_converts)
{
    run_ranks(rank_counts[_i], converts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classifier");
    TCase *tcase = test_case(suite, "classifier");
    tcase_add_loop_test(tcase, test_trains_as_plain, 0, SETTINGS);
    add_ranks_test(tcase, test_trains_on_ranks);
    tcase_add_test(tcase, test_takes_no_memory);
    tcase_add_test(tcase, test_touches_no_new_page);
    tcase_add_test(tcase, test_written_weight_is_an_error);
    tcase_add_test(tcase, test_evaluation_is_plain);
    add_ranks_test(tcase, test_one_rank_reads);
    add_ranks_test(tcase, test_varies);
    tcase_add_test(tcase, test_overflow_of_the_weight_alone);
    tcase_add_loop_test(tcase, test_casts_16_bits, 0, 2);
    tcase_add_test(tcase, test_written_before_the_loss);
    tcase_add_test(tcase, test_exports);
    add_ranks_test(tcase, test_converts);
    return test_run(suite);
}
