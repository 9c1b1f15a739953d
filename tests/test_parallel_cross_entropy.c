/* The loss of logits whose classes are split: the plain loss's values on every member, and its joint errors. */
#include "support/loss.h"

#include "base/error.h"
#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sharded against plain ---- */

/* All members have the same bits. */
static void check_same(shard_group *group, const double *values, int64_t count)
{
    int members = shard_group_size(group);
    double *all = calloc((size_t)(members * count + 1), sizeof *all);
    int64_t *counts = calloc((size_t)members, sizeof *counts);
    for (int i = 0; i < members; i++)
        counts[i] = count;
    check_ok(shard_group_all_gather(group, NULL, values, all, counts, SHARD_FLOAT64));
    for (int i = 0; i < members; i++)
        ck_assert_msg(memcmp(all + i * count, all, (size_t)count * sizeof *all) == 0, "member %d has other values", i);
    free(counts);
    free(all);
}

static void check_split(const loss_case *c, shard_group *group, shard_range range, double tolerance)
{
    loss_data data = loss_data_make(c);
    int64_t count = c->rows * c->classes;
    double *plain = calloc((size_t)(2 * data.results + 1), sizeof *plain), *split = plain + data.results;
    double *gradient = calloc((size_t)(count + c->rows * range.size + 1), sizeof *gradient), *own = gradient + count;
    loss_and_gradient(c, &data, NULL, (shard_range){0, c->classes}, plain, gradient);
    loss_and_gradient(c, &data, group, range, split, own);
    for (int64_t i = 0; i < data.results; i++)
        check_number(split[i], plain[i], tolerance, loss_case_text(c), i);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t k = 0; k < range.size; k++) {
            /* Relative to what it is a difference of, as most gradients of many classes are small; both are rounded. */
            int64_t at = i * c->classes + range.start + k;
            double target = c->soft ? data.probabilities[at] : range.start + k == data.labels[i];
            double size = fabs(gradient[at]) + target + 1 / (double)c->classes;
            check_number(own[i * range.size + k], gradient[at], 2 * tolerance * size, loss_case_text(c), at);
        }
    check_same(group, split, data.results);
    free(plain);
    free(gradient);
    loss_data_free(&data);
}

static const struct {
    shard_dtype dtype;
    double tolerance;
} dtypes[] = {{SHARD_FLOAT64, 1e-12}, {SHARD_FLOAT32, 1e-6}, {SHARD_BFLOAT16, 0x1p-8}, {SHARD_FLOAT16, 0x1p-11}};

/* Uneven; and more members than classes, some without any. */
static void equals_plain(shard_group *world, void *context)
{
    (void)context;
    static const int64_t shapes[][2] = {{5, 13}, {4, 3}, {3, 301}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < LOSS_CASES; i++)
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
                loss_case c = loss_case_at(i, shapes[s][0], shapes[s][1], dtypes[d].dtype);
                check_split(&c, world, loss_range(&c, world), dtypes[d].tolerance);
            }
}

START_TEST(test_equals_plain)
{
    run_ranks(rank_counts[_i], equals_plain);
}
END_TEST

/* With the options that follow the reduction. */
static void equals_plain_in_other_ways(shard_group *world, void *context)
{
    int way = *(int *)context;
    for (int i = 0; i < LOSS_CASES; i += 5)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d += 2) {
            loss_case c = loss_case_by(way, loss_case_at(i, 5, 13, dtypes[d].dtype));
            check_split(&c, world, loss_range(&c, world), 2 * dtypes[d].tolerance);
            c = loss_case_by(way, loss_case_at(i, 4, 3, dtypes[d].dtype));
            check_split(&c, world, loss_range(&c, world), 2 * dtypes[d].tolerance);
        }
}

START_TEST(test_equals_plain_in_other_ways)
{
    for (int way = 1; way < LOSS_WAYS; way++)
        run_ranks(rank_counts[_i], equals_plain_in_other_ways, .context = &way);
}
END_TEST

/* All classes with the last member, and parts of 1, 2, 3, ... classes. */
static void takes_any_parts(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    for (int i = 0; i < LOSS_CASES; i += 5) {
        loss_case c = loss_case_at(i, 6, size * (size + 1) / 2, SHARD_FLOAT64);
        check_split(&c, world, (shard_range){rank * (rank + 1) / 2, rank + 1}, 1e-12);
        shard_range all = rank == size - 1 ? (shard_range){0, c.classes} : (shard_range){0, 0};
        check_split(&c, world, all, 1e-12);
    }
}

