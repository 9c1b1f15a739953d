/* Training with samples of classes, which moves their rows alone: against loops in double. */
#include "support/kernels.h"
#include "support/loss.h"
#include "support/sampled.h"
#include "support/scratch.h"

#include "support/job.h"

#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, IN = 20, CLASSES = 130, STEPS = 50 };
#define RATE 0.2
#define LR 0.5
#define MOMENTUM 0.9
#define DECAY 1e-3

typedef struct training {
    shard_module *head;
    shard_optimizer *sgd;
    shard_tensors *state;
} training;

static void begin(training *t, shard_group *group, shard_dtype dtype)
{
    shard_manual_seed(7);
    t->head = shard_nn_parallel_classifier(IN, CLASSES, group, .bias = false, .dtype = dtype);
    t->sgd = shard_sgd(t->head, .lr = LR, .momentum = MOMENTUM, .weight_decay = DECAY);
    t->state = shard_state_dict(t->head);
    shard_tensors *momentum = shard_optimizer_state_dict(t->sgd);
    check_ok(shard_tensors_extend(t->state, "optimizer.", momentum));
    shard_tensors_destroy(momentum);
}

static void end(training *t)
{
    shard_tensors_destroy(t->state);
    shard_optimizer_destroy(t->sgd);
    shard_module_destroy(t->head);
}

static void make_batch(int64_t step, int64_t replica, double *x, int64_t *label)
{
    for (int64_t i = 0; i < ROWS * IN; i++)
        x[i] = round_to(SHARD_BFLOAT16, noise((uint64_t)(1000 * replica + step + 1), i));
    for (int64_t i = 0; i < ROWS; i++)
        label[i] = (step * 31 + replica * 57 + i * i * 17) % CLASSES;
}

static shard_tensor *loss_of(training *t, int64_t step, int64_t replica, shard_dtype dtype, bool through_logits)
{
    double x[ROWS * IN];
    int64_t label[ROWS];
    make_batch(step, replica, x, label);
    shard_tensor *weight = shard_module_tensor(t->head, "weight"), *labels = labels_of(label, ROWS);
    shard_tensor *sample = shard_sample_classes(labels, weight, RATE, 9, step), *loss;
    shard_tensor *features = tensor_of(x, SHARD_SHAPE(ROWS, IN), dtype), *logits = shard_forward(t->head, features);
    if (through_logits)
        loss = shard_cross_entropy(logits, labels, .sample = sample);
    else
        loss = shard_linear_cross_entropy(features, weight, NULL, labels, .sample = sample);
    ck_assert_msg(loss, "%s", shard_last_error());
    return loss;
}

/* Training by loops in double. */
typedef struct reference {
    double weight[CLASSES * IN], momentum[CLASSES * IN], loss;
} reference;

static void start_reference(reference *r, shard_dtype dtype)
{
    training t;
    memset(r, 0, sizeof *r);
    begin(&t, NULL, dtype);
    read_values(shard_module_tensor(t.head, "weight"), r->weight);
    end(&t);
}

/* Adds the gradient of one batch, times factor; returns its loss. Sets the flags of its sample. */
static double add_gradient(const reference *r, int64_t step, int64_t replica, double factor, double *gradient, bool *sampled)
{
    double x[ROWS * IN], loss = 0;
    int64_t label[ROWS];
    make_batch(step, replica, x, label);
    SHARD_SCOPE
    {
        bool *flag = flags_of(labels_of(label, ROWS), CLASSES, RATE, 9, step);
        for (int64_t i = 0; i < ROWS; i++) {
            double z[CLASSES], sum = 0;
            for (int64_t c = 0; c < CLASSES; c++) {
                z[c] = 0;
                for (int64_t k = 0; k < IN; k++)
                    z[c] += x[i * IN + k] * r->weight[c * IN + k];
                sum += flag[c] ? exp(z[c]) : 0;
            }
            loss += (log(sum) - z[label[i]]) / ROWS;
            for (int64_t c = 0; c < CLASSES; c++)
                for (int64_t k = 0; k < IN && flag[c]; k++)
                    gradient[c * IN + k] += factor * (exp(z[c]) / sum - (c == label[i])) / ROWS * x[i * IN + k];
        }
        for (int64_t c = 0; c < CLASSES; c++)
            sampled[c] |= flag[c];
        free(flag);
    }
    return loss;
}

