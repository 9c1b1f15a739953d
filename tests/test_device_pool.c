/* Max and average pooling, both ways, against loops over outputs and windows. */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>

/* n, h, w, c, kh, kw, oh, ow, strides, pads */
static const shard_pool_shape shapes[] = {
    {2, 9, 8, 5, 3, 3, 5, 4, 2, 2, 1, 1, false},
    {1, 6, 6, 64, 2, 2, 3, 3, 2, 2, 0, 0, false},
    {3, 7, 5, 33, 7, 5, 1, 1, 1, 1, 0, 0, false},
    {2, 5, 6, 1030, 3, 2, 3, 5, 1, 1, 0, 0, true},
    {1, 4, 4, 3, 4, 3, 5, 4, 1, 1, 2, 1, true},
    {2, 9, 7, 4, 2, 3, 3, 2, 3, 4, 0, 0, false},
    {0, 9, 9, 4, 3, 3, 4, 4, 2, 2, 0, 0, false},
    {2, 20, 21, 50, 3, 3, 10, 11, 2, 2, 1, 1, true},
    {1, 3, 40, 64, 3, 3, 3, 40, 1, 1, 1, 1, false},
    {2, 3, 3, 0, 3, 3, 1, 1, 1, 1, 0, 0, false},
    /* Last windows that hang over, as by ceil_mode. */
    {1, 5, 5, 3, 2, 2, 3, 3, 2, 2, 0, 0, true},
    {2, 5, 6, 3, 3, 3, 3, 4, 2, 2, 1, 1, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t inputs(const shard_pool_shape *s)
{
    return s->n * s->h * s->w * s->c;
}

static int64_t outputs(const shard_pool_shape *s)
{
    return s->n * s->oh * s->ow * s->c;
}

/* The k-th input of an output's window, -1 if it is padding; its position in the image. */
static int64_t window_input(const shard_pool_shape *s, int64_t output, int64_t k, int32_t *position)
{
    int64_t c = output % s->c, ow = output / s->c % s->ow, oh = output / s->c / s->ow % s->oh, n = output / s->c / s->ow / s->oh;
    int64_t h = oh * s->stride_h - s->pad_h + k / s->kw, w = ow * s->stride_w - s->pad_w + k % s->kw;
    if (h < 0 || h >= s->h || w < 0 || w >= s->w)
        return -1;
    *position = (int32_t)(h * s->w + w);
    return ((n * s->h + h) * s->w + w) * s->c + c;
}

/* What an average divides by: the window's inputs, or all of it that is in the padded image. */
static int64_t window_size(const shard_pool_shape *s, int64_t output)
{
    int64_t count = 0, h = output / s->c / s->ow % s->oh * s->stride_h, w = output / s->c % s->ow * s->stride_w;
    int32_t position;
    for (int64_t k = 0; k < s->kh * s->kw; k++)
        count += s->count_include_pad ? h + k / s->kw < s->h + 2 * s->pad_h && w + k % s->kw < s->w + 2 * s->pad_w
                                      : window_input(s, output, k, &position) >= 0;
    return count;
}

/* x has many ties, and NaNs and -infs in some places. */
static void *input_with_ties(const shard_pool_shape *s, shard_dtype dtype)
{
    void *x = array_new(inputs(s), dtype);
    for (int64_t i = 0; i < inputs(s); i++) {
        double value = round(noise(1, i) * 4);
        array_put(x, i, dtype, fabs(noise(2, i)) < 0.02 ? NAN : noise(3, i) < -0.7 ? -INFINITY : value);
    }
    return x;
}

START_TEST(max)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < SHAPES; k++) {
            const shard_pool_shape *s = &shapes[k];
            int64_t n = outputs(s);
            void *x = input_with_ties(s, dtype), *y = array_new(n, dtype), *plain = array_new(n, dtype);
            int32_t *argmax = array_new(n, SHARD_INT32);
            RUN(device, max_pool, s, x, y, argmax, dtype);
            RUN(device, max_pool, s, x, plain, NULL, dtype);
            check_same(dtype, n, y, plain, "without argmax");
            for (int64_t i = 0; i < n; i++) {
                double best = NAN;
                int32_t arg = -1, position;
                for (int64_t w = 0; w < s->kh * s->kw; w++) {
                    int64_t from = window_input(s, i, w, &position);
                    double value = from < 0 ? 0 : array_get(x, from, dtype);
                    if (from >= 0 && (arg < 0 || value > best || (isnan(value) && !isnan(best)))) {
                        best = value;
                        arg = position;
                    }
                }
                check_close(dtype, array_get(y, i, dtype), best, 0, device->name, i);
                if (argmax[i] != arg)
                    ck_abort_msg("%s: argmax %lld is %d, wanted %d", device->name, (long long)i, argmax[i], arg);
            }
            array_free(x, inputs(s), dtype);
            array_free(y, n, dtype);
            array_free(plain, n, dtype);
            array_free(argmax, n, SHARD_INT32);
        }
}
END_TEST

