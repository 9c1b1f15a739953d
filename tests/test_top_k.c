/* max, min, argmax, argmin along a dimension and top_k: against finite differences, and split
 * over ranks against one process: ties, NaN, uneven and empty parts. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/rules.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>

typedef struct along {
    int dim;
    bool keepdim;
} along;

static shard_tensor *max(shard_tensor *const *x, const void *options)
{
    const along *how = options;
    return shard_max_dim(x[0], how->dim, how->keepdim, NULL);
}

static shard_tensor *min(shard_tensor *const *x, const void *options)
{
    const along *how = options;
    return shard_min_dim(x[0], how->dim, how->keepdim, NULL);
}

static shard_tensor *top(shard_tensor *const *x, const void *k)
{
    return shard_top_k(x[0], *(const int64_t *)k, NULL);
}

static const along first = {0, false}, first_kept = {0, true}, middle = {1, false}, last = {-1, false}, last_kept = {-1, true};

static const operation operations[] = {
    {"max of a vector", max, &first, 1, {SHARD_SHAPE(7)}},
    {"max over rows", max, &first, 1, {SHARD_SHAPE(4, 5)}},
    {"max over rows, kept", max, &first_kept, 1, {SHARD_SHAPE(4, 5)}},
    {"max over the middle", max, &middle, 1, {SHARD_SHAPE(2, 5, 3)}},
    {"min over the middle", min, &middle, 1, {SHARD_SHAPE(2, 5, 3)}},
    {"min over the last", min, &last_kept, 1, {SHARD_SHAPE(3, 5)}},
    {"max over one", max, &last, 1, {SHARD_SHAPE(3, 1)}},
    {"max of no rows", max, &last, 1, {SHARD_SHAPE(0, 3)}},
    {"top 3", top, &(int64_t){3}, 1, {SHARD_SHAPE(2, 3, 5)}},
    {"top of a vector", top, &(int64_t){2}, 1, {SHARD_SHAPE(5)}},
    {"top of all", top, &(int64_t){4}, 1, {SHARD_SHAPE(3, 4)}},
    {"top 0", top, &(int64_t){0}, 1, {SHARD_SHAPE(3, 4)}},
    {"top of no rows", top, &(int64_t){2}, 1, {SHARD_SHAPE(0, 4)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* ---- known values ---- */

static void check_integers(const char *what, shard_tensor *x, const int64_t *expected)
{
    ck_assert_msg(x != NULL, "%s: %s", what, shard_last_error());
    ck_assert_int_eq(shard_tensor_dtype(x), SHARD_INT64);
    int64_t *values = host_copy(x);
    for (int64_t i = 0; i < shard_numel(x); i++)
        ck_assert_msg(values[i] == expected[i], "%s: element %lld is %lld, expected %lld", what, (long long)i,
                      (long long)values[i], (long long)expected[i]);
    free(values);
}

