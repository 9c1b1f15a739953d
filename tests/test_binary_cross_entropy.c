/* Binary cross-entropy with logits: against PyTorch, plain loops and finite differences, whole and split; its errors. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/loss.h"
#include "support/options.h"

#include "base/error.h"
#include "comm/comm.h"
#include "device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- against PyTorch ---- */

/* tests/golden/make_losses.py has the options. */
static const struct {
    const char *name;
    shard_reduction reduction;
} golden_cases[] = {{"binary_mean", SHARD_REDUCTION_MEAN},
                    {"binary_sum", SHARD_REDUCTION_SUM},
                    {"binary_none", SHARD_REDUCTION_NONE},
                    {"binary_soft", SHARD_REDUCTION_MEAN}};

static shard_tensor *optional(const golden_case *c, const char *name, shard_dtype dtype)
{
    const golden *found = golden_find(c, name);
    return found ? golden_tensor(found, dtype) : NULL;
}

/* For both kinds of targets. */
START_TEST(equals_pytorch)
{
    SHARD_SCOPE
    {
        golden_case c = golden_read(test_file("golden/losses.txt"), golden_cases[_i].name);
        int compared = 0;
        for (int kind = 0; kind < 2; kind++) {
            shard_tensor *target = kind ? optional(&c, "pairs", SHARD_INT64) : optional(&c, "target", SHARD_FLOAT64);
            if (!target)
                continue;
            compared++;
            shard_tensor *x = golden_tensor(golden_find(&c, "x0"), SHARD_FLOAT64);
            shard_set_requires_grad(x, true);
            shard_tensor *loss = shard_binary_cross_entropy_with_logits(
                x, target, .weight = optional(&c, "weight", SHARD_FLOAT64), .pos_weight = optional(&c, "positive", SHARD_FLOAT64),
                .reduction = golden_cases[_i].reduction);
            check_golden(&c, "y", loss, 1e-14);
            check_ok(shard_backward_from(loss, golden_tensor(golden_find(&c, "dy"), SHARD_FLOAT64)));
            check_golden(&c, "d0", shard_grad(x), 1e-14);
        }
        ck_assert_int_ge(compared, 1);
        golden_free(&c);
    }
}
END_TEST

/* ---- against plain loops ---- */

enum { ROWS = 5, MOST = 2100 };

/* Options of one call: bits of `form`. */
enum { WEIGHTED = 1, POSITIVE = 2, ROW_WEIGHTED = 4, PAIRS = 8, FORMS = 16 };

typedef struct problem {
    int64_t classes;
    int form;
    shard_dtype dtype;
    shard_reduction reduction;
    double x[ROWS * MOST], target[ROWS * MOST], weight[MOST], positive[MOST], row_weight[ROWS];
    int64_t pairs[2 * ROWS * MOST], count;
    double loss[ROWS * MOST], gradient[ROWS * MOST]; /* of sum dy * result, or of 0.75 * result */
} problem;

static double random_at(int draw, int64_t i)
{
    return shard_uniform_at((shard_draw){23, (uint64_t)draw}, (uint64_t)i);
}

static double dy_at(const problem *p, int64_t i)
{
    return p->reduction == SHARD_REDUCTION_NONE ? 0.5 + (double)(i % 3) : 0.75;
}

/* The result as one number for each element in p->loss, or its sum in the first. */
static void solve(problem *p)
{
    int64_t n = ROWS * p->classes;
    double divisor = p->reduction == SHARD_REDUCTION_MEAN         ? (double)n
                     : p->reduction == SHARD_REDUCTION_BATCH_MEAN ? ROWS
                                                                  : 1,
           sum = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / p->classes, class = i % p->classes;
        double w = (p->form & WEIGHTED ? p->weight[class] : 1) * (p->form & ROW_WEIGHTED ? p->row_weight[row] : 1);
        double q = p->form & POSITIVE ? p->positive[class] : 1, y = p->target[i], sigmoid = 1 / (1 + exp(-p->x[i]));
        p->loss[i] = w * (-q * y * log(sigmoid) - (1 - y) * log1p(-sigmoid));
        p->gradient[i] = dy_at(p, i) / divisor * w * ((1 - y) * sigmoid - q * y * (1 - sigmoid));
        sum += p->loss[i];
    }
    if (p->reduction != SHARD_REDUCTION_NONE)
        p->loss[0] = sum / divisor;
}

