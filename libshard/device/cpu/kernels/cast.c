/* From each of the types that C has to each other; 16-bit types go through float. */
#include "base/dtype.h"
#include "device/cpu/kernels/span.h"

/* Truncates; a value outside the integer type becomes its nearest value, NaN 0. */
static inline int64_t truncate(double x, double low, double high, int64_t lowest, int64_t highest)
{
    if (x >= high)
        return highest;
    if (x <= low)
        return lowest;
    return x == x ? (int64_t)x : 0;
}

#define TRUNCATE_INT64(x) truncate((double)(x), -0x1p63, 0x1p63, INT64_MIN, INT64_MAX)
#define TRUNCATE_INT32(x) (int32_t) truncate((double)(x), -0x1p31, 0x1p31, INT32_MIN, INT32_MAX)
#define TRUNCATE_UINT8(x) (uint8_t) truncate((double)(x), 0, 0x1p8, 0, UINT8_MAX)

#define CAST(from, to, convert)                                                                                                  \
    static void from##_to_##to(int64_t n, const void *in, void *out)                                                             \
    {                                                                                                                            \
        const from *x = in;                                                                                                      \
        to *y = out;                                                                                                             \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = convert(x[i]);                                                \
    }
#define CASTS(from, to_int64, to_int32, to_uint8)                                                                                \
    CAST(from, float, (float))                                                                                                   \
    CAST(from, double, (double))                                                                                                 \
    CAST(from, int64_t, to_int64)                                                                                                \
    CAST(from, int32_t, to_int32)                                                                                                \
    CAST(from, uint8_t, to_uint8)

CASTS(float, TRUNCATE_INT64, TRUNCATE_INT32, TRUNCATE_UINT8)
CASTS(double, TRUNCATE_INT64, TRUNCATE_INT32, TRUNCATE_UINT8)
CASTS(int64_t, (int64_t), (int32_t), (uint8_t))
CASTS(int32_t, (int64_t), (int32_t), (uint8_t))
CASTS(uint8_t, (int64_t), (int32_t), (uint8_t))

enum { FLOAT, DOUBLE, INT64, INT32, UINT8, KINDS };

static int kind(shard_dtype dtype)
{
    static const int kinds[SHARD_DTYPES] = {
        [SHARD_FLOAT32] = FLOAT, [SHARD_FLOAT64] = DOUBLE, [SHARD_BFLOAT16] = FLOAT, [SHARD_FLOAT16] = FLOAT,
        [SHARD_INT64] = INT64,   [SHARD_INT32] = INT32,    [SHARD_UINT8] = UINT8,
    };
    return kinds[dtype];
}

#define FROM(from)                                                                                                               \
    {                                                                                                                            \
        from##_to_float, from##_to_double, from##_to_int64_t, from##_to_int32_t, from##_to_uint8_t                               \
    }

static void (*const casts[KINDS][KINDS])(int64_t n, const void *x, void *y) = {FROM(float), FROM(double), FROM(int64_t),
                                                                               FROM(int32_t), FROM(uint8_t)};

static void cast_span(int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to, bool stream)
{
    float in_buffer[SPAN];
    double out_buffer[SPAN];
    void *place = shard_dtype_is_half(to) || stream ? out_buffer : y;
    if (shard_dtype_is_half(from)) {
        KERNEL(widen)(from, n, x, in_buffer);
        x = in_buffer;
    }
    casts[kind(from)][kind(to)](n, x, place);
    if (shard_dtype_is_half(to))
        KERNEL(narrow)(to, stream, n, place, y);
    else if (stream)
        KERNEL(stream)(y, place, (size_t)n * shard_dtype_size(to));
}

shard_status KERNEL(cast)(shard_device *device, int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to)
{
    (void)device;
    size_t from_size = shard_dtype_size(from), to_size = shard_dtype_size(to);
    bool stream = streams(n, to_size);
    if (n > 0 && n <= SPAN) { /* as of a row: see FOR_EACH */
        cast_span(n, x, from, y, to, false);
        return SHARD_OK;
    }
#pragma omp parallel if (n >= PARALLEL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < n; start += SPAN)
            cast_span(shard_min(SPAN, n - start), (const char *)x + (size_t)start * from_size, from,
                      (char *)y + (size_t)start * to_size, to, stream);
        KERNEL(stream_fence)();
    }
    return SHARD_OK;
}
