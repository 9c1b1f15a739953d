/* Column sums: any shape and pitch, accumulated or not, the same for any number of threads. */
#include "support/check.h"
#include "support/kernels.h"
#include "support/threads.h"

/* Sums are double, so that the result is the sum rounded once. */
static void compare_sums(shard_dtype dtype, shard_dtype to)
{
    static const int64_t shapes[][2] = {{0, 0},     {0, 5},     {5, 0},     {1, 1},     {3, 1},
                                        {1, 600},   {70001, 1}, {20000, 3}, {700, 65},  {5000, 100},
                                        {300, 512}, {65, 1030}, {2, 40001}, {3, 65544}, {70000, 8}};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int form = 0; form < 5; form++) {
                bool accumulate = form & 1;
                int64_t rows = shapes[s][0], cols = shapes[s][1], pads[] = {0, 3, (8 - cols % 8) % 8}, pad = pads[form / 2];
                int64_t pitch = cols + pad, n = rows * pitch + 1;
                if (pad > 0 && n > 100000)
                    continue;
                void *array = array_noise(n, dtype, 1, -1, 1.1), *y = array_noise(cols, to, 2, -1, 1.1);
                void *old = array_noise(cols, to, 2, -1, 1.1);
                const char *x = (const char *)array + (accumulate ? shard_dtype_size(dtype) : 0); /* not aligned, too */
                RUN(device, sum_rows, rows, cols, pad ? pitch : 0, x, dtype, accumulate, y, to);
                for (int64_t j = 0; j < cols; j++) {
                    long double want = accumulate ? array_get(old, j, to) : 0, size = fabsl(want);
                    for (int64_t i = 0; i < rows; i++) {
                        want += array_get(x, i * pitch + j, dtype);
                        size += fabs(array_get(x, i * pitch + j, dtype));
                    }
                    /* Of float's rounding on the way to 16 bits, and of the double sum. */
                    long double error = fabsl(want) * (to == SHARD_BFLOAT16 || to == SHARD_FLOAT16 ? 0x1p-24L : 0);
                    check_close(to, array_get(y, j, to), want, error + size * 0x1p-50L, device->name, j);
                }
                array_free(array, n, dtype);
                array_free(y, cols, to);
                array_free(old, cols, to);
            }
}

START_TEST(sums)
{
    compare_sums(float_dtypes[_i], float_dtypes[_i]);
    if (shard_dtype_size(float_dtypes[_i]) == 2)
        compare_sums(float_dtypes[_i], SHARD_FLOAT32);
}
END_TEST

/* Rows are added in the same order by every set and for any number of threads. */
START_TEST(repeats_to_the_bit)
{
    int64_t rows = 30011, cols = 24;
    void *x = array_noise(rows * cols, SHARD_FLOAT64, 1, -1, 1), *first = array_new(cols, SHARD_FLOAT64);
    void *again = array_new(cols, SHARD_FLOAT64);
    shard_device *device = kernel_device(0);
    RUN(device, sum_rows, rows, cols, 0, x, SHARD_FLOAT64, false, first, SHARD_FLOAT64);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int threads = 1; threads <= 5; threads++) {
            set_threads(threads);
            RUN(device, sum_rows, rows, cols, 0, x, SHARD_FLOAT64, false, again, SHARD_FLOAT64);
            check_same(SHARD_FLOAT64, cols, first, again, device->name);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_sum_rows");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, sums, 0, 4);
    tcase_add_test(all, repeats_to_the_bit);
    return test_run(suite);
}
