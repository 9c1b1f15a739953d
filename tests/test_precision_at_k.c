/* P@k and PSP@k against numbers that are computed by hand, and a plain loop for split logits. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/ranks.h"

#include <shard/distributed.h>
#include <shard/loss.h>

#include "comm/comm.h"

#include <math.h>

static shard_tensor *integers(shard_shape shape, const int64_t *values)
{
    return shard_from_host(values, shape, .dtype = SHARD_INT64);
}

/* Three rows: two hits of three, none, and one of the only positive class. */
static const int64_t predicted[] = {4, 0, 2, 1, 2, 3, 0, 1, 2}, ones[] = {0, 0, 0, 1, 2, 0, 2, 3, 0, 1};

START_TEST(counts_hits)
{
    SHARD_SCOPE
    {
        shard_tensor *indices = integers(SHARD_SHAPE(3, 3), predicted), *pairs = integers(SHARD_SHAPE(2, 5), ones);
        ck_assert_double_eq(shard_precision_at_k(indices, pairs, 1, NULL), 0);
        ck_assert_double_eq_tol(shard_precision_at_k(indices, pairs, 2, NULL), 2.0 / 6, 1e-15);
        ck_assert_double_eq_tol(shard_precision_at_k(indices, pairs, 3, NULL), 3.0 / 9, 1e-15);
        /* Inverse propensities 1, 2, 3, 4, 5: the best of k = 2 are 4 + 3, 1 and 2. */
        shard_tensor *inverse = shard_from_host(((const float[]){1, 2, 3, 4, 5}), SHARD_SHAPE(5));
        ck_assert_double_eq_tol(shard_precision_at_k(indices, pairs, 2, inverse), (1.0 + 2) / (4 + 3 + 1 + 2), 1e-15);
        ck_assert_double_eq_tol(shard_precision_at_k(indices, pairs, 3, inverse), (1.0 + 3 + 2) / (1 + 4 + 3 + 1 + 2), 1e-15);
    }
}
END_TEST

/* As the indices of logits that have the positives on top. */
START_TEST(reads_indices_of_top_k)
{
    SHARD_SCOPE
    {
        shard_tensor *pairs = integers(SHARD_SHAPE(2, 2), (const int64_t[]){0, 1, 3, 6}), *indices;
        shard_tensor *logits = shard_from_host(((const float[2][7]){{0, 0, 0, 5}, {[6] = 1}}), SHARD_SHAPE(2, 7));
        ck_assert_ptr_nonnull(shard_top_k(logits, 2, &indices));
        ck_assert_double_eq(shard_precision_at_k(indices, pairs, 1, NULL), 1);
        ck_assert_double_eq(shard_precision_at_k(indices, pairs, 2, NULL), 0.5);
        ck_assert_double_eq(
            shard_precision_at_k(integers(SHARD_SHAPE(0, 2), predicted), integers(SHARD_SHAPE(2, 0), ones), 1, NULL), 0);
    }
}
END_TEST

/* ---- split logits ---- */

enum { ROWS = 6, CLASSES = 23 };

static double logit_at(int64_t i)
{
    return sin(17.0 * (double)i);
}

static bool is_one(int64_t i)
{
    return i / CLASSES != 4 && (i * i + 3 * i) % 11 < 4;
}

/* A class of the row precedes another one. */
static bool precedes(int64_t row, int64_t a, int64_t b)
{
    double x = logit_at(row * CLASSES + a), y = logit_at(row * CLASSES + b);
    return x > y || (x == y && a < b);
}

/* By the number of classes that precede each of the pairs' ones. */
static double plain_precision(int64_t k)
{
    int64_t hits = 0;
    for (int64_t i = 0; i < ROWS * CLASSES; i++) {
        int64_t before = 0;
        for (int64_t class = 0; class < CLASSES; class ++)
            before += precedes(i / CLASSES, class, i % CLASSES);
        hits += is_one(i) && before < k;
    }
    return (double)hits / (double)(ROWS * k);
}

/* The ones of rows [first, end), counted from first. */
static shard_tensor *make_pairs(int64_t first, int64_t end)
{
    int64_t pairs[2 * ROWS * CLASSES], count = 0, at = 0;
    for (int64_t i = first * CLASSES; i < end * CLASSES; i++)
        count += is_one(i);
    for (int64_t i = first * CLASSES; i < end * CLASSES; i++)
        if (is_one(i)) {
            pairs[at] = i / CLASSES - first;
            pairs[count + at++] = i % CLASSES;
        }
    return integers(SHARD_SHAPE(2, count), pairs);
}

