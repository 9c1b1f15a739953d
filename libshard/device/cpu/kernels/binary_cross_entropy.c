/*
 * Binary cross-entropy with logits. Elements are worked on in runs of at most SPAN columns of a row. Targets that are
 * pairs become numbers in a buffer, only of runs that have one. Sums are added up in double: those of a row's chunks,
 * then the chunks in order.
 */
#ifdef real

/* The operands of a run: NULL where a number is the same for all of its elements. */
typedef struct R(run) {
    const real *x, *target, *weight, *positive;
    real buffer[4][SPAN];
} R(run);

/* Columns [start, start + count) of a row. */
static void R(read)(const call *c, int64_t row, int64_t start, int64_t count, R(run) * run)
{
    const shard_binary_loss_shape *shape = c->shape;
    run->x = R(load)(c->dtype, c->x, row * c->pitch + start, count, run->buffer[0]);
    run->target = c->target ? R(load)(c->dtype, c->target, row * shape->cols + start, count, run->buffer[1]) : NULL;
    run->weight = c->weight ? R(load)(c->dtype, c->weight, start, count, run->buffer[2]) : NULL;
    run->positive = c->positive ? R(load)(c->dtype, c->positive, start, count, run->buffer[3]) : NULL;
    if (c->target)
        return;
    const int64_t *of_row = c->pair, *of_class = c->pair + shape->pairs;
    int64_t first = shape->col0 + start;
    for (int64_t i = shard_first_pair(c->pair, c->shape->pairs, row, first);
         i < shape->pairs && of_row[i] == row && of_class[i] < first + count; i++) {
        if (!run->target)
            memset(run->buffer[1], 0, (size_t)count * sizeof(real));
        run->target = run->buffer[1];
        if (of_class[i] >= first)
            run->buffer[1][of_class[i] - first] = 1;
    }
}

/* The losses of a run's elements, without the row's weight. Three loops: one for all is scalar code. */
static void R(losses)(const R(run) * run, int64_t n, real *loss)
{
    const real *x = run->x, *target = run->target, *weight = run->weight, *positive = run->positive;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        loss[i] = R(exp)(x[i] < 0 ? x[i] : -x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        loss[i] = R(log1p)(loss[i]);
    if (!target) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            loss[i] = R(shard_binary_loss)(x[i], 0, 1, loss[i]);
    } else if (!positive) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            loss[i] = R(shard_binary_loss)(x[i], target[i], 1, loss[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            loss[i] = R(shard_binary_loss)(x[i], target[i], positive[i], loss[i]);
    }
    if (!weight)
        return;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        loss[i] *= weight[i];
}

/* Their derivatives. dx may be x. */
static void R(slopes)(const R(run) * run, int64_t n, real *dx)
{
    const real *x = run->x, *target = run->target, *weight = run->weight, *positive = run->positive;
    if (!target) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = R(shard_binary_slope)(x[i], 0, 1, R(exp)(x[i] < 0 ? x[i] : -x[i]));
    } else if (!positive) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = R(shard_binary_slope)(x[i], target[i], 1, R(exp)(x[i] < 0 ? x[i] : -x[i]));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = R(shard_binary_slope)(x[i], target[i], positive[i], R(exp)(x[i] < 0 ? x[i] : -x[i]));
    }
    if (!weight)
        return;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] *= weight[i];
}

/* The sum of a row's columns [start, end), with the row's weight; writes the losses if they are wanted. */
static double R(sum_part)(const call *c, int64_t row, int64_t start, int64_t end)
{
    R(run) run;
    real loss[SPAN];
    double sum = 0, weight = c->row_weight ? c->row_weight[row] : 1;
    for (int64_t count; start < end; start += count) {
        count = shard_min(SPAN, end - start);
        R(read)(c, row, start, count, &run);
        R(losses)(&run, count, loss);
        double part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < count; i++)
            part += (double)loss[i];
        sum += part;
        if (!c->each)
            continue;
        int64_t to = row * c->shape->cols + start;
        real *place = R(place)(c->dtype, false, c->each, to, run.buffer[0]), factor = (real)weight;
        for (int64_t i = 0; i < count; i++)
            place[i] = factor * loss[i];
        R(store)(c->dtype, false, c->each, to, count, place);
    }
    return weight * sum;
}