static problem *make_problem(int64_t classes, int form, shard_dtype dtype, shard_reduction reduction)
{
    problem *p = calloc(1, sizeof *p);
    ck_assert_ptr_nonnull(p);
    p->classes = classes, p->form = form, p->dtype = dtype, p->reduction = reduction;
    for (int64_t i = 0; i < ROWS * classes; i++) {
        p->x[i] = round_to(dtype, 8 * random_at(0, i) - 4);
        p->target[i] = form & PAIRS ? random_at(1, i) < 0.2 && i / classes != 2 : round_to(dtype, random_at(1, i));
    }
    for (int64_t i = 0; i < classes; i++) {
        p->weight[i] = round_to(dtype, 0.25 + random_at(2, i));
        p->positive[i] = round_to(dtype, 3 * random_at(3, i));
    }
    for (int64_t i = 0; i < ROWS; i++)
        p->row_weight[i] = 0.25 * (double)(i + 1);
    for (int64_t i = 0; i < ROWS * classes && form & PAIRS; i++)
        p->count += p->target[i] != 0;
    for (int64_t i = 0, at = 0; i < ROWS * classes && form & PAIRS; i++)
        if (p->target[i] != 0) {
            p->pairs[at] = i / classes;
            p->pairs[p->count + at++] = i % classes;
        }
    solve(p);
    return p;
}

/* Columns of an array [rows, classes], placed as they are. */
static shard_tensor *columns(const problem *p, const double *values, int64_t rows, shard_group *group, shard_range range)
{
    double *part = calloc((size_t)(rows * range.size) + 1, sizeof *part);
    ck_assert_ptr_nonnull(part);
    for (int64_t i = 0; i < rows * range.size; i++)
        part[i] = values[i / range.size * p->classes + range.start + i % range.size];
    shard_shape shape = rows == 1 ? SHARD_SHAPE(range.size) : SHARD_SHAPE(rows, range.size);
    shard_tensor *tensor = tensor_of(part, shape, p->dtype);
    free(part);
    return group ? shard_as_split(tensor, shape.ndim - 1, group, range.start, p->classes) : tensor;
}

/* Of the classes in range; odd ranks have their part of the weights, even ones all of them. */
static shard_tensor *loss_of(const problem *p, shard_group *group, shard_range range, shard_tensor **x)
{
    bool part = group && shard_group_rank(group) % 2;
    shard_range all = {0, p->classes}, weights = part ? range : all;
    shard_group *placed = part ? group : NULL;
    *x = columns(p, p->x, ROWS, group, range);
    shard_set_requires_grad(*x, true);
    shard_tensor *target = p->form & PAIRS ? shard_from_host(p->pairs, SHARD_SHAPE(2, p->count), .dtype = SHARD_INT64)
                                           : columns(p, p->target, ROWS, group, range);
    return shard_binary_cross_entropy_with_logits(
        *x, target, .weight = p->form & WEIGHTED ? columns(p, p->weight, 1, placed, weights) : NULL,
        .pos_weight = p->form & POSITIVE ? columns(p, p->positive, 1, placed, weights) : NULL,
        .row_weight = p->form & ROW_WEIGHTED ? tensor_of(p->row_weight, SHARD_SHAPE(ROWS), SHARD_FLOAT32) : NULL,
        .reduction = p->reduction);
}

static void check_problem(const problem *p, shard_group *group, shard_range range, double tolerance)
{
    char what[100];
    snprintf(what, sizeof what, "form %d, reduction %d of %s", p->form, (int)p->reduction, shard_dtype_name(p->dtype));
    SHARD_SCOPE
    {
        shard_tensor *x, *loss = loss_of(p, group, range, &x);
        ck_assert_msg(loss, "%s: %s", what, shard_last_error());
        bool each = p->reduction == SHARD_REDUCTION_NONE;
        int64_t count = each ? ROWS * range.size : 1;
        double *got = calloc((size_t)(ROWS * range.size) + 1, sizeof *got), *dy = calloc((size_t)count + 1, sizeof *dy);
        read_values(loss, got);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = each ? i / range.size * p->classes + range.start + i % range.size : 0;
            dy[i] = dy_at(p, at);
            check_number(got[i], p->loss[at], tolerance, what, at);
        }
        check_ok(shard_backward_from(loss, tensor_of(dy, shard_tensor_shape(loss), shard_tensor_dtype(loss))));
        read_values(shard_grad(x), got);
        for (int64_t i = 0; i < ROWS * range.size; i++) {
            int64_t at = i / range.size * p->classes + range.start + i % range.size;
            check_number(got[i], p->gradient[at], tolerance, what, at);
        }
        free(got);
        free(dy);
    }
}

