/* where. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

/* 1 for every third element of a shape. */
static shard_tensor *thirds(shard_shape shape)
{
    uint8_t values[64] = {0};
    for (int i = 0; i < 64; i += 3)
        values[i] = (uint8_t)(i + 1); /* whatever is not 0 */
    return shard_from_host(values, shape, .dtype = SHARD_UINT8);
}

static shard_tensor *where(shard_tensor *const *x, const void *shape)
{
    return shard_where(thirds(*(const shard_shape *)shape), x[0], x[1]);
}

/* The condition depends on an operand, without a gradient through it. */
static shard_tensor *leaky(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_where(shard_gt_scalar(x[0], 0), x[0], shard_scale(x[0], 0.25));
}

static shard_shape matrix, row, column, scalar, nothing;

static const operation operations[] = {
    {"where", where, &matrix, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"where, a row", where, &matrix, 2, {SHARD_SHAPE(5), SHARD_SHAPE(3, 5)}},
    {"where, a column", where, &matrix, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 1)}},
    {"where, a scalar", where, &matrix, 2, {SHARD_SHAPE(3, 5), SHARD_SCALAR}},
    {"where by rows", where, &column, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"where by columns", where, &row, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"where, all repeated", where, &matrix, 2, {SHARD_SHAPE(3, 1), SHARD_SHAPE(2, 1, 5)}},
    {"where of scalars", where, &scalar, 2, {SHARD_SCALAR, SHARD_SCALAR}, .constant = 2},
    {"where of nothing", where, &nothing, 2, {SHARD_SHAPE(0, 5), SHARD_SHAPE(5)}},
    {"where by itself", leaky, NULL, 1, {SHARD_SHAPE(3, 5)}},
};

static void set_shapes(void)
{
    matrix = SHARD_SHAPE(3, 5), row = SHARD_SHAPE(5), column = SHARD_SHAPE(3, 1), scalar = SHARD_SCALAR;
    nothing = SHARD_SHAPE(0, 5);
}

START_TEST(gradients)
{
    set_shapes();
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(every_dtype)
{
    static const double a[] = {1, 2, 3}, b[] = {4, 5, 6};
    static const uint8_t condition[] = {0, 255, 1};
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        SHARD_SCOPE
        {
            shard_tensor *x = shard_cast(shard_from_host(a, SHARD_SHAPE(3), .dtype = SHARD_FLOAT64), dtype);
            shard_tensor *y = shard_cast(shard_from_host(b, SHARD_SHAPE(3), .dtype = SHARD_FLOAT64), dtype);
            shard_tensor *z = shard_where(shard_from_host(condition, SHARD_SHAPE(3), .dtype = SHARD_UINT8), x, y);
            ck_assert_int_eq(shard_tensor_dtype(z), dtype);
            check_tensor("where", z, (double[]){4, 2, 3}, 0);
        }
}
END_TEST

/* What was not taken has the gradient 0, whatever it or dy is. */
START_TEST(zero_gradients)
{
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SCALAR, NAN, .requires_grad = true);
        shard_tensor *b = shard_full(SHARD_SCALAR, 2.0, .requires_grad = true);
        shard_tensor *y = shard_where(shard_zeros(SHARD_SCALAR, .dtype = SHARD_UINT8), a, b);
        ck_assert_double_eq(shard_item(y), 2);
        ck_assert_int_eq(shard_backward_from(y, shard_full(SHARD_SCALAR, INFINITY)), SHARD_OK);
        ck_assert_double_eq(shard_item(shard_grad(a)), 0);
        ck_assert_double_eq(shard_item(shard_grad(b)), INFINITY);
    }
}
END_TEST

START_TEST(refuses)
{
    set_shapes();
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(3, 5)), *condition = thirds(matrix);
        check_refused(shard_where(x, x, x), SHARD_ERROR_SHAPE, "shard_where: the condition is float32; uint8 is needed, *");
        check_refused(shard_where(condition, x, shard_zeros(SHARD_SHAPE(5), .dtype = SHARD_FLOAT64)), SHARD_ERROR_SHAPE,
                      "shard_where: a is float32, b is float64; *");
        check_refused(shard_where(condition, x, shard_zeros(SHARD_SHAPE(4))), SHARD_ERROR_SHAPE,
                      "shard_where: shapes [[]3, 5] and [[]4]; *");
        check_refused(shard_where(NULL, x, x), SHARD_ERROR_ARGUMENT, "shard_where: *");
        check_refused(shard_where(condition, NULL, x), SHARD_ERROR_ARGUMENT, "shard_where: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("where");
    TCase *tcase = test_case(suite, "where");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, every_dtype);
    tcase_add_test(tcase, zero_gradients);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
