/* reshape, flatten, narrow. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include "tensor/tensor.h"

static shard_tensor *reshape(shard_tensor *const *x, const void *shape)
{
    return shard_reshape(x[0], *(const shard_shape *)shape);
}

static shard_tensor *flatten(shard_tensor *const *x, const void *options)
{
    const int *range = options;
    return shard_flatten(x[0], range[0], range[1]);
}

static shard_tensor *narrow(shard_tensor *const *x, const void *options)
{
    const int64_t *range = options; /* dimension, start, length */
    return shard_narrow(x[0], (int)range[0], range[1], range[2]);
}

/* Rows that overlap, and some that are in none. */
static shard_tensor *narrow_twice(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add(shard_narrow(x[0], 0, 1, 3), shard_narrow(x[0], 0, 2, 3));
}

static const operation operations[] = {
    {"reshape", reshape, &SHARD_SHAPE(4, -1), 1, {SHARD_SHAPE(2, 3, 4)}},
    {"reshape to a scalar", reshape, &SHARD_SCALAR, 1, {SHARD_SHAPE(1, 1)}},
    {"reshape from a scalar", reshape, &SHARD_SHAPE(1, -1), 1, {SHARD_SCALAR}},
    {"reshape of nothing", reshape, &SHARD_SHAPE(7, 0, 5), 1, {SHARD_SHAPE(3, 0)}},
    {"flatten", flatten, (int[]){1, -1}, 1, {SHARD_SHAPE(2, 3, 2, 2)}},
    {"flatten the middle", flatten, (int[]){-3, 2}, 1, {SHARD_SHAPE(2, 3, 2, 2)}},
    {"flatten a scalar", flatten, (int[]){0, -1}, 1, {SHARD_SCALAR}},
    {"narrow", narrow, (int64_t[]){0, 1, 2}, 1, {SHARD_SHAPE(4, 3)}},
    {"narrow to all", narrow, (int64_t[]){0, 0, 4}, 1, {SHARD_SHAPE(4, 3)}},
    {"narrow to nothing", narrow, (int64_t[]){0, 4, 0}, 1, {SHARD_SHAPE(4, 3)}},
    {"narrow columns", narrow, (int64_t[]){-1, 1, 3}, 1, {SHARD_SHAPE(4, 5)}},
    {"narrow the middle", narrow, (int64_t[]){1, 2, 2}, 1, {SHARD_SHAPE(2, 4, 3)}},
    {"narrow to no columns", narrow, (int64_t[]){1, 5, 0}, 1, {SHARD_SHAPE(4, 5)}},
    {"narrow columns of no rows", narrow, (int64_t[]){1, 1, 2}, 1, {SHARD_SHAPE(0, 5)}},
    {"narrow twice", narrow_twice, NULL, 1, {SHARD_SHAPE(6, 2)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(shares_memory)
{
    SHARD_SCOPE {
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(3, 4), 0, .dtype = SHARD_INT64);
        ck_assert_ptr_eq(shard_data(shard_reshape(x, SHARD_SHAPE(12))), shard_data(x));
        ck_assert_ptr_eq(shard_data(shard_flatten(x, 0, 1)), shard_data(x));
        shard_tensor *rows = shard_narrow(x, 0, 1, 2);
        ck_assert_ptr_eq(shard_data(rows), (int64_t *)shard_data(x) + 4);
        ck_assert_int_eq(shard_tensor_size(rows, 0), 2);
        ck_assert_int_eq(shard_tensor_size(rows, 1), 4);
    }
}
END_TEST

/* Uneven parts along each dimension are those of shard_split_range. */
START_TEST(slices)
{
    SHARD_SCOPE {
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(3, 7), 0, .dtype = SHARD_INT64);
        const int64_t starts[] = {0, 3, 5, 7};
        for (int part = 0; part < 3; part++) {
            int64_t size = starts[part + 1] - starts[part], whole[21], own[9];
            shard_tensor *columns = shard_slice(x, -1, 3, part);
            ck_assert_int_eq(shard_tensor_size(columns, 0), 3);
            ck_assert_int_eq(shard_tensor_size(columns, 1), size);
            ck_assert_int_eq(shard_copy_to_host(x, whole, sizeof whole), SHARD_OK);
            ck_assert_int_eq(shard_copy_to_host(columns, own, (size_t)(3 * size) * sizeof *own), SHARD_OK);
            for (int64_t i = 0; i < 3 * size; i++)
                ck_assert_int_eq(own[i], whole[i / size * 7 + starts[part] + i % size]);
            ck_assert_int_eq(shard_tensor_size(shard_slice(x, 0, 2, part % 2), 0), 2 - part % 2);
        }
        check_refused(shard_slice(x, 0, 2, 2), SHARD_ERROR_ARGUMENT, "shard_slice: slice 2 of*");
        check_refused(shard_slice(x, 0, 0, 0), SHARD_ERROR_ARGUMENT, "shard_slice: slice 0 of*");
        check_refused(shard_slice(x, 2, 1, 0), SHARD_ERROR_ARGUMENT, "shard_slice: dimension 2 of *");
    }
}
END_TEST

START_TEST(flattens_to)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3, 4, 5));
        shard_shape shape = shard_tensor_shape(shard_flatten(x, 1, 2));
        ck_assert_int_eq(shape.ndim, 3);
        ck_assert_int_eq(shape.dim[0], 2);
        ck_assert_int_eq(shape.dim[1], 12);
        ck_assert_int_eq(shape.dim[2], 5);
    }
}
END_TEST

