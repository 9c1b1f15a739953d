/*
 * Labels that are no class: -1, the number of classes, one in the padding that the last shard of an even split would have, and
 * the ends of the integers, on one rank or on all, for every function that takes labels, pairs or indices. All ranks fail, and
 * the text has the rank, the label and its row; the same call with right labels gives the same bits afterwards.
 */
#include "support/job.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, IN = 5, CLASSES = 10, WRONG_ROW = 2 };

typedef struct operands {
    shard_group *group;              /* of the classes; NULL: whole */
    shard_tensor *x, *weight, *bias; /* leaves */
    shard_module *classifier;
    int64_t label[ROWS];
} operands;

static shard_tensor *labels(const operands *o)
{
    return shard_from_host(o->label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
}

/* The labels as the classes of pairs, one in each row. */
static shard_tensor *pairs(const operands *o)
{
    int64_t pair[2 * ROWS];
    for (int i = 0; i < ROWS; i++) {
        pair[i] = i;
        pair[ROWS + i] = o->label[i];
    }
    return shard_from_host(pair, SHARD_SHAPE(2, ROWS), .dtype = SHARD_INT64);
}

/* Pairs whose second rows are right, and one of whose first row numbers is the label. */
static shard_tensor *pairs_of_rows(const operands *o)
{
    int64_t pair[2 * ROWS];
    for (int i = 0; i < ROWS; i++) {
        bool wrong = o->label[i] < 0 || o->label[i] >= CLASSES;
        pair[i] = wrong ? o->label[i] : i;
        pair[ROWS + i] = 1;
    }
    return shard_from_host(pair, SHARD_SHAPE(2, ROWS), .dtype = SHARD_INT64);
}

static shard_tensor *logits(const operands *o)
{
    return shard_parallel_linear(o->x, o->weight, o->bias);
}

static shard_tensor *cosines(const operands *o)
{
    return shard_scale(shard_tanh(logits(o)), 0.9);
}

static shard_tensor *sample(void)
{
    return shard_from_host(((int64_t[]){1, 3, 4, 7, 9}), SHARD_SHAPE(5), .dtype = SHARD_INT64);
}

/* This rank's classes of the sample. */
static shard_tensor *local_sample(const operands *o)
{
    shard_range range = shard_split_range(CLASSES, shard_group_size(o->group), shard_group_rank(o->group));
    int64_t all[] = {1, 3, 4, 7, 9}, mine[5], count = 0;
    for (int i = 0; i < 5; i++)
        if (all[i] >= range.start && all[i] < range.start + range.size)
            mine[count++] = all[i];
    return o->group ? shard_from_host(mine, SHARD_SHAPE(count), .dtype = SHARD_INT64) : sample();
}

/* The same, with a wrong label as its first class. */
static shard_tensor *wrong_sample(const operands *o)
{
    shard_tensor *right = local_sample(o);
    int64_t mine[5], count = shard_numel(right), label = o->label[WRONG_ROW];
    check_ok(shard_copy_to_host(right, mine, (size_t)count * sizeof *mine));
    if (label < 0 || label >= CLASSES)
        mine[0] = label;
    return shard_from_host(mine, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

static shard_tensor *right_labels(void)
{
    return shard_from_host(((int64_t[]){3, 9, 4, 7}), SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
}

#define CALL(name, expression)                                                                                                   \
    static shard_tensor *name(const operands *o)                                                                                 \
    {                                                                                                                            \
        return expression;                                                                                                       \
    }
CALL(cross_entropy, shard_cross_entropy(logits(o), labels(o), .label_smoothing = 0.1))
CALL(of_each_row, shard_sum(shard_cross_entropy(logits(o), labels(o), .reduction = SHARD_REDUCTION_NONE, .z_loss = 0.01)))
CALL(with_margin, shard_cross_entropy(cosines(o), labels(o), .margin = SHARD_MARGIN(.m2 = 0.5)))
CALL(of_classifier, shard_cross_entropy(shard_forward(o->classifier, o->x), labels(o)))
CALL(binary_of_classifier, shard_binary_cross_entropy_with_logits(shard_forward(o->classifier, o->x), pairs(o)))
CALL(linear_loss, shard_linear_cross_entropy(o->x, o->weight, o->bias, labels(o)))
CALL(linear_of_cosines,
     shard_linear_cross_entropy(o->x, o->weight, NULL, labels(o), .normalized = true, .margin = SHARD_MARGIN(.m3 = 0.3)))
CALL(linear_of_sample, shard_linear_cross_entropy(o->x, o->weight, o->bias, labels(o), .sample = local_sample(o)))
CALL(sample_of_classifier, shard_cross_entropy(shard_forward(o->classifier, o->x), labels(o), .sample = local_sample(o)))
CALL(class_of_sample, shard_linear_cross_entropy(o->x, o->weight, o->bias, right_labels(), .sample = wrong_sample(o)))
CALL(binary, shard_binary_cross_entropy_with_logits(logits(o), pairs(o)))
CALL(binary_rows, shard_binary_cross_entropy_with_logits(logits(o), pairs_of_rows(o)))
CALL(linear_binary, shard_linear_binary_cross_entropy(o->x, o->weight, o->bias, pairs(o)))
CALL(linear_binary_rows, shard_linear_binary_cross_entropy(o->x, o->weight, o->bias, pairs_of_rows(o)))
CALL(margins, shard_sum(shard_margin_logits(cosines(o), labels(o), .scale = 2, .m2 = 0.3)))
CALL(pick, shard_sum(shard_mul(shard_reduce_from_group(shard_pick_labels(logits(o), labels(o), -100), o->group),
                               shard_ones(SHARD_SHAPE(ROWS)))))
CALL(add, shard_sum(shard_add_at_labels(logits(o), labels(o), NULL, -0.5, -100)))
CALL(one_hot, shard_sum(shard_mul(logits(o), shard_one_hot(labels(o), CLASSES, .like = logits(o)))))
CALL(label_rank, shard_sum(shard_cast(shard_label_rank(logits(o), labels(o), -100), SHARD_FLOAT32)))
CALL(embedding, shard_sum(shard_reduce_from_group(shard_embedding(o->weight, labels(o), -1), o->group)))

static shard_tensor *with_rank(const operands *o)
{
    shard_tensor *rank;
    shard_tensor *loss = shard_cross_entropy_with_rank(logits(o), labels(o), &rank);
    return shard_count_top_k(rank, 5) < 0 ? NULL : loss;
}

static shard_tensor *linear_with_rank(const operands *o)
{
    shard_tensor *rank;
    shard_tensor *loss = shard_linear_cross_entropy_with_rank(o->x, o->weight, o->bias, labels(o), &rank);
    return shard_count_top_k(rank, 5) < 0 ? NULL : loss;
}

/* On this rank alone, whatever is split. */
static shard_tensor *precision(const operands *o)
{
    shard_tensor *indices;
    shard_top_k(logits(o), 3, &indices);
    double precision = shard_precision_at_k(indices, pairs_of_rows(o), 2, NULL);
    return precision < 0 ? NULL : shard_full(SHARD_SCALAR, precision);
}

static shard_tensor *propensity(const operands *o)
{
    shard_tensor *indices;
    shard_top_k(logits(o), 3, &indices);
    double precision = shard_precision_at_k(indices, pairs(o), 2, shard_ones(SHARD_SHAPE(CLASSES)));
    return precision < 0 ? NULL : shard_full(SHARD_SCALAR, precision);
}

typedef enum place { ROW, PAIR_CLASS, PAIR_ROW, ELEMENT, SAMPLE } place;

static const struct {
    const char *name;
    shard_tensor *(*call)(const operands *);
    place place;
} functions[] = {
    {"shard_cross_entropy", cross_entropy, ROW},
    {"shard_cross_entropy", of_each_row, ROW},
    {"shard_cross_entropy", with_rank, ROW},
    {"", with_margin, ROW},
    {"shard_cross_entropy", of_classifier, ROW},
    {"shard_binary_cross_entropy_with_logits", binary_of_classifier, PAIR_CLASS},
    {"shard_linear_cross_entropy", linear_loss, ROW},
    {"shard_linear_cross_entropy", linear_with_rank, ROW},
    {"shard_linear_cross_entropy", linear_of_cosines, ROW},
    {"shard_linear_cross_entropy", linear_of_sample, ROW},
    {"shard_cross_entropy", sample_of_classifier, ROW},
    {"shard_linear_cross_entropy", class_of_sample, SAMPLE},
    {"shard_binary_cross_entropy_with_logits", binary, PAIR_CLASS},
    {"shard_binary_cross_entropy_with_logits", binary_rows, PAIR_ROW},
    {"shard_linear_binary_cross_entropy", linear_binary, PAIR_CLASS},
    {"shard_linear_binary_cross_entropy", linear_binary_rows, PAIR_ROW},
    {"shard_margin_logits", margins, ROW},
    {"shard_pick_labels", pick, ROW},
    {"shard_add_at_labels", add, ROW},
    {"shard_one_hot", one_hot, ROW},
    {"shard_label_rank", label_rank, ROW},
    {"shard_precision_at_k", precision, PAIR_ROW},
    {"shard_precision_at_k", propensity, PAIR_CLASS},
    {"shard_embedding", embedding, ELEMENT},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* 11 is in the padding of the last shard where 10 classes on 3 or 4 ranks are padded to 12. */
static const int64_t wrong_labels[] = {-1, CLASSES, CLASSES + 1, INT64_MIN, INT64_MAX};
enum { WRONG = sizeof wrong_labels / sizeof *wrong_labels };

static operands make_operands(shard_group *group)
{
    operands o = {.group = shard_group_size(group) > 1 ? group : NULL};
    shard_range range = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    o.x = made_up_leaf(SHARD_SHAPE(ROWS, IN), 1, SHARD_FLOAT32);
    shard_tensor *weight = shard_empty(SHARD_SHAPE(range.size, IN)), *bias = shard_empty(SHARD_SHAPE(range.size));
    if (o.group) {
        weight = shard_as_split(weight, 0, group, range.start, CLASSES);
        bias = shard_as_split(bias, 0, group, range.start, CLASSES);
    }
    fill_made_up(weight, 2);
    fill_made_up(bias, 3);
    shard_set_requires_grad(o.weight = weight, true);
    shard_set_requires_grad(o.bias = bias, true);
    shard_manual_seed(1);
    o.classifier = shard_nn_parallel_classifier(IN, CLASSES, o.group);
    static const int64_t right[ROWS] = {3, 9, 4, 7}; /* in the sample, too */
    memcpy(o.label, right, sizeof right);
    return o;
}

/* The result, and the first element of x's gradient if there is one. */
static void compute(const operands *o, int function, double value[2])
{
    SHARD_SCOPE
    {
        shard_zero_grad(o->x);
        shard_tensor *y = functions[function].call(o);
        ck_assert_msg(y != NULL, "%s: %s", functions[function].name, shard_last_error());
        value[0] = value[1] = 0;
        if (y->placement.kind == SHARD_PARTIAL)
            y = shard_reduce_from_group(y, o->group);
        value[0] = shard_item(shard_detach(y));
        if (shard_requires_grad(y))
            check_ok(shard_backward(y));
        if (shard_grad(o->x)) {
            double *gradient = values_of(shard_grad(o->x));
            value[1] = gradient[0];
            free(gradient);
        }
        check_ok(shard_agree(shard_world()));
    }
}

static void expect(char *pattern, size_t bytes, int function, int rank, int64_t label)
{
    static const char *const places[] = {
        "%s*label %" PRId64 " at row 2 is outside*", "%s: class %" PRId64 " of pair 2 is outside*",
        "%s: row %" PRId64 "*of pair 2 *", /* is outside, or does not follow */
        "%s: index %" PRId64 " (element 2) is outside*", "%s: class %" PRId64 " at position 0 of the sample*"};
    int used = shard_group_size(shard_world()) > 1 ? snprintf(pattern, bytes, "rank %d: ", rank) : 0;
    snprintf(pattern + used, bytes - (size_t)used, places[functions[function].place], functions[function].name, label);
}

/* culprit: the rank with the wrong label; -1: all. */
static void fails_on_all(const operands *right, int function, int64_t label, int culprit)
{
    shard_group *world = shard_world();
    int rank = shard_group_rank(world);
    bool here = culprit < 0 || rank == culprit, on_host = shard_device_open(NULL)->ops->host_memory;
    operands o = *right;
    if (here)
        o.label[WRONG_ROW] = label;
    SHARD_SCOPE
    {
        shard_tensor *y = functions[function].call(&o);
        bool together = o.group && strstr(functions[function].name, "cross_entropy"); /* it is collective */
        ck_assert_msg(!(y && (here || together) && on_host), "%s takes label %" PRId64, functions[function].name, label);
        if (y && shard_requires_grad(y) && y->placement.kind != SHARD_PARTIAL)
            shard_backward(y);
        shard_synchronize(shard_device_open(NULL)); /* a GPU finds it by then */
        shard_status status = shard_agree(world);
        char pattern[160];
        expect(pattern, sizeof pattern, function, culprit < 0 ? 0 : culprit, label);
        ck_assert_msg(status != SHARD_OK, "rank %d does not know of %s's label %" PRId64, rank, functions[function].name, label);
        if (on_host)
            check_error(here ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, pattern);
        shard_clear_error();
    }
}

static void every_function_fails(shard_group *world, void *context)
{
    (void)context;
    int64_t cases = 0;
    SHARD_SCOPE
    {
        operands o = make_operands(world);
        for (int f = 0; f < FUNCTIONS; f++) {
            double before[2], after[2];
            compute(&o, f, before);
            for (int w = 0; w < WRONG; w++)
                for (int culprit = -1; culprit < shard_group_size(world); culprit += 1 + (w % 2 && culprit >= 0), cases++)
                    fails_on_all(&o, f, wrong_labels[w], culprit);
            compute(&o, f, after);
            ck_assert_msg(memcmp(before, after, sizeof before) == 0, "%s: %.17g and %.17g became %.17g and %.17g after an error",
                          functions[f].name, before[0], before[1], after[0], after[1]);
        }
        shard_module_destroy(o.classifier);
    }
    if (shard_group_rank(world) == 0)
        printf("cases: %" PRId64 "\n", cases);
}

static const int label_ranks[] = {1, 2, 3};

START_TEST(test_every_function_fails)
{
    run_job(label_ranks[_i], every_function_fails, NULL);
}
END_TEST

static void check_other_device(const char *what, const void *made)
{
    ck_assert_msg(!made, "%s", what);
    check_error(SHARD_ERROR_SHAPE, "*labels are on cpu, logits on *; one device is needed (shard_to_device)");
}

/* A kernel would read the address of the other device. */
START_TEST(test_labels_of_another_device)
{
    int64_t label[] = {3, 0};
    if (shard_device_open(NULL)->ops->host_memory) /* there is one device */
        return;
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(2), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 4)), *weight = shard_ones(SHARD_SHAPE(5, 4)),
                     *logits = shard_linear(x, weight, NULL);
        shard_tensor *there = shard_to_device(weight, shard_device_open("cpu"));
        shard_tensor *here = shard_from_host(label, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        ck_assert_ptr_null(shard_linear_top_k(x, there, NULL, 2, NULL));
        check_error(SHARD_ERROR_SHAPE, "shard_linear_top_k: operands are on * and on cpu; one device is needed*");
        ck_assert_ptr_null(shard_linear_cross_entropy(x, there, NULL, here));
        check_error(SHARD_ERROR_SHAPE, "shard_linear_cross_entropy: operands are on * and on cpu; one device is needed*");
        check_other_device("cross_entropy", shard_cross_entropy(logits, labels));
        check_other_device("linear_cross_entropy", shard_linear_cross_entropy(x, weight, NULL, labels));
        check_other_device("forward", shard_linear_cross_entropy_forward(x, weight, NULL, labels, NULL));
        check_other_device("label_rank", shard_label_rank(logits, labels, -100));
        check_other_device("margin_logits", shard_margin_logits(logits, labels, .m2 = 0.3));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wrong labels");
    TCase *tcase = test_case(suite, "wrong labels");
    tcase_add_loop_test(tcase, test_every_function_fails, 0, 3);
    tcase_add_test(tcase, test_labels_of_another_device);
    return test_run(suite);
}
