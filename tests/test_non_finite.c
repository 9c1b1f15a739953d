/*
 * NaN and infinity on one rank are seen by all: in the loss of the ranks that compute it together, and in the gradients of the
 * replicas; and of the gradient scaler over many steps. test_non_finite [STEPS]
 */
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"

#include "device/device.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 3, IN = 4, CLASSES = 10 };

static int steps = 300;

/* ---- one loss of all ranks ---- */

/* The element of a rank's tensor that is not finite. */
typedef enum place { FEATURES, LOGITS, WEIGHT, PLACES } place;
static const char *const places[PLACES] = {"features", "logits", "weight"};

typedef enum loss_kind { OF_LOGITS, EACH_ROW, OF_CLASSIFIER, LINEAR, NORMALIZED, BINARY, LINEAR_BINARY, LOSSES } loss_kind;
static const char *const losses[LOSSES] = {"cross entropy", "each row", "classifier",   "linear",
                                           "normalized",    "binary",   "linear binary"};

static bool has_logits(loss_kind kind)
{
    return kind == OF_LOGITS || kind == EACH_ROW || kind == BINARY;
}

static void spoil(shard_tensor *x, double value)
{
    double *values = values_of(shard_detach(x));
    values[shard_numel(x) / 2] = value;
    SHARD_NO_GRAD
    {
        check_ok(shard_copy_from_host(x, values, (size_t)shard_numel(x) * sizeof *values));
    }
    free(values);
}

typedef struct fault {
    loss_kind loss;
    place place;
    double value;
    int rank; /* -1: none */
} fault;

/* Features of each rank's rows are gathered, and the classes are split, as in training with a split last layer. */
static shard_tensor *loss_of(fault f, shard_group *world, shard_module *classifier)
{
    int rank = shard_group_rank(world), size = shard_group_size(world);
    bool here = rank == f.rank;
    int64_t labels[8 * ROWS], pairs[16 * ROWS], n = (int64_t)size * ROWS;
    for (int64_t i = 0; i < n; i++) {
        labels[i] = pairs[n + i] = i * 7 % CLASSES;
        pairs[i] = i;
    }
    shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(n), .dtype = SHARD_INT64);
    shard_tensor *ones = shard_from_host(pairs, SHARD_SHAPE(2, n), .dtype = SHARD_INT64);
    shard_tensor *own = made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)rank + 5, SHARD_FLOAT64);
    if (here && f.place == FEATURES)
        spoil(own, f.value);
    shard_tensor *x = shard_gather_from_group(own, 0, world), *weight = shard_module_tensor(classifier, "weight");
    if (here && f.place == WEIGHT)
        spoil(weight, f.value);
    shard_tensor *logits = has_logits(f.loss) ? shard_parallel_linear(x, weight, NULL) : NULL;
    if (here && f.place == LOGITS)
        logits = shard_where(shard_eq_scalar(logits, value_at(logits, 1)),
                             shard_full(SHARD_SCALAR, f.value, .dtype = SHARD_FLOAT64), logits);
    switch (f.loss) {
    case OF_LOGITS:
        return shard_cross_entropy(logits, target);
    case EACH_ROW:
        return shard_sum(shard_cross_entropy(logits, target, .reduction = SHARD_REDUCTION_NONE, .label_smoothing = 0.1));
    case OF_CLASSIFIER:
        return shard_cross_entropy(shard_forward(classifier, x), target);
    case LINEAR:
        return shard_linear_cross_entropy(x, weight, NULL, target, .soft_cap = 30);
    case NORMALIZED:
        return shard_linear_cross_entropy(x, weight, NULL, target, .normalized = true, .margin = SHARD_MARGIN(.m2 = 0.5));
    case BINARY:
        return shard_binary_cross_entropy_with_logits(logits, ones);
    default:
        return shard_linear_binary_cross_entropy(x, weight, NULL, ones);
    }
}

static int try_loss(fault f, shard_group *world)
{
    if (f.place == LOGITS && !has_logits(f.loss))
        return 0;
    shard_group *group = shard_group_size(world) > 1 ? world : NULL;
    shard_manual_seed(2);
    shard_module *classifier = shard_nn_parallel_classifier(IN, CLASSES, group, .dtype = SHARD_FLOAT64, .bias = false);
    SHARD_SCOPE
    {
        shard_tensor *loss = loss_of(f, world, classifier);
        ck_assert_msg(loss != NULL, "%s", shard_last_error());
        double value = shard_item(shard_detach(loss));
        ck_assert_msg(f.rank < 0 ? isfinite(value) : !isfinite(value), "%s with %g in the %s of rank %d is %g on rank %d",
                      losses[f.loss], f.value, places[f.place], f.rank, value, shard_group_rank(world));
        check_ok(shard_agree(world));
    }
    shard_module_destroy(classifier);
    return 1;
}

