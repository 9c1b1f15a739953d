/* permute: every order of up to four dimensions, and of some with eight. */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

/* With x and y `offset` elements into their arrays. */
static void check_permute_at(shard_device *device, int ndim, const int64_t *shape, const int *axes, shard_dtype dtype,
                             int64_t offset)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    size_t size = shard_dtype_size(dtype), skipped = (size_t)offset * size;
    unsigned char *x = (unsigned char *)array_new(n + offset, dtype) + skipped;
    unsigned char *y = (unsigned char *)array_new(n + offset, dtype) + skipped;
    for (size_t i = 0; i < (size_t)n * size; i++)
        x[i] = (unsigned char)(i * 131 + i / 256 * 17);
    RUN(device, permute, ndim, shape, axes, x, y, dtype);
    int64_t strides[8], stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, from = 0;
        for (int d = ndim - 1; d >= 0; d--) {
            from += rest % shape[axes[d]] * strides[axes[d]];
            rest /= shape[axes[d]];
        }
        if (memcmp(y + (size_t)i * size, x + (size_t)from * size, size) != 0)
            ck_abort_msg("%s, %s: element %lld of %lld is not the input's %lld", device->name, shard_dtype_name(dtype),
                         (long long)i, (long long)n, (long long)from);
    }
    array_free(x - skipped, n + offset, dtype);
    array_free(y - skipped, n + offset, dtype);
}

static void check_permute(shard_device *device, int ndim, const int64_t *shape, const int *axes, shard_dtype dtype)
{
    check_permute_at(device, ndim, shape, axes, dtype, 0);
}

/* Calls check_permute with all orders of the axes from `fixed` on. */
static void all_orders(shard_device *device, int ndim, const int64_t *shape, int *axes, int fixed, shard_dtype dtype)
{
    if (fixed == ndim)
        check_permute(device, ndim, shape, axes, dtype);
    for (int i = fixed; i < ndim; i++) {
        int first = axes[fixed];
        axes[fixed] = axes[i];
        axes[i] = first;
        all_orders(device, ndim, shape, axes, fixed + 1, dtype);
        axes[i] = axes[fixed];
        axes[fixed] = first;
    }
}

START_TEST(every_order)
{
    static const int64_t shapes[][4] = {{2, 3, 5, 7}, {1, 40, 1, 33}, {17, 2, 16, 3},
                                        {3, 0, 2, 2}, {1, 1, 1, 1},   {19, 37, 8, 13}};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int ndim = 0; ndim <= 4; ndim++)
                all_orders(device, ndim, shapes[s], (int[]){0, 1, 2, 3}, 0, (shard_dtype)_i);
}
END_TEST

START_TEST(eight_dimensions)
{
    static const int64_t shape[] = {2, 3, 2, 1, 4, 2, 3, 2};
    static const int orders[][8] = {
        {7, 6, 5, 4, 3, 2, 1, 0}, {1, 0, 3, 2, 5, 4, 7, 6}, {0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int i = 0; i < 4; i++)
            check_permute(device, 8, shape, orders[i], SHARD_FLOAT32);
}
END_TEST

/* Several tiles each way, with rests; narrow ones; runs of every width; at any address. */
START_TEST(larger)
{
    static const struct {
        int64_t shape[4];
        int axes[4];
    } cases[] = {
        {{1, 1, 130, 200}, {0, 1, 3, 2}}, {{2, 3, 65, 70}, {0, 3, 1, 2}}, {{1, 1, 3, 9001}, {0, 1, 3, 2}},
        {{1, 1, 9001, 3}, {0, 1, 3, 2}},  {{5, 1, 2, 300}, {0, 1, 3, 2}}, {{300, 2, 5, 1}, {2, 1, 0, 3}},
        {{300, 9, 7, 1}, {0, 2, 1, 3}},   {{7, 5, 3, 48}, {1, 0, 2, 3}},  {{40, 50, 2, 25}, {1, 0, 2, 3}},
        {{900, 70, 1, 1}, {1, 0, 2, 3}},
    };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int64_t offset = 0; offset < 4; offset += 3)
                check_permute_at(device, 4, cases[i].shape, cases[i].axes, (shard_dtype)_i, offset);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_permute");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, every_order, 0, SHARD_DTYPES);
    tcase_add_test(all, eight_dimensions);
    tcase_add_loop_test(all, larger, 0, SHARD_DTYPES);
    return test_run(suite);
}