START_TEST(test_takes_any_parts)
{
    run_ranks(rank_counts[_i], takes_any_parts);
}
END_TEST

/* Each row and each column of a mesh of rows x columns ranks is a group. */
static void works_in_groups(shard_group *world, void *context)
{
    int columns = *(int *)context, rank = shard_group_rank(world), size = shard_group_size(world);
    int members[2][8], sizes[2] = {0, 0};
    for (int other = 0; other < size; other++) {
        if (other / columns == rank / columns)
            members[0][sizes[0]++] = other;
        if (other % columns == rank % columns)
            members[1][sizes[1]++] = other;
    }
    for (int way = 0; way < 2; way++) {
        shard_group *group = shard_group_make(world, members[way], sizes[way]);
        ck_assert_msg(group, "%s", shard_last_error());
        for (int i = 0; i < LOSS_CASES; i++) {
            /* Other groups compute other shapes meanwhile. */
            int number = way == 0 ? rank / columns : rank % columns;
            loss_case c = loss_case_at(i, 3 + number, 11 - number, SHARD_FLOAT32);
            check_split(&c, group, loss_range(&c, group), 1e-6);
        }
        shard_group_free(group);
    }
}

START_TEST(test_works_in_groups)
{
    static const int shapes[][2] = {{2, 2}, {2, 4}, {4, 2}, {3, 2}, {1, 4}};
    int columns = shapes[_i][1];
    run_ranks(shapes[_i][0] * columns, works_in_groups, .context = &columns);
}
END_TEST

/* The split head of a large classifier. */
static void sums_a_million_classes(shard_group *world, void *context)
{
    (void)context;
    loss_case c = {.rows = 2, .classes = 1000003, .dtype = SHARD_FLOAT32, .smoothing = 0.1, .ignore_index = -100};
    check_split(&c, world, loss_range(&c, world), 1e-6);
}

START_TEST(test_sums_a_million_classes)
{
    run_ranks(2, sums_a_million_classes);
}
END_TEST

/* ---- logits at the ends of their range, each on a part of its own ---- */

static void stands_extreme_logits(shard_group *world, void *context)
{
    (void)context;
    const double inf = INFINITY;
    const struct {
        double logit[4], loss, gradient[4];
    } cases[] = {
        {{1e4, -1e4, 0, 1e4}, log(2), {-0.5, 0, 0, 0.5}},  {{-1e4, 1e4, 0, 0}, 20000, {-1, 1, 0, 0}},
        {{7, 7, 7, 7}, log(4), {-0.75, 0.25, 0.25, 0.25}}, {{0, -inf, 0, -inf}, log(2), {-0.5, 0, 0.5, 0}},
        {{-inf, -inf, 0, 0}, inf, {-1, 0, 0.5, 0.5}},      {{-inf, -inf, -inf, -inf}, NAN, {NAN, NAN, NAN, NAN}},
        {{0, 0, NAN, 0}, NAN, {NAN, NAN, NAN, NAN}},       {{0, -inf, -inf, NAN}, NAN, {NAN, NAN, NAN, NAN}},
        {{0, inf, 0, 0}, NAN, {NAN, NAN, NAN, NAN}},
    };
    int64_t label = 0;
    shard_range range = shard_split_range(4, shard_group_size(world), shard_group_rank(world));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE
        {
            shard_tensor *part = tensor_of(cases[i].logit + range.start, SHARD_SHAPE(1, range.size), SHARD_FLOAT32);
            shard_tensor *logits = shard_as_split(part, 1, world, range.start, 4);
            shard_set_requires_grad(logits, true);
            shard_tensor *labels = shard_from_host(&label, SHARD_SHAPE(1), .dtype = SHARD_INT64);
            shard_tensor *loss = shard_parallel_cross_entropy(logits, labels);
            double value, gradient[4];
            read_values(loss, &value);
            check_number(value, cases[i].loss, 1e-6, "loss", (int64_t)i);
            check_ok(shard_backward(loss));
            read_values(shard_grad(logits), gradient);
            for (int64_t k = 0; k < range.size; k++)
                check_number(gradient[k], cases[i].gradient[range.start + k], 1e-6, "gradient", (int64_t)i * 4 + range.start + k);
        }
}

START_TEST(test_stands_extreme_logits)
{
    run_ranks(rank_counts[_i], stands_extreme_logits);
}
END_TEST

/* ---- rows split over a group ---- */

