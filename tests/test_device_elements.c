/* axpby and binary: what each element's few operations give. */
#include "support/check.h"
#include "support/kernels.h"

static const int64_t sizes[] = {0, 1, 31, 1024, 1025, 70001};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* An operation's operands are as large as 4: a few roundings in the type computed in. */
static long double few(shard_dtype dtype)
{
    return 16 * compute_unit(dtype);
}

START_TEST(axpby)
{
    shard_dtype dtype = float_dtypes[_i];
    static const double scales[][2] = {{1, 1}, {0.3, 0}, {-1.25, 0.7}, {0, 1}, {0.25, 0.75}, {1e-4, 1 - 1e-4}};
    enum { SCALES = sizeof scales / sizeof *scales };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++)
            for (int k = 0; k < SCALES; k++) {
                int64_t n = sizes[s];
                double alpha = scales[k][0], beta = scales[k][1];
                void *x = array_noise(n, dtype, 1, -2, 2), *y = array_noise(n, dtype, 2, -2, 2);
                for (int64_t i = 0; beta == 0 && i < n; i++)
                    array_put(y, i, dtype, NAN);
                void *old = array_new(n, dtype);
                RUN(device, cast, n, y, dtype, old, dtype);
                RUN(device, axpby, n, alpha, x, beta, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    long double want = (long double)alpha * array_get(x, i, dtype);
                    want += beta == 0 ? 0 : (long double)beta * array_get(old, i, dtype);
                    check_close(dtype, array_get(y, i, dtype), want, few(dtype), device->name, i);
                }
                if (beta == 0) {
                    RUN(device, axpby, n, alpha, x, 0, x, dtype);
                    check_same(dtype, n, x, y, "in place");
                }
                array_free(x, n, dtype);
                array_free(y, n, dtype);
                array_free(old, n, dtype);
            }
}
END_TEST

/* Exactly rounded, so that every set gives the same bits. */
START_TEST(binary)
{
    shard_dtype dtype = float_dtypes[_i];
    static const int64_t shapes[][2] = {{1, 0}, {1, 1},  {1, 1500},  {1, 70001}, {0, 5},    {5, 0},
                                        {7, 1}, {3, 10}, {100, 700}, {900, 65},  {3, 20000}};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int multiply = 0; multiply < 2; multiply++) {
                int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
                void *a = array_noise(n, dtype, 1, -2, 2), *b = array_noise(cols, dtype, 2, -2, 2), *y = array_new(n, dtype);
                shard_binary op = multiply ? SHARD_MUL : SHARD_ADD;
                const shard_expansion over = shard_expansion_rows(rows, cols);
                RUN(device, binary, op, &over, a, b, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    long double left = array_get(a, i, dtype), right = array_get(b, i % cols, dtype);
                    long double want = multiply ? left * right : left + right;
                    /* 16-bit types are rounded to float first. */
                    long double error = dtype == SHARD_FLOAT32 || dtype == SHARD_FLOAT64 ? 0 : fabsl(want) * 0x1p-24L;
                    check_close(dtype, array_get(y, i, dtype), want, error, device->name, i);
                }
                RUN(device, binary, op, &over, a, b, a, dtype);
                check_same(dtype, n, a, y, "in place");
                array_free(a, n, dtype);
                array_free(b, cols, dtype);
                array_free(y, n, dtype);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_elements");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, axpby, 0, 4);
    tcase_add_loop_test(all, binary, 0, 4);
    return test_run(suite);
}
