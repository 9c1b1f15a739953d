#ifdef real

/* An input's elements where some are repeated: in the input or in the buffer. */
static const real *R(load_operand)(const map *job, int k, span s, real *buffer)
{
    uint16_t halves[SPAN];
    size_t size = shard_dtype_size(job->dtype);
    if (shard_expansion_dense(job->over, k))
        return R(load)(job->dtype, job->in[k], s.start, s.count, buffer);
    KERNEL(gather)(job->over, k, size, job->in[k], s.start, s.count, size == 2 ? (void *)halves : buffer);
    if (size == 2)
        KERNEL(widen)(job->dtype, s.count, halves, (float *)buffer);
    return buffer;
}

static void R(map_span)(const map *job, R(map_body) * body, span s, const bool *stream)
{
    real in_buffer[MAP_INPUTS][SPAN], out_buffer[MAP_OUTPUTS][SPAN];
    const real *in[MAP_INPUTS];
    real *out[MAP_OUTPUTS];
    for (int k = 0; k < MAP_INPUTS; k++)
        in[k] = !job->in[k]         ? NULL
                : k < job->operands ? R(load_operand)(job, k, s, in_buffer[k])
                                    : R(load)(job->dtype, job->in[k], s.start, s.count, in_buffer[k]);
    for (int k = 0; k < MAP_OUTPUTS; k++)
        out[k] = job->out[k] ? R(place)(job->dtype, stream[k], job->out[k], s.start, out_buffer[k]) : NULL;
    body(job->context, s, in, out);
    for (int k = 0; k < MAP_OUTPUTS; k++)
        if (job->out[k])
            R(store)(job->dtype, stream[k], job->out[k], s.start, s.count, out[k]);
}

/* The item'th period where something comes before each, else the item'th span. */
static void R(map_item)(const map *job, R(map_body) * body, int64_t item, const bool *stream)
{
    int64_t period = job->period ? job->period : job->n, parts = shard_divide_up(period, SPAN);
    int64_t index = job->before ? item : item / parts, part = job->before ? 0 : item % parts;
    int64_t end = job->before ? parts : part + 1;
    if (job->before)
        job->before(job->context, index);
    for (; part < end; part++) {
        span s = {.start = index * period + part * SPAN, .offset = part * SPAN};
        s.count = shard_min(SPAN, shard_min(period - s.offset, job->n - s.start));
        if (s.count > 0)
            R(map_span)(job, body, s, stream);
    }
}

void KERNEL(R(map))(const map *job, R(map_body) * body)
{
    if (job->n == 0)
        return;
    int64_t period = job->period ? job->period : job->n;
    int64_t items = shard_divide_up(job->n, period) * (job->before ? 1 : shard_divide_up(period, SPAN));
    bool stream[MAP_OUTPUTS];
    for (int k = 0; k < MAP_OUTPUTS; k++)
        stream[k] = writes_past_caches(job, k);
    if (job->n < PARALLEL) {
        for (int64_t i = 0; i < items; i++)
            R(map_item)(job, body, i, stream);
        return;
    }
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < items; i++)
            R(map_item)(job, body, i, stream);
        KERNEL(stream_fence)();
    }
}

/* Applies the body to rows [first, first + count) of the period's columns [offset, offset + width). */
static void R(sum_tile)(const column_sums *job, R(column_body) * body, int64_t first, int64_t end, int64_t offset, int64_t width,
                        double *const *sums)
{
    real buffer[MAP_INPUTS][COLUMN_SPAN];
    for (int k = 0; k < job->count; k++)
        memset(sums[k], 0, (size_t)width * sizeof(double));
    for (int64_t row = first; row < end; row++)
        for (int64_t column = 0; column < width; column += COLUMN_SPAN) {
            span s = {.start = row * job->period + offset + column, .offset = offset + column};
            s.count = shard_min(shard_min(COLUMN_SPAN, width - column), job->n - s.start);
            if (s.count <= 0)
                return;
            const real *in[MAP_INPUTS];
            double *span_sums[COLUMN_SUMS];
            for (int k = 0; k < MAP_INPUTS; k++)
                in[k] = job->in[k] ? R(load)(job->dtype, job->in[k], s.start, s.count, buffer[k]) : NULL;
            for (int k = 0; k < job->count; k++)
                span_sums[k] = sums[k] + column;
            body(job->context, s, in, span_sums);
        }
}

shard_status KERNEL(R(column_sums))(shard_device *device, const column_sums *job, R(column_body) * body, double *sums)
{
    int64_t period = job->period;
    if (job->n == 0 || period == 0) {
        memset(sums, 0, (size_t)(job->count * job->columns) * sizeof *sums);
        return SHARD_OK;
    }
    int64_t rows = shard_divide_up(job->n, period), parts = shard_divide_up(period, TILE_COLUMNS);
    int64_t blocks = shard_min(shard_max(rows / TILE_ROWS, 1), shard_max(TILES / parts, 1));
    bool direct = blocks == 1 && period == job->columns;
    size_t bytes = (size_t)(blocks * job->count * period) * sizeof(double);
    double *partial = direct ? sums : shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!partial)
        return shard_last_status();
#pragma omp parallel for schedule(static) if (job->n >= PARALLEL)
    for (int64_t tile = 0; tile < blocks * parts; tile++) {
        int64_t block = tile / parts, offset = tile % parts * TILE_COLUMNS, width = shard_min(TILE_COLUMNS, period - offset);
        double *tile_sums[COLUMN_SUMS];
        for (int k = 0; k < job->count; k++)
            tile_sums[k] = partial + (block * job->count + k) * period + offset;
        R(sum_tile)(job, body, rows * block / blocks, rows * (block + 1) / blocks, offset, width, tile_sums);
    }
    if (!direct) {
        fold(job, blocks, partial, sums);
        shard_device_release(device, SHARD_MEMORY_WORKSPACE, partial, bytes);
    }
    return SHARD_OK;
}

#else

#include "device/cpu/kernels/map.h"

#include <string.h>

/* Columns are summed in tiles, about TILES of them where each then has TILE_ROWS rows or more. */
enum {
    COLUMN_SPAN = SPAN / 2,
    TILE_COLUMNS = 8 * COLUMN_SPAN,
    TILE_ROWS = 64,
    TILES = 64,
};

/* An output that is read as well is in the caches already. */
static bool writes_past_caches(const map *job, int output)
{
    for (int k = 0; k < MAP_INPUTS; k++)
        if (job->in[k] == job->out[output])
            return false;
    return streams(job->n, shard_dtype_size(job->dtype));
}

/* Adds up the blocks' sums, in order, and the repetitions of a column in the period. */
static void fold(const column_sums *job, int64_t blocks, const double *partial, double *sums)
{
    int64_t columns = job->columns;
    memset(sums, 0, (size_t)(job->count * columns) * sizeof *sums);
    for (int64_t block = 0; block < blocks; block++)
        for (int k = 0; k < job->count; k++)
            for (int64_t repeat = 0; repeat < job->period; repeat += columns, partial += columns)
                for (int64_t c = 0; c < columns; c++)
                    sums[k * columns + c] += partial[c];
}

#define SELF "map.c"
#include "device/cpu/kernels/real.h"

#endif
