/*
 * How kernels go along one dimension of [outer, size, inner]. Where inner is 1 a row function
 * is called for each row, whose elements follow each other; else a tile function for the
 * elements [first, first + count) of inner, at most SPAN of them, which go along the dimension
 * side by side.
 */
#ifndef SHARD_CPU_AXIS_H
#define SHARD_CPU_AXIS_H

#include "device/cpu/kernels/span.h"

typedef void axis_row(const void *job, int64_t row);
typedef void axis_tile(const void *job, int64_t outer, int64_t first, int64_t count);

static inline void each_along(const shard_axis *axis, const void *job, axis_row *row, axis_tile *tile)
{
    int64_t tiles = shard_divide_up(axis->inner, SPAN), items = axis->outer * tiles;
#pragma omp parallel for schedule(static) if (axis->outer * axis->size * axis->inner >= PARALLEL)
    for (int64_t item = 0; item < items; item++) {
        if (axis->inner == 1) {
            row(job, item);
        } else {
            int64_t first = item % tiles * SPAN;
            tile(job, item / tiles, first, shard_min(SPAN, axis->inner - first));
        }
    }
}

/* Calls each_along with the functions' variants for the dtype. */
#define EACH_ALONG(dtype, axis, job, row, tile)                                                                                  \
    ((dtype) == SHARD_FLOAT64 ? each_along(axis, job, row##_double, tile##_double)                                               \
                              : each_along(axis, job, row##_float, tile##_float))

#endif
