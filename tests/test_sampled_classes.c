/* Samples of classes: which they are, the loss and its gradients. */
#include "support/kernels.h"
#include "support/loss.h"
#include "support/sampled.h"

#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which classes ---- */

enum { MANY = 20000, LABELS = 40 };

static shard_tensor *empty_weight(int64_t classes, int64_t in, shard_group *group)
{
    shard_range range = shard_split_range(classes, shard_group_size(group), shard_group_rank(group));
    return shard_as_split(shard_zeros(SHARD_SHAPE(range.size, in)), 0, group, range.start, classes);
}

static void some_labels(int64_t *label)
{
    for (int64_t i = 0; i < LABELS; i++)
        label[i] = i % 7 == 3 ? -100 : i * i * 37 % MANY;
}

static void same_on_ranks(shard_group *world, void *context)
{
    (void)context;
    int64_t label[LABELS], count;
    some_labels(label);
    SHARD_SCOPE
    {
        shard_tensor *labels = labels_of(label, LABELS), *weight = empty_weight(MANY, 1, world);
        bool *flag = flags_of(labels, MANY, 0.1, 5, 17);
        int64_t *class = classes_of(shard_sample_classes(labels, weight, 0.1, 5, 17), &count), found = 0;
        shard_range range = shard_split_range(MANY, shard_group_size(world), shard_group_rank(world));
        for (int64_t c = range.start; c < range.start + range.size && found <= count; c++)
            if (flag[c] && (found == count || class[found++] != c))
                ck_abort_msg("class %lld is in the sample of all classes, not in that of its rank", (long long)c);
        ck_assert_int_eq(found, count);
        free(class);
        free(flag);
    }
}

START_TEST(test_same_on_ranks)
{
    run_ranks(rank_counts[_i], same_on_ranks);
}
END_TEST

/* Blocks of classes that are drawn one after the other have other numbers. */
START_TEST(test_blocks)
{
    enum { BLOCK = 65536 };
    int64_t both = 0, label = 0;
    SHARD_SCOPE
    {
        bool *flag = flags_of(labels_of(&label, 1), 2 * BLOCK, 0.1, 5, 17);
        for (int64_t c = 1; c < BLOCK; c++)
            both += flag[c] && flag[BLOCK + c];
        free(flag);
    }
    ck_assert_int_le(llabs(both - BLOCK / 100), 160); /* of 655 with a deviation of 25; 6,554 were they the same */
}
END_TEST

START_TEST(test_draw)
{
    int64_t label[LABELS], counts[4] = {0};
    some_labels(label);
    SHARD_SCOPE
    {
        shard_tensor *labels = labels_of(label, LABELS);
        bool *flag[] = {flags_of(labels, MANY, 0.1, 5, 17), flags_of(labels, MANY, 0.1, 5, 18),
                        flags_of(labels, MANY, 0.1, 6, 17), flags_of(labels, MANY, 0.0, 5, 17),
                        flags_of(labels, MANY, 1.0, 5, 17)};
        for (int64_t i = 0; i < LABELS; i++)
            for (int k = 0; k < 5 && label[i] >= 0; k++)
                ck_assert(flag[k][label[i]]);
        for (int64_t c = 0; c < MANY; c++) {
            counts[0] += flag[0][c];
            counts[1] += flag[0][c] && flag[1][c];
            counts[2] += flag[0][c] && flag[2][c];
            counts[3] += flag[3][c];
            if (!flag[4][c] || (flag[3][c] && !flag[0][c]))
                ck_abort_msg("class %lld", (long long)c);
        }
        /* 2000 and 200 are expected, with deviations of 42 and 14 */
        ck_assert_int_le(llabs(counts[0] - 2000 - LABELS), 250);
        ck_assert_int_le(llabs(counts[1] - 200 - LABELS), 90);
        ck_assert_int_le(llabs(counts[2] - 200 - LABELS), 90);
        ck_assert_int_le(counts[3], LABELS);
        for (int k = 0; k < 5; k++)
            free(flag[k]);
    }
}
END_TEST

/* ---- the correction ---- */

