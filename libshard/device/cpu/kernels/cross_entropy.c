/*
 * Cross-entropy over a range of the columns, and the counts of a sharded top-k. A row's q is a constant `spread`, or
 * keep * probability + spread, times the columns' weights; a label adds `keep` times its weight at the target. Logits
 * are mapped span by span, where they are.
 */
#ifdef real

static real R(at)(shard_dtype dtype, const void *x, int64_t i)
{
    real buffer[1];
    return *R(load)(dtype, x, i, 1, buffer);
}

/* The logits x as the map says, in `mapped`. */
static void R(map_logits)(const shard_logit_map *m, int64_t n, const real *x, real *mapped)
{
    real rate = (real)shard_logit_rate(m), cap = (real)m->soft_cap;
    if (cap > 0) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            mapped[i] = cap * R(tanh)(rate * x[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            mapped[i] = rate * x[i];
    }
}

static real R(mapped_at)(const loss *l, int64_t i)
{
    real x = R(at)(l->dtype, l->x, i);
    if (l->shape->map.maps)
        R(map_logits)(&l->shape->map, 1, &x, &x);
    return x;
}

/* Adds sum q x and sum q, without the label's summands. */
static void R(add_targets)(const loss *l, int64_t n, const real *x, const real *probability, const real *weight, part *p)
{
    double keep = l->keep, spread = l->spread, a = 0, b = 0;
    if (!probability && !weight) {
#pragma omp simd reduction(+ : a)
        for (int64_t i = 0; i < n; i++)
            a += (double)x[i];
        a *= spread;
        b = spread * (double)n;
    } else {
#pragma omp simd reduction(+ : a, b)
        for (int64_t i = 0; i < n; i++) {
            double q = (probability ? keep * (double)probability[i] + spread : spread) * (weight ? (double)weight[i] : 1);
            a += q * (double)x[i];
            b += q;
        }
    }
    p->a += a;
    p->b += b;
}

/* The number of n logits that come before the target's: larger, or, with ties, as large. A NaN counts as the largest
 * of all, so that it is not a hit. Not inlined: gcc 12 does not vectorize the copies that it makes of the loops. */
__attribute__((noinline)) static int64_t R(count_before)(int64_t n, const real *x, real logit, bool ties)
{
    int32_t count = 0;
    if (logit != logit) {
        for (int64_t i = 0; i < n; i++)
            count += ties && x[i] != x[i];
    } else if (ties) {
        for (int64_t i = 0; i < n; i++)
            count += !(x[i] < logit);
    } else {
        for (int64_t i = 0; i < n; i++)
            count += !(x[i] <= logit);
    }
    return count;
}

/* Of n of the row's columns, from `start` on, where logit is the target's. */
static int64_t R(count_span)(const loss *l, int64_t row, int64_t start, int64_t n, const real *x, real logit)
{
    int64_t target = l->target[row] - l->shape->col0;
    int64_t before = shard_min(shard_max(target - start, 0), n), after = shard_min(shard_max(target + 1 - start, 0), n);
    return R(count_before)(before, x, logit, true) + R(count_before)(n - after, x + after, logit, false);
}

/* The target's logit, with which the local columns of a row that is not ignored are compared. */
static real R(target_logit)(const loss *l, int64_t row)
{
    return l->logit ? (real)l->logit[row] : R(at)(l->dtype, l->x, row * l->pitch + own_target(l, row));
}

/* Of the row's columns [start, end). */
static part R(sum_part)(const loss *l, int64_t row, int64_t start, int64_t end)
{
    real x_buffer[SPAN], mapped[SPAN], probability_buffer[SPAN], weight_buffer[SPAN];
    bool targets = (l->probability || l->spread != 0) && !ignored(l, row), ranked = l->ahead && !ignored(l, row);
    real logit = ranked ? R(target_logit)(l, row) : 0;
    part p = {.exponentials = EXP_SUM_NOTHING};
    for (int64_t count; start < end; start += count) {
        int64_t from = row * l->shape->cols + start;
        count = shard_min(SPAN, end - start);
        const real *x = R(load)(l->dtype, l->x, row * l->pitch + start, count, x_buffer), *probability = NULL, *weight = NULL;
        if (ranked)
            p.ahead += R(count_span)(l, row, start, count, x, logit);
        if (l->shape->map.maps) {
            R(map_logits)(&l->shape->map, count, x, mapped);
            x = mapped;
        }
        KERNEL(R(exp_sum_add))(&p.exponentials, count, x);
        if (!targets)
            continue;
        if (l->probability)
            probability = R(load)(l->dtype, l->probability, from, count, probability_buffer);
        if (l->weight)
            weight = R(load)(l->dtype, l->weight, start, count, weight_buffer);
        R(add_targets)(l, count, x, probability, weight, &p);
    }
    return p;
}

/* A row's statistics from those of its columns and its label. */
static void R(finish_row)(const loss *l, int64_t row, part p, double *stats)
{
    double weight = 0;
    int64_t target = own_target(l, row);
    if (target >= 0) {
        weight = l->weight ? (double)R(at)(l->dtype, l->weight, target) : 1;
        p.a += l->keep * weight * (double)R(mapped_at)(l, row * l->pitch + target);
        p.b += l->keep * weight;
    }
    exp_sum_refer(&p.exponentials, p.exponentials.max);
    stats += row * SHARD_CE_STATS;
    stats[SHARD_CE_MAX] = p.exponentials.max;
    stats[SHARD_CE_SUM] = p.exponentials.sum;
    stats[SHARD_CE_A] = p.a;
    stats[SHARD_CE_B] = p.b;
    stats[SHARD_CE_WEIGHT] = weight;
    if (l->ahead)
        l->ahead[row] = p.ahead;
}

static void R(stats)(const loss *l, double *stats)
{
    int64_t rows = l->shape->rows, cols = l->shape->cols, width, chunks = row_chunks(rows, cols, &width);
    if (chunks == 1) {
#pragma omp parallel for schedule(static) if (rows * cols >= PARALLEL)
        for (int64_t row = 0; row < rows; row++)
            R(finish_row)(l, row, R(sum_part)(l, row, 0, cols), stats);
        return;
    }
    part parts[2 * ROW_CHUNKS];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * chunks; i++) {
        int64_t start = i % chunks * width;
        parts[i] = R(sum_part)(l, i / chunks, start, shard_min(start + width, cols));
    }
    for (int64_t row = 0; row < rows; row++) {
        part total = parts[row * chunks];
        for (int64_t i = 1; i < chunks; i++) {
            const part *other = &parts[row * chunks + i];
            exp_sum_merge(&total.exponentials, other->exponentials);
            total.a += other->a;
            total.b += other->b;
            total.ahead += other->ahead;
        }
        R(finish_row)(l, row, total, stats);
    }
}