/* The first 5 of every row, of the local rows and columns. */
static shard_tensor *indices_of(shard_range rows, shard_range columns, int dim, shard_group *world)
{
    float logit[ROWS * CLASSES];
    shard_tensor *indices;
    for (int64_t i = 0; i < rows.size * columns.size; i++)
        logit[i] = (float)logit_at((rows.start + i / columns.size) * CLASSES + columns.start + i % columns.size);
    shard_tensor *x = shard_from_host(logit, SHARD_SHAPE(rows.size, columns.size));
    x = shard_as_split(x, dim, world, dim ? columns.start : rows.start, dim ? CLASSES : ROWS);
    ck_assert_msg(shard_top_k(x, 5, &indices) != NULL, "%s", shard_last_error());
    return indices;
}

/* P@1, P@3 and P@5 of logits that are split along classes are those of the whole; of split rows the means over the local ones. */
static void equals_plain(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world), rank = shard_group_rank(world);
    shard_range columns = shard_split_range(CLASSES, size, rank), rows = shard_split_range(ROWS, size, rank);
    SHARD_SCOPE
    {
        shard_tensor *of_classes = indices_of((shard_range){0, ROWS}, columns, 1, world), *pairs = make_pairs(0, ROWS);
        shard_tensor *of_rows = indices_of(rows, (shard_range){0, CLASSES}, 0, world);
        shard_tensor *own = make_pairs(rows.start, rows.start + rows.size);
        shard_tensor *whole = indices_of((shard_range){0, ROWS}, (shard_range){0, CLASSES}, 1, NULL);
        shard_tensor *inverse = shard_uniform(SHARD_SHAPE(CLASSES), 1, 9); /* the same on all ranks */
        for (int64_t k = 1; k <= 5; k += 2) {
            ck_assert_double_eq_tol(shard_precision_at_k(of_classes, pairs, k, NULL), plain_precision(k), 1e-15);
            double sum = shard_precision_at_k(of_rows, own, k, NULL) * (double)rows.size;
            check_ok(shard_group_all_reduce(world, NULL, &sum, 1, SHARD_FLOAT64, SHARD_SUM));
            ck_assert_double_eq_tol(sum / ROWS, plain_precision(k), 1e-15);
            ck_assert_double_eq(shard_precision_at_k(of_classes, pairs, k, inverse),
                                shard_precision_at_k(whole, pairs, k, inverse));
        }
    }
}

START_TEST(takes_split_logits)
{
    run_ranks(rank_counts[_i], equals_plain);
}
END_TEST

/* ---- errors ---- */

static void refused(double precision, shard_status status, const char *pattern)
{
    ck_assert_double_eq(precision, -1);
    check_refused(NULL, status, pattern);
}

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *indices = integers(SHARD_SHAPE(3, 3), predicted), *pairs = integers(SHARD_SHAPE(2, 5), ones);
        refused(shard_precision_at_k(indices, integers(SHARD_SHAPE(2, 1), (int64_t[]){0, -1}), 1, NULL), SHARD_ERROR_ARGUMENT,
                "*class -1 of pair 0 *");
        refused(shard_precision_at_k(indices, pairs, 4, NULL), SHARD_ERROR_SHAPE,
                "shard_precision_at_k: k is 4 for indices of *");
        refused(shard_precision_at_k(indices, pairs, 0, NULL), SHARD_ERROR_SHAPE,
                "shard_precision_at_k: k is 0 for indices of *");
        refused(shard_precision_at_k(indices, indices, 1, NULL), SHARD_ERROR_SHAPE,
                "shard_precision_at_k: pairs of dtype int64 and *");
        refused(shard_precision_at_k(indices, pairs, 1, shard_ones(SHARD_SHAPE(2))), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: class 2 of pair 1 is outside [[]0, 2)*");
        refused(shard_precision_at_k(indices, pairs, 1, pairs), SHARD_ERROR_SHAPE,
                "shard_precision_at_k: inverse_propensity of *");
        refused(shard_precision_at_k(indices, pairs, 1, shard_full(SHARD_SHAPE(4), -1)), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: inverse_propensity of class 0 is -1; *");
        refused(shard_precision_at_k(indices, pairs, 1, shard_full(SHARD_SHAPE(4), NAN)), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: inverse_propensity of class 0 is nan; *");
        refused(shard_precision_at_k(integers(SHARD_SHAPE(2, 3), predicted), pairs, 1, NULL), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: row 2 *");
        static const int64_t twice[] = {0, 0, 4, 4}, turned[] = {1, 0, 4, 5};
        refused(shard_precision_at_k(indices, integers(SHARD_SHAPE(2, 2), twice), 1, NULL), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: row 0 and class 4 of pair 1 do not follow the pair before it; *");
        refused(shard_precision_at_k(indices, integers(SHARD_SHAPE(2, 2), turned), 1, NULL), SHARD_ERROR_ARGUMENT,
                "shard_precision_at_k: row 0 and class 5 of pair 1 do not follow the pair before it; *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("precision_at_k");
    TCase *tcase = test_case(suite, "precision_at_k");
    tcase_add_test(tcase, counts_hits);
    tcase_add_test(tcase, reads_indices_of_top_k);
    add_ranks_test(tcase, takes_split_logits);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
