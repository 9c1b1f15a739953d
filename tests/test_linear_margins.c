/* Margins and normalized rows in the loss of a linear layer without logits, against the plain functions in float64; and face
 * recognition's recipe: a split, sampled classifier with a margin and momentum. */
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

enum { ROWS = 11, IN = 19, CLASSES = 131, STEPS = 50 };

typedef enum way { NORMALIZED, ARC, COS, COMBINED, ADA, EASY, NO_NORMS, WAYS } way;
enum { WEIGHTED = 1, SMOOTHED = 2, IGNORING = 4, SAMPLED = 8, FORMS = 16 };

typedef struct problem {
    way way;
    int form;
    shard_dtype dtype, weight_dtype;
    double scale;
} problem;

typedef struct values {
    double x[ROWS * IN], weight[CLASSES * IN], class_weight[CLASSES], m2[ROWS], m3[ROWS], loss;
    double dx[ROWS * IN], dweight[CLASSES * IN];
    int64_t label[ROWS];
    bool flag[CLASSES]; /* of the classes that count */
} values;

static void make_values(const problem *p, values *v)
{
    memset(v, 0, sizeof *v);
    for (int i = 0; i < ROWS * IN; i++)
        v->x[i] = round_to(p->dtype, (p->way == NO_NORMS ? 0.2 : 3) * noise(1, i));
    for (int i = 0; i < CLASSES * IN; i++)
        v->weight[i] = i / IN == 5 ? 0 : round_to(p->dtype, 0.3 * noise(2, i)); /* a row of zeros has no norm */
    for (int i = 0; i < CLASSES; i++)
        v->class_weight[i] = round_to(SHARD_BFLOAT16, 1 + 0.5 * noise(4, i));
    for (int i = 0; i < ROWS; i++) {
        v->label[i] = p->form & IGNORING && i % 3 == 1 ? -100 : (i * 7919 + CLASSES - 1) % CLASSES;
        v->m2[i] = -0.2 * (1 + noise(5, i));
        v->m3[i] = 0.2 * (1 + noise(6, i));
    }
    memset(v->flag, true, sizeof v->flag);
    if (p->form & SAMPLED)
        SHARD_SCOPE
        {
            bool *flag = flags_of(labels_of(v->label, ROWS), CLASSES, 0.3, 3, 4);
            memcpy(v->flag, flag, sizeof v->flag);
            free(flag);
        }
}

/* Valid in the open scope. */
static shard_margin_logits_options margin_of(const problem *p, const values *v)
{
    static const struct {
        double m1, m2, m3;
        shard_margin_rule rule;
    } numbers[WAYS] = {[ARC] = {1, 0.5, 0, SHARD_MARGIN_LINEAR},          [COS] = {1, 0, 0.4, SHARD_MARGIN_LINEAR},
                       [COMBINED] = {1.1, 0.3, 0.2, SHARD_MARGIN_COSINE}, [ADA] = {1, 0, 0, SHARD_MARGIN_CLAMP},
                       [EASY] = {1, 0.5, 0, SHARD_MARGIN_EASY},           [NO_NORMS] = {1, 0.2, 0.1, SHARD_MARGIN_LINEAR}};
    shard_margin_logits_options options = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    options.scale = p->scale;
    options.m1 = numbers[p->way].m1;
    options.m2 = numbers[p->way].m2;
    options.m3 = numbers[p->way].m3;
    options.rule = numbers[p->way].rule;
    if (p->way == ADA) {
        options.row_m2 = tensor_of(v->m2, SHARD_SHAPE(ROWS), SHARD_FLOAT64);
        options.row_m3 = tensor_of(v->m3, SHARD_SHAPE(ROWS), SHARD_FLOAT64);
    }
    return options;
}

static shard_cross_entropy_options options_of(const problem *p, shard_tensor *class_weight)
{
    const shard_cross_entropy_options defaults = {SHARD_CROSS_ENTROPY_OPTIONS_VALUES};
    shard_cross_entropy_options options = defaults;
    options.weight = p->form & WEIGHTED ? class_weight : NULL;
    options.label_smoothing = p->form & SMOOTHED ? 0.1 : 0;
    options.z_loss = p->form % 3 == 0 ? 0.01 : 0;
    options.logit_scale = p->way == NORMALIZED ? p->scale : p->form % 5 == 0 ? 0.5 : 1;
    return options;
}

