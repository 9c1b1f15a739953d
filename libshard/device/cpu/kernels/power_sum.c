#ifdef real

/* The summand of one span. */
static double R(span_power)(int64_t n, const real *x, double power)
{
    double sum = 0;
    if (power == 2) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
    } else if (power == 1) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += fabs((double)x[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            sum += pow(fabs((double)x[i]), power);
    }
    return sum;
}

static double R(span_highest)(int64_t n, const real *x)
{
    real highest = 0, nan = 0;
#pragma omp simd reduction(max : highest) reduction(+ : nan)
    for (int64_t i = 0; i < n; i++) {
        real value = x[i] < 0 ? -x[i] : x[i];
        highest = value > highest ? value : highest;
        nan += x[i] != x[i] ? 1 : 0;
    }
    return nan > 0 ? NAN : (double)highest;
}

static double R(chunk)(shard_dtype dtype, const void *x, int64_t start, int64_t end, double power)
{
    real buffer[SPAN];
    double sum = 0;
    for (int64_t from = start; from < end; from += SPAN) {
        int64_t n = shard_min(SPAN, end - from);
        const real *values = R(load)(dtype, x, from, n, buffer);
        sum = power == INFINITY ? larger_of(sum, R(span_highest)(n, values)) : sum + R(span_power)(n, values, power);
    }
    return sum;
}

#else

#include "device/cpu/kernels/span.h"

#include <math.h>

enum { CHUNKS = 256 /* at most, whose sums are added up in order */ };

/* A NaN wins. */
static double larger_of(double a, double b)
{
    return a != a || a > b ? a : b;
}

#define SELF "power_sum.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(power_sum)(shard_device *device, int64_t n, double power, const void *x, double *sum, shard_dtype dtype)
{
    (void)device;
    double sums[CHUNKS];
    int64_t spans = shard_divide_up(n, SPAN), chunks = shard_min(spans, CHUNKS);
    FOR_EACH(i, chunks, n,
             sums[i] = BY_TYPE(dtype, chunk, dtype, x, spans * i / chunks * SPAN, shard_min(spans * (i + 1) / chunks * SPAN, n),
                               power));
    *sum = 0;
    for (int64_t i = 0; i < chunks; i++)
        *sum = power == INFINITY ? larger_of(*sum, sums[i]) : *sum + sums[i];
    return SHARD_OK;
}

shard_status KERNEL(square_sums)(shard_device *device, int64_t count, const shard_square_sum *arrays, shard_dtype dtype)
{
    for (int64_t i = 0; i < count; i++)
        KERNEL(power_sum)(device, arrays[i].size, 2.0, arrays[i].x, arrays[i].sum, dtype);
    return SHARD_OK;
}

#endif