/* Also that of the classes of a rank; and its mean: the sum over a sample of 1 / probability has the expectation of MANY. */
static void corrects(shard_group *world, void *context)
{
    (void)context;
    enum { STEPS = 50 };
    int64_t label[LABELS], count;
    double sum = 0;
    some_labels(label);
    shard_range range = shard_split_range(MANY, shard_group_size(world), shard_group_rank(world));
    for (int step = 0; step < STEPS; step++)
        SHARD_SCOPE
        {
            shard_tensor *labels = labels_of(label, LABELS), *weight = empty_weight(MANY, 1, world);
            shard_tensor *sample = shard_sample_classes(labels, weight, 0.1, 5, step);
            shard_tensor *correction = shard_sample_correction(sample, labels, 0.1);
            int64_t *class = classes_of(sample, &count);
            float *value = calloc((size_t)count + 1, sizeof *value);
            ck_assert_msg(correction && shard_numel(correction) == count, "%s", shard_last_error());
            check_ok(shard_copy_to_host(correction, value, (size_t)count * sizeof *value));
            for (int64_t i = 0; i < count; i++) {
                bool labelled = false;
                for (int k = 0; k < LABELS; k++)
                    labelled |= label[k] == class[i];
                ck_assert_double_eq_tol((double)value[i], labelled ? 0 : log(10), 1e-6);
                sum += exp((double)value[i]);
            }
            free(value);
            free(class);
        }
    ck_assert_double_eq_tol(sum / STEPS, (double)range.size, 6 * sqrt(9.0 * (double)range.size / STEPS)); /* six deviations */
}

START_TEST(test_correction)
{
    run_ranks(rank_counts[_i], corrects);
}
END_TEST

/* ---- the loss and its gradients ---- */

enum { HAS_BIAS = 1, WEIGHTED = 2, SMOOTHED = 4, IGNORING = 8, FEW_LABELS = 16, FORMS = 32 };

typedef struct problem {
    int64_t rows, in, classes;
    shard_dtype dtype, weight_dtype;
    int form;
    double rate;
} problem;

/* Of the whole problem. */
typedef struct values {
    double *x, *weight, *bias, *class_weight, loss, *dx, *dweight, *dbias;
    int64_t *label;
    bool *flag; /* of the classes in the sample */
} values;

static double *numbers(int64_t count, uint64_t seed, shard_dtype dtype)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count && seed; i++)
        x[i] = round_to(dtype, noise(seed, i));
    return x;
}

static values values_make(const problem *p)
{
    values v = {.x = numbers(p->rows * p->in, 1, p->dtype),
                .weight = numbers(p->classes * p->in, 2, p->dtype),
                .bias = numbers(p->classes, 3, p->dtype),
                .class_weight = numbers(p->classes, 4, SHARD_BFLOAT16),
                .dx = numbers(p->rows * p->in, 0, p->dtype),
                .dweight = numbers(p->classes * p->in, 0, p->dtype),
                .dbias = numbers(p->classes, 0, p->dtype),
                .label = calloc((size_t)p->rows + 1, sizeof(int64_t))};
    for (int64_t i = 0; i < p->classes; i++)
        v.class_weight[i] = 1 + 0.5 * v.class_weight[i];
    for (int64_t i = 0; i < p->rows; i++) /* few labels: all in the first classes */
        v.label[i] = p->form & IGNORING && i % 3 == 1 ? -100
                     : p->form & FEW_LABELS           ? i % 2
                                                      : (i * 7919 + p->classes - 1) % p->classes;
    SHARD_SCOPE
    {
        v.flag = flags_of(labels_of(v.label, p->rows), p->classes, p->rate, 3, 4);
    }
    return v;
}

