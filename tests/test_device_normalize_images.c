/* Pixels of 8 bits to numbers: every level, of some numbers of channels, aligned and not. */
#include "support/check.h"
#include "support/kernels.h"

static const int64_t counts[] = {0, 1, 257, 5003, 400000}, channels[] = {1, 3, 4, SHARD_IMAGE_CHANNELS};

static void check_normalized(shard_device *device, int64_t pixels, int64_t count, int64_t offset, shard_dtype dtype)
{
    int64_t n = pixels * count;
    double mean[SHARD_IMAGE_CHANNELS], factor[SHARD_IMAGE_CHANNELS];
    for (int64_t c = 0; c < count; c++) {
        mean[c] = 100 + 3.7 * (double)c;
        factor[c] = 1 / (40 + 1.3 * (double)c);
    }
    uint8_t *x = array_new(n + offset, SHARD_UINT8);
    for (int64_t i = 0; i < n; i++)
        x[offset + i] = (uint8_t)(i * 7);
    void *y = array_new(n, dtype);
    RUN(device, normalize_images, pixels, count, x + offset, mean, factor, y, dtype);
    for (int64_t i = 0; i < n; i++) {
        long double want = (long double)(x[offset + i] - mean[i % count]) * factor[i % count];
        long double error = (fabsl(want) + (long double)(mean[i % count] * factor[i % count])) * 4 * compute_unit(dtype);
        check_close(dtype, array_get(y, i, dtype), want, error, device->name, i);
    }
    array_free(x, n + offset, SHARD_UINT8);
    array_free(y, n, dtype);
}

START_TEST(normalizes)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t k = 0; k < sizeof channels / sizeof *channels; k++)
                for (int64_t offset = 0; offset < 2 && counts[i] * channels[k] < 1300000; offset++)
                    check_normalized(device, counts[i], channels[k], offset, float_dtypes[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_normalize_images");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, normalizes, 0, 4);
    return test_run(suite);
}