static const struct {
    shard_dtype dtype;
    double tolerance;
} dtypes[] = {{SHARD_FLOAT64, 1e-13}, {SHARD_FLOAT32, 2e-6}, {SHARD_BFLOAT16, 0x1p-7}, {SHARD_FLOAT16, 0x1p-10}};

START_TEST(follows_the_definition)
{
    static const int64_t sizes[] = {1, 7, 2100};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int form = 0; form < FORMS; form++)
            for (int reduction = 0; reduction <= SHARD_REDUCTION_BATCH_MEAN; reduction++) {
                problem *p = make_problem(sizes[s], form, dtypes[_i].dtype, (shard_reduction)reduction);
                check_problem(p, NULL, (shard_range){0, p->classes}, dtypes[_i].tolerance);
                free(p);
            }
}
END_TEST

static shard_tensor *sum_of_pairs(shard_tensor *const *x, const void *options)
{
    (void)options;
    static const int64_t pairs[] = {0, 0, 2, 3, 1, 3, 0, 4};
    shard_tensor *target = shard_from_host(pairs, SHARD_SHAPE(2, 4), .dtype = SHARD_INT64);
    shard_dtype dtype = shard_tensor_dtype(x[0]);
    return shard_binary_cross_entropy_with_logits(x[0], target, .pos_weight = shard_full(SHARD_SHAPE(5), 2.5, .dtype = dtype),
                                                  .row_weight = shard_full(SHARD_SHAPE(4), 0.5),
                                                  .reduction = SHARD_REDUCTION_SUM);
}

static shard_tensor *each_of_soft(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_shape shape = shard_tensor_shape(x[0]);
    return shard_binary_cross_entropy_with_logits(x[0], shard_full(shape, 0.25, .dtype = shard_tensor_dtype(x[0])),
                                                  .reduction = SHARD_REDUCTION_NONE);
}

static const operation operations[] = {
    {"of pairs", sum_of_pairs, NULL, 1, {SHARD_SHAPE(4, 5)}, .needs = 1, .rounding = 32},
    {"of probabilities", each_of_soft, NULL, 1, {SHARD_SHAPE(2, 3, 5)}, .needs = 1, .rounding = 32},
    {"of no rows", each_of_soft, NULL, 1, {SHARD_SHAPE(0, 5)}, .needs = 1},
};

START_TEST(has_the_gradient_of_its_differences)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Infinite logits cost nothing where they are right, and a large one keeps its small loss. */
START_TEST(stands_extreme_logits)
{
    const double inf = INFINITY, x[] = {inf, -inf, 1000, -1000, 40, -40}, y[] = {1, 0, 1, 0, 1, 0};
    const double right[] = {0, 0, 0, 0, exp(-40), exp(-40)}, wrong[] = {inf, inf, 1000, 1000, 40, 40};
    SHARD_SCOPE
    for (int turned = 0; turned < 2; turned++) {
        double target[6], *got;
        for (int i = 0; i < 6; i++)
            target[i] = turned ? 1 - y[i] : y[i];
        shard_tensor *logits = tensor_of(x, SHARD_SHAPE(1, 6), SHARD_FLOAT64);
        shard_set_requires_grad(logits, true);
        shard_tensor *loss = shard_binary_cross_entropy_with_logits(logits, tensor_of(target, SHARD_SHAPE(1, 6), SHARD_FLOAT64),
                                                                    .reduction = SHARD_REDUCTION_NONE);
        got = values_of(loss);
        for (int i = 0; i < 6; i++)
            check_number(got[i] / (i > 3 && !turned ? exp(-40) : 1),
                         (turned ? wrong : right)[i] / (i > 3 && !turned ? exp(-40) : 1), 1e-12, "loss", i);
        free(got);
        check_ok(shard_backward(shard_sum(loss)));
        got = values_of(shard_grad(logits));
        for (int i = 0; i < 6; i++)
            check_number(got[i], turned ? (i % 2 ? -1 : 1) : (i > 3 ? (i % 2 ? 1 : -1) * exp(-40) : 0), 1e-15, "gradient", i);
        free(got);
    }
}
END_TEST