static void splits_rows(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world);
    loss_case c = loss_case_at(2, 7, 5, SHARD_FLOAT64);
    c.reduction = SHARD_REDUCTION_SUM;
    loss_data data = loss_data_make(&c);
    double sum, gradient[35], own;
    loss_reference(&c, &data, &sum, gradient);
    shard_range range = shard_split_range(7, size, shard_group_rank(world));
    SHARD_SCOPE
    {
        shard_tensor *x = tensor_of(data.logits + range.start * 5, SHARD_SHAPE(range.size, 5), SHARD_FLOAT64);
        shard_tensor *logits = shard_as_split(x, 0, world, range.start, 7);
        shard_tensor *weight = tensor_of(data.weight, SHARD_SHAPE(5), c.dtype);
        shard_set_requires_grad(logits, true);
        shard_tensor *labels = shard_from_host(data.labels + range.start, SHARD_SHAPE(range.size), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy(logits, labels, .weight = weight, .reduction = SHARD_REDUCTION_SUM);
        read_values(loss, &own);
        ck_assert_int_eq(shard_tensor_placement(loss).kind, size > 1 ? SHARD_PARTIAL : SHARD_LOCAL);
        check_ok(shard_group_all_reduce(world, NULL, &own, 1, SHARD_FLOAT64, SHARD_SUM));
        check_number(own, sum, 1e-13, "sum", 0);
        check_ok(shard_backward(loss));
        double got[35];
        read_values(shard_grad(logits), got);
        for (int64_t i = 0; i < range.size * 5; i++)
            check_number(got[i], gradient[range.start * 5 + i] / data.dy[0], 1e-13, "gradient", i);

        shard_tensor *split = shard_as_split(labels, 0, world, range.start, 7);
        shard_tensor *each = shard_cross_entropy(logits, split, .reduction = SHARD_REDUCTION_NONE);
        ck_assert_msg(each, "%s", shard_last_error());
        shard_placement placement = shard_tensor_placement(each);
        ck_assert_int_eq(placement.kind, size > 1 ? SHARD_SPLIT : SHARD_LOCAL);
        ck_assert_int_eq(placement.start, size > 1 ? range.start : 0);
        ck_assert_int_eq(shard_numel(each), range.size);
        double values[7], total = 0;
        read_values(each, values);
        for (int64_t i = 0; i < range.size; i++)
            total += values[i];
        read_values(shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM), &own);
        check_number(total, own, 1e-13, "sum of each", 0);
        if (size > 1) {
            ck_assert_ptr_null(shard_cross_entropy(logits, split));
            check_error(SHARD_ERROR_UNSUPPORTED, "shard_cross_entropy: no mean over rows that are split over a group*");
        }
    }
    loss_data_free(&data);
}

START_TEST(test_splits_rows)
{
    run_ranks(rank_counts[_i], splits_rows);
}
END_TEST

/* ---- TorchShard's own test ---- */

/* test_cross_entropy.py: a whole parameter is scattered along classes; loss and the
 * parameter's gradient equal the plain ones. The scatter's gradient is a gather. */
static void equals_torchshards(shard_group *world, void *context)
{
    int64_t rows = 13 * 17, classes = 11 * shard_group_size(world);
    loss_case c = {.rows = rows,
                   .classes = classes,
                   .dtype = SHARD_FLOAT32,
                   .scale = 1000.0,
                   .ignore_index = -100,
                   .reduction = *(shard_reduction *)context};
    check_split(&c, world, loss_range(&c, world), 1e-6);
}

START_TEST(test_equals_torchshards)
{
    for (shard_reduction reduction = SHARD_REDUCTION_MEAN; reduction <= SHARD_REDUCTION_NONE; reduction++)
        run_ranks(rank_counts[_i], equals_torchshards, .context = &reduction);
}
END_TEST

/* ---- errors of one are errors of all ---- */

typedef struct trouble {
    shard_tensor *logits, *target;
    shard_cross_entropy_options options;
    shard_range range;
    int rank;
    shard_group *world;
} trouble;

static shard_tensor *part_of(const trouble *t, int64_t rows, shard_range range)
{
    return shard_as_split(shard_zeros(SHARD_SHAPE(rows, range.size)), 1, t->world, range.start, 1000);
}

static shard_tensor *four_labels(int64_t last)
{
    return shard_from_host(((const int64_t[]){0, 1, 2, last}), SHARD_SHAPE(4), .dtype = SHARD_INT64);
}

static void label_out_of_range_on_one(trouble *t)
{
    t->target = four_labels(t->rank == 1 ? 1000 : 5);
}

static void label_out_of_range_on_all(trouble *t)
{
    t->target = four_labels(-7);
}

static const shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;

