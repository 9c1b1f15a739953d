#include "device/cpu/cpu_matmul_long.h"

#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_tile.h"

#include <string.h>

enum {
    LONG = 4096,    /* rows from which a matrix is long */
    FEW_LEAST = 12, /* rows that the other has: with less, filling up a vector wastes too much */
    FEW_MOST = 128, /* with more, packing both pays again */
    BIG = 8 << 20,  /* elements from which a gradient is far larger than the caches */
    OUTPUTS = 96,   /* of one block; a multiple of the tile's rows */
    DEPTH = 128,    /* of one block: a panel of it stays in the first-level cache */
    AHEAD = 1,      /* tiles that a gradient's rows are fetched before they are needed */
    LINE = 16,      /* floats of a cache line */
    TILE = SHARD_CPU_TILE_ROWS,
    COLS = SHARD_CPU_TILE_MOST_COLS,
};

bool shard_cpu_matmul_is_long(const shard_matmul_shape *s)
{
    if (s->batch != 1 || s->transpose_a == s->transpose_b || !shard_cpu_tiler_at(0))
        return false;
    if (s->transpose_b)
        return s->m >= FEW_LEAST && s->m <= FEW_MOST && s->n >= LONG && s->k >= LINE && !s->accumulate;
    return s->k >= FEW_LEAST && s->k <= FEW_MOST && s->m >= LONG && s->n >= LINE && s->m * s->n >= BIG && s->accumulate;
}

/* The panels of the short matrix (cpu_tile.h). */
typedef struct panels {
    const shard_cpu_tiler *tiler;
    int64_t cols, most; /* columns in all, and of a panel */
    int64_t depth;
    float *data;
    size_t bytes;
} panels;

static int64_t panel_cols(const panels *p, int64_t first)
{
    return shard_cpu_panel_cols(p->tiler, p->cols, first);
}

static shard_status make_panels(shard_device *device, panels *p, const float *source, int64_t step, int64_t col)
{
    p->most = p->tiler->width * p->tiler->most_vectors;
    p->bytes = (size_t)shard_cpu_panels_size(p->tiler, p->depth, p->cols) * sizeof(float);
    p->data = shard_cpu_scratch(device, p->bytes);
    if (!p->data)
        return SHARD_ERROR_MEMORY;
    shard_cpu_pack_panels(p->tiler, p->depth, p->cols, source, step, col, p->data);
    return SHARD_OK;
}

static void prefetch_rows(const float *rows, int64_t count, int64_t pitch, int64_t length)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < length; j += LINE)
            __builtin_prefetch(rows + i * pitch + j, 0, 2);
    }
}

/* Outputs [first_output, + count) of the rows of one panel. */
static void multiply_outputs(const shard_cpu_product *p, const panels *x, int64_t first_output, int64_t count, int64_t first_row,
                             bool fetch_next)
{
    float sums[OUTPUTS * COLS] __attribute__((aligned(64)));
    const shard_matmul_shape *s = &p->shape;
    const float *weight = (const float *)p->b + first_output * s->ld_b, *bias = p->bias;
    int64_t cols = panel_cols(x, first_row);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < cols; j++)
            sums[i * cols + j] = bias ? bias[first_output + i] : 0.0f;
    }
    for (int64_t k = 0; k < s->k; k += DEPTH) {
        int64_t depth = shard_min(s->k - k, DEPTH);
        for (int64_t i = 0; i < count; i += TILE) {
            if (fetch_next)
                prefetch_rows(weight + (OUTPUTS + i) * s->ld_b + k, shard_min(s->n - first_output - OUTPUTS - i, TILE), s->ld_b,
                              depth);
            shard_cpu_tile tile = {.images = 1,
                                   .lines = 1,
                                   .depth = depth,
                                   .a = weight + i * s->ld_b + k,
                                   .a_row = s->ld_b,
                                   .a_step = 1,
                                   .b = x->data + first_row * s->k + k * cols,
                                   .b_step = cols,
                                   .c = sums + i * cols,
                                   .c_row = cols,
                                   .accumulate = true};
            x->tiler->multiply(&tile, shard_min(count - i, TILE), (int)(cols / x->tiler->width));
        }
    }
    shard_cpu_transpose(count, shard_min(s->m - first_row, cols), sums, cols, (float *)p->c + first_row * s->ld_c + first_output,
                        s->ld_c);
}

