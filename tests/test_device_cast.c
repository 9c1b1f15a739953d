/* Casts between every two dtypes, the 16-bit types' rounding, and fill. */
#include "support/check.h"
#include "support/kernels.h"

#include "base/dtype.h"

#include <stdlib.h>
#include <string.h>

static const int64_t sizes[] = {0, 1, 31, 1023, 1025, 70001};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Values that both types hold, so that the result is exact. */
START_TEST(keeps_common_values)
{
    shard_dtype from = (shard_dtype)(_i / SHARD_DTYPES), to = (shard_dtype)(_i % SHARD_DTYPES);
    bool whole = !shard_dtype_is_float(from) || !shard_dtype_is_float(to), positive = from == SHARD_UINT8 || to == SHARD_UINT8;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++) {
            int64_t n = sizes[s];
            void *x = array_new(n, from), *y = array_new(n, to);
            for (int64_t i = 0; i < n; i++) {
                double value = (double)(i * 7 % 256) - (positive ? 0 : 128);
                array_put(x, i, from, whole ? value : value / 64);
            }
            RUN(device, cast, n, x, from, y, to);
            for (int64_t i = 0; i < n; i++)
                check_close(to, array_get(y, i, to), array_get(x, i, from), 0, device->name, i);
            array_free(x, n, from);
            array_free(y, n, to);
        }
}
END_TEST

START_TEST(truncates)
{
    static const double in[] = {1.9, -1.9, 0.999, -0.5, 254.7, 255.9, 256, -3, 1e30, -1e30, NAN, INFINITY, -INFINITY};
    static const int64_t as_int64[] = {1, -1, 0, 0, 254, 255, 256, -3, INT64_MAX, INT64_MIN, 0, INT64_MAX, INT64_MIN};
    enum { N = sizeof in / sizeof *in };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int t = 0; t < 2; t++) {
            shard_dtype from = t ? SHARD_FLOAT64 : SHARD_FLOAT32;
            void *x = array_new(N, from);
            int64_t *wide = array_new(N, SHARD_INT64);
            int32_t *narrow = array_new(N, SHARD_INT32);
            uint8_t *bytes = array_new(N, SHARD_UINT8);
            for (int i = 0; i < N; i++)
                array_put(x, i, from, in[i]);
            RUN(device, cast, N, x, from, wide, SHARD_INT64);
            RUN(device, cast, N, x, from, narrow, SHARD_INT32);
            RUN(device, cast, N, x, from, bytes, SHARD_UINT8);
            for (int i = 0; i < N; i++) {
                int64_t want = as_int64[i];
                ck_assert_int_eq(wide[i], want);
                ck_assert_int_eq(narrow[i], want > INT32_MAX ? INT32_MAX : want < INT32_MIN ? INT32_MIN : want);
                ck_assert_int_eq(bytes[i], want > UINT8_MAX ? UINT8_MAX : want < 0 ? 0 : want);
            }
            array_free(x, N, from);
            array_free(wide, N, SHARD_INT64);
            array_free(narrow, N, SHARD_INT32);
            array_free(bytes, N, SHARD_UINT8);
        }
}
END_TEST

/* From an integer straight to float32, which double in between would round twice. */
START_TEST(rounds_integers_once)
{
    static const int64_t in[] = {(int64_t)1 << 53, ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1, INT64_MAX, INT64_MIN, 16777217};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        int64_t *x = array_of(5, SHARD_INT64, in);
        float *y = array_new(5, SHARD_FLOAT32);
        RUN(device, cast, 5, x, SHARD_INT64, y, SHARD_FLOAT32);
        ck_assert_float_eq(y[0], 0x1p53f);
        ck_assert_float_eq(y[1], 0x1.000002p62f);
        ck_assert_float_eq(y[2], 0x1p63f);
        ck_assert_float_eq(y[3], -0x1p63f);
        ck_assert_float_eq(y[4], 16777216.0f);
        array_free(x, 5, SHARD_INT64);
        array_free(y, 5, SHARD_FLOAT32);
    }
}
END_TEST

/* What a 16-bit float's bits mean, from its definition. */
static double meaning(uint16_t bits, shard_dtype dtype)
{
    int fraction = dtype == SHARD_BFLOAT16 ? 7 : 10, bias = dtype == SHARD_BFLOAT16 ? 127 : 15;
    int exponent = (bits & 0x7fff) >> fraction, mantissa = bits & ((1 << fraction) - 1);
    double size = exponent == 2 * bias + 1 ? (mantissa ? NAN : INFINITY)
                  : exponent == 0          ? ldexp(mantissa, 1 - bias - fraction)
                                           : ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
    return bits & 0x8000 ? -size : size;
}

/* All 65536 of them. */
START_TEST(widens_exactly)
{
    shard_dtype dtype = float_dtypes[2 + _i];
    shard_device *device;
    uint16_t *x = array_new(1 << 16, dtype), *back = array_new(1 << 16, dtype);
    float *y = array_new(1 << 16, SHARD_FLOAT32);
    for (int i = 0; i < 1 << 16; i++)
        x[i] = (uint16_t)i;
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, cast, 1 << 16, x, dtype, y, SHARD_FLOAT32);
        RUN(device, cast, 1 << 16, y, SHARD_FLOAT32, back, dtype);
        for (int i = 0; i < 1 << 16; i++) {
            double want = meaning(x[i], dtype);
            if (isnan(want) ? !isnan(y[i]) || !isnan(meaning(back[i], dtype)) : (double)y[i] != want || back[i] != x[i])
                ck_abort_msg("%s: %04x became %g and %04x", device->name, (unsigned)i, (double)y[i], back[i]);
        }
    }
}
END_TEST