/* Multiplies the gradient by the mapped logits x with the derivative of x. */
static void R(unmap)(const shard_logit_map *m, int64_t n, const real *x, real *dx)
{
    real scale = (real)m->scale, inverse = m->soft_cap > 0 ? (real)(1 / m->soft_cap) : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] *= R(shard_logit_slope)(x[i], scale, inverse);
}

/* in: the logits, probability. */
MAP_BODY(gradient)
{
    const loss *l = context;
    int64_t row = s.start / l->shape->cols;
    real *dx = out[0];
    if (ignored(l, row)) {
        memset(dx, 0, (size_t)s.count * sizeof *dx);
        return;
    }
    double scale = l->rows->scale[row];
    real center = (real)l->rows->lse[row], mapped[SPAN];
    real factor = (real)(scale * l->rows->slope[row] * shard_row_exponential(l->rows, row, (double)center));
    real keep = (real)(scale * l->keep), spread = (real)(scale * l->spread);
    const real *x = in[0], *probability = in[1];
    if (l->shape->map.maps) {
        R(map_logits)(&l->shape->map, s.count, x, mapped);
        x = mapped;
    }
    real constant = probability || l->weight ? 0 : spread;
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = factor * R(exp)(x[i] - center) - constant;
    if (probability || (l->weight && spread != 0)) {
        real buffer[SPAN];
        const real *weight = l->weight ? R(load)(l->dtype, l->weight, s.offset, s.count, buffer) : NULL;
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            dx[i] -= (probability ? keep * probability[i] + spread : spread) * (weight ? weight[i] : 1);
    }
    int64_t target = own_target(l, row) - s.offset;
    if (target >= 0 && target < s.count)
        dx[target] -= keep * (l->weight ? R(at)(l->dtype, l->weight, s.offset + target) : 1);
    if (l->shape->map.maps)
        R(unmap)(&l->shape->map, s.count, x, dx);
}

/* Of the row's columns [start, end). */
static int64_t R(count_part)(const loss *l, int64_t row, int64_t start, int64_t end)
{
    real buffer[SPAN], logit = R(target_logit)(l, row);
    int64_t total = 0;
    for (int64_t count; start < end; start += count) {
        count = shard_min(SPAN, end - start);
        const real *x = R(load)(l->dtype, l->x, row * l->pitch + start, count, buffer);
        total += R(count_span)(l, row, start, count, x, logit);
    }
    return total;
}