static void R(backward_part)(const call *c, int64_t row, int64_t start, int64_t end)
{
    R(run) run;
    real scale = (real)(*c->scale * (c->row_weight ? c->row_weight[row] : 1)), buffer[SPAN], dy_buffer[SPAN];
    for (int64_t count; start < end; start += count) {
        count = shard_min(SPAN, end - start);
        int64_t to = row * c->pitch + start;
        R(read)(c, row, start, count, &run);
        const real *dy = c->dy ? R(load)(c->dtype, c->dy, row * c->shape->cols + start, count, dy_buffer) : NULL;
        real *dx = R(place)(c->dtype, false, c->dx, to, buffer);
        R(slopes)(&run, count, dx);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] *= dy ? scale * dy[i] : scale;
        R(store)(c->dtype, false, c->dx, to, count, dx);
    }
}

static void R(sum_parts)(const call *c, int64_t chunks, int64_t width, double *parts)
{
    int64_t rows = c->shape->rows, cols = c->shape->cols;
#pragma omp parallel for schedule(static) if (rows * cols >= PARALLEL)
    for (int64_t i = 0; i < rows * chunks; i++) {
        int64_t start = i % chunks * width;
        parts[i] = R(sum_part)(c, i / chunks, start, shard_min(start + width, cols));
    }
}

static void R(backward_parts)(const call *c, int64_t chunks, int64_t width)
{
    int64_t rows = c->shape->rows, cols = c->shape->cols;
#pragma omp parallel for schedule(static) if (rows * cols >= PARALLEL)
    for (int64_t i = 0; i < rows * chunks; i++) {
        int64_t start = i % chunks * width;
        R(backward_part)(c, i / chunks, start, shard_min(start + width, cols));
    }
}

#else

#include "device/cpu/kernels/span.h"
#include "device/cpu/kernels/vector_math.h"

#include <string.h>

/* The arguments of the entries; those that an entry does not use are 0. */
typedef struct call {
    const shard_binary_loss_shape *shape;
    int64_t pitch; /* the shape's, not 0 */
    shard_dtype dtype;
    const void *x, *target, *weight, *positive, *dy;
    const int64_t *pair;
    const double *row_weight, *scale;
    void *each, *dx;
} call;

#define SELF "binary_cross_entropy.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(binary_cross_entropy)(shard_device *device, const shard_binary_loss_shape *shape, const void *x,
                                          const void *target, const int64_t *pair, const void *weight, const void *positive,
                                          const double *row_weight, void *each, double *sum, shard_dtype dtype)
{
    if (sum)
        *sum = 0;
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    call c = {.shape = shape,
              .pitch = shard_pitch(shape->pitch, shape->cols),
              .dtype = dtype,
              .x = x,
              .target = target,
              .pair = pair,
              .weight = weight,
              .positive = positive,
              .row_weight = row_weight,
              .each = each};
    int64_t width, chunks = row_chunks(shape->rows, shape->cols, &width);
    size_t bytes = (size_t)(shape->rows * chunks) * sizeof(double);
    double *parts = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!parts)
        return shard_last_status();
    BY_TYPE(dtype, sum_parts, &c, chunks, width, parts);
    for (int64_t i = 0; sum && i < shape->rows * chunks; i++)
        *sum += parts[i];
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, parts, bytes);
    return SHARD_OK;
}

shard_status KERNEL(binary_cross_entropy_backward)(shard_device *device, const shard_binary_loss_shape *shape, const void *x,
                                                   const void *target, const int64_t *pair, const void *weight,
                                                   const void *positive, const double *row_weight, const double *scale,
                                                   const void *dy, void *dx, shard_dtype dtype)
{
    (void)device;
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    call c = {.shape = shape,
              .pitch = shard_pitch(shape->pitch, shape->cols),
              .dtype = dtype,
              .x = x,
              .target = target,
              .pair = pair,
              .weight = weight,
              .positive = positive,
              .row_weight = row_weight,
              .scale = scale,
              .dy = dy,
              .dx = dx};
    int64_t width, chunks = row_chunks(shape->rows, shape->cols, &width);
    BY_TYPE(dtype, backward_parts, &c, chunks, width);
    return SHARD_OK;
}

#endif