static void all_see_a_loss(shard_group *world, void *context)
{
    (void)context;
    int cases = 0, size = shard_group_size(world);
    for (int l = 0; l < LOSSES; l++) {
        cases += try_loss((fault){.loss = (loss_kind)l, .rank = -1}, world);
        for (int p = 0; p < PLACES; p++)
            for (int rank = 0; rank<size; rank += size> 1 ? size - 1 : 1) {
                cases += try_loss((fault){(loss_kind)l, (place)p, NAN, rank}, world);
                if (p == LOGITS &&
                    l != BINARY) /* as a feature an infinity may be a logit of -infinity, which is legal; and a 1 of */
                    cases += try_loss((fault){(loss_kind)l, (place)p, INFINITY, rank}, world); /* a pair may have infinity */
            }
    }
    if (shard_group_rank(world) == 0)
        printf("cases: %d\n", cases);
}

START_TEST(test_all_see_a_loss)
{
    run_job(_i + 1, all_see_a_loss, NULL);
}
END_TEST

/* ---- one gradient of all replicas ---- */

/* Rank 1's images are not finite: its loss alone, and the gradients of all ranks. */
static void all_see_a_gradient(shard_group *world, void *context)
{
    int stage = *(const int *)context, rank = shard_group_rank(world), cases = 0;
    static const double values[] = {1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        shard_manual_seed(4);
        shard_module *model = shard_nn_linear(IN, CLASSES);
        shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
        if (stage)
            sgd = shard_zero_optimizer(sgd, .stage = stage);
        shard_tensors *parameters = shard_parameters(model);
        shard_data_parallel *parallel = shard_data_parallel_create(parameters);
        SHARD_SCOPE
        {
            shard_tensor *images = shard_full(SHARD_SHAPE(ROWS, IN), rank == 1 ? values[i] : 0.5);
            shard_tensor *labels = shard_zeros(SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
            shard_tensor *loss = shard_cross_entropy(shard_forward(model, images), labels);
            ck_assert_int_eq(isfinite(shard_item(shard_detach(loss))), rank != 1 || i == 0);
            check_ok(shard_backward(loss));
        }
        shard_status status = shard_clip_grad_norm(sgd, 1.0, NULL, .error_if_nonfinite = true);
        ck_assert_msg((status == SHARD_OK) == (i == 0), "rank %d: a gradient with %g: %s", rank, values[i],
                      shard_status_name(status));
        if (i > 0)
            check_error(status, "*norm*");
        cases++;
        shard_optimizer_zero_grad(sgd);
        check_ok(shard_agree(world));
        shard_tensors_destroy(parameters);
        shard_data_parallel_destroy(parallel);
        shard_optimizer_destroy(sgd);
        shard_module_destroy(model);
    }
    if (rank == 0)
        printf("cases: %d\n", cases);
}

START_TEST(test_all_see_a_gradient)
{
    run_job(3, all_see_a_gradient, &_i);
}
END_TEST

/* ---- the gradient scaler over many steps ---- */

typedef struct scaled {
    shard_mesh *mesh;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
    shard_grad_scaler *scaler;
} scaled;

static scaled make_scaled(int stage)
{
    scaled s = {.mesh = shard_mesh_create(.model = 2)};
    shard_manual_seed(6);
    s.model = shard_nn_sequential(shard_nn_linear(IN, 6), shard_nn_relu(),
                                  shard_nn_parallel_linear(6, CLASSES, SHARD_SPLIT_COLUMN, shard_mesh_model_group(s.mesh)));
    s.optimizer = shard_sgd(s.model, .lr = 1e-3, .momentum = 0.9);
    if (stage)
        s.optimizer = shard_zero_optimizer(s.optimizer, .stage = stage);
    shard_tensors *parameters = shard_parameters(s.model);
    s.parallel = shard_data_parallel_create(parameters);
    shard_tensors_destroy(parameters);
    s.scaler = shard_grad_scaler_create(.growth_interval = 8);
    ck_assert_msg(s.parallel && s.scaler, "%s", shard_last_error());
    return s;
}

static void drop_scaled(scaled *s)
{
    shard_grad_scaler_destroy(s->scaler);
    shard_optimizer_destroy(s->optimizer);
    shard_data_parallel_destroy(s->parallel);
    shard_module_destroy(s->model);
    shard_mesh_destroy(s->mesh);
}

static void spoil_float(shard_tensor *x)
{
    float *values = malloc((size_t)shard_numel(x) * sizeof *values);
    check_ok(shard_copy_to_host(x, values, (size_t)shard_numel(x) * sizeof *values));
    values[shard_numel(x) / 2] = INFINITY;
    check_ok(shard_copy_from_host(x, values, (size_t)shard_numel(x) * sizeof *values));
    free(values);
}

/* An infinity in this rank's shard: in its logits, of which it comes into the loss of the model group and all gradients, or in
 * its gradient alone. */
enum { NOTHING, IN_LOGITS, IN_GRADIENT };

static void backward_of_step(const scaled *s, int step, int plants)
{
    shard_group *model = shard_mesh_model_group(s->mesh), *data = shard_mesh_data_group(s->mesh);
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS; i++)
        labels[i] = (step + i * 3 + shard_group_rank(data)) % CLASSES;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)(step % 32 * 8 + shard_group_rank(data)), SHARD_FLOAT32);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64), *loss = NULL;
        SHARD_AUTOCAST(SHARD_FLOAT16)
        {
            shard_tensor *logits = shard_forward(s->model, shard_copy_to_group(x, model));
            loss = shard_cross_entropy(shard_scale(logits, plants == IN_LOGITS ? INFINITY : 1.0), target);
        }
        check_ok(shard_backward(shard_grad_scaler_scale(s->scaler, loss)));
        if (plants == IN_GRADIENT)
            spoil_float(shard_grad(shard_module_tensor(shard_module_child_at(s->model, 2), "weight")));
    }
}