static void values_free(values *v)
{
    double *all[] = {v->x, v->weight, v->bias, v->class_weight, v->dx, v->dweight, v->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(v->label);
    free(v->flag);
}

static shard_tensor *leaf_of(const double *of, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *leaf = tensor_of(of, shape, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

static double scale_of(const problem *p)
{
    return p->form % 7 < 3 ? 2 : 1;
}

/* Added to the logits of classes that are no labels, before these are scaled. */
static double correction_of(const problem *p)
{
    return p->form % 5 < 2 && p->rate > 0 ? round_to(p->weight_dtype, round_to(SHARD_FLOAT32, -log(p->rate))) / scale_of(p) : 0;
}

static shard_cross_entropy_options options_of(const problem *p, shard_tensor *class_weight)
{
    const shard_cross_entropy_options defaults = {SHARD_CROSS_ENTROPY_OPTIONS_VALUES};
    shard_cross_entropy_options options = defaults;
    options.weight = p->form & WEIGHTED ? class_weight : NULL;
    options.label_smoothing = p->form & SMOOTHED ? 0.1 : 0;
    options.z_loss = p->form % 3 == 0 ? 0.05 : 0;
    options.logit_scale = scale_of(p);
    return options;
}

static bool is_label(const problem *p, const values *v, int64_t class)
{
    for (int64_t i = 0; i < p->rows; i++)
        if (v->label[i] == class)
            return true;
    return false;
}

/* By the plain functions in float64, for a layer of the sample's classes alone. */
static void compute_expected(const problem *p, values *v)
{
    int64_t *position = calloc((size_t)p->classes, sizeof *position), count = 0;
    double *weight = numbers(p->classes * p->in, 0, p->dtype), *bias = numbers(p->classes, 0, p->dtype),
           *class_weight = numbers(p->classes, 0, p->dtype), *dweight = numbers(p->classes * p->in, 0, p->dtype),
           *dbias = numbers(p->classes, 0, p->dtype);
    int64_t *label = calloc((size_t)p->rows + 1, sizeof *label);
    for (int64_t c = 0; c < p->classes; c++)
        if (v->flag[c]) {
            memcpy(weight + count * p->in, v->weight + c * p->in, (size_t)p->in * sizeof *weight);
            bias[count] = (p->form & HAS_BIAS ? v->bias[c] : 0) + (is_label(p, v, c) ? 0 : correction_of(p));
            class_weight[count] = v->class_weight[c];
            position[c] = count++;
        }
    for (int64_t i = 0; i < p->rows; i++)
        label[i] = v->label[i] < 0 ? v->label[i] : position[v->label[i]];
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(p->rows, p->in), SHARD_FLOAT64);
        shard_tensor *w = leaf_of(weight, SHARD_SHAPE(count, p->in), SHARD_FLOAT64);
        shard_tensor *b = leaf_of(bias, SHARD_SHAPE(count), SHARD_FLOAT64);
        shard_cross_entropy_options options = options_of(p, tensor_of(class_weight, SHARD_SHAPE(count), SHARD_FLOAT64));
        shard_tensor *loss = shard_cross_entropy_with(shard_linear(x, w, b), labels_of(label, p->rows), &options, NULL);
        ck_assert_msg(loss, "%s", shard_last_error());
        v->loss = shard_item(loss);
        check_ok(shard_backward(loss));
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(w), dweight);
        read_values(shard_grad(b), dbias);
    }
    for (int64_t c = 0; c < p->classes; c++)
        if (v->flag[c]) {
            memcpy(v->dweight + c * p->in, dweight + position[c] * p->in, (size_t)p->in * sizeof *weight);
            v->dbias[c] = dbias[position[c]];
        }
    double *all[] = {weight, bias, class_weight, dweight, dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(label);
    free(position);
}

/* Twice, so that gradients add up. dense: of logits in memory. */
static void compute_found(const problem *p, values *v, shard_group *group, bool dense)
{
    shard_range range = shard_split_range(p->classes, shard_group_size(group), shard_group_rank(group));
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(v->x, SHARD_SHAPE(p->rows, p->in), p->dtype), *bias = NULL;
        shard_tensor *weight = leaf_of(v->weight + range.start * p->in, SHARD_SHAPE(range.size, p->in), p->weight_dtype);
        shard_tensor *labels = labels_of(v->label, p->rows);
        if (p->form & HAS_BIAS)
            bias = leaf_of(v->bias + range.start, SHARD_SHAPE(range.size), p->weight_dtype);
        shard_tensor *parts[] = {weight, bias};
        for (int i = 0; i < 2 && group; i++)
            if (parts[i])
                parts[i]->placement =
                    (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = p->classes};
        shard_dtype weight_dtype = dense ? p->dtype : SHARD_FLOAT32;
        shard_cross_entropy_options options = options_of(p, tensor_of(v->class_weight, SHARD_SHAPE(p->classes), weight_dtype));
        options.sample = shard_sample_classes(labels, weight, p->rate, 3, 4);
        options.sample_correction = correction_of(p) != 0 ? shard_sample_correction(options.sample, labels, p->rate) : NULL;
        for (int twice = 0; twice < 2; twice++) {
            shard_tensor *logits = dense ? shard_linear(shard_copy_to_group(x, group), weight, bias) : NULL;
            shard_tensor *loss = dense ? shard_cross_entropy_with(logits, labels, &options, NULL)
                                       : shard_linear_cross_entropy_with(x, weight, bias, labels, &options, NULL);
            ck_assert_msg(loss, "%s", shard_last_error());
            v->loss = shard_item(loss);
            check_ok(shard_backward(shard_scale(loss, 0.5)));
        }
        read_values(shard_grad(x), v->dx);
        read_values(shard_grad(weight), v->dweight);
        if (bias)
            read_values(shard_grad(bias), v->dbias);
    }
}