static shard_status multiply_few_rows(shard_device *device, const shard_cpu_product *p)
{
    const shard_matmul_shape *s = &p->shape;
    panels x = {.tiler = shard_cpu_tiler_at(0), .cols = s->m, .depth = s->k};
    if (make_panels(device, &x, p->a, 1, s->ld_a) != SHARD_OK)
        return SHARD_ERROR_MEMORY;
#pragma omp parallel for schedule(static)
    for (int64_t output = 0; output < s->n; output += OUTPUTS) {
        for (int64_t row = 0; row < s->m; row += x.most)
            multiply_outputs(p, &x, output, shard_min(s->n - output, OUTPUTS), row, row == 0);
    }
    shard_cpu_scratch_release(device, x.data, x.bytes);
    return SHARD_OK;
}

/* The rows [first, + rows) of c, for the columns of one panel: where they do
 * not fill it, by way of a buffer. */
static void multiply_panel(const shard_cpu_product *p, const panels *b, const float *a, int64_t first, int64_t rows, int64_t col)
{
    float buffer[TILE * COLS] __attribute__((aligned(64)));
    const shard_matmul_shape *s = &p->shape;
    float *c = (float *)p->c + first * s->ld_c + col;
    int64_t cols = panel_cols(b, col), filled = shard_min(s->n - col, cols);
    shard_cpu_tile tile = {.images = 1,
                           .lines = 1,
                           .depth = s->k,
                           .a = a,
                           .a_row = 1,
                           .a_step = TILE,
                           .b = b->data + col * s->k,
                           .b_step = cols,
                           .c = c,
                           .c_row = s->ld_c,
                           .accumulate = true};
    if (filled < cols) {
        tile.c = buffer;
        tile.c_row = cols;
        memset(buffer, 0, sizeof buffer);
        for (int64_t i = 0; i < rows; i++)
            memcpy(buffer + i * cols, c + i * s->ld_c, (size_t)filled * sizeof *c);
    }
    b->tiler->multiply(&tile, rows, (int)(cols / b->tiler->width));
    for (int64_t i = 0; i < rows && filled < cols; i++)
        memcpy(c + i * s->ld_c, buffer + i * cols, (size_t)filled * sizeof *c);
}

static shard_status multiply_few_steps(shard_device *device, const shard_cpu_product *p)
{
    const shard_matmul_shape *s = &p->shape;
    panels b = {.tiler = shard_cpu_tiler_at(0), .cols = s->n, .depth = s->k};
    if (make_panels(device, &b, p->b, s->ld_b, 1) != SHARD_OK)
        return SHARD_ERROR_MEMORY;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < s->m; first += TILE) {
        float a[FEW_MOST * TILE];
        int64_t rows = shard_min(s->m - first, TILE), next = shard_min(s->m - first - AHEAD * TILE, TILE);
        for (int64_t k = 0; k < s->k; k++)
            memcpy(a + k * TILE, (const float *)p->a + k * s->ld_a + first, (size_t)rows * sizeof *a);
        prefetch_rows((const float *)p->c + (first + AHEAD * TILE) * s->ld_c, next, s->ld_c, s->n);
        for (int64_t col = 0; col < s->n; col += b.most)
            multiply_panel(p, &b, a, first, rows, col);
    }
    shard_cpu_scratch_release(device, b.data, b.bytes);
    return SHARD_OK;
}

shard_status shard_cpu_matmul_long(shard_device *device, const shard_cpu_product *p)
{
    return p->shape.transpose_b ? multiply_few_rows(device, p) : multiply_few_steps(device, p);
}
