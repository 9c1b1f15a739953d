/* Spans of arrays as float or double: arrays of these types are used in place, others are converted into and out of
 * a buffer of SPAN elements. */
#ifndef SHARD_CPU_SPAN_H
#define SHARD_CPU_SPAN_H

#include "device/cpu/kernels/kernels.h"

/* n values between a 16-bit type and float. */
void KERNEL(widen)(shard_dtype, int64_t n, const uint16_t *x, float *y);
void KERNEL(narrow)(shard_dtype, bool stream, int64_t n, const float *x, uint16_t *y);

/* Copies past the caches. Other threads see it after a fence by this one. */
void KERNEL(stream)(void *to, const void *from, size_t bytes);
void KERNEL(stream_fence)(void);

/* Whether an array of these bytes is written past the caches: it would not stay
 * in them, and a line that is written whole need not be read first. */
static inline bool streams(int64_t n, size_t size)
{
    return n * (int64_t)size >= (int64_t)16 << 20;
}

/* Elements [start, start + n) of x: in x or in the buffer. */
static inline const float *load_float(shard_dtype dtype, const void *x, int64_t start, int64_t n, float *buffer)
{
    if (dtype == SHARD_FLOAT32)
        return (const float *)x + start;
    KERNEL(widen)(dtype, n, (const uint16_t *)x + start, buffer);
    return buffer;
}

static inline const double *load_double(shard_dtype dtype, const void *x, int64_t start, int64_t n, double *buffer)
{
    (void)dtype, (void)n, (void)buffer;
    return (const double *)x + start;
}

/* The memory to compute elements of y from start on in: y or the buffer. */
static inline float *place_float(shard_dtype dtype, bool stream, void *y, int64_t start, float *buffer)
{
    return dtype == SHARD_FLOAT32 && !stream ? (float *)y + start : buffer;
}

static inline double *place_double(shard_dtype dtype, bool stream, void *y, int64_t start, double *buffer)
{
    (void)dtype;
    return stream ? buffer : (double *)y + start;
}

/* Converts the buffer, if it was used, into y. */
static inline void store_float(shard_dtype dtype, bool stream, void *y, int64_t start, int64_t n, const float *place)
{
    if (dtype != SHARD_FLOAT32)
        KERNEL(narrow)(dtype, stream, n, place, (uint16_t *)y + start);
    else if (stream)
        KERNEL(stream)((float *)y + start, place, (size_t)n * sizeof *place);
}

static inline void store_double(shard_dtype dtype, bool stream, void *y, int64_t start, int64_t n, const double *place)
{
    (void)dtype;
    if (stream)
        KERNEL(stream)((double *)y + start, place, (size_t)n * sizeof *place);
}

/* Few long rows are cut into runs of `width` columns for the threads, so that there are about ROW_CHUNKS of them, fewer
 * than twice that. Returns the runs of a row. */
enum { ROW_CHUNKS = 64 };

static inline int64_t row_chunks(int64_t rows, int64_t cols, int64_t *width)
{
    int64_t chunks = rows == 0 ? 1 : shard_max(1, shard_min(shard_divide_up(ROW_CHUNKS, rows), cols / (8 * SPAN)));
    *width = shard_divide_up(shard_divide_up(cols, chunks), SPAN) * SPAN;
    return chunks;
}

#endif
