/* max_pool2d, avg_pool2d, global_avg_pool2d. */
#include "support/gradcheck.h"
#include "support/options.h"

#include <math.h>

typedef struct pooling {
    int64_t kernel;
    shard_pool2d_options options;
} pooling;

static shard_tensor *max_pool(shard_tensor *const *x, const void *options)
{
    const pooling *pool = options;
    return shard_max_pool2d_with(x[0], pool->kernel, &pool->options);
}

static shard_tensor *avg_pool(shard_tensor *const *x, const void *options)
{
    const pooling *pool = options;
    return shard_avg_pool2d_with(x[0], pool->kernel, &pool->options);
}

static shard_tensor *global(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_global_avg_pool2d(x[0]);
}

#define POOL(kernel, ...)                                                                                                        \
    &(pooling)                                                                                                                   \
    {                                                                                                                            \
        kernel,                                                                                                                  \
        {                                                                                                                        \
            SHARD_POOL2D_OPTIONS_VALUES, __VA_ARGS__                                                                             \
        }                                                                                                                        \
    }

static const operation operations[] = {
    {"max", max_pool, POOL(2), 1, {SHARD_SHAPE(2, 4, 6, 3)}},
    {"max, overlapping", max_pool, POOL(3, .stride = 2, .padding = 1), 1, {SHARD_SHAPE(2, 5, 6, 2)}},
    {"max, rounded up", max_pool, POOL(2, .stride = 3, .ceil_mode = true), 1, {SHARD_SHAPE(1, 5, 7, 2)}},
    {"max, hanging over", max_pool, POOL(3, .stride = 2, .ceil_mode = true), 1, {SHARD_SHAPE(1, 6, 7, 2)}},
    {"max, larger than the image", max_pool, POOL(4, .stride = 3, .ceil_mode = true), 1, {SHARD_SHAPE(2, 2, 3, 2)}},
    {"max of no images", max_pool, POOL(2), 1, {SHARD_SHAPE(0, 4, 4, 2)}},
    {"max of no channels", max_pool, POOL(2), 1, {SHARD_SHAPE(2, 4, 4, 0)}},
    {"average", avg_pool, POOL(2), 1, {SHARD_SHAPE(2, 4, 6, 3)}},
    {"average, padded", avg_pool, POOL(3, .stride = 2, .padding = 1), 1, {SHARD_SHAPE(2, 5, 6, 2)}},
    {"average, inside", avg_pool, POOL(3, .stride = 2, .padding = 1, .count_include_pad = false), 1, {SHARD_SHAPE(2, 5, 6, 2)}},
    {"average, hanging over", avg_pool, POOL(3, .stride = 2, .padding = 1, .ceil_mode = true), 1, {SHARD_SHAPE(1, 6, 8, 2)}},
    {"average, larger than the image", avg_pool, POOL(4, .stride = 3, .ceil_mode = true), 1, {SHARD_SHAPE(2, 2, 3, 2)}},
    {"average of no images", avg_pool, POOL(2), 1, {SHARD_SHAPE(0, 4, 4, 2)}},
    {"global", global, NULL, 1, {SHARD_SHAPE(2, 3, 5, 4)}},
    {"global of no images", global, NULL, 1, {SHARD_SHAPE(0, 3, 5, 4)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* The windows of 3 by 2 on 6 are 0-2, 2-4, 4-5: PyTorch counts what is inside of the
 * padded image. */
START_TEST(divides_by_the_window)
{
    static const double values[] = {1, 2, 3, 4, 5, 6};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(1, 1, 6, 1), .dtype = SHARD_FLOAT64);
        shard_tensor *rows =
            shard_reshape(shard_add(shard_zeros(SHARD_SHAPE(3, 6), .dtype = SHARD_FLOAT64), shard_reshape(x, SHARD_SHAPE(6))),
                          SHARD_SHAPE(1, 3, 6, 1));
        check_tensor("hanging over", shard_avg_pool2d(rows, 3, .stride = 2, .ceil_mode = true), (double[]){2, 4, 5.5}, 1e-15);
        check_tensor("cut off", shard_avg_pool2d(rows, 3, .stride = 2), (double[]){2, 4}, 1e-15);
        shard_tensor *padded = shard_avg_pool2d(rows, 3, .stride = 3, .padding = 1);
        check_tensor("padded", padded, (double[]){2.0 / 3, 8.0 / 3}, 1e-15);
        shard_tensor *inside = shard_avg_pool2d(rows, 3, .stride = 3, .padding = 1, .count_include_pad = false);
        check_tensor("inside", inside, (double[]){1.5, 4}, 1e-15);
        shard_tensor *larger = shard_avg_pool2d(rows, 8, .stride = 6, .padding = 1, .ceil_mode = true);
        check_tensor("larger", larger, (double[]){63 / 40.0}, 1e-15);
        check_tensor("larger", shard_max_pool2d(rows, 8, .ceil_mode = true), (double[]){6}, 0);
    }
}
END_TEST

START_TEST(takes_the_first_maximum)
{
    static const double values[] = {1, 3, 3, 2}, gradient[] = {0, 1, 0, 0};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(1, 2, 2, 1), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *y = shard_max_pool2d(x, 2);
        ck_assert_double_eq(shard_item(y), 3);
        ck_assert_int_eq(shard_backward(y), SHARD_OK);
        check_tensor("gradient", shard_grad(x), gradient, 0);
        double with_nan[] = {1, NAN, 3, 2};
        shard_tensor *nan = shard_max_pool2d(shard_from_host(with_nan, SHARD_SHAPE(1, 2, 2, 1), .dtype = SHARD_FLOAT64), 2);
        ck_assert(isnan(shard_item(nan)));
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(1, 4, 5, 6));
        check_refused(shard_max_pool2d(x, 5), SHARD_ERROR_SHAPE, "shard_max_pool2d: *kernel of 5*");
        check_refused(shard_max_pool2d(x, 7, .stride = 2, .ceil_mode = true), SHARD_ERROR_SHAPE,
                      "shard_max_pool2d: *kernel of 7*");
        check_refused(shard_max_pool2d(shard_zeros(SHARD_SHAPE(1, 0, 4, 6)), 2, .padding = 1), SHARD_ERROR_SHAPE,
                      "shard_max_pool2d: images of 0 x 4*");
        check_refused(shard_avg_pool2d(shard_zeros(SHARD_SHAPE(1, 4, 0, 6)), 2, .padding = 1), SHARD_ERROR_SHAPE,
                      "shard_avg_pool2d: images of 4 x 0*");
        check_refused(shard_avg_pool2d(x, 2, .padding = 2), SHARD_ERROR_ARGUMENT, "shard_avg_pool2d: *padding 2*");
        check_refused(shard_avg_pool2d(x, 0), SHARD_ERROR_ARGUMENT, "shard_avg_pool2d: kernel 0*");
        check_refused(shard_avg_pool2d(x, 2, .stride = -2), SHARD_ERROR_ARGUMENT, "shard_avg_pool2d: *stride -2*");
        check_refused(shard_avg_pool2d(x, INT64_MAX, .padding = INT64_MAX / 2), SHARD_ERROR_ARGUMENT, "shard_avg_pool2d: *");
        check_refused(shard_max_pool2d(shard_zeros(SHARD_SHAPE(4, 5, 6)), 2), SHARD_ERROR_SHAPE,
                      "shard_max_pool2d: x has shape [[]4, 5, 6]; images *");
        check_refused(shard_global_avg_pool2d(shard_zeros(SHARD_SHAPE(2, 0, 3, 4))), SHARD_ERROR_SHAPE,
                      "shard_global_avg_pool2d: *0 x 3*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tcase = test_case(suite, "pool");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, divides_by_the_window);
    tcase_add_test(tcase, takes_the_first_maximum);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