/* The same of pairs: the loss and the gradients are finite where the classes of infinite logits are right. */
START_TEST(stands_infinite_logits_of_pairs)
{
    enum { CLASSES = 40 };
    static const int64_t pairs[] = {0, 0, 1, 3, 7, 39};
    static const shard_dtype types[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_FLOAT16, SHARD_BFLOAT16};
    double x[2 * CLASSES] = {0}, *got;
    x[3] = x[CLASSES + 39] = INFINITY;
    x[4] = x[CLASSES + 3] = -INFINITY;
    for (int d = 0; d < 4; d++)
        SHARD_SCOPE
        {
            shard_tensor *logits = tensor_of(x, SHARD_SHAPE(2, CLASSES), types[d]);
            shard_set_requires_grad(logits, true);
            shard_tensor *loss = shard_binary_cross_entropy_with_logits(
                logits, shard_from_host(pairs, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64), .reduction = SHARD_REDUCTION_SUM);
            ck_assert_double_eq_tol(shard_item(loss) / ((2 * CLASSES - 4) * log(2)), 1, d > 1 ? 1e-2 : 1e-5);
            check_ok(shard_backward(loss));
            got = values_of(shard_grad(logits));
            for (int i = 0; i < 2 * CLASSES; i++)
                check_number(got[i], isinf(x[i]) ? 0 : i == 7 ? -0.5 : 0.5, 1e-6, "gradient", i);
            free(got);
        }
}
END_TEST

START_TEST(takes_no_rows_and_no_pairs)
{
    SHARD_SCOPE
    {
        shard_tensor *none = shard_zeros(SHARD_SHAPE(2, 0), .dtype = SHARD_INT64), *empty = shard_zeros(SHARD_SHAPE(0, 5));
        ck_assert(isnan(shard_item(shard_binary_cross_entropy_with_logits(empty, none))));
        ck_assert_double_eq(shard_item(shard_binary_cross_entropy_with_logits(empty, none, .reduction = SHARD_REDUCTION_SUM)), 0);
        shard_tensor *loss =
            shard_binary_cross_entropy_with_logits(shard_zeros(SHARD_SHAPE(3, 4)), none, .reduction = SHARD_REDUCTION_BATCH_MEAN);
        ck_assert_double_eq_tol(shard_item(loss), 4 * log(2), 1e-6);
        static const int64_t one[] = {0, 2}; /* a row without a dimension is row 0 */
        loss = shard_binary_cross_entropy_with_logits(tensor_of((const double[]){0, 0, 1000}, SHARD_SHAPE(3), SHARD_FLOAT32),
                                                      shard_from_host(one, SHARD_SHAPE(2, 1), .dtype = SHARD_INT64),
                                                      .reduction = SHARD_REDUCTION_SUM);
        ck_assert_double_eq_tol(shard_item(loss), 2 * log(2), 1e-6);
    }
}
END_TEST

/* The backward needs no memory like the logits if nothing else refers to them. */
START_TEST(puts_the_gradient_over_released_logits)
{
    const int64_t rows = 64, classes = 4096, bytes = rows * classes * (int64_t)sizeof(float);
    static const int64_t pairs[] = {0, 5, 63, 7, 4095, 0};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(rows, classes), 0, 1, .requires_grad = true);
        shard_tensor *logits = shard_add(x, shard_ones(SHARD_SHAPE(classes)));
        shard_tensor *loss =
            shard_binary_cross_entropy_with_logits(logits, shard_from_host(pairs, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64));
        shard_release(logits);
        shard_reset_peak_memory(shard_device_open(NULL));
        check_ok(shard_backward(loss));
        ck_assert_int_lt(shard_get_memory_stats(shard_device_open(NULL)).peak, 2 * bytes + bytes / 8);
    }
}
END_TEST

/* ---- split over ranks ---- */