/* Found where the margin is put into the logits, before the ranks meet. */
static void no_label_for_margin_on_one(trouble *t)
{
    t->options.margin = &margin;
    if (t->rank == 1)
        t->target = four_labels(1000);
}

static void other_labels(trouble *t)
{
    t->target = four_labels(t->rank == 2 ? 5 : 6); /* both in member 0's part: nobody else would look at them */
}

static void no_labels(trouble *t)
{
    if (t->rank == 2)
        t->target = NULL;
}

static void no_logits_but_probabilities(trouble *t)
{
    t->target = part_of(t, 4, t->range);
    if (t->rank == 0)
        t->logits = NULL;
}

static void probabilities_on_one(trouble *t)
{
    if (t->rank == 1)
        t->target = part_of(t, 4, t->range);
}

static void fewer_rows(trouble *t)
{
    if (t->rank == 1) {
        t->logits = part_of(t, 2, t->range);
        t->target = shard_from_host(((const int64_t[]){0, 1}), SHARD_SHAPE(2), .dtype = SHARD_INT64);
    }
}

static void other_type(trouble *t)
{
    if (t->rank == 1)
        t->logits = shard_as_split(shard_zeros(SHARD_SHAPE(4, t->range.size), .dtype = SHARD_BFLOAT16), 1, t->world,
                                   t->range.start, 1000);
}

static void other_smoothing(trouble *t)
{
    t->options.label_smoothing = t->rank == 1 ? 0.1 : 0.2;
}

static void other_reduction(trouble *t)
{
    t->options.reduction = t->rank == 1 ? SHARD_REDUCTION_SUM : SHARD_REDUCTION_MEAN;
}

static void other_cap(trouble *t)
{
    t->options.soft_cap = t->rank == 1 ? 30 : 50;
}

static void other_z_loss(trouble *t)
{
    t->options.z_loss = t->rank == 1 ? 1e-4 : 0;
}

static void other_margin(trouble *t)
{
    static shard_margin_logits_options other = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    other.m2 = 0.3;
    t->options.margin = t->rank == 1 ? &other : &margin;
}

static void margin_on_one(trouble *t)
{
    t->options.margin = t->rank == 1 ? &margin : NULL;
}

static void row_weight_on_one(trouble *t)
{
    t->options.row_weight = t->rank == 1 ? shard_ones(SHARD_SHAPE(4)) : NULL;
}

static void other_row_weights(trouble *t)
{
    t->options.row_weight = shard_full(SHARD_SHAPE(4), t->rank == 2 ? -1 : 1);
}

static void weight_on_one(trouble *t)
{
    t->options.weight = t->rank == 1 ? shard_ones(SHARD_SHAPE(1000)) : NULL;
}

static void weight_of_another_part(trouble *t)
{
    shard_range range = shard_split_range(1000, 3, (t->rank + 1) % 3);
    t->options.weight = shard_as_split(shard_ones(SHARD_SHAPE(range.size)), 0, t->world, range.start, 1000);
}

static void gap_between_parts(trouble *t)
{
    if (t->rank == 1)
        t->logits = part_of(t, 4, (shard_range){t->range.start + 1, t->range.size - 1});
}

static void classes_missing(trouble *t)
{
    if (t->rank == 2)
        t->logits = part_of(t, 4, (shard_range){t->range.start, t->range.size - 1});
}

static void whole_probabilities(trouble *t)
{
    t->target = shard_zeros(SHARD_SHAPE(4, t->range.size));
}

static void earlier_error(trouble *t)
{
    if (t->rank == 2)
        shard_error(SHARD_ERROR_IO, "the disk is full");
}

