/* cast. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include <string.h>

static shard_tensor *cast(shard_tensor *const *x, const void *dtype)
{
    return shard_cast(x[0], *(const shard_dtype *)dtype);
}

static shard_tensor *there_and_back(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_dtype dtype = shard_tensor_dtype(x[0]);
    return shard_cast(shard_cast(x[0], dtype == SHARD_FLOAT64 ? SHARD_FLOAT32 : SHARD_FLOAT64), dtype);
}

static const operation operations[] = {
    {"to float64", cast, &(shard_dtype){SHARD_FLOAT64}, 1, {SHARD_SHAPE(3, 5)}},
    {"there and back", there_and_back, NULL, 1, {SHARD_SHAPE(3, 5)}, .tolerance = 1e-4},
    {"of nothing", there_and_back, NULL, 1, {SHARD_SHAPE(0, 5)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(keeps_the_gradient_dtype)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16};
    SHARD_SCOPE
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++) {
                shard_tensor *x = make_up_tensor(SHARD_SHAPE(4), 1, .dtype = dtypes[from], .requires_grad = true);
                shard_tensor *y = shard_cast(x, dtypes[to]);
                ck_assert_int_eq(shard_tensor_dtype(y), dtypes[to]);
                check_ok(shard_backward_from(y, shard_full(SHARD_SHAPE(4), 0.75, .dtype = dtypes[to])));
                ck_assert_int_eq(shard_tensor_dtype(shard_grad(x)), dtypes[from]);
                check_tensor("gradient", shard_grad(x), (double[]){0.75, 0.75, 0.75, 0.75}, 0);
            }
}
END_TEST

START_TEST(casts_integers)
{
    static const double values[] = {-2.9, -0.5, 0, 1.5, 100.99}, towards_zero[] = {-2, 0, 0, 1, 100};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(5), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *y = shard_cast(x, SHARD_INT64);
        ck_assert(!shard_requires_grad(y));
        check_tensor("int64", y, towards_zero, 0);
        check_tensor("int32", shard_cast(x, SHARD_INT32), towards_zero, 0);
        check_tensor("int64 as bfloat16", shard_cast(y, SHARD_BFLOAT16), towards_zero, 0);
    }
}
END_TEST

/* A floating number beyond an integer's range becomes its nearest end, an integer keeps its low bits. */
START_TEST(casts_what_does_not_fit)
{
    static const double values[] = {300, -1.5, INFINITY, -INFINITY, NAN}, bytes[] = {255, 0, 255, 0, 0};
    static const double words[] = {300, -1, INT32_MAX, INT32_MIN, 0};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(5), .dtype = SHARD_FLOAT64);
        shard_tensor *int32 = shard_cast(x, SHARD_INT32);
        check_tensor("uint8", shard_cast(x, SHARD_UINT8), bytes, 0);
        check_tensor("int32", int32, words, 0);
        check_tensor("int32 as uint8", shard_cast(int32, SHARD_UINT8), (double[]){44, 255, 255, 0, 0}, 0);
    }
}
END_TEST

/* The same dtype: no copy, but a result of its own. */
START_TEST(shares_memory)
{
    SHARD_SCOPE {
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(4), 1, .requires_grad = true), *y = shard_cast(x, SHARD_FLOAT32);
        ck_assert_ptr_ne(x, y);
        ck_assert_ptr_eq(shard_data(x), shard_data(y));
        ck_assert(shard_requires_grad(y));
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        check_refused(shard_cast(shard_zeros(SHARD_SHAPE(1)), (shard_dtype)99), SHARD_ERROR_ARGUMENT, "*no dtype 99*");
        check_refused(shard_cast(NULL, SHARD_FLOAT32), SHARD_ERROR_ARGUMENT, "shard_cast: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cast");
    TCase *tcase = test_case(suite, "cast");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, keeps_the_gradient_dtype);
    tcase_add_test(tcase, casts_integers);
    tcase_add_test(tcase, casts_what_does_not_fit);
    tcase_add_test(tcase, shares_memory);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
