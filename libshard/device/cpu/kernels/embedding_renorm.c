#ifdef real

static double R(power_sum_of_row)(const rows_of *r, int64_t row)
{
    real buffer[SPAN];
    double sum = 0;
    for (int64_t start = 0; start < r->dim; start += SPAN) {
        int64_t count = shard_min(SPAN, r->dim - start);
        const real *x = R(load)(r->dtype, r->weight, row * r->dim + start, count, buffer);
        for (int64_t j = 0; j < count; j++) {
            double size = fabs((double)x[j]);
            if (r->power == INFINITY)
                sum = sum != sum || sum > size ? sum : size;
            else
                sum += r->power == 2 ? size * size : r->power == 1 ? size : pow(size, r->power);
        }
    }
    return sum;
}

static void R(scale_row)(const rows_of *r, int64_t row, double factor)
{
    real buffer[SPAN], result_buffer[SPAN];
    for (int64_t start = 0; start < r->dim; start += SPAN) {
        int64_t count = shard_min(SPAN, r->dim - start), at = row * r->dim + start;
        const real *x = R(load)(r->dtype, r->weight, at, count, buffer);
        real *y = R(place)(r->dtype, false, r->weight, at, result_buffer);
        for (int64_t j = 0; j < count; j++)
            y[j] = x[j] * (real)factor;
        R(store)(r->dtype, false, r->weight, at, count, y);
    }
}

#else

#include "device/cpu/kernels/span.h"

#include <math.h>
#include <string.h>

typedef struct rows_of {
    shard_dtype dtype;
    int64_t dim;
    double power;
    void *weight;
} rows_of;

#define SELF "embedding_renorm.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(embedding_power_sums)(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                          const int64_t *index, const void *weight, double power, double *sum, shard_dtype dtype)
{
    (void)device;
    rows_of r = {dtype, dim, power, (void *)(uintptr_t)weight};
#pragma omp parallel for schedule(static) if (n * dim >= PARALLEL)
    for (int64_t i = 0; i < n; i++) {
        bool here = index[i] >= row0 && index[i] - row0 < rows;
        sum[i] = here ? BY_TYPE(dtype, power_sum_of_row, &r, index[i] - row0) : 0;
    }
    return SHARD_OK;
}

shard_status KERNEL(embedding_renorm)(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                      const int64_t *index, double power, double max_norm, double *sum, void *weight,
                                      shard_dtype dtype)
{
    rows_of r = {dtype, dim, power, weight};
    size_t bytes = (size_t)rows + 1;
    unsigned char *done = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!done)
        return shard_last_status();
    memset(done, 0, bytes);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - row0;
        double norm = power == INFINITY ? sum[i] : power == 2 ? sqrt(sum[i]) : pow(sum[i], 1 / power);
        if (row < 0 || row >= rows || done[row] || !(norm > max_norm))
            continue;
        done[row] = 1;
        BY_TYPE(dtype, scale_row, &r, row, max_norm / (norm + 1e-7));
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, done, bytes);
    return SHARD_OK;
}

#endif