static void check_same(shard_group *group, shard_tensor *loss)
{
    int members = shard_group_size(group);
    double own = shard_item(loss), *all = calloc((size_t)members, sizeof *all);
    check_ok(shard_group_exchange(group, &own, sizeof own, all));
    for (int i = 0; i < members; i++)
        ck_assert_msg(memcmp(&all[i], all, sizeof *all) == 0, "member %d has another value", i);
    free(all);
}

static void equals_plain(shard_group *world, void *context)
{
    (void)context;
    static const int64_t sizes[] = {13, 3, 301};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int form = 0; form < FORMS; form++)
            for (int reduction = 0; reduction <= SHARD_REDUCTION_BATCH_MEAN; reduction++) {
                size_t d = (size_t)(form + reduction) % 3;
                problem *p = make_problem(sizes[s], form, dtypes[d].dtype, (shard_reduction)reduction);
                shard_range range = shard_split_range(p->classes, shard_group_size(world), shard_group_rank(world));
                check_problem(p, world, range, dtypes[d].tolerance);
                free(p);
            }
    problem *p = make_problem(13, PAIRS, SHARD_FLOAT32, SHARD_REDUCTION_SUM);
    SHARD_SCOPE
    {
        shard_tensor *x;
        check_same(world, loss_of(p, world, shard_split_range(13, shard_group_size(world), shard_group_rank(world)), &x));
    }
    free(p);
}

START_TEST(test_equals_plain)
{
    run_ranks(rank_counts[_i], equals_plain);
}
END_TEST

/* Rows that are split over a group, with the pairs of the local ones: summands of the whole. */
static void splits_rows(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world);
    shard_range range = shard_split_range(ROWS, size, shard_group_rank(world));
    for (int reduction = 0; reduction <= SHARD_REDUCTION_BATCH_MEAN; reduction++) {
        problem *p = make_problem(7, PAIRS | WEIGHTED, SHARD_FLOAT64, (shard_reduction)reduction);
        int64_t pairs[2 * ROWS * 7], count = 0;
        for (int64_t i = 0; i < p->count; i++)
            count += p->pairs[i] >= range.start && p->pairs[i] < range.start + range.size;
        for (int64_t i = 0, at = 0; i < p->count; i++)
            if (p->pairs[i] >= range.start && p->pairs[i] < range.start + range.size) {
                pairs[at] = p->pairs[i] - range.start;
                pairs[count + at++] = p->pairs[p->count + i];
            }
        SHARD_SCOPE
        {
            shard_tensor *own = tensor_of(p->x + range.start * 7, SHARD_SHAPE(range.size, 7), SHARD_FLOAT64);
            shard_tensor *x = shard_as_split(own, 0, world, range.start, ROWS);
            shard_set_requires_grad(x, true);
            shard_tensor *loss = shard_binary_cross_entropy_with_logits(
                x, shard_from_host(pairs, SHARD_SHAPE(2, count), .dtype = SHARD_INT64),
                .weight = tensor_of(p->weight, SHARD_SHAPE(7), SHARD_FLOAT64), .reduction = p->reduction);
            ck_assert_msg(loss, "%s", shard_last_error());
            shard_placement_kind kind = size == 1                              ? SHARD_LOCAL
                                        : p->reduction == SHARD_REDUCTION_NONE ? SHARD_SPLIT
                                                                               : SHARD_PARTIAL;
            ck_assert_int_eq(shard_tensor_placement(loss).kind, kind);
            if (p->reduction != SHARD_REDUCTION_NONE) {
                double sum = value_at(loss, 0);
                check_ok(shard_group_all_reduce(world, NULL, &sum, 1, SHARD_FLOAT64, SHARD_SUM));
                check_number(sum, p->loss[0], 1e-13, "loss", 0);
                check_ok(shard_backward_from(loss, shard_full(SHARD_SCALAR, 0.75, .dtype = SHARD_FLOAT64)));
                double *got = values_of(shard_grad(x));
                for (int64_t i = 0; i < range.size * 7; i++)
                    check_number(got[i], p->gradient[range.start * 7 + i], 1e-13, "gradient", i);
                free(got);
            } else {
                double *got = values_of(loss);
                for (int64_t i = 0; i < range.size * 7; i++)
                    check_number(got[i], p->loss[range.start * 7 + i], 1e-13, "loss", i);
                free(got);
            }
        }
        free(p);
    }
}

START_TEST(test_splits_rows)
{
    run_ranks(rank_counts[_i], splits_rows);
}
END_TEST

