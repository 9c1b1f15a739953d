/* Sums along a dimension against long double, and their gradient. */
#include "support/axes.h"
#include "support/check.h"
#include "support/kernels.h"

START_TEST(sums)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int a = 0; a < TESTED_AXES; a++) {
            const shard_axis *axis = &tested_axes[a];
            int64_t n = axis_count(axis), lines = axis->outer * axis->inner;
            void *x = array_noise(n, dtype, 1, -1, 1.1), *y = array_new(lines, dtype);
            RUN(device, sum_dim, axis, 0.75, x, y, dtype);
            for (int64_t i = 0; i < lines; i++) {
                long double want = 0, size = 0;
                for (int64_t k = 0; k < axis->size; k++) {
                    want += array_get(x, axis_at(axis, i, k), dtype);
                    size += fabs(array_get(x, axis_at(axis, i, k), dtype));
                }
                /* Of the double sum, and of float's rounding on the way to 16 bits. */
                long double error = size * 0x1p-45L + fabsl(want) * (dtype == SHARD_FLOAT64 ? 0x1p-53L : 0x1p-24L);
                check_close(dtype, array_get(y, i, dtype), 0.75L * want, error, device->name, i);
            }
            RUN(device, spread_dim, axis, 1.5, y, x, dtype);
            for (int64_t i = 0; i < lines; i++)
                for (int64_t k = 0; k < axis->size; k++) {
                    long double want = 1.5L * array_get(y, i, dtype);
                    check_close(dtype, array_get(x, axis_at(axis, i, k), dtype), want, fabsl(want) * compute_unit(dtype),
                                device->name, i);
                }
            array_free(x, n, dtype);
            array_free(y, lines, dtype);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_sum_dim");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, sums, 0, 4);
    return test_run(suite);
}