/* Skips, scales and steps are those of a plain count, and the same on all ranks. */
static void agrees_over_steps(shard_group *world, void *context)
{
    int stage = *(const int *)context, rank = shard_group_rank(world), done = 0, clean = 0, planted = 0;
    shard_cpu_set_threads(1);
    scaled s = make_scaled(stage);
    shard_tensors *state = shard_optimizer_state_dict(s.optimizer);
    shard_tensor *count = shard_tensors_find(state, "2.weight.step");
    double scale = shard_grad_scaler_get_scale(s.scaler);
    uint64_t history = 0;
    for (int step = 0; step < steps; step++) {
        uint64_t draw = mix((uint64_t)step);
        bool plants = draw % 16 == 0;
        bool here = plants && (int)(draw / 16 % (uint64_t)shard_group_size(world)) == rank;
        bool alone = stage == 0 && draw / 256 % 2; /* stage 2 has no gradient after the backward */
        backward_of_step(&s, step, !here ? NOTHING : alone ? IN_GRADIENT : IN_LOGITS);
        check_ok(shard_grad_scaler_step(s.scaler, s.optimizer));
        bool skipped = shard_optimizer_skipped(s.optimizer);
        check_ok(shard_grad_scaler_update(s.scaler));
        planted += plants;
        done += !skipped;
        clean = skipped ? 0 : clean + 1;
        scale = skipped ? scale / 2 : clean == 8 ? scale * 2 : scale;
        clean %= 8;
        ck_assert_msg(skipped || !plants, "rank %d: step %d was made with an infinity", rank, step);
        ck_assert_msg(shard_grad_scaler_get_scale(s.scaler) == scale, "rank %d, step %d: the scale is %g, not %g", rank, step,
                      shard_grad_scaler_get_scale(s.scaler), scale);
        ck_assert_int_eq((int)value_at(count, 0), done);
        history = mix(history ^ (uint64_t)skipped);
    }
    int64_t lowest = (int64_t)(history >> 12); /* a double has it */
    SHARD_SCOPE
    {
        shard_tensor *low = shard_from_host(&lowest, SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *high = shard_clone(low);
        check_ok(shard_all_reduce(low, SHARD_MIN, world));
        check_ok(shard_all_reduce(high, SHARD_MAX, world));
        ck_assert_msg(value_at(low, 0) == value_at(high, 0), "ranks have skipped other steps");
    }
    ck_assert_int_gt(planted, steps / 32);
    ck_assert_int_gt(done, steps / 2);
    check_ok(shard_check_replicas(state));
    if (rank == 0)
        printf("cases: %d steps with an infinity, of %d\n", planted, steps);
    shard_tensors_destroy(state);
    drop_scaled(&s);
}

START_TEST(test_agrees_over_steps)
{
    static const int stages[] = {0, 2};
    run_job_of(
        (ranks_run){.size = 4, .body = agrees_over_steps, .context = (void *)&stages[_i], .deadline = 50.0 + steps / 20.0});
}
END_TEST

int main(int argc, char **argv)
{
    steps = argc > 1 ? atoi(argv[1]) : steps;
    Suite *suite = suite_create("non-finite");
    TCase *tcase = test_case(suite, "non-finite");
    tcase_set_timeout(tcase, 60 + steps / 20.0);
    tcase_add_loop_test(tcase, test_all_see_a_loss, 0, 3);
    tcase_add_loop_test(tcase, test_all_see_a_gradient, 0, 4);
    tcase_add_loop_test(tcase, test_agrees_over_steps, 0, 2);
    return test_run(suite);
}
