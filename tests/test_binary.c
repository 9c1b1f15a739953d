/* add, sub, mul, div, pow, minimum, maximum, prelu; operands that are repeated to one shape. */
#include "support/gradcheck.h"

#include <math.h>
#include <stdlib.h>

#define MAKER(name, call)                                                                                                        \
    static shard_tensor *name(shard_tensor *const *x, const void *options)                                                       \
    {                                                                                                                            \
        (void)options;                                                                                                           \
        return call;                                                                                                             \
    }
MAKER(add, shard_add(x[0], x[1]))
MAKER(sub, shard_sub(x[0], x[1]))
MAKER(mul, shard_mul(x[0], x[1]))
MAKER(divide, shard_div(x[0], x[1]))
MAKER(power, shard_pow(shard_add_scalar(x[0], 3), x[1]))
MAKER(square_root, shard_pow(x[0], shard_full(SHARD_SCALAR, 2.0, .dtype = shard_tensor_dtype(x[0]))))
MAKER(minimum, shard_minimum(x[0], x[1]))
MAKER(maximum, shard_maximum(x[0], x[1]))
MAKER(prelu, shard_prelu(x[0], x[1]))
MAKER(twice, shard_add(x[0], x[0]))
MAKER(nothing_left, shard_sub(x[0], x[0]))
MAKER(square, shard_mul(x[0], x[0]))
/* The first of two equal operands hands its gradient on twice. */
MAKER(cube, shard_mul(shard_add(x[0], shard_mul(x[0], x[0])), x[0]))
/* As a softmax of columns with everything written out. */
MAKER(outer, shard_div(shard_sub(x[0], x[1]), shard_add_scalar(shard_mul(x[1], x[1]), 1)))

static const operation operations[] = {
    {"add", add, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"add, repeated", add, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(5)}},
    {"add, repeated rows", add, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(3, 5)}},
    {"add, the first repeated", add, NULL, 2, {SHARD_SHAPE(5), SHARD_SHAPE(4, 5)}},
    {"add, both repeated", add, NULL, 2, {SHARD_SHAPE(4, 1), SHARD_SHAPE(1, 5)}},
    {"add a column", add, NULL, 2, {SHARD_SHAPE(4, 5), SHARD_SHAPE(4, 1)}},
    {"add more dimensions of 1", add, NULL, 2, {SHARD_SHAPE(5), SHARD_SHAPE(1, 1, 5)}},
    {"add a scalar", add, NULL, 2, {SHARD_SHAPE(4, 3), SHARD_SCALAR}},
    {"add to a scalar", add, NULL, 2, {SHARD_SCALAR, SHARD_SHAPE(4, 3)}},
    {"add scalars", add, NULL, 2, {SHARD_SCALAR, SHARD_SCALAR}},
    {"add nothing", add, NULL, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(3)}},
    {"add to rows of nothing", add, NULL, 2, {SHARD_SHAPE(3, 0), SHARD_SHAPE(0)}},
    {"add a column of nothing", add, NULL, 2, {SHARD_SHAPE(3, 1), SHARD_SHAPE(3, 0)}},
    {"sub", sub, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"sub a column", sub, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 1)}},
    {"sub from a column", sub, NULL, 2, {SHARD_SHAPE(3, 1), SHARD_SHAPE(3, 5)}},
    {"mul", mul, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 3},
    {"mul, repeated", mul, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(5)}, .needs = 3},
    {"mul by the middle", mul, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(4, 1, 5)}, .needs = 3},
    {"mul, every other", mul, NULL, 2, {SHARD_SHAPE(2, 1, 3, 1), SHARD_SHAPE(4, 1, 5)}, .needs = 3},
    {"mul, eight dimensions",
     mul,
     NULL,
     2,
     {SHARD_SHAPE(2, 1, 2, 1, 2, 1, 2, 1), SHARD_SHAPE(1, 2, 1, 3, 1, 2, 1, 1)},
     .needs = 3},
    {"mul by a scalar", mul, NULL, 2, {SHARD_SHAPE(4, 3), SHARD_SCALAR}, .needs = 3},
    {"mul nothing", mul, NULL, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(3)}, .needs = 3},
    {"div", divide, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 3, .tolerance = 1e-6, .rounding = 24},
    {"div by a column", divide, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 1)}, .needs = 3, .rounding = 24},
    {"div of a row", divide, NULL, 2, {SHARD_SHAPE(5), SHARD_SHAPE(3, 5)}, .needs = 3, .tolerance = 1e-6, .rounding = 24},
    {"div by a column of columns",
     divide,
     NULL,
     2,
     {SHARD_SHAPE(2, 3, 2, 2), SHARD_SHAPE(2, 1, 1, 2)},
     .needs = 3,
     .rounding = 24},
    {"div by a scalar", divide, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SCALAR}, .needs = 3},
    {"pow", power, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 2, .rounding = 24},
    {"pow of a column", power, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 1)}, .needs = 2, .rounding = 24},
    {"pow of a negative", square_root, NULL, 1, {SHARD_SHAPE(3, 5)}, .needs = 1},
    {"minimum", minimum, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 3},
    {"minimum of a column", minimum, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 1)}, .needs = 3},
    {"maximum", maximum, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 3},
    {"maximum with a row", maximum, NULL, 2, {SHARD_SHAPE(5), SHARD_SHAPE(3, 5)}, .needs = 3},
    {"prelu", prelu, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(5)}, .needs = 3},
    {"prelu of one slope", prelu, NULL, 2, {SHARD_SHAPE(4, 5), SHARD_SHAPE(1)}, .needs = 3, .rounding = 24},
    {"prelu of a scalar slope", prelu, NULL, 2, {SHARD_SHAPE(4, 5), SHARD_SCALAR}, .needs = 3, .rounding = 24},
    {"prelu of nothing", prelu, NULL, 2, {SHARD_SHAPE(0, 5), SHARD_SHAPE(5)}, .needs = 3},
    {"twice", twice, NULL, 1, {SHARD_SHAPE(3, 5)}},
    {"nothing left", nothing_left, NULL, 1, {SHARD_SHAPE(3, 5)}, .constant = 1},
    {"square", square, NULL, 1, {SHARD_SHAPE(3, 5)}, .needs = 1},
    {"cube", cube, NULL, 1, {SHARD_SHAPE(3, 5)}, .needs = 1},
    {"a row and a column", outer, NULL, 2, {SHARD_SHAPE(3, 1), SHARD_SHAPE(5)}, .needs = 2, .rounding = 16},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Against loops over the result's index. */