static void R(count)(const loss *l, int64_t *ahead)
{
    int64_t rows = l->shape->rows, cols = l->shape->cols, width, chunks = row_chunks(rows, cols, &width);
    for (int64_t row = 0; row < rows; row++)
        ahead[row] = ignored(l, row) ? l->of_ignored : 0;
#pragma omp parallel for schedule(static) if (rows * cols >= PARALLEL)
    for (int64_t i = 0; i < rows * chunks; i++) {
        int64_t row = i / chunks, start = i % chunks * width;
        if (ignored(l, row))
            continue;
        int64_t count = R(count_part)(l, row, start, shard_min(start + width, cols));
#pragma omp atomic
        ahead[row] += count;
    }
}

static void R(pick)(const loss *l, double *out)
{
    for (int64_t row = 0; row < l->shape->rows; row++) {
        int64_t target = own_target(l, row);
        out[row] = target >= 0 ? (double)R(at)(l->dtype, l->x, row * l->pitch + target) : 0;
    }
}

#else

#include "device/cpu/kernels/exp_sum.h"
#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/vector_math.h"

#include <string.h>

/* The arguments of the entries; those that an entry does not use are 0. */
typedef struct loss {
    const shard_cross_entropy_shape *shape;
    int64_t pitch; /* the shape's, not 0 */
    shard_dtype dtype;
    const void *x;
    const int64_t *target;
    const void *probability, *weight;
    const shard_loss_rows *rows;
    const double *logit;
    double keep, spread;
    int64_t of_ignored; /* counted by count_ahead */
    int64_t *ahead;     /* of the statistics; NULL: not counted */
} loss;

typedef struct part {
    exp_sum exponentials;
    double a, b;
    int64_t ahead;
} part;

static bool ignored(const loss *l, int64_t row)
{
    return l->target && shard_label_ignored(l->shape, l->target[row]);
}

/* The target's column in this part, -1 if it has none here. */
static int64_t own_target(const loss *l, int64_t row)
{
    if (!l->target || ignored(l, row))
        return -1;
    int64_t column = l->target[row] - l->shape->col0;
    return column < l->shape->cols ? shard_max(column, -1) : -1;
}

static loss loss_of(const shard_cross_entropy_shape *shape, const void *x, const int64_t *target, const void *probability,
                    const void *weight, shard_dtype dtype)
{
    return (loss){.shape = shape,
                  .pitch = shard_pitch(shape->pitch, shape->cols),
                  .dtype = dtype,
                  .x = x,
                  .target = target,
                  .probability = target ? NULL : probability,
                  .weight = weight,
                  .keep = 1 - shape->smoothing,
                  .spread = shape->classes ? shape->smoothing / (double)shape->classes : 0};
}

#define SELF "cross_entropy.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(cross_entropy_stats)(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                         const int64_t *target, const void *probability, const void *weight, double *stats,
                                         const double *logit, int64_t *ahead, shard_dtype dtype)
{
    (void)device;
    loss l = loss_of(shape, x, target, probability, weight, dtype);
    l.logit = logit;
    l.ahead = ahead;
    BY_TYPE(dtype, stats, &l, stats);
    return SHARD_OK;
}

/* A row's statistics over all ranks. A rank without a finite logit adds 0, also if no rank has one; a NaN is in the maximum or
 * the sum, and stays. */
static void join_row(int64_t ranks, int64_t stride, const double *stats, double *joined)
{
    double largest = -INFINITY;
    for (int64_t rank = 0; rank < ranks; rank++) {
        double maximum = stats[rank * stride + SHARD_CE_MAX];
        largest = maximum > largest ? maximum : largest;
    }
    memset(joined, 0, SHARD_CE_STATS * sizeof *joined);
    for (int64_t rank = 0; rank < ranks; rank++) {
        const double *more = stats + rank * stride;
        joined[SHARD_CE_SUM] += more[SHARD_CE_SUM] * (more[SHARD_CE_MAX] == largest ? 1 : exp(more[SHARD_CE_MAX] - largest));
        for (int k = SHARD_CE_A; k < SHARD_CE_STATS; k++)
            joined[k] += more[k];
    }
    joined[SHARD_CE_MAX] = largest;
}

static int64_t sum_ahead(int64_t ranks, int64_t stride, const int64_t *ahead)
{
    int64_t sum = 0;
    for (int64_t rank = 0; rank < ranks; rank++)
        sum += ahead[rank * stride];
    return sum;
}