/* all: the gradient is computed as a whole, and the step moves all rows. max_value 0: it is not clipped. */
static void step_reference(reference *r, int64_t step, int64_t replicas, bool all, double max_value)
{
    static double gradient[CLASSES * IN];
    bool sampled[CLASSES] = {false};
    memset(gradient, 0, sizeof gradient);
    r->loss = 0;
    for (int64_t i = 0; i < replicas; i++)
        r->loss += add_gradient(r, step, i, 1.0 / (double)replicas, gradient, sampled);
    for (int64_t i = 0; i < CLASSES * IN && max_value > 0; i++)
        gradient[i] = fmax(-max_value, fmin(max_value, gradient[i]));
    for (int64_t i = 0; i < CLASSES * IN; i++)
        if (all || sampled[i / IN]) {
            r->momentum[i] = MOMENTUM * r->momentum[i] + gradient[i] + DECAY * r->weight[i];
            r->weight[i] -= LR * r->momentum[i];
        }
}

static shard_tensor *momentum_of(const training *t)
{
    shard_tensor *momentum = shard_tensors_find(t->state, "optimizer.weight.momentum_buffer");
    ck_assert_ptr_nonnull(momentum);
    return momentum;
}

static void compare_part(const char *what, shard_tensor *found, const double *expected, double tolerance)
{
    double now[CLASSES * IN];
    int64_t start = shard_is_split(found, 0) ? found->placement.start * IN : 0;
    read_values(found, now);
    check_doubles(now, expected + start, shard_numel(found), tolerance, largest_of(expected, CLASSES * IN),
                  "%s from element %lld on", what, (long long)start);
}

/* Steps, and checks that rows without a place in the sample keep their bits, as does their momentum. */
static void step_and_check(training *t, int64_t step)
{
    double x[ROWS * IN], before[2][CLASSES * IN], after[CLASSES * IN];
    int64_t label[ROWS];
    make_batch(step, 0, x, label);
    bool *flag = flags_of(labels_of(label, ROWS), CLASSES, RATE, 9, step);
    shard_tensor *all[] = {shard_module_tensor(t->head, "weight"), momentum_of(t)};
    int64_t start = shard_is_split(all[0], 0) ? all[0]->placement.start : 0;
    for (int i = 0; i < 2; i++)
        read_values(all[i], before[i]);
    check_ok(shard_step(t->sgd));
    for (int i = 0; i < 2; i++) {
        read_values(all[i], after);
        for (int64_t k = 0; k < shard_numel(all[i]); k++)
            if (!flag[start + k / IN] && after[k] != before[i][k])
                ck_abort_msg("step %d changes element %lld of a row without a place in the sample", (int)step, (long long)k);
    }
    free(flag);
}

