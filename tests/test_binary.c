/* add, mul. */
#include "support/gradcheck.h"

static shard_tensor *add(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add(x[0], x[1]);
}

static shard_tensor *mul(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mul(x[0], x[1]);
}

static shard_tensor *twice(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add(x[0], x[0]);
}

static shard_tensor *square(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mul(x[0], x[0]);
}

/* The first of two equal operands hands its gradient on twice. */
static shard_tensor *cube(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mul(shard_add(x[0], shard_mul(x[0], x[0])), x[0]);
}

static const operation operations[] = {
    {"add", add, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}},
    {"add, repeated", add, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(5)}},
    {"add, repeated rows", add, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(3, 5)}},
    {"add a scalar", add, NULL, 2, {SHARD_SHAPE(4, 3), SHARD_SCALAR}},
    {"add scalars", add, NULL, 2, {SHARD_SCALAR, SHARD_SCALAR}},
    {"add nothing", add, NULL, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(3)}},
    {"add to rows of nothing", add, NULL, 2, {SHARD_SHAPE(3, 0), SHARD_SHAPE(0)}},
    {"mul", mul, NULL, 2, {SHARD_SHAPE(3, 5), SHARD_SHAPE(3, 5)}, .needs = 3},
    {"mul, repeated", mul, NULL, 2, {SHARD_SHAPE(4, 3, 5), SHARD_SHAPE(5)}, .needs = 3},
    {"mul by a scalar", mul, NULL, 2, {SHARD_SHAPE(4, 3), SHARD_SCALAR}, .needs = 3},
    {"mul nothing", mul, NULL, 2, {SHARD_SHAPE(0, 3), SHARD_SHAPE(3)}, .needs = 3},
    {"twice", twice, NULL, 1, {SHARD_SHAPE(3, 5)}},
    {"square", square, NULL, 1, {SHARD_SHAPE(3, 5)}, .needs = 1},
    {"cube", cube, NULL, 1, {SHARD_SHAPE(3, 5)}, .needs = 1},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *a = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_add(a, shard_zeros(SHARD_SHAPE(2))), SHARD_ERROR_SHAPE,
                      "shard_add: shapes [[]2, 3] and [[]2]; the second must be the end of the first");
        check_refused(shard_mul(shard_zeros(SHARD_SHAPE(3)), a), SHARD_ERROR_SHAPE, "shard_mul: shapes *");
        check_refused(shard_add(a, shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64)), SHARD_ERROR_SHAPE,
                      "shard_add: operand 1 is float64, operand 0 is float32*shard_cast*");
        check_refused(shard_add(a, NULL), SHARD_ERROR_ARGUMENT, "shard_add: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("binary");
    TCase *tcase = test_case(suite, "binary");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