static void compare(const problem *p, const char *what, const double *found, const double *expected, int64_t count,
                    double tolerance)
{
    check_doubles(found, expected, count, tolerance, 0.01, "%lld classes, %s and %s, form %d, rate %g: %s", (long long)p->classes,
                  shard_dtype_name(p->dtype), shard_dtype_name(p->weight_dtype), p->form, p->rate, what);
}

static const struct {
    shard_dtype x, weight;
    double tolerance;
} dtypes[] = {{SHARD_FLOAT64, SHARD_FLOAT64, 1e-12},
              {SHARD_FLOAT32, SHARD_FLOAT32, 1e-5},
              {SHARD_BFLOAT16, SHARD_FLOAT32, 0x1p-6},
              {SHARD_BFLOAT16, SHARD_BFLOAT16, 0x1p-6}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
static const double rates[] = {0.25, 0, 1};

/* dense: of the dtypes that shard_linear takes. */
static void check_forms(shard_group *group, int step, bool dense)
{
    shard_head_tile = 8;
    for (int form = 0; form < FORMS; form++)
        for (int k = form % step; k < DTYPES; k += step) {
            if (dense && dtypes[k].x != dtypes[k].weight)
                continue;
            problem p = {11, 19, 131, dtypes[k].x, dtypes[k].weight, form, rates[(form + k) % 3]};
            double tolerance = dtypes[k].tolerance * scale_of(&p);
            values expected = values_make(&p), found = values_make(&p);
            shard_range range = shard_split_range(p.classes, shard_group_size(group), shard_group_rank(group));
            compute_expected(&p, &expected);
            compute_found(&p, &found, group, dense);
            compare(&p, "loss", &found.loss, &expected.loss, 1, tolerance);
            compare(&p, "dx", found.dx, expected.dx, p.rows * p.in, tolerance);
            compare(&p, "dweight", found.dweight, expected.dweight + range.start * p.in, range.size * p.in, tolerance);
            compare(&p, "dbias", found.dbias, expected.dbias + range.start, form & HAS_BIAS ? range.size : 0, tolerance);
            for (int64_t c = 0; c < range.size; c++)
                if (!expected.flag[range.start + c] && found.dweight[c * p.in] != 0)
                    ck_abort_msg("a gradient of class %lld without a place in the sample", (long long)(range.start + c));
            values_free(&expected);
            values_free(&found);
        }
    shard_head_tile = 0;
}

START_TEST(test_equals_layer_of_sample)
{
    check_forms(NULL, 1, false);
}
END_TEST

START_TEST(test_logits_equal_layer_of_sample)
{
    check_forms(NULL, 1, true);
}
END_TEST

START_TEST(test_composed_equals_layer_of_sample)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    device->head = NULL;
    check_forms(NULL, 1, false);
    device->head = fused;
}
END_TEST