static shard_tensor *split_ones(shard_group *world, int dim, shard_shape whole)
{
    shard_range range = shard_split_range(whole.dim[dim], shard_group_size(world), shard_group_rank(world));
    shard_shape shape = whole;
    shape.dim[dim] = range.size;
    return shard_as_split(shard_ones(shape), dim, world, range.start, whole.dim[dim]);
}

/* Sizes of 1 mislead no rank: dimension `dim` of the result is split, and its whole shape is the flattened whole shape. */
static void check_flattens(shard_group *world, void *context)
{
    (void)context;
    static const struct {
        shard_shape whole;
        int split, start, end, at; /* at -1: refused */
    } cases[] = {
        {SHARD_SHAPE(1, 1, 2, 8), 2, 2, 3, 2}, {SHARD_SHAPE(5, 1, 2, 8), 2, 2, 3, 2}, {SHARD_SHAPE(1, 2, 2), 1, 1, 2, 1},
        {SHARD_SHAPE(3, 2, 4), 1, 0, 1, -1},   {SHARD_SHAPE(1, 4, 2), 1, 1, 2, 1},    {SHARD_SHAPE(1, 1, 3, 2), 2, 0, 3, 0},
        {SHARD_SHAPE(1, 1, 3, 1), 2, 1, 2, 1}, {SHARD_SHAPE(1, 1, 1, 2), 3, 0, 1, 2}, {SHARD_SHAPE(3, 0, 2), 0, 0, 1, 0},
        {SHARD_SHAPE(2, 1, 2), 0, 1, 2, 0},    {SHARD_SHAPE(0, 2, 3), 1, 0, 2, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int start = cases[i].start, end = cases[i].end, at = cases[i].at;
        SHARD_SCOPE
        {
            shard_tensor *y = shard_flatten(split_ones(world, cases[i].split, cases[i].whole), start, end);
            if (at < 0) {
                check_refused(y, SHARD_ERROR_UNSUPPORTED, "shard_flatten: no rule*");
                continue;
            }
            ck_assert_msg(y != NULL, "case %zu: %s", i, shard_last_error());
            shard_shape flat = shard_tensor_shape(shard_flatten(shard_ones(cases[i].whole), start, end));
            shard_shape whole = shard_tensor_whole_shape(y);
            ck_assert_msg(shard_shape_equal(&flat, &whole), "case %zu: %s, not %s", i, shard_shape_text(&whole),
                          shard_shape_text(&flat));
            ck_assert_msg(shard_is_split(y, at), "case %zu: %s", i, shard_placement_text(&y->placement));
        }
    }
}

START_TEST(flattens_what_is_split)
{
    run_ranks(2, check_flattens);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(3, 4));
        check_refused(shard_reshape(x, SHARD_SHAPE(5, -1)), SHARD_ERROR_SHAPE, "shard_reshape: *12 elements*");
        check_refused(shard_reshape(x, SHARD_SHAPE(3, 5)), SHARD_ERROR_SHAPE, "*cannot be of shape*");
        check_refused(shard_reshape(x, SHARD_SHAPE(-1, 3, -1)), SHARD_ERROR_SHAPE, "shard_reshape: two sizes of * are -1");
        check_refused(shard_reshape(x, SHARD_SHAPE(-2, -6)), SHARD_ERROR_SHAPE, "shard_reshape: *a size is negative");
        check_refused(shard_reshape(shard_zeros(SHARD_SHAPE(0, 4)), SHARD_SHAPE(0, -1)), SHARD_ERROR_SHAPE,
                      "shard_reshape: the size -1 in * cannot be inferred*");
        check_refused(shard_reshape(x, SHARD_SHAPE((int64_t)1 << 40, (int64_t)1 << 40)), SHARD_ERROR_MEMORY, "*overflows");
        check_refused(shard_flatten(x, 1, 0), SHARD_ERROR_ARGUMENT, "shard_flatten: dimensions 1 to 0 *");
        check_refused(shard_flatten(x, 0, 2), SHARD_ERROR_ARGUMENT, "shard_flatten: dimension 2 *");
        check_refused(shard_flatten(shard_zeros(SHARD_SCALAR), 0, 1), SHARD_ERROR_ARGUMENT, "shard_flatten: dimension 1 *");
        check_refused(shard_narrow(x, 0, 2, 2), SHARD_ERROR_SHAPE, "shard_narrow: 2 elements from*");
        check_refused(shard_narrow(x, -1, 2, 3), SHARD_ERROR_SHAPE, "shard_narrow: 3 elements from 2 on along dimension 1 of *");
        check_refused(shard_narrow(x, 2, 0, 1), SHARD_ERROR_ARGUMENT, "shard_narrow: dimension 2 of *");
        check_refused(shard_narrow(x, 0, -1, 2), SHARD_ERROR_SHAPE, "shard_narrow: *");
        check_refused(shard_narrow(x, 0, 1, -1), SHARD_ERROR_SHAPE, "shard_narrow: *");
        check_refused(shard_narrow(x, 0, INT64_MAX, INT64_MAX), SHARD_ERROR_SHAPE, "shard_narrow: *");
        check_refused(shard_narrow(shard_zeros(SHARD_SCALAR), 0, 0, 1), SHARD_ERROR_ARGUMENT, "shard_narrow: *");
        check_refused(shard_reshape(NULL, SHARD_SHAPE(1)), SHARD_ERROR_ARGUMENT, "shard_reshape: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("view");
    TCase *tcase = test_case(suite, "view");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, shares_memory);
    tcase_add_test(tcase, slices);
    tcase_add_test(tcase, flattens_to);
    tcase_add_test(tcase, flattens_what_is_split);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
