/* The rank of the label: against sorting, whole and split. */
#include "support/host.h"
#include "support/loss.h"

#include "base/error.h"
#include "base/random.h"
#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- by sorting ---- */

typedef struct column {
    double value;
    int64_t number;
} column;

/* Larger first, NaN before numbers, equal ones by column. */
static int before(const void *a, const void *b)
{
    const column *x = a, *y = b;
    if (isnan(x->value) != isnan(y->value))
        return isnan(x->value) ? -1 : 1;
    if (x->value > y->value || x->value < y->value)
        return x->value > y->value ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static int64_t rank_by_sorting(const double *row, int64_t classes, int64_t label)
{
    column *columns = calloc((size_t)classes, sizeof *columns);
    for (int64_t k = 0; k < classes; k++)
        columns[k] = (column){row[k], k};
    qsort(columns, (size_t)classes, sizeof *columns, before);
    int64_t rank = 0;
    while (columns[rank].number != label)
        rank++;
    free(columns);
    return rank;
}

/* ---- by the library ---- */

#define ROWS 24

/* Logits on a grid, so that many are equal, with every third row's top raised to the
 * label's sometimes; NaN and infinities in some rows. */
static void make_logits(int64_t classes, shard_dtype dtype, double *logits, int64_t *labels)
{
    shard_draw draw = {3, (uint64_t)classes}, label_draw = {4, (uint64_t)classes};
    for (int64_t i = 0; i < ROWS; i++) {
        double *row = logits + i * classes;
        labels[i] = i % 7 == 3 ? -100 : (int64_t)(shard_uniform_at(label_draw, (uint64_t)i) * (float)classes);
        double levels = i % 2 ? 4 : 64;
        for (int64_t k = 0; k < classes; k++)
            row[k] = round_to(dtype, floor(levels * shard_uniform_at(draw, (uint64_t)(i * classes + k))) / 8);
        if (i % 3 == 0 && labels[i] >= 0)
            row[labels[i]] = 7.75;
        if (i == 8 || i == 9)
            row[classes / 2] = NAN;
        if (i == 9)
            row[labels[i]] = NAN;
        if (i == 11)
            row[classes - 1] = INFINITY;
        if (i == 12 || i == 13)
            for (int64_t k = 0; k < classes; k++)
                row[k] = -INFINITY;
    }
}

/* The ranks that the loss counts are those of shard_label_rank, and the loss has the bits that it has without. */
static void check_with_loss(shard_tensor *x, shard_tensor *labels, const int64_t *ranks)
{
    static int turn;
    shard_reduction reduction =
        (const shard_reduction[]){SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM, SHARD_REDUCTION_NONE}[turn++ % 3];
    double smoothing = turn % 2 ? 0.1 : 0;
    int64_t counted[ROWS];
    shard_tensor *rank = NULL, *plain = shard_cross_entropy(x, labels, .label_smoothing = smoothing, .reduction = reduction);
    shard_tensor *loss = shard_cross_entropy_with_rank(x, labels, &rank, .label_smoothing = smoothing, .reduction = reduction);
    ck_assert_msg(loss && rank, "%s", shard_last_error());
    check_ok(shard_copy_to_host(rank, counted, sizeof counted));
    for (int k = 0; k < ROWS; k++)
        ck_assert_msg(counted[k] == ranks[k], "row %d: rank %lld beside the loss, not %lld", k, (long long)counted[k],
                      (long long)ranks[k]);
    void *a = host_copy(loss), *b = host_copy(plain);
    ck_assert_mem_eq(a, b, (size_t)shard_numel(loss) * shard_dtype_size(shard_tensor_dtype(loss)));
    free(a);
    free(b);
}

static void check_ranks(shard_group *group, shard_range range, int64_t classes, shard_dtype dtype)
{
    double *logits = calloc((size_t)(ROWS * classes), sizeof *logits);
    double *part = calloc((size_t)(ROWS * range.size + 1), sizeof *part);
    int64_t labels[ROWS], ranks[ROWS], top[6] = {0};
    make_logits(classes, dtype, logits, labels);
    for (int64_t i = 0; i < ROWS; i++)
        memcpy(part + i * range.size, logits + i * classes + range.start, (size_t)range.size * sizeof *part);
    SHARD_SCOPE {
        shard_tensor *x = tensor_of(part, SHARD_SHAPE(ROWS, range.size), dtype);
        x = group ? shard_as_split(x, 1, group, range.start, classes) : x;
        shard_tensor *of = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64), *rank = shard_label_rank(x, of, -100);
        ck_assert_msg(rank, "%s", shard_last_error());
        check_ok(shard_copy_to_host(rank, ranks, sizeof ranks));
        check_with_loss(x, of, ranks);
        for (int64_t i = 0; i < ROWS; i++) {
            int64_t expected = labels[i] == -100 ? INT64_MAX : rank_by_sorting(logits + i * classes, classes, labels[i]);
            ck_assert_msg(ranks[i] == expected, "row %d of %d classes, %s: rank %lld, not %lld", (int)i, (int)classes,
                          shard_dtype_name(dtype), (long long)ranks[i], (long long)expected);
            for (int k = 0; k < 6; k++)
                top[k] += expected < k;
        }
        for (int k = 0; k < 6; k++)
            ck_assert_int_eq(shard_count_top_k(rank, k), top[k]);
        ck_assert_int_eq(shard_count_top_k(rank, INT64_MAX), ROWS - 3);
        ck_assert_int_eq(shard_count_top_k(rank, -1), 0);
        ck_assert_int_gt(top[1], 0);
        ck_assert_int_lt(top[1], ROWS - 3);
    }
    free(logits);
    free(part);
}