/* Around every value, half way to the next and just beside it: to nearest, ties to even. */
START_TEST(narrows_to_nearest)
{
    shard_dtype dtype = float_dtypes[2 + _i];
    uint16_t infinity = dtype == SHARD_BFLOAT16 ? 0x7f80 : 0x7c00;
    shard_device *device;
    enum { PER = 5 };
    float *x = array_new(PER << 15, SHARD_FLOAT32);
    uint16_t *y = array_new(PER << 15, dtype);
    static uint16_t want[PER << 15];
    int64_t n = 0;
    for (int bits = 0; bits < infinity; bits++) {
        double low = meaning((uint16_t)bits, dtype), high = meaning((uint16_t)(bits + 1), dtype);
        if (bits + 1 == infinity)
            high = 2 * low - meaning((uint16_t)(bits - 1), dtype);
        float half = (float)(low + (high - low) / 2);
        float around[PER] = {(float)low, nextafterf(half, 0), half, nextafterf(half, INFINITY), -half};
        uint16_t even = (uint16_t)(bits + (bits & 1));
        uint16_t rounded[PER] = {(uint16_t)bits, (uint16_t)bits, even, (uint16_t)(bits + 1), (uint16_t)(even | 0x8000)};
        if (fabs((double)half - (low + (high - low) / 2)) > 0) /* below float's own smallest */
            continue;
        memcpy(x + n, around, sizeof around);
        memcpy(want + n, rounded, sizeof rounded);
        n += PER;
    }
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, cast, n, x, SHARD_FLOAT32, y, dtype);
        for (int64_t i = 0; i < n; i++)
            if (y[i] != want[i])
                ck_abort_msg("%s: %a became %04x, wanted %04x", device->name, (double)x[i], y[i], want[i]);
    }
    ck_assert_int_gt(n, 100000);
}
END_TEST

/* Also those whose bits are all rounded away, or round up to an infinity's. */
START_TEST(keeps_not_a_number)
{
    static const uint32_t bits[] = {0x7f800001, 0xff800001, 0x7f808000, 0x7fffffff, 0xffffffff, 0x7fc00000};
    enum { N = 100, KINDS = sizeof bits / sizeof *bits };
    shard_dtype dtype = float_dtypes[2 + _i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float *x = array_new(N, SHARD_FLOAT32);
        void *y = array_new(N, dtype);
        for (int i = 0; i < N; i++)
            memcpy(x + i, &bits[i % KINDS], sizeof *x);
        RUN(device, cast, N, x, SHARD_FLOAT32, y, dtype);
        for (int i = 0; i < N; i++)
            ck_assert_msg(isnan(array_get(y, i, dtype)), "%s: %08x became %g", device->name, bits[i % KINDS],
                          array_get(y, i, dtype));
        array_free(x, N, SHARD_FLOAT32);
        array_free(y, N, dtype);
    }
}
END_TEST

/* Large enough to go past the caches, from an odd element on. */
START_TEST(writes_large_arrays)
{
    int64_t n = (5 << 20) + 3;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float *x = array_new(n, SHARD_FLOAT32);
        double *y = array_new(n + 1, SHARD_FLOAT64);
        RUN(device, fill, n, 2.5, x, SHARD_FLOAT32);
        y[0] = -1;
        RUN(device, cast, n, x, SHARD_FLOAT32, y + 1, SHARD_FLOAT64);
        ck_assert_double_eq(y[0], -1);
        for (int64_t i = 0; i < n; i++)
            if (y[i + 1] != 2.5)
                ck_abort_msg("%s: element %lld is %g", device->name, (long long)i, y[i + 1]);
        array_free(x, n, SHARD_FLOAT32);
        array_free(y, n + 1, SHARD_FLOAT64);
    }
}
END_TEST

START_TEST(fills)
{
    shard_dtype dtype = (shard_dtype)_i;
    shard_device *device;
    double value = shard_dtype_is_float(dtype) ? 0.1 : 77;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++) {
            int64_t n = sizes[s];
            void *y = array_new(n + 2, dtype);
            array_put(y, 0, dtype, 1);
            array_put(y, n + 1, dtype, 2);
            RUN(device, fill, n, value, (char *)y + shard_dtype_size(dtype), dtype);
            for (int64_t i = 1; i <= n; i++)
                check_close(dtype, array_get(y, i, dtype), value, 0, device->name, i);
            ck_assert_double_eq(array_get(y, 0, dtype), 1);
            ck_assert_double_eq(array_get(y, n + 1, dtype), 2);
            array_free(y, n + 2, dtype);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_cast");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, keeps_common_values, 0, SHARD_DTYPES * SHARD_DTYPES);
    tcase_add_test(all, truncates);
    tcase_add_test(all, rounds_integers_once);
    tcase_add_loop_test(all, widens_exactly, 0, 2);
    tcase_add_loop_test(all, narrows_to_nearest, 0, 2);
    tcase_add_loop_test(all, keeps_not_a_number, 0, 2);
    tcase_add_test(all, writes_large_arrays);
    tcase_add_loop_test(all, fills, 0, SHARD_DTYPES);
    return test_run(suite);
}