#define ROW 5
static const double rows[] = {1,   4, 4,   -2,       4, /* equal ones: the first */
                              NAN, 9, NAN, INFINITY, 0, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
static const int64_t largest[] = {1, 0, 0}, smallest[] = {3, 0, 0}, three[] = {1, 2, 4, 0, 2, 3, 0, 1, 2};
static const double three_values[] = {4, 4, 4, NAN, NAN, INFINITY, -INFINITY, -INFINITY, -INFINITY};

/* The same of rows that are split along their elements. */
static void check_rows(shard_group *world, void *context)
{
    (void)context;
    shard_range part = shard_split_range(ROW, shard_group_size(world), shard_group_rank(world));
    for (int d = 0; d < 4; d++)
        SHARD_SCOPE
        {
            static const shard_dtype dtypes[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16};
            double own[15];
            for (int i = 0; i < 3; i++)
                for (int64_t j = 0; j < part.size; j++)
                    own[i * part.size + j] = rows[i * ROW + part.start + j];
            shard_tensor *x = shard_from_host(own, SHARD_SHAPE(3, part.size), .dtype = SHARD_FLOAT64);
            x = shard_as_split(shard_detach(shard_cast(x, dtypes[d])), 1, world, part.start, ROW);
            shard_tensor *indices, *values;
            check_integers("argmax", shard_argmax(x, 1, false), largest);
            check_integers("argmin", shard_argmin(x, -1, true), smallest);
            values = shard_max_dim(x, 1, false, &indices);
            check_integers("indices of max", indices, largest);
            ck_assert_double_eq(value_at(values, 0), 4);
            ck_assert(isnan(value_at(values, 1)));
            ck_assert_double_eq(value_at(values, 2), -INFINITY);
            values = shard_min_dim(x, 1, false, &indices);
            check_integers("indices of min", indices, smallest);
            ck_assert_double_eq(value_at(values, 0), -2);
            ck_assert(isnan(value_at(values, 1)));
            values = shard_top_k(x, 3, &indices);
            ck_assert_int_eq(shard_tensor_dtype(values), dtypes[d]);
            ck_assert_int_eq(shard_tensor_placement(values).kind, SHARD_LOCAL);
            check_integers("indices of the top", indices, three);
            for (int i = 0; i < 9; i++)
                ck_assert(value_at(values, i) == three_values[i] || (isnan(value_at(values, i)) && isnan(three_values[i])));
        }
}

START_TEST(known_values)
{
    run_ranks(rank_counts[_i], check_rows);
}
END_TEST

/* The gradient of equal elements goes to the first one. */
START_TEST(first_of_equals)
{
    static const double expected[] = {0, 1, 0, 0, 0}, of_top[] = {0, 1, 1, 0, 0};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(rows, SHARD_SHAPE(ROW), .dtype = SHARD_FLOAT64);
        shard_set_requires_grad(x, true);
        check_ok(shard_backward(shard_max_dim(x, 0, false, NULL)));
        check_tensor("gradient of max", shard_grad(x), expected, 0);
        shard_zero_grad(x);
        check_ok(shard_backward(shard_sum(shard_top_k(x, 2, NULL))));
        check_tensor("gradient of the top", shard_grad(x), of_top, 0);
    }
}
END_TEST

/* ---- over ranks ---- */

static const rule rules[] = {
    {"max beside the split", max, &last, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"max before the split", max, &first, 1, {SHARD_SHAPE(4, 9)}, {1}, 0},
    {"max before the split, kept", max, &first_kept, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"max over the split", max, &last, 1, {SHARD_SHAPE(4, 9)}, {1}, WHOLE},
    {"max over the split, kept", max, &first_kept, 1, {SHARD_SHAPE(9, 4)}, {0}, WHOLE},
    {"min over the split in the middle", min, &middle, 1, {SHARD_SHAPE(3, 9, 2)}, {1}, WHOLE},
    {"max over the split, some parts empty", max, &last, 1, {SHARD_SHAPE(4, 2)}, {1}, WHOLE},
    {"max over the split of no rows", max, &last, 1, {SHARD_SHAPE(0, 9)}, {1}, WHOLE},
    {"top of split rows", top, &(int64_t){2}, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"top over the split", top, &(int64_t){2}, 1, {SHARD_SHAPE(3, 17)}, {1}, WHOLE},
    {"top over the split, more than a part", top, &(int64_t){5}, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, WHOLE},
    {"top of all over the split", top, &(int64_t){3}, 1, {SHARD_SHAPE(2, 3)}, {1}, WHOLE},
    {"top 0 over the split", top, &(int64_t){0}, 1, {SHARD_SHAPE(2, 3)}, {1}, WHOLE},
};

/* Each rank goes on with some rows of what all have found. */
static shard_tensor *rows_of_top(shard_tensor *const *x, const void *k)
{
    shard_group *group = shard_tensor_placement(x[0]).group;
    shard_tensor *y = top(x, k);
    shard_range own = shard_split_range(shard_tensor_size(y, 0), shard_group_size(group), shard_group_rank(group));
    y = shard_narrow(y, 0, own.start, own.size);
    return group ? shard_gather_from_group(y, 0, group) : y;
}

static const rule gathered = {"rows of the top, gathered", rows_of_top, &(int64_t){2}, 1, {SHARD_SHAPE(5, 9)}, {1}, WHOLE};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
    SHARD_SCOPE
    check_rule(&gathered, world);
}

START_TEST(parts_make_the_whole)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