START_TEST(values)
{
    enum { A = 2, B = 3, C = 4 };
    double expected[A * B * C];
    SHARD_SCOPE
    {
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(A, 1, C), 1, .dtype = SHARD_FLOAT64);
        shard_tensor *y = make_up_tensor(SHARD_SHAPE(B, 1), 2, .dtype = SHARD_FLOAT64);
        double *left = values_of(x), *right = values_of(y);
        for (int i = 0; i < A * B * C; i++)
            expected[i] = left[i / (B * C) * C + i % C] - right[i / C % B];
        shard_tensor *z = shard_sub(x, y);
        shard_shape shape = shard_tensor_shape(z);
        ck_assert(shape.ndim == 3 && shape.dim[0] == A && shape.dim[1] == B && shape.dim[2] == C);
        check_tensor("sub", z, expected, 0);
        free(left);
        free(right);
    }
}
END_TEST

MAKER(prelu_of_one, shard_reshape(shard_prelu(shard_reshape(x[0], SHARD_SHAPE(1)), x[1]), SHARD_SCALAR))

/* A gradient of 1 for each element of the result, and what becomes of it: torch's values. */
START_TEST(ends)
{
    static const struct {
        operation_maker *make;
        double a, b, y, da, db;
    } cases[] = {
        {prelu_of_one, 2, 0.25, 2, 1, 0},
        {prelu_of_one, -2, 0.25, -0.5, 0.25, -2},
        {prelu_of_one, 0, 0.25, 0, 0.25, 0},
        {prelu_of_one, NAN, 0.25, NAN, 0.25, NAN},
        {minimum, 2, 2, 2, 0.5, 0.5},
        {maximum, 2, 2, 2, 0.5, 0.5},
        {minimum, 1, 2, 1, 1, 0},
        {maximum, 1, 2, 2, 0, 1},
        {minimum, NAN, 2, NAN, 1, 1},
        {maximum, 2, NAN, NAN, 1, 1},
        {divide, 1, 0, INFINITY, INFINITY, -INFINITY},
        {divide, 0, 0, NAN, INFINITY, NAN},
        {power, -3, 0, 1, 0, 0},                         /* 0^0 */
        {power, -3, 2, 0, 0, 0},                         /* 0^2 */
        {power, -3, -1, INFINITY, -INFINITY, -INFINITY}, /* 0^-1 */
        {power, -5, 2, 4, -4, NAN},                      /* (-2)^2 */
        {power, NAN, 0, 1, 0, NAN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE
        {
            shard_tensor *x[] = {shard_full(SHARD_SCALAR, cases[i].a, .dtype = SHARD_FLOAT64, .requires_grad = true),
                                 shard_full(SHARD_SCALAR, cases[i].b, .dtype = SHARD_FLOAT64, .requires_grad = true)};
            shard_tensor *y = cases[i].make(x, NULL);
            double got[] = {shard_item(y), 0, 0}, want[] = {cases[i].y, cases[i].da, cases[i].db};
            ck_assert_int_eq(shard_backward(y), SHARD_OK);
            got[1] = shard_item(shard_grad(x[0]));
            got[2] = shard_item(shard_grad(x[1]));
            for (int k = 0; k < 3; k++)
                ck_assert_msg(isnan(want[k]) ? isnan(got[k]) : got[k] == want[k], "case %d: number %d is %g, not %g", (int)i, k,
                              got[k], want[k]);
        }
}
END_TEST

/* 1 + 1024 / 1024, summed over rows and over columns: in 16 bits it would stay 1. */
START_TEST(sums_in_float32)
{
    static const shard_dtype dtypes[] = {SHARD_BFLOAT16, SHARD_FLOAT16};
    for (int t = 0; t < 2; t++)
        for (int along = 0; along < 2; along++)
            SHARD_SCOPE
            {
                enum { N = 1025 };
                double weights[N] = {1};
                for (int i = 1; i < N; i++)
                    weights[i] = 0x1p-10;
                shard_shape shape = along ? SHARD_SHAPE(1, N) : SHARD_SHAPE(N, 1);
                shard_tensor *x = shard_full(SHARD_SHAPE(1, 1), 1.0, .dtype = dtypes[t], .requires_grad = true);
                shard_tensor *many = shard_cast(shard_from_host(weights, shape, .dtype = SHARD_FLOAT64), dtypes[t]);
                shard_tensor *y = shard_mul(x, many);
                ck_assert_int_eq(shard_backward_from(y, shard_full(shape, 1.0, .dtype = dtypes[t])), SHARD_OK);
                ck_assert_double_eq(shard_item(shard_grad(x)), 2);
            }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *a = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_add(a, shard_zeros(SHARD_SHAPE(2))), SHARD_ERROR_SHAPE, "shard_add: shapes *");
        check_refused(shard_mul(shard_zeros(SHARD_SHAPE(3, 2)), a), SHARD_ERROR_SHAPE, "shard_mul: shapes *");
        check_refused(shard_add(shard_zeros(SHARD_SHAPE(0)), a), SHARD_ERROR_SHAPE, "shard_add: shapes [[]0] and [[]2, 3]; *");
        check_refused(shard_add(a, shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64)), SHARD_ERROR_SHAPE,
                      "shard_add: operand 1 is float64, operand 0 is float32*shard_cast*");
        check_refused(shard_add(a, NULL), SHARD_ERROR_ARGUMENT, "shard_add: *");
        check_refused(shard_pow(NULL, a), SHARD_ERROR_ARGUMENT, "shard_pow: *");
        check_refused(shard_prelu(a, shard_zeros(SHARD_SHAPE(2))), SHARD_ERROR_SHAPE, "shard_prelu: *[[]2]*[[]2, 3]*");
        check_refused(shard_prelu(a, shard_zeros(SHARD_SHAPE(1, 3))), SHARD_ERROR_SHAPE, "shard_prelu: *[[]1, 3]*");
        check_refused(shard_prelu(shard_zeros(SHARD_SCALAR), shard_zeros(SHARD_SHAPE(1))), SHARD_ERROR_SHAPE, "shard_prelu: *");
        check_refused(shard_prelu(a, shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_FLOAT64)), SHARD_ERROR_SHAPE, "shard_prelu: *");
        check_refused(shard_prelu(a, NULL), SHARD_ERROR_ARGUMENT, "shard_prelu: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("binary");
    TCase *tcase = test_case(suite, "binary");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, ends);
    tcase_add_test(tcase, sums_in_float32);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
