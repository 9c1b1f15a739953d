/*
 * If the last dimension, once those that stay side by side are merged, stays last,
 * its runs are copied; else tiles of the input's last dimension and the output's
 * are transposed.
 */
#include "device/cpu/kernels/kernels.h"
#include "device/permute.h"

#include <string.h>

enum { TILE = 16 };

static void copy_runs(shard_layout l, int64_t n, const char *x, char *y, size_t size)
{
    size_t run = size;
    if (l.ndim > 0) {
        run *= (size_t)l.size[l.ndim - 1];
        shard_layout_take_out(&l, l.ndim - 1);
    }
    int64_t runs = shard_layout_count(&l);
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t i = 0; i < runs; i++) {
        int64_t from, to;
        shard_layout_locate(&l, i, &from, &to);
        memcpy(y + (size_t)to * size, x + (size_t)from * size, run);
    }
}

/* y[i * to + j] = x[i + j * from] */
#define TRANSPOSE(type)                                                                                                          \
    static void transpose_##type(int64_t rows, int64_t cols, const void *in, int64_t from, void *out, int64_t to)                \
    {                                                                                                                            \
        const type *x = in;                                                                                                      \
        type *y = out;                                                                                                           \
        for (int64_t start = 0; start < cols; start += TILE) {                                                                   \
            int64_t end = shard_min(start + TILE, cols);                                                                           \
            for (int64_t i = 0; i < rows; i++)                                                                                   \
                for (int64_t j = start; j < end; j++)                                                                            \
                    y[i * to + j] = x[i + j * from];                                                                             \
        }                                                                                                                        \
    }
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)
TRANSPOSE(uint64_t)

static void transpose(shard_layout l, int64_t n, const char *x, char *y, size_t size)
{
    void (*tile)(int64_t, int64_t, const void *, int64_t, void *, int64_t) = size == 1   ? transpose_uint8_t
                                                                             : size == 2 ? transpose_uint16_t
                                                                             : size == 4 ? transpose_uint32_t
                                                                                         : transpose_uint64_t;
    int64_t last = l.ndim - 1, contiguous = 0;
    while (l.from[contiguous] != 1)
        contiguous++;
    int64_t rows = l.size[contiguous], row_to = l.to[contiguous], cols = l.size[last], col_from = l.from[last];
    shard_layout_take_out(&l, last);
    shard_layout_take_out(&l, contiguous);
    int64_t tiles = shard_divide_up(rows, TILE), items = shard_layout_count(&l) * tiles;
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t item = 0; item < items; item++) {
        int64_t from, to, row = item % tiles * TILE;
        shard_layout_locate(&l, item / tiles, &from, &to);
        tile(shard_min(TILE, rows - row), cols, x + (size_t)(from + row) * size, col_from, y + (size_t)(to + row * row_to) * size,
             row_to);
    }
}

shard_status KERNEL(permute)(shard_device *device, int ndim, const int64_t *shape, const int *axes, const void *x, void *y,
                             shard_dtype dtype)
{
    (void)device;
    shard_layout l = shard_layout_merged(ndim, shape, axes);
    int64_t n = shard_layout_count(&l);
    if (n == 0)
        return SHARD_OK;
    if (l.ndim == 0 || l.from[l.ndim - 1] == 1)
        copy_runs(l, n, x, y, shard_dtype_size(dtype));
    else
        transpose(l, n, x, y, shard_dtype_size(dtype));
    return SHARD_OK;
}