static shard_tensor *leaf_of(const double *of, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *leaf = tensor_of(of, shape, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

/* By the plain functions in float64, for a layer of the classes that count. */
static void compute_expected(const problem *p, values *v)
{
    double *weight = calloc(2 * CLASSES * IN, sizeof *weight), *dweight = weight + CLASSES * IN, class_weight[CLASSES];
    int64_t position[CLASSES], count = 0, label[ROWS];
    for (int c = 0; c < CLASSES; c++)
        if (v->flag[c]) {
            memcpy(weight + count * IN, v->weight + c * IN, IN * sizeof *weight);
            class_weight[count] = v->class_weight[c];
            position[c] = count++;
        }
    for (int i = 0; i < ROWS; i++)
        label[i] = v->label[i] < 0 ? v->label[i] : position[v->label[i]];
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(ROWS, IN), SHARD_FLOAT64), *a = x, *labels = labels_of(label, ROWS);
        shard_tensor *w = leaf_of(weight, SHARD_SHAPE(count, IN), SHARD_FLOAT64), *b = w;
        if (p->way != NO_NORMS) {
            a = shard_normalize(x, -1, 1e-12);
            b = shard_normalize(w, -1, 1e-12);
        }
        shard_tensor *logits = shard_linear(a, b, NULL);
        const shard_margin_logits_options margin = margin_of(p, v);
        if (p->way != NORMALIZED)
            logits = shard_margin_logits_with(logits, labels, &margin);
        shard_cross_entropy_options options = options_of(p, tensor_of(class_weight, SHARD_SHAPE(count), SHARD_FLOAT64));
        shard_tensor *loss = shard_cross_entropy_with(logits, labels, &options, NULL);
        ck_assert_msg(loss, "%s", shard_last_error());
        v->loss = shard_item(loss);
        check_ok(shard_backward(loss));
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(w), dweight);
    }
    for (int c = 0; c < CLASSES; c++)
        if (v->flag[c])
            memcpy(v->dweight + c * IN, dweight + position[c] * IN, IN * sizeof *weight);
    free(weight);
}

/* Twice, so that gradients add up. */
static void compute_found(const problem *p, values *v, shard_group *group, shard_range range)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(ROWS, IN), p->dtype), *labels = labels_of(v->label, ROWS);
        shard_tensor *weight = leaf_of(v->weight + range.start * IN, SHARD_SHAPE(range.size, IN), p->weight_dtype);
        if (group)
            weight->placement = (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = CLASSES};
        const shard_margin_logits_options margin = margin_of(p, v);
        shard_cross_entropy_options options = options_of(p, tensor_of(v->class_weight, SHARD_SHAPE(CLASSES), SHARD_FLOAT32));
        options.normalized = p->way != NO_NORMS;
        options.margin = p->way == NORMALIZED ? NULL : &margin;
        options.sample = p->form & SAMPLED ? shard_sample_classes(labels, weight, 0.3, 3, 4) : NULL;
        for (int twice = 0; twice < 2; twice++) {
            shard_tensor *loss = shard_linear_cross_entropy_with(x, weight, NULL, labels, &options, NULL);
            ck_assert_msg(loss, "%s", shard_last_error());
            v->loss = shard_item(loss);
            check_ok(shard_backward(shard_scale(loss, 0.5)));
        }
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(weight), v->dweight);
    }
}

static void compare(const problem *p, const char *what, const double *found, const double *expected, int64_t count,
                    double tolerance)
{
    check_doubles(found, expected, count, tolerance, 1e-3, "way %d, form %d, scale %g, %s and %s: %s", (int)p->way, p->form,
                  p->scale, shard_dtype_name(p->dtype), shard_dtype_name(p->weight_dtype), what);
}