static void equals_on_ranks(shard_group *world, void *context)
{
    check_forms(world, 3, context != NULL);
}

START_TEST(test_equals_on_ranks)
{
    run_ranks(rank_counts[_i], equals_on_ranks);
}
END_TEST

START_TEST(test_logits_equal_on_ranks)
{
    bool dense = true;
    run_ranks(rank_counts[_i], equals_on_ranks, .context = &dense);
}
END_TEST

static shard_tensor *loss_of_form(int form, shard_tensor *logits, shard_tensor *labels, shard_tensor *sample)
{
    if (form == 0)
        return shard_cross_entropy(logits, labels, .sample = sample, .reduction = SHARD_REDUCTION_NONE, .soft_cap = 1.5,
                                   .label_smoothing = 0.2);
    if (form == 1)
        return shard_cross_entropy(logits, labels, .sample = sample, .reduction = SHARD_REDUCTION_NONE, .logit_scale = 3,
                                   .z_loss = 0.1);
    return shard_cross_entropy(logits, labels, .sample = sample, .reduction = SHARD_REDUCTION_NONE,
                               .margin = SHARD_MARGIN(.m2 = 0.3, .scale = 8));
}

/* Options that the loss without logits refuses, images, and a margin: against the logits of the sample alone. */
START_TEST(test_logits_options)
{
    enum { CLASSES = 40, IMAGES = 6 };
    const int64_t sampled[] = {2, 3, 11, 17, 30, 39}, at[] = {1, 0, 5, 3, 3, 2};
    const int64_t count = sizeof sampled / sizeof *sampled;
    double value[IMAGES * CLASSES], some[IMAGES * 6], found[IMAGES * CLASSES], expected[IMAGES * 6];
    int64_t label[IMAGES], position[IMAGES];
    for (int64_t i = 0; i < IMAGES; i++) {
        position[i] = i == 4 ? -100 : at[i];
        label[i] = i == 4 ? -100 : sampled[at[i]];
        for (int64_t c = 0; c < CLASSES; c++)
            value[i * CLASSES + c] = 0.9 * noise(7, i * CLASSES + c);
        for (int64_t k = 0; k < count; k++)
            some[i * count + k] = value[i * CLASSES + sampled[k]];
    }
    for (int k = 0; k < 3; k++)
        SHARD_SCOPE
        {
            shard_tensor *all = leaf_of(value, SHARD_SHAPE(2, 3, CLASSES), SHARD_FLOAT64);
            shard_tensor *few = leaf_of(some, SHARD_SHAPE(2, 3, count), SHARD_FLOAT64);
            shard_tensor *labels = shard_reshape(labels_of(label, IMAGES), SHARD_SHAPE(2, 3));
            shard_tensor *positions = shard_reshape(labels_of(position, IMAGES), SHARD_SHAPE(2, 3));
            shard_tensor *dy = shard_uniform(SHARD_SHAPE(2, 3), 0, 1, .dtype = SHARD_FLOAT64);
            shard_tensor *wanted = loss_of_form(k, few, positions, NULL);
            shard_tensor *loss = loss_of_form(k, all, labels, labels_of(sampled, count));
            ck_assert_msg(loss && wanted, "%s", shard_last_error());
            read_values(loss, found);
            read_values(wanted, expected);
            for (int i = 0; i < IMAGES; i++)
                ck_assert_double_eq_tol(found[i], expected[i], 1e-12);
            check_ok(shard_backward(shard_sum(shard_mul(loss, dy))));
            check_ok(shard_backward(shard_sum(shard_mul(wanted, dy))));
            read_values(shard_grad(all), found);
            read_values(shard_grad(few), expected);
            for (int64_t i = 0; i < IMAGES; i++)
                for (int64_t c = 0, n = 0; c < CLASSES; c++) {
                    bool in = n < count && sampled[n] == c;
                    ck_assert_double_eq_tol(found[i * CLASSES + c], in ? expected[i * count + n] : 0, 1e-12);
                    n += in;
                }
        }
}
END_TEST