/* What each output sends to its inputs, added up: share(output, k) of dy. */
static void check_backward(shard_device *device, const shard_pool_shape *s, shard_dtype dtype, const void *dy,
                           const int32_t *argmax, const void *dx)
{
    long double *want = calloc((size_t)inputs(s) + 1, sizeof *want);
    for (int64_t i = 0; i < outputs(s); i++)
        for (int64_t k = 0; k < s->kh * s->kw; k++) {
            int32_t position;
            int64_t from = window_input(s, i, k, &position);
            if (from >= 0 && (!argmax || argmax[i] == position))
                want[from] += (long double)array_get(dy, i, dtype) / (argmax ? 1 : window_size(s, i));
        }
    for (int64_t i = 0; i < inputs(s); i++)
        check_close(dtype, array_get(dx, i, dtype), want[i], 16 * compute_unit(dtype), device->name, i);
    free(want);
}

START_TEST(max_backward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < SHAPES; k++) {
            const shard_pool_shape *s = &shapes[k];
            int64_t n = outputs(s);
            void *x = input_with_ties(s, dtype), *y = array_new(n, dtype), *dy = array_noise(n, dtype, 4, -1, 1);
            void *dx = array_new(inputs(s), dtype);
            int32_t *argmax = array_new(n, SHARD_INT32);
            RUN(device, max_pool, s, x, y, argmax, dtype);
            RUN(device, max_pool_backward, s, dy, argmax, dx, dtype);
            check_backward(device, s, dtype, dy, argmax, dx);
            array_free(x, inputs(s), dtype);
            array_free(y, n, dtype);
            array_free(dy, n, dtype);
            array_free(dx, inputs(s), dtype);
            array_free(argmax, n, SHARD_INT32);
        }
}
END_TEST

START_TEST(average)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < SHAPES; k++) {
            const shard_pool_shape *s = &shapes[k];
            int64_t n = outputs(s);
            void *x = array_noise(inputs(s), dtype, 1, -1, 1), *y = array_new(n, dtype), *dy = array_noise(n, dtype, 2, -1, 1);
            RUN(device, avg_pool, s, x, y, dtype);
            for (int64_t i = 0; i < n; i++) {
                long double sum = 0;
                int32_t position;
                for (int64_t w = 0; w < s->kh * s->kw; w++) {
                    int64_t from = window_input(s, i, w, &position);
                    sum += from < 0 ? 0 : array_get(x, from, dtype);
                }
                /* A double sum; 16-bit types are rounded to float on the way. */
                long double error = dtype == SHARD_FLOAT64 ? 40 * 0x1p-53L : compute_unit(dtype);
                check_close(dtype, array_get(y, i, dtype), sum / window_size(s, i), error, device->name, i);
            }
            RUN(device, avg_pool_backward, s, dy, x, dtype);
            check_backward(device, s, dtype, dy, NULL, x);
            array_free(x, inputs(s), dtype);
            array_free(y, n, dtype);
            array_free(dy, n, dtype);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_pool");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, max, 0, 4);
    tcase_add_loop_test(all, max_backward, 0, 4);
    tcase_add_loop_test(all, average, 0, 4);
    return test_run(suite);
}