/* ---- errors ---- */

static shard_tensor *pairs_of(int64_t count, const int64_t *values)
{
    return shard_from_host(values, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
}
#define PAIRS_OF(...) pairs_of(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t) / 2, (const int64_t[]){__VA_ARGS__})

/* Where the device queues, the error is that of the next call that waits for it. */
static void refused_by_pairs(shard_tensor *pairs, const char *pattern)
{
    shard_tensor *loss = shard_binary_cross_entropy_with_logits(shard_zeros(SHARD_SHAPE(4, 1000)), pairs);
    ck_assert_ptr_null(shard_device_open(NULL)->ops->host_memory ? loss : NULL);
    shard_synchronize(shard_device_open(NULL));
    check_error(SHARD_ERROR_ARGUMENT, pattern);
}

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        refused_by_pairs(PAIRS_OF(0, 4, 7, 8), "*row 4 of pair 1 is outside \\[0, 4)");
        refused_by_pairs(PAIRS_OF(0, 1, -1, 8), "*class -1 of pair 0 is outside \\[0, 1000)");
        refused_by_pairs(PAIRS_OF(0, 1, 7, 1000), "*class 1000 of pair 1 is outside \\[0, 1000)");
        refused_by_pairs(PAIRS_OF(0, 1, 1, 7, 8, 8), "*row 1 and class 8 of pair 2 do not follow the pair before it; *");
        refused_by_pairs(PAIRS_OF(0, 2, 1, 7, 8, 9), "*row 1 and class 9 of pair 2 do not follow*");
        refused_by_pairs(PAIRS_OF(0, 0, 1, 9, 8, 9), "*row 0 and class 8 of pair 1 do not follow*");
        for (int i = 0; i < 2; i++) /* no pair is one of theirs */
            check_refused(shard_binary_cross_entropy_with_logits(shard_zeros(SHARD_SHAPE(2 * i, 3 - 3 * i)), PAIRS_OF(0, 0)),
                          SHARD_ERROR_ARGUMENT, i ? "*: 1 pairs for logits of shape [[]2, 0], *" : "*of shape [[]0, 3], *");
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *pairs = PAIRS_OF(0, 0);
        check_refused(shard_binary_cross_entropy_with_logits(x, shard_zeros(SHARD_SHAPE(3))), SHARD_ERROR_SHAPE,
                      "*a target of shape [[]3] for logits of shape [[]2, 3]; pairs are int64 *");
        check_refused(shard_binary_cross_entropy_with_logits(x, shard_zeros(SHARD_SHAPE(3, 2), .dtype = SHARD_INT64)),
                      SHARD_ERROR_SHAPE, "*a target of dtype int64 and shape [[]3, 2]*");
        check_refused(shard_binary_cross_entropy_with_logits(x, NULL), SHARD_ERROR_ARGUMENT, "*an operand is NULL");
        check_refused(shard_binary_cross_entropy_with_logits(x, pairs, .reduction = (shard_reduction)4), SHARD_ERROR_ARGUMENT,
                      "*there is no reduction 4");
        check_refused(shard_binary_cross_entropy_with_logits(x, pairs, .pos_weight = shard_ones(SHARD_SHAPE(4))),
                      SHARD_ERROR_SHAPE, "*pos_weight of shape [[]4] that are local, for classes [[]0, 3) of 3*");
        check_refused(shard_binary_cross_entropy_with_logits(x, shard_zeros(SHARD_SHAPE(2, 3), .requires_grad = true)),
                      SHARD_ERROR_UNSUPPORTED, "*the target requires a gradient*");
        check_refused(shard_binary_cross_entropy_with_logits(x, pairs, .row_weight = shard_ones(SHARD_SHAPE(3))),
                      SHARD_ERROR_SHAPE, "*row weights of shape [[]3]*");
        shard_tensor *labels = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        check_refused(shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_BATCH_MEAN), SHARD_ERROR_ARGUMENT,
                      "shard_cross_entropy: *reduction 3*");
        check_refused(shard_mse_loss(x, x, .reduction = SHARD_REDUCTION_BATCH_MEAN), SHARD_ERROR_ARGUMENT,
                      "shard_mse_loss: *reduction*");
    }
}
END_TEST

typedef struct trouble {
    shard_tensor *logits, *target;
    shard_binary_cross_entropy_options options;
    int rank;
} trouble;