/* Features in float16 that times the scale would be infinite: a sample of all classes is none. */
START_TEST(test_scales_float16)
{
    const double x[] = {2000, -1500, 1000, 1200}, w[] = {1e-3, 0, 0, 1e-3, 0, 1e-3, 0, 0, 1e-3, 1e-3, 1e-3, 0};
    const int64_t label = 2, all[] = {0, 1, 2};
    double loss[2], dx[2][4];
    for (int sampled = 0; sampled < 2; sampled++)
        SHARD_SCOPE
        {
            shard_tensor *features = leaf_of(x, SHARD_SHAPE(1, 4), SHARD_FLOAT16), *labels = labels_of(&label, 1);
            shard_tensor *weight = leaf_of(w, SHARD_SHAPE(3, 4), SHARD_FLOAT32), *sample = sampled ? labels_of(all, 3) : NULL;
            shard_tensor *of = shard_linear_cross_entropy(features, weight, NULL, labels, .logit_scale = 64, .sample = sample);
            ck_assert_msg(of, "%s", shard_last_error());
            loss[sampled] = shard_item(of);
            check_ok(shard_backward(of));
            read_values(shard_grad(features), dx[sampled]);
        }
    ck_assert_double_eq_tol(loss[0], 108.8, 0.2); /* 64 (3.2 - 1.5) */
    ck_assert_double_eq_tol(loss[1], loss[0], 1e-3);
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol(dx[1][i], dx[0][i], 1e-4);
}
END_TEST

/* A classifier has each loss in training, where its logits are not in memory, that it has in evaluation. */
START_TEST(test_classifier_in_training)
{
    enum { ROWS = 3, WIDTH = 8, CLASSES = 50 };
    const int64_t label[ROWS] = {1, 5, 44};
    for (int k = 0; k < 8; k++)
        SHARD_SCOPE
        {
            double loss[2];
            shard_module *layer = shard_nn_parallel_classifier(WIDTH, CLASSES, NULL, .bias = k % 2);
            shard_tensor *labels = labels_of(label, ROWS), *x = shard_normal(SHARD_SHAPE(ROWS, WIDTH), 0, 1);
            shard_tensor *sample = shard_sample_classes(labels, shard_module_tensor(layer, "weight"), 0.3, 1, 1);
            shard_tensor *correction = shard_sample_correction(sample, labels, 0.3);
            for (int training = 0; training < 2; training++) {
                shard_module_set_training(layer, training);
                shard_tensor *logits = shard_forward(layer, x);
                shard_tensor *y = k / 2 == 0   ? shard_cross_entropy(logits, labels, .sample = sample, .logit_scale = 2)
                                  : k / 2 == 1 ? shard_cross_entropy(logits, labels, .sample = sample, .soft_cap = 2)
                                  : k / 2 == 2 ? shard_cross_entropy(logits, labels, .sample = sample, .logit_scale = 3,
                                                                     .sample_correction = correction)
                                               : shard_cross_entropy(logits, labels, .margin = SHARD_MARGIN(.m3 = 0.2));
                ck_assert_msg(y, "%d: %s", k, shard_last_error());
                loss[training] = shard_item(y);
            }
            ck_assert_double_eq_tol(loss[1], loss[0], 1e-5);
            shard_module_destroy(layer);
        }
}
END_TEST