static const shard_dtype dtypes[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};
static const int64_t class_counts[] = {3, 10, 777};

START_TEST(ranks_by_sorting)
{
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 3; i++)
            check_ranks(NULL, (shard_range){0, class_counts[i]}, class_counts[i], dtypes[d]);
}
END_TEST

/* Uneven, and with members that have no classes. */
static void ranks_split(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 3; i++)
            check_ranks(world, shard_split_range(class_counts[i], size, rank), class_counts[i], dtypes[d]);
    check_ranks(world, rank == 0 ? (shard_range){0, 10} : (shard_range){10, 0}, 10, SHARD_FLOAT32);
}

START_TEST(test_ranks_split)
{
    run_ranks(rank_counts[_i], ranks_split);
}
END_TEST

static void ranks_in_groups(shard_group *world, void *context)
{
    (void)context;
    int half = shard_group_rank(world) % 2, members[] = {half, half + 2, half + 4};
    shard_group *group = shard_group_make(world, members, 3);
    ck_assert_msg(group, "%s", shard_last_error());
    check_ranks(group, shard_split_range(20 + half, 3, shard_group_rank(group)), 20 + half, SHARD_FLOAT32);
    shard_group_free(group);
}

START_TEST(test_ranks_in_groups)
{
    run_ranks(6, ranks_in_groups);
}
END_TEST

static void carries_rows(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world);
    shard_range range = shard_split_range(5, size, shard_group_rank(world));
    SHARD_SCOPE {
        shard_tensor *logits = shard_as_split(shard_zeros(SHARD_SHAPE(range.size, 4)), 0, world, range.start, 5);
        shard_tensor *twos = shard_full(SHARD_SHAPE(range.size), 2, .dtype = SHARD_INT64);
        shard_tensor *labels = shard_as_split(twos, 0, world, range.start, 5);
        shard_tensor *rank = shard_label_rank(logits, labels, -100);
        ck_assert_int_eq(shard_count_top_k(rank, 2), 0);
        ck_assert_int_eq(shard_count_top_k(rank, 3), range.size);
        ck_assert_int_eq(shard_tensor_placement(rank).kind, size > 1 ? SHARD_SPLIT : SHARD_LOCAL);
        shard_tensor *counted = NULL;
        ck_assert_ptr_nonnull(shard_cross_entropy_with_rank(logits, labels, &counted, .reduction = SHARD_REDUCTION_SUM));
        ck_assert_int_eq(shard_count_top_k(counted, 2), 0);
        ck_assert_int_eq(shard_count_top_k(counted, 3), range.size);
        ck_assert_int_eq(shard_tensor_placement(counted).kind, shard_tensor_placement(rank).kind);
    }
}

START_TEST(test_carries_rows)
{
    run_ranks(rank_counts[_i], carries_rows);
}
END_TEST

/* ---- edges and errors ---- */

START_TEST(takes_one_row_and_none)
{
    const int64_t label = 1;
    SHARD_SCOPE {
        shard_tensor *logits = tensor_of((const double[]){3, 2, 5}, SHARD_SHAPE(3), SHARD_FLOAT32);
        shard_tensor *labels = shard_from_host(&label, SHARD_SCALAR, .dtype = SHARD_INT64);
        ck_assert_double_eq(shard_item(shard_label_rank(logits, labels, -100)), 2);
        shard_tensor *none = shard_zeros(SHARD_SHAPE(0), .dtype = SHARD_INT64);
        ck_assert_int_eq(shard_count_top_k(shard_label_rank(shard_zeros(SHARD_SHAPE(0, 3)), none, -100), 1), 0);
    }
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
}
END_TEST

