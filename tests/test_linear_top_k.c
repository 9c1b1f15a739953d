/* The first k logits of a linear layer without its logits against those of the plain layer: ties, NaN, whole and split. */
#include "support/kernels.h"
#include "support/loss.h"

#include "base/error.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/distributed.h>

#include <math.h>
#include <stdlib.h>

enum { NOT_A_NUMBER = 3 /* the row of x that is NaN */, MOST_ROWS = 70, MOST_FIRST = 301 };

static const struct {
    shard_dtype x, weight;
} dtypes[] = {
    {SHARD_FLOAT64, SHARD_FLOAT64}, {SHARD_FLOAT32, SHARD_FLOAT32},   {SHARD_BFLOAT16, SHARD_FLOAT32},
    {SHARD_FLOAT16, SHARD_FLOAT32}, {SHARD_BFLOAT16, SHARD_BFLOAT16}, {SHARD_FLOAT16, SHARD_FLOAT16},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const struct {
    int64_t rows, in, classes, tile, k;
} shapes[] = {{5, 3, 13, 0, 4},      {4, 16, 3, 2, 3},      {7, 33, 301, 64, 5}, {7, 33, 301, 64, 301},
              {70, 20, 100, 0, 100}, {13, 130, 700, 48, 1}, {1, 1, 1, 0, 1},     {3, 2, 9, 0, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Products of small integers are exact in every dtype, and many logits are equal. */
static double *integers(int64_t count, uint64_t seed)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = floor(1.5 * noise(seed, i) + 0.5);
    return x;
}

static void compare(int shape, int d, shard_tensor *found, shard_tensor *found_index, shard_tensor *expected,
                    shard_tensor *expected_index)
{
    static double value[2][MOST_ROWS * MOST_FIRST], index[2][MOST_ROWS * MOST_FIRST];
    int64_t rows = shapes[shape].rows, k = shapes[shape].k;
    ck_assert_int_eq(found->dtype, dtypes[d].x == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32);
    ck_assert(shard_shape_equal(&found->shape, &expected->shape));
    double *const to[] = {value[0], value[1], index[0], index[1]};
    shard_tensor *const from[] = {found, expected, found_index, expected_index};
    for (int i = 0; i < 4; i++)
        read_values(i < 2 ? from[i] : shard_cast(from[i], SHARD_FLOAT64), to[i]);
    for (int64_t i = 0; i < rows * k; i++) {
        bool both_nan = isnan(value[0][i]) && isnan(value[1][i]);
        ck_assert_msg((both_nan || value[0][i] == value[1][i]) && index[0][i] == index[1][i],
                      "shape %d, %s: number %lld of row %lld is %g of class %g, not %g of %g", shape,
                      shard_dtype_name(dtypes[d].x), (long long)(i % k), (long long)(i / k), value[0][i], index[0][i],
                      value[1][i], index[1][i]);
    }
}

static void check_top(int shape, int d, shard_group *group)
{
    int64_t rows = shapes[shape].rows, in = shapes[shape].in, classes = shapes[shape].classes, k = shapes[shape].k;
    double *x = integers(rows * in, 1), *weight = integers(classes * in, 2), *bias = integers(classes, 3);
    shard_range range = shard_split_range(classes, shard_group_size(group), shard_group_rank(group));
    if (rows > NOT_A_NUMBER)
        x[NOT_A_NUMBER * in] = (double)NAN;
    shard_head_tile = shapes[shape].tile;
    SHARD_SCOPE
    {
        shard_tensor *index, *expected_index;
        shard_tensor *parts[] = {tensor_of(weight + range.start * in, SHARD_SHAPE(range.size, in), dtypes[d].weight),
                                 tensor_of(bias + range.start, SHARD_SHAPE(range.size), dtypes[d].weight)};
        for (int i = 0; i < 2 && group; i++)
            parts[i]->placement = (shard_placement){.kind = SHARD_SPLIT, .group = group, .start = range.start, .whole = classes};
        shard_tensor *found = shard_linear_top_k(tensor_of(x, SHARD_SHAPE(rows, in), dtypes[d].x), parts[0], parts[1], k, &index);
        ck_assert_msg(found, "%s", shard_last_error());
        shard_tensor *plain = shard_linear(tensor_of(x, SHARD_SHAPE(rows, in), SHARD_FLOAT64),
                                           tensor_of(weight, SHARD_SHAPE(classes, in), SHARD_FLOAT64),
                                           tensor_of(bias, SHARD_SHAPE(classes), SHARD_FLOAT64));
        shard_tensor *expected = shard_top_k(plain, k, &expected_index);
        compare(shape, d, found, index, expected, expected_index);
    }
    shard_head_tile = 0;
    free(x);
    free(weight);
    free(bias);
}

START_TEST(test_equals_plain)
{
    shard_device *device = shard_default_device();
    const struct shard_head_ops *fused = device->head;
    for (int d = 0; d < DTYPES; d++)
        for (int composed = 0; composed < 2; composed++) {
            device->head = composed ? NULL : fused;
            check_top(_i, d, NULL);
        }
    device->head = fused;
}
END_TEST

static void equals_plain(shard_group *world, void *context)
{
    (void)context;
    for (int i = 0; i < SHAPES; i++)
        check_top(i, i % DTYPES, world);
}

START_TEST(test_equals_plain_on_ranks)
{
    run_ranks(rank_counts[_i], equals_plain);
}
END_TEST

/* One rank has features of another length: an error on all. */
static void refuses(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_range range = shard_split_range(6, shard_group_size(world), rank);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_zeros(SHARD_SHAPE(range.size, 2)), *index = weight;
        weight->placement = (shard_placement){.kind = SHARD_SPLIT, .group = world, .start = range.start, .whole = 6};
        ck_assert_ptr_null(shard_linear_top_k(shard_zeros(SHARD_SHAPE(1, rank ? 2 : 3)), weight, NULL, 1, &index));
        ck_assert_ptr_null(index);
        check_error(rank ? SHARD_ERROR_PEER : SHARD_ERROR_SHAPE, "*shard_linear_top_k: x of shape*");
        ck_assert_ptr_null(shard_linear_top_k(shard_zeros(SHARD_SHAPE(1, 2)), weight, NULL, 7, &index));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_linear_top_k: k is 7*");
    }
}

START_TEST(test_refuses)
{
    run_ranks(rank_counts[_i], refuses);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear top k");
    TCase *tcase = test_case(suite, "linear top k");
    tcase_add_loop_test(tcase, test_equals_plain, 0, SHAPES);
    add_ranks_test(tcase, test_equals_plain_on_ranks);
    add_ranks_test(tcase, test_refuses);
    return test_run(suite);
}