/* So it is with features and a weight of 16 bits, and class weights of another dtype; the loss is float32. */
START_TEST(test_classifier_of_16_bits)
{
    for (int binary = 0; binary < 2; binary++)
        SHARD_SCOPE
        {
            double loss[2];
            shard_module *layer = shard_nn_parallel_classifier(8, 50, NULL, .dtype = SHARD_BFLOAT16);
            shard_tensor *x = shard_cast(shard_normal(SHARD_SHAPE(2, 8), 0, 1), SHARD_BFLOAT16);
            shard_tensor *target = shard_reshape(labels_of((int64_t[]){0, 1, 5, 44}, 4), SHARD_SHAPE(2, 2));
            shard_tensor *labels = shard_reshape(shard_narrow(target, 0, 1, 1), SHARD_SHAPE(2));
            shard_tensor *weight = shard_uniform(SHARD_SHAPE(50), 0.5, 1.5);
            for (int training = 0; training < 2; training++) {
                shard_module_set_training(layer, training);
                shard_tensor *logits = shard_forward(layer, x);
                shard_tensor *y = binary ? shard_binary_cross_entropy_with_logits(logits, target, .weight = weight)
                                         : shard_cross_entropy(logits, labels, .weight = weight);
                ck_assert_msg(y, "%s", shard_last_error());
                ck_assert_int_eq(shard_tensor_dtype(y), SHARD_FLOAT32);
                loss[training] = shard_item(y);
            }
            ck_assert_double_eq_tol(loss[1], loss[0], 0x1p-6 * loss[0]);
            shard_module_destroy(layer);
        }
}
END_TEST

/* ---- errors ---- */

/* The error of rank 0, which the other ranks have as another rank's. */
static void check_joint(int rank, const char *pattern)
{
    check_error(rank == 0 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, pattern);
}

/* The loss of a sample that lacks a label on rank 0. A device that queues finds that later. */
static void check_lacking(shard_group *world, const shard_tensor *loss, const char *pattern)
{
    if (loss) {
        ck_assert(on_other_device());
        shard_synchronize(tested_device());
        shard_barrier(world);
    }
    check_joint(shard_group_rank(world), pattern);
}

