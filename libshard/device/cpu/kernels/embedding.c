#ifdef real

/* A row of dweight: the sum of its rows of dy, in their order; by_count: their mean. */
static void R(sum_row)(const lookup *l, int64_t row)
{
    real dy_buffer[SPAN], buffer[SPAN], factor = (real)factor_of(l, row);
    for (int64_t start = 0; start < l->dim; start += SPAN) {
        int64_t count = shard_min(SPAN, l->dim - start), to = row * l->dim + start;
        real *sum = R(place)(l->dtype, false, l->dweight, to, buffer);
        if (l->accumulate)
            R(load)(l->dtype, l->dweight, to, count, sum);
        else
            memset(sum, 0, (size_t)count * sizeof *sum);
        for (int64_t i = l->first[row]; i >= 0; i = l->next[i]) {
            const real *dy = R(load)(l->dtype, l->dy, i * l->dim + start, count, dy_buffer);
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                sum[j] += factor * dy[j];
        }
        R(store)(l->dtype, false, l->dweight, to, count, sum);
    }
}

#else

#include "device/cpu/kernels/span.h"

#include <string.h>

/* Which rows of dy belong to each row of dweight: a list in ascending order, -1 at its end. */
typedef struct lookup {
    shard_dtype dtype;
    int64_t dim;
    bool by_count, accumulate;
    const void *dy;
    void *dweight;
    int64_t *first, *next;
} lookup;

static double factor_of(const lookup *l, int64_t row)
{
    int64_t count = 0;
    for (int64_t i = l->first[row]; l->by_count && i >= 0; i = l->next[i])
        count++;
    return count ? 1.0 / (double)count : 1.0;
}

#define SELF "embedding.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(embedding)(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                               const void *weight, void *y, shard_dtype dtype)
{
    (void)device;
    size_t bytes = (size_t)dim * shard_dtype_size(dtype);
    if (bytes == 0)
        return SHARD_OK;
#pragma omp parallel for schedule(static) if (n * dim >= PARALLEL)
    for (int64_t i = 0; i < n; i++) {
        char *to = (char *)y + (size_t)i * bytes;
        if (index[i] >= row0 && index[i] - row0 < rows)
            memcpy(to, (const char *)weight + (size_t)(index[i] - row0) * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
    return SHARD_OK;
}

shard_status KERNEL(embedding_backward)(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                        const int64_t *index, const void *dy, bool by_count, bool accumulate, void *dweight,
                                        shard_dtype dtype)
{
    if (rows == 0 || dim == 0)
        return SHARD_OK;
    size_t bytes = (size_t)(rows + n) * sizeof(int64_t);
    int64_t *lists = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!lists)
        return shard_last_status();
    lookup l = {.dtype = dtype,
                .dim = dim,
                .by_count = by_count,
                .accumulate = accumulate,
                .dy = dy,
                .dweight = dweight,
                .first = lists,
                .next = lists + rows};
    for (int64_t row = 0; row < rows; row++)
        l.first[row] = -1;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (index[i] >= row0 && index[i] - row0 < rows) {
            l.next[i] = l.first[index[i] - row0];
            l.first[index[i] - row0] = i;
        }
    }
#pragma omp parallel for schedule(dynamic, 64) if (rows * dim >= PARALLEL)
    for (int64_t row = 0; row < rows; row++)
        if (l.first[row] >= 0 || !accumulate)
            BY_TYPE(dtype, sum_row, &l, row);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, lists, bytes);
    return SHARD_OK;
}

#endif
