/*
 * Dimensions that stay side by side are merged first. If the last one then
 * stays last, its runs are copied; else tiles of the input's last dimension
 * and the output's are transposed.
 */
#include "device/cpu/kernels/kernels.h"

#include <string.h>

enum { MOST = 8, TILE = 16 };

/* The output's dimensions, outermost first, and what one step in each is in the
 * input and in the output, in elements. */
typedef struct layout {
    int ndim;
    int64_t size[MOST], from[MOST], to[MOST];
} layout;

static layout merge(int ndim, const int64_t *shape, const int *axes)
{
    layout l = {0};
    int64_t strides[MOST], stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
    for (int i = 0; i < ndim; i++) {
        int64_t size = shape[axes[i]], from = strides[axes[i]];
        if (size == 1)
            continue;
        int last = l.ndim - 1;
        if (last >= 0 && l.from[last] == from * size) {
            l.size[last] *= size;
            l.from[last] = from;
        } else {
            l.size[l.ndim] = size;
            l.from[l.ndim++] = from;
        }
    }
    stride = 1;
    for (int i = l.ndim - 1; i >= 0; i--) {
        l.to[i] = stride;
        stride *= l.size[i];
    }
    return l;
}

/* Takes dimension i out. */
static void take_out(layout *l, int i)
{
    l->ndim--;
    for (; i < l->ndim; i++) {
        l->size[i] = l->size[i + 1];
        l->from[i] = l->from[i + 1];
        l->to[i] = l->to[i + 1];
    }
}

static int64_t count(const layout *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->ndim; i++)
        n *= l->size[i];
    return n;
}

/* Where the index-th of the dimensions' elements is in the input and the output. */
static void locate(const layout *l, int64_t index, int64_t *from, int64_t *to)
{
    *from = *to = 0;
    for (int i = l->ndim - 1; i >= 0; i--) {
        int64_t position = index % l->size[i];
        index /= l->size[i];
        *from += position * l->from[i];
        *to += position * l->to[i];
    }
}

static void copy_runs(layout l, int64_t n, const char *x, char *y, size_t size)
{
    size_t run = size;
    if (l.ndim > 0) {
        run *= (size_t)l.size[l.ndim - 1];
        take_out(&l, l.ndim - 1);
    }
    int64_t runs = count(&l);
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t i = 0; i < runs; i++) {
        int64_t from, to;
        locate(&l, i, &from, &to);
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
            int64_t end = smaller(start + TILE, cols);                                                                           \
            for (int64_t i = 0; i < rows; i++)                                                                                   \
                for (int64_t j = start; j < end; j++)                                                                            \
                    y[i * to + j] = x[i + j * from];                                                                             \
        }                                                                                                                        \
    }
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)
TRANSPOSE(uint64_t)

static void transpose(layout l, int64_t n, const char *x, char *y, size_t size)
{
    void (*tile)(int64_t, int64_t, const void *, int64_t, void *, int64_t) = size == 1   ? transpose_uint8_t
                                                                             : size == 2 ? transpose_uint16_t
                                                                             : size == 4 ? transpose_uint32_t
                                                                                         : transpose_uint64_t;
    int last = l.ndim - 1, contiguous = 0;
    while (l.from[contiguous] != 1)
        contiguous++;
    int64_t rows = l.size[contiguous], row_to = l.to[contiguous], cols = l.size[last], col_from = l.from[last];
    take_out(&l, last);
    take_out(&l, contiguous);
    int64_t tiles = divide_up(rows, TILE), items = count(&l) * tiles;
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t item = 0; item < items; item++) {
        int64_t from, to, row = item % tiles * TILE;
        locate(&l, item / tiles, &from, &to);
        tile(smaller(TILE, rows - row), cols, x + (size_t)(from + row) * size, col_from, y + (size_t)(to + row * row_to) * size,
             row_to);
    }
}

shard_status KERNEL(permute)(shard_device *device, int ndim, const int64_t *shape, const int *axes, const void *x, void *y,
                             shard_dtype dtype)
{
    (void)device;
    layout l = merge(ndim, shape, axes);
    int64_t n = count(&l);
    if (n == 0)
        return SHARD_OK;
    if (l.ndim == 0 || l.from[l.ndim - 1] == 1)
        copy_runs(l, n, x, y, shard_dtype_size(dtype));
    else
        transpose(l, n, x, y, shard_dtype_size(dtype));
    return SHARD_OK;
}
