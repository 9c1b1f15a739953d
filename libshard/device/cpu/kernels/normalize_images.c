/* Converts 8-bit pixels to floating numbers: a mean and a factor for each channel. */
#ifdef real

static void R(convert)(const pixels *p, int64_t start, int64_t n, shard_dtype dtype, bool stream, void *y)
{
    real buffer[SPAN], *to = R(place)(dtype, stream, y, start, buffer);
    const uint8_t *x = p->x + start;
    int64_t channels = p->channels;
    real mean[SHARD_IMAGE_CHANNELS], factor[SHARD_IMAGE_CHANNELS];
    for (int64_t c = 0; c < channels; c++) {
        mean[c] = (real)p->mean[c];
        factor[c] = (real)p->factor[c];
    }
    for (int64_t c = 0; c < channels; c++)
#pragma omp simd
        for (int64_t i = c; i < n; i += channels)
            to[i] = ((real)x[i] - mean[c]) * factor[c];
    R(store)(dtype, stream, y, start, n, to);
}

#else

#include "device/cpu/kernels/span.h"

typedef struct pixels {
    int64_t channels;
    const uint8_t *x;
    const double *mean, *factor;
} pixels;

#define SELF "normalize_images.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(normalize_images)(shard_device *device, int64_t count, int64_t channels, const uint8_t *x,
                                      const double *mean_host, const double *factor_host, void *y, shard_dtype dtype)
{
    (void)device;
    if (count == 0 || channels == 0)
        return SHARD_OK;
    pixels p = {.channels = channels, .x = x, .mean = mean_host, .factor = factor_host};
    int64_t n = count * channels, span = SPAN / channels * channels;
    bool stream = streams(n, shard_dtype_size(dtype));
#pragma omp parallel if (n >= PARALLEL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < n; start += span) {
            if (dtype == SHARD_FLOAT64)
                convert_double(&p, start, shard_min(span, n - start), dtype, stream, y);
            else
                convert_float(&p, start, shard_min(span, n - start), dtype, stream, y);
        }
        KERNEL(stream_fence)();
    }
    return SHARD_OK;
}

#endif