static const struct {
    shard_dtype x, weight;
    double scale, tolerance;
} dtypes[] = {{SHARD_FLOAT64, SHARD_FLOAT64, 64, 1e-10},
              {SHARD_FLOAT32, SHARD_FLOAT32, 8, 1e-5},
              {SHARD_FLOAT32, SHARD_FLOAT32, 64, 5e-5},
              {SHARD_BFLOAT16, SHARD_FLOAT32, 8, 0x1p-4},
              {SHARD_BFLOAT16, SHARD_BFLOAT16, 8, 0x1p-4}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static void check_way(way how, shard_group *group, int step)
{
    static values expected, found;
    shard_range range = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    shard_head_tile = 8;
    for (int form = 0; form < FORMS; form++)
        for (int k = (form + (int)how) % step; k < DTYPES; k += step) {
            problem p = {how, form, dtypes[k].x, dtypes[k].weight, dtypes[k].scale};
            make_values(&p, &expected);
            found = expected;
            compute_expected(&p, &expected);
            compute_found(&p, &found, group, range);
            compare(&p, "loss", &found.loss, &expected.loss, 1, dtypes[k].tolerance);
            compare(&p, "dx", found.dx, expected.dx, ROWS * IN, dtypes[k].tolerance);
            /* The gradient of a row without a norm is 1e12 times larger: the other rows are compared. */
            for (int c = 0; c < 2; c++) {
                int64_t first = c ? 6 : 0, last = c ? CLASSES : 5;
                first = first > range.start ? first : range.start;
                last = last < range.start + range.size ? last : range.start + range.size;
                if (first < last)
                    compare(&p, "dweight", found.dweight + (first - range.start) * IN, expected.dweight + first * IN,
                            (last - first) * IN, dtypes[k].tolerance);
            }
        }
    shard_head_tile = 0;
}

START_TEST(test_equals_plain)
{
    check_way((way)_i, NULL, 1);
}
END_TEST

START_TEST(test_composed_equals_plain)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    device->head = NULL;
    check_way((way)_i, NULL, 1);
    device->head = fused;
}
END_TEST

static void equals_on_ranks(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < WAYS; i++)
        check_way((way)i, world, 5);
}

START_TEST(test_equals_on_ranks)
{
    run_ranks(rank_counts[_i], equals_on_ranks);
}
END_TEST

/* Rows of NaN that are ignored leave the loss and the other rows' gradients as they are, and have gradients of 0. */
START_TEST(test_ignored_rows_of_nan)
{
    static values expected, found;
    for (int form = IGNORING; form < FORMS; form++)
        for (int d = 0; d < DTYPES && form & IGNORING; d++) {
            problem p = {NO_NORMS, form, dtypes[d].x, dtypes[d].weight, dtypes[d].scale};
            make_values(&p, &expected);
            found = expected;
            for (int i = 0; i < ROWS * IN; i++)
                found.x[i] = found.label[i / IN] < 0 ? NAN : found.x[i];
            compute_found(&p, &expected, NULL, (shard_range){0, CLASSES});
            compute_found(&p, &found, NULL, (shard_range){0, CLASSES});
            ck_assert_double_eq(found.loss, expected.loss);
            for (int i = 0; i < ROWS * IN; i++)
                ck_assert_double_eq(found.dx[i], found.label[i / IN] < 0 ? 0 : expected.dx[i]);
        }
}
END_TEST

/* Of logits in memory, which are cosines. */
START_TEST(test_margin_of_logits)
{
    problem p = {ARC, IGNORING, SHARD_FLOAT32, SHARD_FLOAT32, 8};
    static values v;
    make_values(&p, &v);
    SHARD_SCOPE
    {
        shard_tensor *cosines = leaf_of(v.weight, SHARD_SHAPE(ROWS, CLASSES), SHARD_FLOAT32), *labels = labels_of(v.label, ROWS);
        double loss[2], gradient[2][ROWS * CLASSES];
        const shard_margin_logits_options margin = margin_of(&p, &v);
        for (int i = 0; i < 2; i++) {
            shard_tensor *y = i ? shard_cross_entropy(cosines, labels, .margin = &margin)
                                : shard_cross_entropy(shard_margin_logits_with(cosines, labels, &margin), labels);
            ck_assert_msg(y, "%s", shard_last_error());
            loss[i] = shard_item(y);
            check_ok(shard_backward(y));
            read_values(shard_grad(cosines), gradient[i]);
            shard_zero_grad(cosines);
        }
        ck_assert_double_eq(loss[0], loss[1]);
        ck_assert_mem_eq(gradient[0], gradient[1], sizeof gradient[0]);
    }
}
END_TEST

