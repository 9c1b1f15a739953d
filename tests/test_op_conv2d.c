/* conv2d. */
#include "support/gradcheck.h"
#include "support/options.h"

static shard_tensor *conv2d(shard_tensor *const *x, const void *options)
{
    return shard_conv2d_with(x[0], x[1], NULL, options);
}

static shard_tensor *biased(shard_tensor *const *x, const void *options)
{
    return shard_conv2d_with(x[0], x[1], x[2], options);
}

#define OPTIONS(...)                                                                                                             \
    &(shard_conv2d_options)                                                                                                      \
    {                                                                                                                            \
        SHARD_CONV2D_OPTIONS_VALUES, __VA_ARGS__                                                                                 \
    }

static const operation operations[] = {
    {"1 x 1", conv2d, OPTIONS(), 2, {SHARD_SHAPE(2, 3, 4, 3), SHARD_SHAPE(4, 3, 1, 1)}, .needs = 3},
    {"3 x 3", biased, OPTIONS(), 3, {SHARD_SHAPE(2, 4, 5, 3), SHARD_SHAPE(2, 3, 3, 3), SHARD_SHAPE(2)}, .needs = 3},
    {"padded", biased, OPTIONS(.padding = 1), 3, {SHARD_SHAPE(2, 4, 5, 2), SHARD_SHAPE(3, 2, 3, 3), SHARD_SHAPE(3)}, .needs = 3},
    {"with strides",
     conv2d,
     OPTIONS(.stride = 2, .padding = 1),
     2,
     {SHARD_SHAPE(1, 5, 6, 2), SHARD_SHAPE(2, 2, 3, 3)},
     .needs = 3},
    {"each direction",
     conv2d,
     OPTIONS(.stride_h = 2, .stride_w = 3, .padding_h = 1, .padding_w = 2),
     2,
     {SHARD_SHAPE(1, 5, 6, 2), SHARD_SHAPE(2, 2, 2, 3)},
     .needs = 3},
    {"dilated", conv2d, OPTIONS(.dilation = 2, .padding = 2), 2, {SHARD_SHAPE(1, 5, 6, 2), SHARD_SHAPE(2, 2, 3, 3)}, .needs = 3},
    {"groups",
     biased,
     OPTIONS(.groups = 2, .padding = 1),
     3,
     {SHARD_SHAPE(2, 3, 3, 4), SHARD_SHAPE(6, 2, 3, 3), SHARD_SHAPE(6)},
     .needs = 3},
    {"by channel", conv2d, OPTIONS(.groups = 3), 2, {SHARD_SHAPE(2, 4, 3, 3), SHARD_SHAPE(3, 1, 2, 2)}, .needs = 3},
    {"no images", biased, OPTIONS(), 3, {SHARD_SHAPE(0, 4, 4, 2), SHARD_SHAPE(3, 2, 3, 3), SHARD_SHAPE(3)}, .needs = 3},
    {"no channels", biased, OPTIONS(), 3, {SHARD_SHAPE(2, 3, 3, 0), SHARD_SHAPE(3, 0, 2, 2), SHARD_SHAPE(3)}, .needs = 3},
    {"no outputs", biased, OPTIONS(), 3, {SHARD_SHAPE(2, 3, 3, 2), SHARD_SHAPE(0, 2, 2, 2), SHARD_SHAPE(0)}, .needs = 3},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

static void check_size(shard_tensor *y, int64_t h, int64_t w)
{
    ck_assert_msg(y != NULL, "%s", shard_last_error());
    ck_assert_int_eq(shard_tensor_size(y, 1), h);
    ck_assert_int_eq(shard_tensor_size(y, 2), w);
}

START_TEST(sizes)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(1, 7, 9, 1)), *weight = shard_zeros(SHARD_SHAPE(1, 1, 3, 3));
        check_size(shard_conv2d(x, weight, NULL), 5, 7);
        check_size(shard_conv2d(x, weight, NULL, .stride = 2), 3, 4);
        check_size(shard_conv2d(x, weight, NULL, .stride = 2, .padding = 1), 4, 5);
        check_size(shard_conv2d(x, weight, NULL, .dilation = 3), 1, 3);
        check_size(shard_conv2d(x, weight, NULL, .stride = 5, .stride_w = 4, .padding_h = 1), 2, 2);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(1, 4, 5, 6)), *weight = shard_zeros(SHARD_SHAPE(4, 6, 3, 3));
        check_refused(
            shard_conv2d(x, shard_zeros(SHARD_SHAPE(4, 3, 3, 3)), NULL), SHARD_ERROR_SHAPE,
            "shard_conv2d: x of shape [[]1, 4, 5, 6] has 6 channels, the weight of shape [[]4, 3, 3, 3] takes 3 in each of "
            "1 groups; *");
        check_refused(shard_conv2d(x, weight, NULL, .groups = 4), SHARD_ERROR_SHAPE, "shard_conv2d: *groups*");
        check_refused(shard_conv2d(x, weight, NULL, .groups = -1), SHARD_ERROR_SHAPE, "shard_conv2d: *groups*");
        check_refused(shard_conv2d(x, shard_zeros(SHARD_SHAPE(5, 3, 3, 3)), NULL, .groups = 2), SHARD_ERROR_SHAPE,
                      "shard_conv2d: *multiples of the groups");
        check_refused(shard_conv2d(x, shard_zeros(SHARD_SHAPE(4, 6, 3, 6)), NULL), SHARD_ERROR_SHAPE, "shard_conv2d: *width 6*");
        check_refused(shard_conv2d(x, weight, NULL, .dilation = 2), SHARD_ERROR_SHAPE, "shard_conv2d: a kernel of height 3 *");
        check_refused(shard_conv2d(x, weight, NULL, .stride = -1), SHARD_ERROR_ARGUMENT, "shard_conv2d: stride -1*");
        check_refused(shard_conv2d(x, weight, NULL, .padding_w = -2), SHARD_ERROR_ARGUMENT, "shard_conv2d: *padding -2*");
        check_refused(shard_conv2d(x, weight, shard_zeros(SHARD_SHAPE(6))), SHARD_ERROR_SHAPE, "shard_conv2d: a bias *");
        check_refused(shard_conv2d(shard_zeros(SHARD_SHAPE(4, 5, 6)), weight, NULL), SHARD_ERROR_SHAPE,
                      "shard_conv2d: x of shape [[]4, 5, 6] and a weight *are needed");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op_conv2d");
    TCase *tcase = test_case(suite, "conv2d");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