#define SAYS "shard_cross_entropy: "
static const struct {
    void (*make)(trouble *);
    int culprit; /* whose status is told as PEER to the others; -1: all have it themselves */
    shard_status status;
    const char *text;
} troubles[] = {
    {label_out_of_range_on_one, 1, SHARD_ERROR_ARGUMENT, "rank 1: " SAYS "label 1000 at row 3 is outside \\[0, 1000)"},
    {label_out_of_range_on_all, -1, SHARD_ERROR_ARGUMENT, "rank 0: " SAYS "label -7 at row 3 is outside \\[0, 1000)"},
    {no_label_for_margin_on_one, 1, SHARD_ERROR_ARGUMENT, "rank 1: *label 1000 at row 3 is outside \\[0, 1000)"},
    {other_labels, -1, SHARD_ERROR_MISMATCH, SAYS "labels on rank 2 differ*"},
    {no_labels, 2, SHARD_ERROR_ARGUMENT, "rank 2: " SAYS "an operand is NULL"},
    {no_logits_but_probabilities, 0, SHARD_ERROR_ARGUMENT, "rank 0: " SAYS "an operand is NULL"},
    {probabilities_on_one, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {fewer_rows, -1, SHARD_ERROR_MISMATCH,
     "shard_cross_entropy: rank 1 has logits of 2 rows, ranks 0 and 2 of 4; every rank needs the same rows"},
    {other_type, -1, SHARD_ERROR_MISMATCH, SAYS "rank 1 has logits of bfloat16, ranks 0 and 2 of float32; *"},
    {other_smoothing, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_reduction, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_cap, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_z_loss, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_margin, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {margin_on_one, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {row_weight_on_one, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {other_row_weights, -1, SHARD_ERROR_MISMATCH, SAYS "row weights on rank 2 differ*"},
    {weight_on_one, -1, SHARD_ERROR_MISMATCH, SAYS "options*on rank 1 differ from those on ranks 0 and 2*"},
    {weight_of_another_part, -1, SHARD_ERROR_SHAPE,
     "rank 0: " SAYS "class weights of shape \\[333] that are split along 0, for classes \\[0, 334) of 1000*"},
    {gap_between_parts, -1, SHARD_ERROR_MISMATCH, SAYS "rank 1 *class 335*class 334*"},
    {classes_missing, -1, SHARD_ERROR_MISMATCH, SAYS "*999 classes of 1000"},
    {whole_probabilities, -1, SHARD_ERROR_UNSUPPORTED, "rank 0: " SAYS "no rule for a tensor of shape \\[4, 334] that is local"},
    {earlier_error, 2, SHARD_ERROR_IO, "rank 2: the disk is full"},
};
#define TROUBLES (sizeof troubles / sizeof *troubles)

/* A device that queues says later what it alone sees: nobody has failed so far, and each
 * member tells of its own labels first. */
static void check_late_error(const trouble *t, int number, shard_tensor *loss)
{
    const char *differs = SAYS "labels on rank 1 differ from those on rank 0*";
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
    ck_assert(!shard_device_open(NULL)->ops->host_memory && isnan(shard_item(loss)));
    if (troubles[number].make == no_label_for_margin_on_one)
        check_error(t->rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_MISMATCH,
                    t->rank == 1 ? "shard_margin_logits: label 1000*" : differs);
    else if (troubles[number].make == label_out_of_range_on_one)
        check_error(t->rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_MISMATCH, t->rank == 1 ? SAYS "label 1000*" : differs);
    else if (troubles[number].make == label_out_of_range_on_all)
        check_error(SHARD_ERROR_ARGUMENT, SAYS "label -7*");
    else
        check_error(troubles[number].status, troubles[number].text);
}

static void fails_together(shard_group *world, void *context)
{
    int number = *(int *)context;
    int rank = shard_group_rank(world), culprit = troubles[number].culprit;
    SHARD_SCOPE
    {
        trouble t = {.rank = rank,
                     .world = world,
                     .range = shard_split_range(1000, 3, rank),
                     .target = four_labels(5),
                     .options = SHARD_CROSS_ENTROPY_OPTIONS_INIT};
        t.logits = part_of(&t, 4, t.range);
        troubles[number].make(&t);
        shard_tensor *loss = shard_cross_entropy_with(t.logits, t.target, &t.options, NULL);
        if (loss)
            check_late_error(&t, number, loss);
        else
            check_error(culprit < 0 || culprit == rank ? troubles[number].status : SHARD_ERROR_PEER, troubles[number].text);

        loss = shard_cross_entropy(part_of(&t, 4, t.range), four_labels(5)); /* and they go on together */
        ck_assert_msg(loss, "%s", shard_last_error());
        check_number(shard_item(loss), log(1000), 1e-6, "loss", 0);
    }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together, .context = &_i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_cross_entropy");
    TCase *values = test_case(suite, "values");
    add_ranks_test(values, test_equals_plain);
    add_ranks_test(values, test_equals_plain_in_other_ways);
    add_ranks_test(values, test_takes_any_parts);
    tcase_add_loop_test(values, test_works_in_groups, 0, 5);
    tcase_add_test(values, test_sums_a_million_classes);
    add_ranks_test(values, test_stands_extreme_logits);
    add_ranks_test(values, test_splits_rows);
    add_ranks_test(values, test_equals_torchshards);
    TCase *errors = test_case(suite, "errors");
    tcase_add_loop_test(errors, test_fails_together, 0, TROUBLES);
    return test_run(suite);
}
