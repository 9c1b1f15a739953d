/* Random numbers and dropout: those of base/random.h at the whole's index, for
 * every region, and the same bits from every set. */
#include "support/check.h"
#include "support/kernels.h"

#include "base/random.h"

static const shard_region regions[] = {
    {0, 5, 0, 0, 5},   {5, 0, 0, 0, 7},         {1, 1, 0, 0, 1},        {1, 1000, 0, 3, 5000},   {3, 1, 2, 4, 6},
    {7, 13, 1, 2, 29}, {100, 1030, 5, 1, 1031}, {70, 1031, 3, 0, 1031}, {2, 40001, 1, 7, 90000}, {1, 9, 3, 5, (int64_t)1 << 40},
};
enum { REGIONS = sizeof regions / sizeof *regions };
static const shard_draw draw = {.seed = 0x123456789abcdef0u, .number = 0x100000003u};

static uint64_t whole_index(const shard_region *r, int64_t i)
{
    return (uint64_t)((r->row0 + i / r->cols) * r->whole_cols + r->col0 + i % r->cols);
}

START_TEST(uniform)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < REGIONS; k++) {
            const shard_region *r = &regions[k];
            int64_t n = r->rows * r->cols;
            void *y = array_new(n, dtype), *want = array_new(n, dtype);
            for (int ranged = 0; ranged < 2; ranged++) {
                double low = ranged ? -0.75 : 0, high = ranged ? 1.5 : 1;
                RUN(device, random_uniform, r, draw, low, high, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    float u = shard_uniform_at(draw, whole_index(r, i));
                    if (dtype == SHARD_FLOAT64)
                        array_put(want, i, dtype, low + (high - low) * (double)u);
                    else
                        array_put(want, i, dtype, (double)((float)low + (float)(high - low) * u));
                }
                check_same(dtype, n, y, want, device->name);
            }
            array_free(y, n, dtype);
            array_free(want, n, dtype);
        }
}
END_TEST

START_TEST(normal)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < REGIONS; k++) {
            const shard_region *r = &regions[k];
            int64_t n = r->rows * r->cols;
            void *y = array_new(n, dtype), *want = array_new(n, dtype);
            for (int scaled = 0; scaled < 2; scaled++) {
                double mean = scaled ? 0.5 : 0, deviation = scaled ? 0.01 : 1;
                RUN(device, random_normal, r, draw, mean, deviation, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    float z = shard_normal_at(draw, whole_index(r, i));
                    if (dtype == SHARD_FLOAT64)
                        array_put(want, i, dtype, mean + deviation * (double)z);
                    else
                        array_put(want, i, dtype, (double)((float)mean + (float)deviation * z));
                }
                check_same(dtype, n, y, want, device->name);
            }
            array_free(y, n, dtype);
            array_free(want, n, dtype);
        }
}
END_TEST

/* The polynomials of base/random.h against libm: what Box and Muller say. */
START_TEST(normal_is_box_muller)
{
    for (uint64_t block = 0; block < 200000; block++) {
        shard_philox words = shard_philox_block(draw, block);
        for (int i = 0; i < 4; i++) {
            double u = (double)(((float)(words.word[i & 2] >> 8) + 0.5f) * 0x1p-24f);
            double angle = 2 * acos(-1) * (words.word[(i & 2) + 1] >> 8) * 0x1p-24, radius = sqrt(-2 * log(u));
            double want = radius * (i & 1 ? sin(angle) : cos(angle)),
                   got = (double)shard_normal_at(draw, 4 * block + (uint64_t)i);
            if (fabs(got - want) > 3 * 0x1p-24 * radius)
                ck_abort_msg("element %llu is %.9g, wanted %.9g", (unsigned long long)(4 * block) + (unsigned)i, got, want);
        }
    }
}
END_TEST

/* The ends of both words. */
START_TEST(normal_at_the_ends)
{
    static const uint32_t turns[] = {0, 0x3fffff00u, 0x40000000u, 0x80000000u, 0xc0000000u, 0xffffffffu};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 2; j++) {
            float pair[2];
            double angle = 2 * acos(-1) * (turns[i] >> 8) * 0x1p-24, radius = j ? 0 : sqrt(-2 * log(0.5 * 0x1p-24));
            shard_normal_pair(j ? 0xffffffffu : 0, turns[i], pair);
            ck_assert_double_eq_tol((double)pair[0], radius * cos(angle), 3 * 0x1p-24 * radius + 0x1p-60);
            ck_assert_double_eq_tol((double)pair[1], radius * sin(angle), 3 * 0x1p-24 * radius + 0x1p-60);
        }
}
END_TEST