START_TEST(refuses)
{
    shard_tensor *indices = (shard_tensor *)&indices;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_max_dim(x, 2, false, &indices), SHARD_ERROR_ARGUMENT, "shard_max_dim: dimension 2 of*");
        ck_assert_ptr_null(indices);
        check_refused(shard_min_dim(shard_zeros(SHARD_SHAPE(2, 0)), 1, false, NULL), SHARD_ERROR_SHAPE,
                      "shard_min_dim: *no elements*");
        check_refused(shard_argmax(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64), 0, false), SHARD_ERROR_SHAPE,
                      "shard_argmax: *int64*");
        check_refused(shard_argmin(NULL, 0, false), SHARD_ERROR_ARGUMENT, "shard_argmin: an operand *");
        check_refused(shard_top_k(x, 4, NULL), SHARD_ERROR_ARGUMENT, "shard_top_k: k is 4*");
        check_refused(shard_top_k(x, -1, NULL), SHARD_ERROR_ARGUMENT, "shard_top_k: k is -1 *");
        check_refused(shard_top_k(shard_zeros(SHARD_SCALAR), 1, NULL), SHARD_ERROR_ARGUMENT, "shard_top_k: dimension -1 of *");
    }
}
END_TEST

/* One rank's error, or other arguments, are all ranks' error. */
static void fails_together(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_range part = shard_split_range(9, 3, rank);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_zeros(SHARD_SHAPE(2, part.size)), 1, world, part.start, 9);
        ck_assert_ptr_null(shard_top_k(x, rank == 1 ? 10 : 3, NULL));
        check_error(rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 1: shard_top_k: k is 10*");
        ck_assert_ptr_null(shard_top_k(x, rank == 2 ? 2 : 3, NULL));
        check_error(SHARD_ERROR_MISMATCH, "shard_top_k: dtype, k or whole shape on rank 2 differ from those on ranks 0 and 1*");
        shard_tensor *gap = shard_as_split(shard_zeros(SHARD_SHAPE(2, 2)), 1, world, 3 * rank, 9);
        ck_assert_ptr_null(shard_argmax(gap, 1, false));
        check_error(SHARD_ERROR_MISMATCH, "shard_argmax: rank 1 has the elements from 3 on where 2 comes next *");
    }
}

START_TEST(test_fails_together)
{
    run_ranks(3, fails_together);
}
END_TEST

/* Rows that are padded, as a product on a GPU leaves them, and so large that few are made dense at a time. */
START_TEST(searches_large_padded_rows)
{
    enum { WIDE = (1 << 20) + 1, PADDED = WIDE + 15, TALL = 3 };
    float *row = calloc(WIDE, sizeof *row);
    ck_assert_ptr_nonnull(row);
    SHARD_SCOPE
    {
        shard_device *device = shard_default_device();
        int64_t pitch, most[TALL], two[2 * TALL];
        shard_tensor *x = shard_tensor_make(SHARD_SHAPE(TALL, WIDE), SHARD_FLOAT32, device), *index;
        shard_tensor_pad_rows(x, PADDED);
        char *memory = shard_tensor_rows(x, &pitch);
        ck_assert_int_eq(pitch, PADDED);
        for (int i = 0; i < TALL; i++) {
            row[10 * i + 7] = (float)(2 + i);
            row[WIDE - 1 - i] = 1;
            check_ok(device->ops->copy_in(device, memory + (size_t)(i * pitch) * sizeof *row, row, WIDE * sizeof *row));
            row[10 * i + 7] = row[WIDE - 1 - i] = 0;
        }
        check_ok(shard_copy_to_host(shard_argmax(x, 1, false), most, sizeof most));
        shard_tensor *values = shard_top_k(x, 2, &index);
        check_ok(shard_copy_to_host(index, two, sizeof two));
        for (int i = 0; i < TALL; i++) {
            ck_assert_int_eq(most[i], 10 * i + 7);
            ck_assert_int_eq(two[2 * i], 10 * i + 7);
            ck_assert_int_eq(two[2 * i + 1], WIDE - 1 - i);
            ck_assert_double_eq(value_at(values, 2 * i), 2 + i);
            ck_assert_double_eq(value_at(values, 2 * i + 1), 1);
        }
    }
    free(row);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("top_k");
    TCase *tcase = test_case(suite, "top_k");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    add_ranks_test(tcase, known_values);
    tcase_add_test(tcase, first_of_equals);
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, test_fails_together);
    tcase_add_test(tcase, searches_large_padded_rows);
    return test_run(suite);
}
