/* eq, ne, lt, le, gt, ge: of two tensors and of a tensor and a number. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

typedef shard_tensor *comparison(shard_tensor *a, shard_tensor *b);
typedef shard_tensor *comparison_with(shard_tensor *x, double number);

static comparison *const of_two[] = {shard_eq, shard_ne, shard_lt, shard_le, shard_gt, shard_ge};
static comparison_with *const with_number[] = {shard_eq_scalar, shard_ne_scalar, shard_lt_scalar,
                                               shard_le_scalar, shard_gt_scalar, shard_ge_scalar};
enum { COMPARISONS = 6 };

static bool holds(int which, double a, double b)
{
    const bool all[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
    return all[which];
}

static void check_bytes(shard_tensor *y, const uint8_t *want, int64_t n, const char *what)
{
    ck_assert_msg(y != NULL, "%s: %s", what, shard_last_error());
    ck_assert_int_eq(shard_tensor_dtype(y), SHARD_UINT8);
    ck_assert_int_eq(shard_numel(y), n);
    ck_assert(!shard_requires_grad(y));
    uint8_t *got = calloc((size_t)n + 1, 1);
    ck_assert_int_eq(shard_copy_to_host(y, got, (size_t)n), SHARD_OK);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "%s: element %d is %d", what, (int)i, got[i]);
    free(got);
}

/* Every dtype; NaN is equal to nothing. */
START_TEST(every_dtype)
{
    static const double a[] = {0, 1, 2, 5, NAN, 3}, b[] = {0, 2, 1, 5, 1, NAN};
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        SHARD_SCOPE
        {
            int64_t n = shard_dtype_is_float(dtype) ? 6 : 4;
            shard_tensor *x = shard_cast(shard_from_host(a, SHARD_SHAPE(n), .dtype = SHARD_FLOAT64), dtype);
            shard_tensor *y = shard_cast(shard_from_host(b, SHARD_SHAPE(n), .dtype = SHARD_FLOAT64), dtype);
            if (shard_dtype_is_float(dtype))
                shard_set_requires_grad(x = shard_detach(x), true);
            for (int which = 0; which < COMPARISONS; which++) {
                uint8_t want[6], with_one[6];
                for (int i = 0; i < n; i++) {
                    want[i] = holds(which, a[i], b[i]);
                    with_one[i] = holds(which, a[i], 1);
                }
                check_bytes(of_two[which](x, y), want, n, shard_dtype_name(dtype));
                check_bytes(with_number[which](x, 1), with_one, n, shard_dtype_name(dtype));
            }
        }
}
END_TEST

/* [n, 1] with [c]: one-hot rows of labels. */
START_TEST(repeats)
{
    static const int64_t labels[] = {2, 0}, classes[] = {0, 1, 2};
    SHARD_SCOPE
    {
        shard_tensor *column = shard_from_host(labels, SHARD_SHAPE(2, 1), .dtype = SHARD_INT64);
        shard_tensor *row = shard_from_host(classes, SHARD_SHAPE(3), .dtype = SHARD_INT64);
        shard_tensor *y = shard_eq(column, row);
        ck_assert_int_eq(shard_tensor_size(y, 1), 3);
        check_bytes(y, (const uint8_t[]){0, 0, 1, 1, 0, 0}, 6, "one-hot");
        check_bytes(shard_lt(row, column), (const uint8_t[]){1, 1, 0, 0, 0, 0}, 6, "below");
        check_bytes(shard_eq_scalar(shard_full(SHARD_SCALAR, 3.0), 3), (const uint8_t[]){1}, 1, "a scalar");
        check_bytes(shard_eq(shard_zeros(SHARD_SHAPE(0, 3)), shard_zeros(SHARD_SHAPE(3))), NULL, 0, "nothing");
    }
}
END_TEST

/* Integers that no double has, and numbers that no integer is. */
START_TEST(integers)
{
    static const int64_t x[] = {INT64_MIN, -3, 0, 2, 3, (INT64_C(1) << 53) + 1, INT64_MAX};
    static const double numbers[] = {-INFINITY, -1e300, -0x1p63, -2.5, 0, 2.5, 3, 0x1p53, 0x1p63, INFINITY, NAN};
    enum { N = 7, NUMBERS = sizeof numbers / sizeof *numbers };
    SHARD_SCOPE
    {
        shard_tensor *wide = shard_from_host(x, SHARD_SHAPE(N), .dtype = SHARD_INT64);
        shard_tensor *narrow = shard_cast(wide, SHARD_INT32), *bytes = shard_cast(shard_narrow(wide, 0, 2, 3), SHARD_UINT8);
        for (int k = 0; k < NUMBERS; k++)
            for (int which = 0; which < COMPARISONS; which++) {
                uint8_t want[N], want_narrow[N], want_bytes[3];
                for (int i = 0; i < N; i++) {
                    long double a = x[i], b = numbers[k];
                    const bool all[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
                    want[i] = all[which];
                    want_narrow[i] = holds(which, (double)(int32_t)x[i], numbers[k]);
                }
                for (int i = 0; i < 3; i++)
                    want_bytes[i] = holds(which, (double)x[i + 2], numbers[k]);
                check_bytes(with_number[which](wide, numbers[k]), want, N, "int64");
                check_bytes(with_number[which](narrow, numbers[k]), want_narrow, N, "int32");
                check_bytes(with_number[which](bytes, numbers[k]), want_bytes, 3, "uint8");
            }
        int64_t next = (INT64_C(1) << 53);
        shard_tensor *even = shard_full(SHARD_SCALAR, (double)next, .dtype = SHARD_INT64);
        check_bytes(shard_eq(shard_narrow(wide, 0, 5, 1), even), (const uint8_t[]){0}, 1, "2^53 + 1 and 2^53");
    }
}
END_TEST

START_TEST(rounds_to_the_dtype)
{
    SHARD_SCOPE
    {
        check_bytes(shard_eq_scalar(shard_full(SHARD_SCALAR, 0.1), 0.1), (const uint8_t[]){1}, 1, "float32");
        check_bytes(shard_eq_scalar(shard_full(SHARD_SCALAR, 0.1, .dtype = SHARD_BFLOAT16), 0.1), (const uint8_t[]){1}, 1,
                    "bfloat16");
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_eq(x, shard_zeros(SHARD_SHAPE(2))), SHARD_ERROR_SHAPE, "shard_eq: shapes [[]2, 3] and [[]2]; *");
        check_refused(shard_lt(x, shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64)), SHARD_ERROR_SHAPE,
                      "shard_lt: *int64*float32*");
        check_refused(shard_ge(x, NULL), SHARD_ERROR_ARGUMENT, "shard_ge: *");
        check_refused(shard_gt_scalar(NULL, 0), SHARD_ERROR_ARGUMENT, "shard_gt_scalar: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare");
    TCase *tcase = test_case(suite, "compare");
    tcase_add_test(tcase, every_dtype);
    tcase_add_test(tcase, repeats);
    tcase_add_test(tcase, integers);
    tcase_add_test(tcase, rounds_to_the_dtype);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