/* Where the device queues, the error may be that of the next call that waits for it. Whether it was. */
static bool is_late(shard_tensor *rank)
{
    if (!rank)
        return false;
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
    ck_assert_int_eq(shard_count_top_k(rank, 1), -1);
    return !shard_device_open(NULL)->ops->host_memory;
}

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_zeros(SHARD_SHAPE(2, 3)), *labels = shard_full(SHARD_SHAPE(2), 3, .dtype = SHARD_INT64);
        ck_assert(is_late(shard_label_rank(logits, labels, -100)) != shard_device_open(NULL)->ops->host_memory);
        check_error(SHARD_ERROR_ARGUMENT, "shard_label_rank: label 3*");
        ck_assert_ptr_null(shard_label_rank(logits, logits, -100));
        check_error(SHARD_ERROR_SHAPE, "shard_label_rank: *int64*");
        ck_assert_ptr_null(shard_label_rank(logits, NULL, -100));
        check_error(SHARD_ERROR_ARGUMENT, "shard_label_rank: *operand*");
        ck_assert_int_eq(shard_count_top_k(NULL, 1), -1);
        check_error(SHARD_ERROR_ARGUMENT, "shard_count_top_k: *operand*");
        ck_assert_int_eq(shard_count_top_k(logits, 1), -1);
        check_error(SHARD_ERROR_SHAPE, "shard_count_top_k: the ranks are float32*");
        shard_tensor *rank = logits;
        ck_assert_ptr_null(shard_cross_entropy_with_rank(logits, logits, &rank));
        check_error(SHARD_ERROR_ARGUMENT, "shard_cross_entropy: label_rank *");
        ck_assert_ptr_null(rank);
        rank = logits;
        ck_assert_ptr_null(shard_cross_entropy_with_rank(logits, NULL, &rank));
        check_error(SHARD_ERROR_ARGUMENT, "shard_cross_entropy: *operand*");
        ck_assert_ptr_null(rank);
    }
}
END_TEST

/* In the exchange of the labels' logits already, so that no rank waits in the next one. */
static void loss_fails_together(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_range range = shard_split_range(9, 3, rank);
    const int64_t label[3] = {1, 2, 3};
    SHARD_SCOPE {
        shard_tensor *logits = shard_as_split(shard_zeros(SHARD_SHAPE(3, range.size)), 1, world, range.start, 9), *counted = NULL;
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(3), .dtype = SHARD_INT64);
        shard_tensor *weight = rank == 1 ? shard_ones(SHARD_SHAPE(2)) : shard_ones(SHARD_SHAPE(9));
        ck_assert_ptr_null(shard_cross_entropy_with_rank(logits, labels, &counted, .weight = weight));
        check_error(rank == 1 ? SHARD_ERROR_SHAPE : SHARD_ERROR_PEER, "*shard_cross_entropy: class weights of shape \\[2] that are *");
        ck_assert_ptr_null(shard_cross_entropy_with_rank(logits, labels, rank == 1 ? NULL : &counted));
        check_error(SHARD_ERROR_MISMATCH,
                    "*shard_cross_entropy: options or the number of classes on rank 1 differ from those on ranks 0 and 2*");
        ck_assert_ptr_nonnull(shard_cross_entropy_with_rank(logits, labels, &counted));
        ck_assert_int_eq(shard_count_top_k(counted, 2), 1);
    }
}

START_TEST(test_loss_fails_together)
{
    run_ranks(3, loss_fails_together);
}
END_TEST

static void fails_together(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_range range = shard_split_range(9, 3, rank);
    const int64_t labels[3] = {1, 2, rank == 1 ? 9 : 3};
    SHARD_SCOPE {
        shard_tensor *logits = shard_as_split(shard_zeros(SHARD_SHAPE(3, range.size)), 1, world, range.start, 9);
        bool late = is_late(shard_label_rank(logits, shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64), -100));
        const char *differs = "*shard_label_rank: labels on rank 1 differ from those on rank 0*";
        if (late) /* nobody has failed so far, and each member tells of its own labels first */
            check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_MISMATCH,
                        rank == 1 ? "shard_label_rank: label 9*" : differs);
        else
            check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: shard_label_rank: label 9*");
        is_late(shard_label_rank(logits, shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64), 9));
        check_error(SHARD_ERROR_MISMATCH, differs);
    }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("label_rank");
    TCase *values = test_case(suite, "values");
    tcase_add_test(values, ranks_by_sorting);
    add_ranks_test(values, test_ranks_split);
    tcase_add_test(values, test_ranks_in_groups);
    add_ranks_test(values, test_carries_rows);
    tcase_add_test(values, takes_one_row_and_none);
    TCase *errors = test_case(suite, "errors");
    tcase_add_test(errors, refuses);
    tcase_add_test(errors, test_fails_together);
    tcase_add_test(errors, test_loss_fails_together);
    return test_run(suite);
}