static void refuses(shard_group *world, void *context)
{
    (void)context;
    int64_t label[] = {3, 5};
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 4)), *weight = empty_weight(130, 4, world), *labels = labels_of(label, 2);
        shard_tensor *sample = shard_sample_classes(labels, weight, 0.1, 1, 1);
        shard_tensor *none = labels_of(label, 0), *some = rank == 0 ? none : sample;
        check_lacking(
            world, shard_linear_cross_entropy(x, weight, NULL, labels, .sample = some),
            "*shard_linear_cross_entropy: label 3 at row 0 is not in the sample of 0 classes; draw it with these labels*");
        check_lacking(world, shard_linear_cross_entropy(x, weight, NULL, labels, .sample = some, .label_smoothing = 0.1),
                      "*label 3 at row 0 is not in the sample*");
        some = rank == 0 ? labels_of((int64_t[]){5, 3}, 2) : sample;
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = some));
        check_joint(rank, "*class 3 at position 1 of the sample; classes of this rank, in [[]0, *");
        some = rank == 0 ? NULL : sample;
        if (shard_group_size(world) > 1) {
            ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = some));
            check_error(SHARD_ERROR_MISMATCH, "*options or the number of classes on rank 1 differ*");
        }
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = sample, .soft_cap = 2));
        check_error(SHARD_ERROR_UNSUPPORTED, "*soft_cap 2 with a sample of classes*; 0 is needed*");
        shard_tensor *bias = shard_zeros(SHARD_SHAPE(shard_tensor_size(weight, 0)));
        bias->placement = weight->placement;
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, bias, labels, .sample = sample, .logit_scale = -1));
        check_error(SHARD_ERROR_ARGUMENT, "*logit_scale -1; a finite number above 0 is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = x));
        check_error(SHARD_ERROR_SHAPE,
                    "*a sample of float32 and shape *; a local int64 [[]n] of shard_sample_classes is needed*");
        shard_tensor *ranks;
        ck_assert_ptr_null(shard_linear_cross_entropy_with_rank(x, weight, NULL, labels, &ranks, .sample = sample));
        check_error(SHARD_ERROR_UNSUPPORTED, "*a label rank with a sample of classes*");
        shard_tensor *logits = shard_linear(x, weight, NULL);
        check_lacking(world, shard_cross_entropy(logits, labels, .sample = rank == 0 ? none : sample),
                      "*shard_cross_entropy: label 3 at row 0 is not in the sample of 0 classes; draw it with these labels*");
        ck_assert_ptr_null(shard_cross_entropy_with_rank(logits, labels, &ranks, .sample = sample));
        check_error(SHARD_ERROR_UNSUPPORTED, "*shard_cross_entropy: a label rank with a sample of classes*");
        ck_assert_ptr_null(shard_cross_entropy(logits, logits, .sample = sample));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_cross_entropy: a sample of classes with probabilities; labels are needed*");
        shard_tensor *correction = shard_sample_correction(sample, labels, 0.1);
        shard_tensor *long_one = shard_zeros(SHARD_SHAPE(shard_numel(sample) + 1));
        if (shard_group_size(world) > 1) {
            some = rank == 0 ? NULL : correction;
            ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = sample, .sample_correction = some));
            check_error(SHARD_ERROR_MISMATCH, "*options or the number of classes on rank 1 differ*");
        }
        some = rank == 0 ? long_one : correction;
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = sample, .sample_correction = some));
        check_error(rank == 0 ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER,
                    "*a sample's correction of float32 and shape *; a local floating *without a gradient is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample_correction = correction));
        check_error(SHARD_ERROR_ARGUMENT, "*a sample's correction without a sample*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, weight, NULL, labels, .sample = sample, .sample_correction = correction,
                                                      .normalized = true));
        check_error(SHARD_ERROR_ARGUMENT, "*a sample's correction with a margin or normalized rows; leave it out*");
        ck_assert_ptr_null(shard_cross_entropy(logits, labels, .sample_correction = correction));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_cross_entropy: a sample's correction without a sample*");
        ck_assert_ptr_null(shard_cross_entropy(logits, labels, .sample = sample, .sample_correction = correction, .soft_cap = 2));
        check_error(SHARD_ERROR_UNSUPPORTED, "*a sample's correction with soft_cap 2; 0 is needed*");
        ck_assert_ptr_null(shard_cross_entropy(logits, labels, .sample = sample, .sample_correction = correction,
                                               .margin = SHARD_MARGIN(.m2 = 0.3)));
        check_error(SHARD_ERROR_ARGUMENT, "*a sample's correction with a margin; leave it out*");
        ck_assert_ptr_null(shard_sample_correction(sample, labels, 0));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_sample_correction: rate 0; *in (0, 1], is needed*");
        ck_assert_ptr_null(shard_sample_correction(x, labels, 0.1));
        check_error(SHARD_ERROR_SHAPE, "*shard_sample_correction: a sample of float32 *; int64 [[]n] and int64 are needed*");
        ck_assert_ptr_null(shard_sample_classes(labels, weight, 1.5, 1, 1));
        check_error(SHARD_ERROR_ARGUMENT,
                    "*shard_sample_classes: rate 1.5 and step 1; a rate in [[]0, 1] and a step of at least 0*");
        ck_assert_ptr_null(shard_sample_classes(labels, weight, 0.5, 1, -1));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_sample_classes: rate 0.5 and step -1;*");
        ck_assert_ptr_null(shard_sample_classes(x, weight, 0.5, 1, 1));
        check_error(SHARD_ERROR_SHAPE, "*shard_sample_classes: labels of float32 *");
    }
}

START_TEST(test_refuses)
{
    run_ranks(1 + _i, refuses);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampled classes");
    TCase *tcase = test_case(suite, "sampled classes");
    add_ranks_test(tcase, test_same_on_ranks);
    tcase_add_test(tcase, test_blocks);
    tcase_add_test(tcase, test_draw);
    add_ranks_test(tcase, test_correction);
    tcase_add_test(tcase, test_equals_layer_of_sample);
    tcase_add_test(tcase, test_composed_equals_layer_of_sample);
    add_ranks_test(tcase, test_equals_on_ranks);
    tcase_add_test(tcase, test_logits_equal_layer_of_sample);
    add_ranks_test(tcase, test_logits_equal_on_ranks);
    tcase_add_test(tcase, test_logits_options);
    tcase_add_test(tcase, test_scales_float16);
    tcase_add_test(tcase, test_classifier_in_training);
    tcase_add_test(tcase, test_classifier_of_16_bits);
    tcase_add_loop_test(tcase, test_refuses, 0, 2);
    return test_run(suite);
}
