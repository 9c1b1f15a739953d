/* permute, transpose. */
#include "support/gradcheck.h"

static shard_tensor *permute(shard_tensor *const *x, const void *axes)
{
    return shard_permute(x[0], axes);
}

static shard_tensor *transpose(shard_tensor *const *x, const void *options)
{
    const int *dims = options;
    return shard_transpose(x[0], dims[0], dims[1]);
}

static const operation operations[] = {
    {"permute a scalar", permute, NULL, 1, {SHARD_SCALAR}},
    {"permute nothing", permute, (int[]){2, 0, 1}, 1, {SHARD_SHAPE(2, 0, 3)}},
    {"permute to itself", permute, (int[]){0, 1}, 1, {SHARD_SHAPE(2, 3)}},
    {"permute", permute, (int[]){2, 0, -2}, 1, {SHARD_SHAPE(2, 3, 4)}},
    {"permute images", permute, (int[]){0, 3, 1, 2}, 1, {SHARD_SHAPE(2, 3, 4, 2)}},
    {"transpose", transpose, (int[]){0, -1}, 1, {SHARD_SHAPE(2, 3, 4)}},
    {"transpose one", transpose, (int[]){1, 1}, 1, {SHARD_SHAPE(2, 3)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

START_TEST(moves_elements)
{
    static const int64_t values[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const double permuted[] = {0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11}, turned[] = {0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(2, 3, 2), .dtype = SHARD_INT64);
        shard_tensor *y = shard_permute(x, (int[]){2, 1, 0});
        check_tensor("permuted", y, permuted, 0);
        ck_assert_int_eq(shard_tensor_dtype(y), SHARD_INT64);
        check_tensor("turned", shard_permute(x, (int[]){1, 2, 0}), turned, 0);
        check_tensor("transposed", shard_transpose(x, 0, 2), permuted, 0);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_permute(x, (int[]){0, 0}), SHARD_ERROR_ARGUMENT, "shard_permute: *twice*");
        check_refused(shard_permute(x, (int[]){0, 2}), SHARD_ERROR_ARGUMENT, "shard_permute: dimension 2 *");
        check_refused(shard_permute(x, NULL), SHARD_ERROR_ARGUMENT, "shard_permute: *axes*");
        check_refused(shard_transpose(x, 0, -3), SHARD_ERROR_ARGUMENT, "shard_transpose: dimension -3 *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("permute");
    TCase *tcase = test_case(suite, "permute");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, moves_elements);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