shard_status KERNEL(cross_entropy_join)(shard_device *device, const shard_cross_entropy_shape *shape, bool mean, int64_t ranks,
                                        int64_t stride, const double *stats, const int64_t *ahead, const int64_t *target,
                                        const double *row_weight, double *numbers, double *result, int64_t *rank)
{
    (void)device;
    int64_t rows = shape->rows;
    loss l = {.shape = shape, .target = target};
    double *lse = numbers, *error = lse + rows, *slope = error + rows, *factor = slope + rows, *losses = factor + rows;
    double sum = 0, weights = 0;
    for (int64_t i = 0; i < rows; i++) {
        double row[SHARD_CE_STATS];
        join_row(ranks, stride, stats + i * SHARD_CE_STATS, row);
        double log_sum = log(row[SHARD_CE_SUM]);
        lse[i] = row[SHARD_CE_MAX] + log_sum;
        error[i] = shard_row_lse_error(row[SHARD_CE_MAX], log_sum);
        slope[i] = shard_row_slope(row[SHARD_CE_B], lse[i], shape->z_loss);
        factor[i] = row_weight ? row_weight[i] : 1;
        double one = shard_row_loss(row[SHARD_CE_A], row[SHARD_CE_B], row[SHARD_CE_MAX], log_sum, shape->z_loss);
        losses[i] = ignored(&l, i) ? 0 : factor[i] * one;
        sum += losses[i];
        weights += ignored(&l, i) ? 0 : factor[i] * (target ? row[SHARD_CE_WEIGHT] : 1);
        if (rank)
            rank[i] = ignored(&l, i) ? INT64_MAX : sum_ahead(ranks, stride, ahead + i);
    }
    for (int64_t i = 0; i < rows; i++)
        factor[i] = ignored(&l, i) ? 0 : mean ? factor[i] / weights : factor[i];
    *result = !mean ? sum : weights != 0 ? sum / weights : NAN; /* as PyTorch, also where smoothing makes the sum positive */
    return SHARD_OK;
}

/* Rows that are not dense one by one. */
static shard_status backward_by_rows(shard_device *device, const shard_cross_entropy_shape *shape, const char *x,
                                     const int64_t *target, const char *probability, const void *weight,
                                     const shard_loss_rows *rows, char *dx, shard_dtype dtype)
{
    shard_cross_entropy_shape row = *shape;
    int64_t size = (int64_t)shard_dtype_size(dtype);
    row.rows = 1;
    row.pitch = 0;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < shape->rows && status == SHARD_OK; i++) {
        const double *error = rows->lse_error ? rows->lse_error + i : NULL;
        const shard_loss_rows one = {rows->lse + i, error, rows->slope + i, rows->scale + i};
        status = KERNEL(cross_entropy_backward)(device, &row, x + i * shape->pitch * size, target ? target + i : NULL,
                                                probability ? probability + i * shape->cols * size : NULL, weight, &one,
                                                dx + i * shape->pitch * size, dtype);
    }
    return status;
}

shard_status KERNEL(cross_entropy_backward)(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                            const int64_t *target, const void *probability, const void *weight,
                                            const shard_loss_rows *rows, void *dx, shard_dtype dtype)
{
    if (shape->pitch && shape->pitch != shape->cols)
        return backward_by_rows(device, shape, x, target, probability, weight, rows, dx, dtype);
    loss l = loss_of(shape, x, target, probability, weight, dtype);
    l.rows = rows;
    map job = {.dtype = dtype,
               .n = shape->rows * shape->cols,
               .period = shape->cols,
               .in = {x, l.probability},
               .out = {dx},
               .context = &l};
    MAP(&job, gradient);
    return SHARD_OK;
}

shard_status KERNEL(cross_entropy_backward_narrow)(shard_device *device, const shard_cross_entropy_shape *shape, void *x,
                                                   const int64_t *target, const void *weight, const shard_loss_rows *rows,
                                                   const double *target_slope, void *dx, shard_dtype dtype)
{
    const shard_margin slopes = {.scale = 1};
    shard_status status = KERNEL(cross_entropy_backward)(device, shape, x, target, NULL, weight, rows, x, SHARD_FLOAT32);
    if (status == SHARD_OK && target_slope)
        status = KERNEL(margin_logits_backward)(device, shape, &slopes, target, target_slope, x, x, SHARD_FLOAT32);
    return status == SHARD_OK ? KERNEL(cast)(device, shape->rows * shape->cols, x, SHARD_FLOAT32, dx, dtype) : status;
}

shard_status KERNEL(pick_target)(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                 const int64_t *target, double *out, shard_dtype dtype)
{
    (void)device;
    loss l = loss_of(shape, x, target, NULL, NULL, dtype);
    BY_TYPE(dtype, pick, &l, out);
    return SHARD_OK;
}

shard_status KERNEL(count_ahead)(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                 const int64_t *target, const double *logit, int64_t of_ignored, int64_t *ahead,
                                 shard_dtype dtype)
{
    (void)device;
    loss l = loss_of(shape, x, target, NULL, NULL, dtype);
    l.logit = logit;
    l.of_ignored = of_ignored;
    BY_TYPE(dtype, count, &l, ahead);
    return SHARD_OK;
}

#endif
