/* clone, to_device. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/ranks.h"

#include <stdlib.h>

static shard_tensor *copy_of(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_clone(x[0]);
}

/* To the CPU and back; on the CPU a view and a view. */
static shard_tensor *there_and_back(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *there = shard_to_device(x[0], shard_device_open("cpu"));
    return shard_to_device(shard_scale(there, 2), shard_tensor_device(x[0]));
}

static const operation operations[] = {
    {"clone", copy_of, NULL, 1, {SHARD_SHAPE(3, 5)}},
    {"clone of a scalar", copy_of, NULL, 1, {SHARD_SCALAR}},
    {"clone of nothing", copy_of, NULL, 1, {SHARD_SHAPE(0, 5)}},
    {"to_device", there_and_back, NULL, 1, {SHARD_SHAPE(3, 5)}},
    {"to_device of nothing", there_and_back, NULL, 1, {SHARD_SHAPE(3, 0)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* Memory of its own. */
START_TEST(copies)
{
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        SHARD_SCOPE
        {
            shard_tensor *x = shard_full(SHARD_SHAPE(3), 5.0, .dtype = dtype), *y = shard_clone(x);
            ck_assert_int_eq(shard_tensor_dtype(y), dtype);
            copy_elements(shard_zeros(SHARD_SHAPE(3), .dtype = dtype), x);
            ck_assert_double_eq(value_at(x, 2), 0);
            ck_assert_double_eq(value_at(y, 2), 5);
            ck_assert_double_eq(value_at(shard_to_device(y, shard_device_open("cpu")), 2), 5);
        }
}
END_TEST

START_TEST(goes_to_the_cpu)
{
    SHARD_SCOPE
    {
        shard_device *cpu = shard_device_open("cpu");
        shard_tensor *x = shard_full(SHARD_SHAPE(3), 1.5, .requires_grad = true), *y = shard_to_device(x, cpu);
        ck_assert_ptr_eq(shard_tensor_device(y), cpu);
        ck_assert_double_eq(((float *)shard_data(y))[2], 1.5);
        check_ok(shard_backward(shard_sum(shard_mul(y, y))));
        ck_assert_ptr_eq(shard_tensor_device(shard_grad(x)), shard_tensor_device(x));
        ck_assert_double_eq(value_at(shard_grad(x), 0), 3);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        check_refused(shard_clone(NULL), SHARD_ERROR_ARGUMENT, "shard_clone: *");
        check_refused(shard_to_device(NULL, shard_device_open("cpu")), SHARD_ERROR_ARGUMENT, "shard_to_device: *");
        check_refused(shard_to_device(shard_zeros(SHARD_SCALAR), NULL), SHARD_ERROR_ARGUMENT, "shard_to_device: device *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clone");
    TCase *tcase = test_case(suite, "clone");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, copies);
    tcase_add_test(tcase, goes_to_the_cpu);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
