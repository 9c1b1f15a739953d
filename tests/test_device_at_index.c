/* Elements at indices along a dimension: taken out and added to, some indices outside or to be skipped. */
#include "support/axes.h"
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { START = 3, SKIP = 4 };

/* [outer, count, inner] from START - 1 to one behind the last, so that some are not here; each
 * second is the one before it. */
static int64_t *make_indices(const shard_axis *axis, int64_t count)
{
    int64_t n = axis->outer * count * axis->inner, *index = array_new(n, SHARD_INT64);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i / axis->inner % count;
        index[i] = k % 2 ? index[i - axis->inner] : START - 1 + (int64_t)((noise(7, i) + 1) / 2 * (double)(axis->size + 2));
    }
    return index;
}

static void compare(shard_device *device, const shard_axis *axis, int64_t count, shard_dtype dtype)
{
    int64_t n = axis_count(axis), lines = axis->outer * axis->inner, picked = lines * count;
    void *x = array_noise(n, dtype, 1, -1, 1), *y = array_noise(picked, dtype, 2, -1, 1);
    int64_t *index = make_indices(axis, count);
    RUN(device, gather_at, axis, count, START, SKIP, index, x, y, dtype);
    void *sum = array_noise(n, dtype, 3, -1, 1), *want = array_noise(n, dtype, 3, -1, 1);
    void *ones = array_noise(n, dtype, 3, -1, 1), *want_ones = array_noise(n, dtype, 3, -1, 1);
    RUN(device, add_at, axis, count, START, SKIP, index, -0.5, y, sum, dtype);
    RUN(device, add_at, axis, count, START, SKIP, index, 0.25, NULL, ones, dtype);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < count; j++) {
            int64_t at = (i / axis->inner * count + j) * axis->inner + i % axis->inner, k = index[at] - START;
            bool here = k >= 0 && k < axis->size && index[at] != SKIP;
            double value = here ? array_get(x, axis_at(axis, i, k), dtype) : 0;
            if (array_get(y, at, dtype) != value)
                ck_abort_msg("%s: element %lld is not the one at its index", device->name, (long long)at);
            if (!here)
                continue;
            int64_t to = axis_at(axis, i, k);
            array_put(want, to, dtype, array_get(want, to, dtype) - 0.5 * value);
            array_put(want_ones, to, dtype, array_get(want_ones, to, dtype) + 0.25);
        }
    check_same(dtype, n, want, sum, device->name);
    check_same(dtype, n, want_ones, ones, device->name);
    array_free(x, n, dtype);
    array_free(y, picked, dtype);
    array_free(index, picked, SHARD_INT64);
    array_free(sum, n, dtype);
    array_free(want, n, dtype);
    array_free(ones, n, dtype);
    array_free(want_ones, n, dtype);
}

START_TEST(takes_and_adds)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int a = 0; a < TESTED_AXES; a++)
            for (int64_t count = 0; count < 5; count++)
                compare(device, &tested_axes[a], count, float_dtypes[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_at_index");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, takes_and_adds, 0, 4);
    return test_run(suite);
}
