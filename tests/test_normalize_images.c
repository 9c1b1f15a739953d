/* Images to normalized numbers: what torchvision's ToTensor and Normalize give, placements, errors. */
#include "support/host.h"
#include "support/loss.h"

#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>

static const double mean[3] = {0.485, 0.456, 0.406}, deviation[3] = {0.229, 0.224, 0.225};

enum { ROWS = 5, SIDE = 3, COUNT = ROWS * SIDE * SIDE * 3 };

static void fill(uint8_t *levels)
{
    for (int i = 0; i < COUNT; i++)
        levels[i] = (uint8_t)(i * 41);
}

START_TEST(test_values)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT64, SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};
    static const double error[] = {1e-14, 1e-6, 1.1e-2, 1.4e-3};
    uint8_t levels[COUNT];
    fill(levels);
    for (int d = 0; d < 4; d++)
        SHARD_SCOPE {
            shard_tensor *x = shard_from_host(levels, SHARD_SHAPE(ROWS, SIDE, SIDE, 3), .dtype = SHARD_UINT8);
            shard_tensor *y = shard_normalize_images(x, mean, deviation, dtypes[d]);
            ck_assert_msg(y != NULL, "%s", shard_last_error());
            ck_assert_int_eq(shard_tensor_dtype(y), dtypes[d]);
            ck_assert_int_eq(shard_tensor_shape(y).ndim, 4);
            for (int i = 0; i < COUNT; i++)
                ck_assert_double_eq_tol(value_at(y, i), (levels[i] / 255.0 - mean[i % 3]) / deviation[i % 3], error[d]);
        }
}
END_TEST

START_TEST(test_of_nothing)
{
    SHARD_SCOPE {
        shard_tensor *none = shard_zeros(SHARD_SHAPE(0, 2, 2, 3), .dtype = SHARD_UINT8);
        ck_assert_int_eq(shard_numel(shard_normalize_images(none, mean, deviation, SHARD_FLOAT32)), 0);
        shard_tensor *colourless = shard_zeros(SHARD_SHAPE(2, 0), .dtype = SHARD_UINT8);
        ck_assert_ptr_nonnull(shard_normalize_images(colourless, mean, deviation, SHARD_FLOAT32));
    }
    check_ok(shard_last_status());
}
END_TEST

static void carries_rows(shard_group *world, void *context)
{
    (void)context;
    shard_range range = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    uint8_t levels[COUNT];
    fill(levels);
    SHARD_SCOPE {
        int64_t row = SIDE * SIDE * 3;
        shard_tensor *part = shard_from_host(levels + range.start * row, SHARD_SHAPE(range.size, SIDE, SIDE, 3), .dtype = SHARD_UINT8);
        shard_tensor *y = shard_normalize_images(shard_as_split(part, 0, world, range.start, ROWS), mean, deviation, SHARD_FLOAT64);
        shard_tensor *whole = shard_gather_from_group(y, 0, world);
        ck_assert_msg(whole != NULL, "%s", shard_last_error());
        for (int i = 0; i < COUNT; i++)
            ck_assert_double_eq_tol(value_at(whole, i), (levels[i] / 255.0 - mean[i % 3]) / deviation[i % 3], 1e-14);
    }
}

START_TEST(test_carries_rows)
{
    run_ranks(rank_counts[_i], carries_rows);
}
END_TEST

START_TEST(test_refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_UINT8);
        ck_assert_ptr_null(shard_normalize_images(shard_zeros(SHARD_SHAPE(2, 3)), mean, deviation, SHARD_FLOAT32));
        check_error(SHARD_ERROR_SHAPE, "shard_normalize_images: *uint8*");
        ck_assert_ptr_null(shard_normalize_images(x, mean, deviation, SHARD_INT64));
        check_error(SHARD_ERROR_SHAPE, "shard_normalize_images: from uint8 to int64; *");
        ck_assert_ptr_null(shard_normalize_images(shard_zeros(SHARD_SHAPE(2, 17), .dtype = SHARD_UINT8), mean, deviation, SHARD_FLOAT32));
        check_error(SHARD_ERROR_SHAPE, "shard_normalize_images: a tensor of shape \\[2, 17]; *at most 16 channels*");
        ck_assert_ptr_null(shard_normalize_images(shard_zeros(SHARD_SCALAR, .dtype = SHARD_UINT8), mean, deviation, SHARD_FLOAT32));
        check_error(SHARD_ERROR_SHAPE, "shard_normalize_images: a tensor of shape \\[]; *");
        ck_assert_ptr_null(shard_normalize_images(x, mean, (const double[]){1, 0, 1}, SHARD_FLOAT32));
        check_error(SHARD_ERROR_ARGUMENT, "shard_normalize_images: mean and std of channel 1 are * and 0; *");
        ck_assert_ptr_null(shard_normalize_images(x, mean, (const double[]){1, 1, NAN}, SHARD_FLOAT32));
        check_error(SHARD_ERROR_ARGUMENT, "shard_normalize_images: mean and std of channel 2 are * and nan; *");
        ck_assert_ptr_null(shard_normalize_images(x, mean, (const double[]){INFINITY, 1, 1}, SHARD_FLOAT32));
        check_error(SHARD_ERROR_ARGUMENT, "shard_normalize_images: mean and std of channel 0 are * and inf; *");
        ck_assert_ptr_null(shard_normalize_images(x, (const double[]){0, -INFINITY, 0}, deviation, SHARD_FLOAT32));
        check_error(SHARD_ERROR_ARGUMENT, "shard_normalize_images: mean and std of channel 1 are -inf and *");
        ck_assert_ptr_null(shard_normalize_images(x, NULL, deviation, SHARD_FLOAT32));
        check_error(SHARD_ERROR_ARGUMENT, "shard_normalize_images: mean *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normalize_images");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, test_values);
    tcase_add_test(all, test_of_nothing);
    add_ranks_test(all, test_carries_rows);
    tcase_add_test(all, test_refuses);
    return test_run(suite);
}