/* The inverse error function against libm's erf, and the distribution between its bounds. */
START_TEST(truncated_normal)
{
    static const shard_truncated_normal cases[] = {
        {0, 1, -2, 2}, {0.5, 0.02, 0.49, 0.6}, {0, 1, 1, 3}, {-1, 2, -1e6, 1e6}, {0, 0.25, -0.0001, 0.0001}};
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < REGIONS; k++)
            for (int c = 0; c < 5; c++) {
                const shard_region *r = &regions[k];
                const shard_truncated_normal *t = &cases[c];
                int64_t n = r->rows * r->cols;
                if (n > 2000)
                    continue;
                void *y = array_new(n, dtype);
                RUN(device, random_truncated_normal, r, draw, t, y, dtype);
                double edge = erf((t->low - t->mean) / t->std * M_SQRT1_2), top = erf((t->high - t->mean) / t->std * M_SQRT1_2);
                for (int64_t i = 0; i < n; i++) {
                    double value = array_get(y, i, dtype);
                    bool inside = value >= t->low - 0x1p-8 * fabs(t->low) && value <= t->high + 0x1p-8 * fabs(t->high);
                    double u = ((double)shard_uniform_at(draw, whole_index(r, i)) + 0x1p-25), at = edge + (top - edge) * u;
                    double got = erf((value - t->mean) / t->std * M_SQRT1_2);
                    double slope = 2 / sqrt(acos(-1)) * M_SQRT1_2 / t->std; /* at most, of that by the value */
                    double unit = dtype == SHARD_BFLOAT16 || dtype == SHARD_FLOAT16 ? 0x1p-8 : 0x1p-22; /* of a value */
                    if (!inside || !(fabs(got - at) <= 1e-6 + slope * unit * (fabs(value) + fabs(t->mean))))
                        ck_abort_msg("%s: element %lld is %.9g", device->name, (long long)i, value);
                }
                array_free(y, n, dtype);
            }
}
END_TEST

START_TEST(moments)
{
    shard_device *device = kernel_device(0);
    int64_t n = 1 << 20;
    shard_region r = {1, n, 0, 0, n};
    float *y = array_new(n, SHARD_FLOAT32);
    RUN(device, random_normal, &r, draw, 0, 1, y, SHARD_FLOAT32);
    double power[5] = {0};
    for (int64_t i = 0; i < n; i++)
        for (int k = 1; k <= 4; k++)
            power[k] += pow((double)y[i], k) / (double)n;
    /* Five deviations of each mean: 1, sqrt(2), sqrt(15), sqrt(96), over sqrt(n). */
    ck_assert_double_eq_tol(power[1], 0, 5 / 1024.0);
    ck_assert_double_eq_tol(power[2], 1, 5 * 1.42 / 1024);
    ck_assert_double_eq_tol(power[3], 0, 5 * 3.88 / 1024);
    ck_assert_double_eq_tol(power[4], 3, 5 * 9.8 / 1024);
}
END_TEST

START_TEST(dropout)
{
    shard_dtype dtype = float_dtypes[_i];
    static const double ps[] = {0, 0.1, 0.5, 1};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < REGIONS; k++)
            for (int q = 0; q < 5; q++) {
                const shard_region *r = &regions[k];
                int64_t n = r->rows * r->cols;
                double p = q < 4 ? ps[q] : n ? (double)shard_uniform_at(draw, whole_index(r, 0)) : 0; /* the first is just kept */
                void *x = array_noise(n, dtype, 1, 1, 2), *y = array_new(n, dtype);
                RUN(device, dropout, r, draw, p, x, y, dtype);
                for (int64_t i = 0; i < n; i++) {
                    bool kept = (double)shard_uniform_at(draw, whole_index(r, i)) >= p;
                    long double want = kept ? array_get(x, i, dtype) / (1 - (long double)p) : 0;
                    check_close(dtype, array_get(y, i, dtype), want, 8 * compute_unit(dtype) * fmaxl(1, want), device->name, i);
                }
                RUN(device, dropout, r, draw, p, x, x, dtype);
                check_same(dtype, n, x, y, "in place");
                array_free(x, n, dtype);
                array_free(y, n, dtype);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_random");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, uniform, 0, 4);
    tcase_add_loop_test(all, normal, 0, 4);
    tcase_add_test(all, normal_is_box_muller);
    tcase_add_test(all, normal_at_the_ends);
    tcase_add_loop_test(all, truncated_normal, 0, 4);
    tcase_add_test(all, moments);
    tcase_add_loop_test(all, dropout, 0, 4);
    return test_run(suite);
}