typedef struct setting {
    shard_dtype dtype;
    int64_t steps;
    double tolerance;
    bool through_logits;
    double max_value; /* 0: gradients are not clipped */
} setting;
static const setting settings[] = {{SHARD_FLOAT32, STEPS, 1e-5, false},
                                   {SHARD_FLOAT32, STEPS, 1e-5, true},
                                   {SHARD_FLOAT32, STEPS, 1e-5, true, .max_value = 0.01},
                                   {SHARD_BFLOAT16, 5, 0x1p-5, true}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void trains(shard_group *world, void *context)
{
    (void)context;
    shard_head_tile = 8;
    for (int i = 0; i < SETTINGS; i++) {
        const setting *set = &settings[i];
        static reference r;
        training t;
        start_reference(&r, set->dtype);
        begin(&t, world, set->dtype);
        for (int64_t step = 0; step < set->steps; step++)
            SHARD_SCOPE
            {
                shard_tensor *loss = loss_of(&t, step, 0, set->dtype, set->through_logits);
                step_reference(&r, step, 1, false, set->max_value);
                ck_assert_msg(fabs(shard_item(loss) - r.loss) <= set->tolerance * r.loss, "step %d: loss %.9g, not %.9g",
                              (int)step, shard_item(loss), r.loss);
                check_ok(shard_backward(loss));
                if (set->max_value > 0)
                    check_ok(shard_clip_grad_value(t.sgd, set->max_value));
                step_and_check(&t, step);
            }
        compare_part("weight", shard_module_tensor(t.head, "weight"), r.weight, set->tolerance);
        compare_part("momentum", momentum_of(&t), r.momentum, 10 * set->tolerance);
        end(&t);
    }
    shard_head_tile = 0;
}

START_TEST(test_trains)
{
    run_ranks(rank_counts[_i], trains);
}
END_TEST

/* Replicas along "data" have batches of their own: gradients are averaged as a whole. */
static void trains_replicas(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    static reference r;
    training t;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", 2}, {"model", 2}});
    start_reference(&r, SHARD_FLOAT32);
    begin(&t, shard_mesh_group(mesh, "model"), SHARD_FLOAT32);
    shard_tensors *parameters = shard_parameters(t.head);
    shard_data_parallel *parallel = shard_data_parallel_create(parameters);
    ck_assert_msg(parallel, "%s", shard_last_error());
    for (int64_t step = 0; step < STEPS; step++)
        SHARD_SCOPE
        {
            check_ok(shard_backward(loss_of(&t, step, shard_mesh_coordinate(mesh, "data"), SHARD_FLOAT32, true)));
            check_ok(shard_step(t.sgd));
            step_reference(&r, step, 2, true, 0);
        }
    compare_part("weight", shard_module_tensor(t.head, "weight"), r.weight, 1e-5);
    shard_data_parallel_destroy(parallel);
    shard_tensors_destroy(parameters);
    end(&t);
    shard_mesh_destroy(mesh);
}

START_TEST(test_trains_replicas)
{
    run_job(4, trains_replicas, NULL);
}
END_TEST

/* Micro-batches with one sample: the deferred gradient is that of all their rows, and only sampled rows move. */
START_TEST(test_accumulates)
{
    training t;
    double before[CLASSES * IN], after[CLASSES * IN], x[2][ROWS * IN];
    int64_t label[2 * ROWS];
    begin(&t, NULL, SHARD_FLOAT32);
    shard_tensor *weight = shard_module_tensor(t.head, "weight");
    read_values(weight, before);
    SHARD_SCOPE
    {
        for (int i = 0; i < 2; i++)
            make_batch(i, 0, x[i], label + i * ROWS);
        shard_tensor *labels = labels_of(label, 2 * ROWS), *sample = shard_sample_classes(labels, weight, RATE, 9, 0);
        shard_tensor *correction = _i ? shard_sample_correction(sample, labels, RATE) : NULL;
        for (int i = 0; i < 2; i++) {
            shard_tensor *logits = shard_forward(t.head, tensor_of(x[i], SHARD_SHAPE(ROWS, IN), SHARD_FLOAT32));
            check_ok(shard_backward(shard_cross_entropy(logits, labels_of(label + i * ROWS, ROWS), .sample = sample,
                                                        .sample_correction = correction)));
        }
        ck_assert_ptr_null(weight->leaf->grad->storage->memory);
        bool *flag = flags_of(labels, CLASSES, RATE, 9, 0);
        check_ok(shard_step(t.sgd));
        read_values(weight, after);
        int64_t moved = 0, sampled = 0;
        for (int64_t c = 0; c < CLASSES; c++) {
            moved += memcmp(before + c * IN, after + c * IN, IN * sizeof *before) != 0;
            sampled += flag[c];
            ck_assert(flag[c] || memcmp(before + c * IN, after + c * IN, IN * sizeof *before) == 0);
        }
        ck_assert_int_eq(moved, sampled);
        free(flag);
    }
    end(&t);
}
END_TEST

/* So it is with a bias, with class weights and with a correction, of which each call makes copies; not where they differ. */
START_TEST(test_accumulates_with_a_bias_and_weights)
{
    shard_dtype dtype = _i / 2 % 2 ? SHARD_FLOAT64 : SHARD_FLOAT32;
    bool differ = _i % 2, corrected = _i / 4;
    double x[2][ROWS * IN], found[2][CLASSES * IN], found_bias[2][CLASSES];
    int64_t label[2 * ROWS];
    for (int i = 0; i < 2; i++)
        make_batch(i, 0, x[i], label + i * ROWS);
    for (int whole = 0; whole < 2; whole++) /* 1: gradients that are computed after each backward */
        SHARD_SCOPE
        {
            shard_tensor *weight = made_up_leaf(SHARD_SHAPE(CLASSES, IN), 1, SHARD_FLOAT32);
            shard_tensor *bias = made_up_leaf(SHARD_SHAPE(CLASSES), 2, SHARD_FLOAT32);
            weight->leaf->defers_grad = bias->leaf->defers_grad = true; /* as a classifier's */
            shard_tensor *class_weight[] = {shard_abs(made_up(SHARD_SHAPE(CLASSES), 3, dtype)),
                                            shard_abs(made_up(SHARD_SHAPE(CLASSES), 4, dtype))};
            shard_tensor *sample = shard_sample_classes(labels_of(label, 2 * ROWS), weight, RATE, 9, 0);
            shard_tensor *corrections[] = {shard_sample_correction(sample, labels_of(label, 2 * ROWS), RATE),
                                           shard_sample_correction(sample, labels_of(label, ROWS), RATE)};
            for (int i = 0; i < 2; i++) {
                shard_tensor *features = tensor_of(x[i], SHARD_SHAPE(ROWS, IN), SHARD_FLOAT32);
                check_ok(shard_backward(
                    shard_linear_cross_entropy(features, weight, bias, labels_of(label + i * ROWS, ROWS), .sample = sample,
                                               .sample_correction = corrected ? corrections[i && differ] : NULL,
                                               .weight = corrected ? NULL : class_weight[i && differ])));
                ck_assert(whole || (weight->leaf->grad->storage->memory == NULL) == !(i && differ));
                if (whole)
                    read_values(shard_grad(weight), found[1]);
            }
            read_values(shard_grad(weight), found[whole]);
            read_values(shard_grad(bias), found_bias[whole]);
        }
    for (int i = 0; i < CLASSES * IN; i++)
        ck_assert_double_eq_tol(found[0][i], found[1][i], 1e-6);
    for (int i = 0; i < CLASSES; i++)
        ck_assert_double_eq_tol(found_bias[0][i], found_bias[1][i], 1e-6);
}
END_TEST

/* ---- checkpoints ---- */

typedef struct run {
    int64_t from, to;
    const char *load, *save;
} run;

static void continues(shard_group *world, void *context)
{
    const run *now = context;
    static reference r;
    training t;
    begin(&t, world, SHARD_FLOAT32);
    start_reference(&r, SHARD_FLOAT32);
    for (int64_t step = 0; step < now->to; step++)
        step_reference(&r, step, 1, false, 0);
    if (now->load)
        check_ok(shard_load(t.state, now->load));
    for (int64_t step = now->from; step < now->to; step++)
        SHARD_SCOPE
        {
            check_ok(shard_backward(loss_of(&t, step, 0, SHARD_FLOAT32, true)));
            check_ok(shard_step(t.sgd));
        }
    compare_part("weight", shard_module_tensor(t.head, "weight"), r.weight, 1e-5);
    compare_part("momentum", momentum_of(&t), r.momentum, 1e-4);
    if (now->save)
        check_ok(shard_save(t.state, now->save, NULL));
    end(&t);
}

START_TEST(test_continues)
{
    const char *path = scratch_path("sampled.safetensors");
    run first = {0, 20, NULL, path}, then = {20, 40, path, NULL};
    run_job(3, continues, &first);
    run_job(rank_counts[_i], continues, &then);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampled training");
    TCase *tcase = test_case(suite, "sampled training");
    scratch_open();
    add_ranks_test(tcase, test_trains);
    tcase_add_test(tcase, test_trains_replicas);
    tcase_add_loop_test(tcase, test_accumulates, 0, 2);
    tcase_add_loop_test(tcase, test_accumulates_with_a_bias_and_weights, 0, 8);
    add_ranks_test(tcase, test_continues);
    int code = test_run(suite);
    scratch_close();
    return code;
}