static void other_pairs(trouble *t)
{
    t->target = t->rank == 2 ? PAIRS_OF(0, 8) : PAIRS_OF(0, 7);
}

static void pairs_on_one(trouble *t)
{
    if (t->rank != 1)
        t->target = shard_as_placed(shard_zeros(shard_tensor_shape(t->logits)), shard_tensor_placement(t->logits));
}

static void other_reduction(trouble *t)
{
    t->options.reduction = t->rank == 1 ? SHARD_REDUCTION_BATCH_MEAN : SHARD_REDUCTION_MEAN;
}

static void other_row_weights(trouble *t)
{
    t->options.row_weight = shard_full(SHARD_SHAPE(4), t->rank == 1 ? 0.5 : 1);
}

static void wrong_pair_on_one(trouble *t)
{
    if (t->rank == 1)
        t->target = PAIRS_OF(4, 7);
}

static void no_target_on_one(trouble *t)
{
    if (t->rank == 0)
        t->target = NULL;
}

#define SAYS "shard_binary_cross_entropy_with_logits: "
static const struct {
    void (*make)(trouble *);
    int culprit; /* its status is told as PEER to the others; -1: all have it themselves */
    shard_status status;
    const char *text;
} troubles[] = {
    {other_pairs, -1, SHARD_ERROR_MISMATCH, SAYS "pairs on rank 2 differ from those on rank 0; *"},
    {pairs_on_one, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_reduction, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_row_weights, -1, SHARD_ERROR_MISMATCH, SAYS "row weights on rank 1 differ from those on rank 0; *"},
    {wrong_pair_on_one, 1, SHARD_ERROR_ARGUMENT, "rank 1: " SAYS "row 4 of pair 0 is outside \\[0, 4)"},
    {no_target_on_one, 0, SHARD_ERROR_ARGUMENT, "rank 0: " SAYS "an operand is NULL"},
};
enum { TROUBLES = sizeof troubles / sizeof *troubles };

static void fails_together(shard_group *world, void *context)
{
    int number = *(int *)context, rank = shard_group_rank(world), culprit = troubles[number].culprit;
    shard_range range = shard_split_range(1000, 3, rank);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_zeros(SHARD_SHAPE(4, range.size)), 1, world, range.start, 1000);
        trouble t = {.rank = rank, .logits = x, .target = PAIRS_OF(0, 7), .options = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT};
        troubles[number].make(&t);
        shard_tensor *loss = shard_binary_cross_entropy_with_logits_with(t.logits, t.target, &t.options);
        if (loss) { /* the device alone sees it, and says so when it is waited for */
            ck_assert(!shard_device_open(NULL)->ops->host_memory && isnan(shard_item(loss)));
            ck_assert_int_ne(shard_last_status(), SHARD_OK);
            shard_clear_error();
        } else {
            check_error(culprit < 0 || culprit == rank ? troubles[number].status : SHARD_ERROR_PEER, troubles[number].text);
        }
        loss = shard_binary_cross_entropy_with_logits(x, PAIRS_OF(0, 7)); /* and they go on together */
        ck_assert_msg(loss, "%s", shard_last_error());
        check_number(shard_item(loss), log(2), 1e-6, "loss", 0);
    }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together, .context = &_i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("binary_cross_entropy");
    TCase *values = test_case(suite, "values");
    tcase_add_loop_test(values, equals_pytorch, 0, sizeof golden_cases / sizeof *golden_cases);
    tcase_add_loop_test(values, follows_the_definition, 0, 4);
    tcase_add_loop_test(values, has_the_gradient_of_its_differences, 0, sizeof operations / sizeof *operations);
    tcase_add_test(values, stands_extreme_logits);
    tcase_add_test(values, stands_infinite_logits_of_pairs);
    tcase_add_test(values, takes_no_rows_and_no_pairs);
    tcase_add_test(values, puts_the_gradient_over_released_logits);
    TCase *ranks = test_case(suite, "ranks");
    add_ranks_test(ranks, test_equals_plain);
    add_ranks_test(ranks, test_splits_rows);
    TCase *errors = test_case(suite, "errors");
    tcase_add_test(errors, refuses);
    tcase_add_loop_test(errors, test_fails_together, 0, TROUBLES);
    return test_run(suite);
}