/* ---- face recognition's recipe ---- */

#define LR 0.2
#define MOMENTUM 0.9
#define DECAY 1e-3

typedef struct training {
    shard_module *head;
    shard_optimizer *sgd;
    shard_tensors *state;
} training;

static void begin(training *t, shard_group *group)
{
    shard_manual_seed(7);
    t->head = shard_nn_parallel_classifier(IN, CLASSES, group, .bias = false);
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

static void make_batch(int64_t step, values *v)
{
    for (int i = 0; i < ROWS * IN; i++)
        v->x[i] = noise((uint64_t)(100 + step), i);
    for (int i = 0; i < ROWS; i++)
        v->label[i] = (step * 31 + i * i * 17) % CLASSES;
    SHARD_SCOPE
    {
        bool *flag = flags_of(labels_of(v->label, ROWS), CLASSES, 0.2, 9, step);
        memcpy(v->flag, flag, sizeof v->flag);
        free(flag);
    }
}

static void train(training *t, int64_t from, int64_t to)
{
    static values v;
    shard_tensor *weight = shard_module_tensor(t->head, "weight");
    for (int64_t step = from; step < to; step++)
        SHARD_SCOPE
        {
            make_batch(step, &v);
            shard_tensor *features = leaf_of(v.x, SHARD_SHAPE(ROWS, IN), SHARD_FLOAT32), *labels = labels_of(v.label, ROWS);
            shard_tensor *sample = shard_sample_classes(labels, weight, 0.2, 9, step);
            shard_tensor *logits = shard_forward(t->head, features);
            check_ok(shard_backward(shard_cross_entropy(logits, labels, .sample = sample, .normalized = true,
                                                        .margin = SHARD_MARGIN(.scale = 16, .m2 = 0.5))));
            ck_assert_ptr_null(logits->storage->memory);
            ck_assert_ptr_null(weight->leaf->grad->storage->memory);
            check_ok(shard_step(t->sgd));
        }
}

/* The whole weight after `steps` steps in float64, with the plain functions. */
static void train_reference(int64_t steps, double *weight)
{
    static values v;
    double momentum[CLASSES * IN] = {0};
    const problem p = {ARC, SAMPLED, SHARD_FLOAT64, SHARD_FLOAT64, 16}; /* without a z-loss and another scale */
    training t;
    begin(&t, NULL);
    read_values(shard_module_tensor(t.head, "weight"), v.weight);
    end(&t);
    for (int64_t step = 0; step < steps; step++) {
        make_batch(step, &v);
        memset(v.dweight, 0, sizeof v.dweight);
        compute_expected(&p, &v);
        for (int i = 0; i < CLASSES * IN; i++)
            if (v.flag[i / IN]) {
                momentum[i] = MOMENTUM * momentum[i] + v.dweight[i] + DECAY * v.weight[i];
                v.weight[i] -= LR * momentum[i];
            }
    }
    memcpy(weight, v.weight, sizeof v.weight);
}

typedef struct run {
    int64_t from, to;
    const char *load, *save;
} run;

static void recognizes(shard_group *world, void *context)
{
    const run *now = context;
    double expected[CLASSES * IN], found[CLASSES * IN];
    training t;
    shard_head_tile = 8;
    begin(&t, world);
    if (now->load)
        check_ok(shard_load(t.state, now->load));
    train(&t, now->from, now->to);
    if (now->save)
        check_ok(shard_save(t.state, now->save, NULL));
    shard_tensor *weight = shard_module_tensor(t.head, "weight");
    int64_t start = shard_is_split(weight, 0) ? weight->placement.start * IN : 0;
    const problem p = {.way = ARC};
    read_values(weight, found);
    train_reference(now->to, expected);
    compare(&p, "weight", found, expected + start, shard_numel(weight), 1e-5);
    end(&t);
    shard_head_tile = 0;
}

START_TEST(test_recognizes)
{
    const char *path = scratch_path("faces.safetensors");
    run first = {0, STEPS / 2, NULL, path}, then = {STEPS / 2, STEPS, path, NULL};
    run_job(3, recognizes, &first);
    run_job(rank_counts[_i], recognizes, &then);
}
END_TEST

/* ---- errors ---- */

START_TEST(test_refuses)
{
    int64_t label[] = {3, 5};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 4)), *weight = shard_ones(SHARD_SHAPE(9, 4)),
                     *bias = shard_ones(SHARD_SHAPE(9));
        shard_tensor *labels = labels_of(label, 2), *ranks;
        ck_assert_ptr_null(shard_linear_cross_entropy(labels, weight, NULL, labels, .normalized = true));
        check_error(SHARD_ERROR_SHAPE, "*shard_linear_cross_entropy: operand 0 is int64*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, bias, labels, .normalized = true));
        check_error(SHARD_ERROR_ARGUMENT, "*a bias with a margin or normalized rows; cosines have none*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .margin = SHARD_MARGIN(.scale = 0)));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_linear_cross_entropy: scale 0; a finite number above 0 is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .margin = SHARD_MARGIN(.m3 = NAN)));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_linear_cross_entropy: m3 nan; a finite number is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .margin = SHARD_MARGIN(.row_m2 = bias)));
        check_error(SHARD_ERROR_SHAPE, "*row_m2 of shape [[]9] *");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .normalized = true, .soft_cap = 2));
        check_error(SHARD_ERROR_UNSUPPORTED, "*soft_cap 2 with *a margin or normalized rows; 0 is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .normalized = true, .logit_scale = 0));
        check_error(SHARD_ERROR_ARGUMENT, "*logit_scale 0; a finite number above 0 is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .margin = SHARD_MARGIN(), .logit_scale = NAN));
        check_error(SHARD_ERROR_ARGUMENT, "*logit_scale nan; a finite number above 0 is needed*");
        ck_assert_ptr_null(
            shard_linear_cross_entropy(x, weight, NULL, labels, .margin = SHARD_MARGIN(.scale = 1e300), .logit_scale = 1e300));
        check_error(SHARD_ERROR_ARGUMENT, "*the margin's scale and logit_scale inf; a finite number above 0 is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy_with_rank(x, weight, NULL, labels, &ranks, .normalized = true));
        check_error(SHARD_ERROR_UNSUPPORTED, "*a label rank with *");
        ck_assert_ptr_null(
            shard_cross_entropy_with_rank(shard_linear(x, weight, NULL), labels, &ranks, .margin = SHARD_MARGIN(.m3 = 0.4)));
        check_error(SHARD_ERROR_UNSUPPORTED, "*shard_cross_entropy: a label rank with a margin; *");
        ck_assert_ptr_null(shard_cross_entropy(shard_linear(x, weight, NULL), labels, .normalized = true));
        check_error(SHARD_ERROR_UNSUPPORTED, "*shard_cross_entropy: normalized rows for logits in memory*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear margins");
    TCase *tcase = test_case(suite, "linear margins");
    scratch_open();
    tcase_add_loop_test(tcase, test_equals_plain, 0, WAYS);
    tcase_add_loop_test(tcase, test_composed_equals_plain, 0, WAYS);
    add_ranks_test(tcase, test_equals_on_ranks);
    tcase_add_test(tcase, test_ignored_rows_of_nan);
    tcase_add_test(tcase, test_margin_of_logits);
    add_ranks_test(tcase, test_recognizes);
    tcase_add_test(tcase, test_refuses);
    int code = test_run(suite);
    scratch_close();
    return code;
}
