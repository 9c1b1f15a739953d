/*
 * Cross-entropy over parts of the columns, whole, uneven and empty, in rows that are dense
 * or apart, against the definitions in device/device.h in long double; and picking targets and
 * counting what is ahead of them.
 */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 4 };

/* rows, classes, and where the parts begin and end */
static const struct {
    int64_t rows, classes;
    int parts;
    int64_t bounds[MAX_PARTS + 1];
} shapes[] = {
    {0, 4, 1, {0, 4}},
    {1, 1, 1, {0, 1}},
    {5, 10, 3, {0, 3, 3, 10}},
    {200, 33, 2, {0, 32, 33}},
    {70, 1030, 4, {0, 1, 500, 1030, 1030}},
    {3, 5003, 1, {0, 5003}},
    {2, 18001, 2, {0, 1000, 18001}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
enum { WEIGHTED = 1, SMOOTHED = 2, PROBABILITIES = 4, FORMS = 8, MAPS = 4 };

/* The logits as they are, scaled, capped, and both. */
static const shard_logit_map maps[MAPS] = {{0, 0, 0}, {1, 0.75, 0}, {1, 1, 10}, {1, 2.5, 12}};

/* The whole problem; parts are cut out of it. */
typedef struct problem {
    shard_dtype dtype;
    int64_t rows, classes;
    double smoothing;
    const shard_logit_map *map;
    void *x, *probability, *weight; /* probability and weight NULL where the form has none */
    int64_t *target;                /* NULL with probabilities */
} problem;

enum { IGNORE = -100 };

/* The last ones are none that anything may be read by. */
static const int64_t ignored_labels[] = {IGNORE, INT64_MIN, -1, INT64_MAX, INT64_MAX - 1};

static bool is_ignored(const problem *p, int64_t row)
{
    return p->target && (p->target[row] < 0 || p->target[row] >= p->classes);
}

static problem problem_new(shard_dtype dtype, int shape, int form)
{
    problem p = {.dtype = dtype, .rows = shapes[shape].rows, .classes = shapes[shape].classes, .map = &maps[0]};
    int64_t n = p.rows * p.classes;
    p.x = array_noise(n, dtype, 1, -15, 15);
    p.smoothing = form & SMOOTHED ? 0.1 : 0;
    if (form & WEIGHTED)
        p.weight = array_noise(p.classes, dtype, 2, 0.25, 2);
    if (form & PROBABILITIES) {
        p.probability = array_noise(n, dtype, 3, 0, 2 / (double)p.classes);
    } else {
        p.target = array_new(p.rows, SHARD_INT64);
        for (int64_t i = 0; i < p.rows; i++)
            p.target[i] = i % 4 == 1   ? ignored_labels[i / 4 % 5]
                          : i % 4 == 3 ? p.classes - 1
                                       : (int64_t)((noise(4, i) + 1) / 2 * (double)p.classes);
    }
    return p;
}

static void problem_free(problem *p)
{
    array_free(p->x, p->rows * p->classes, p->dtype);
    array_free(p->probability, p->rows * p->classes, p->dtype);
    array_free(p->weight, p->classes, p->dtype);
    array_free(p->target, p->rows, SHARD_INT64);
}

static long double mapped(const problem *p, long double x)
{
    long double scaled = p->map->maps ? p->map->scale * x : x, cap = p->map->soft_cap;
    return cap > 0 ? cap * tanhl(scaled / cap) : scaled;
}

/* Its derivative. */
static long double derivative(const problem *p, long double x)
{
    long double t = p->map->soft_cap > 0 ? mapped(p, x) / p->map->soft_cap : 0;
    return (p->map->maps ? p->map->scale : 1) * (1 - t * t);
}

/* The error of a mapped value; 0 where it is the logit. */
static long double map_error(const problem *p, long double x)
{
    return p->map->maps ? 8 * fabsl(mapped(p, x)) * compute_unit(p->dtype) : 0;
}

/* q of a row and a class, in the whole. */
static long double share(const problem *p, int64_t row, int64_t c)
{
    long double w = p->weight ? array_get(p->weight, c, p->dtype) : 1, e = p->smoothing;
    if (is_ignored(p, row))
        return 0;
    long double q = p->target ? p->target[row] == c : array_get(p->probability, row * p->classes + c, p->dtype);
    return w * ((1 - e) * q + e / p->classes);
}

/* One part of the columns as arrays of its own. */
typedef struct part {
    shard_cross_entropy_shape shape;
    void *x, *probability, *weight;
} part;

/* NaN between the rows. */
static void *columns(const problem *p, const void *whole, int64_t rows, int64_t first, int64_t cols, int64_t pitch)
{
    if (!whole)
        return NULL;
    size_t size = shard_dtype_size(p->dtype);
    char *cut = array_new(rows * pitch, p->dtype);
    memset(cut, 0xff, (size_t)(rows * pitch) * size);
    for (int64_t i = 0; i < rows; i++)
        memcpy(cut + (size_t)(i * pitch) * size, (const char *)whole + (size_t)(i * p->classes + first) * size,
               (size_t)cols * size);
    return cut;
}

/* The elements from one row of x to the next. */
static int64_t pitch_of(const part *a)
{
    return shard_pitch(a->shape.pitch, a->shape.cols);
}

/* Its rows are dense, a little apart, or aligned. */
static part part_new(const problem *p, int64_t first, int64_t end, int way)
{
    int64_t cols = end - first, pitches[] = {0, cols + 3, (cols / 64 + 1) * 64}, pitch = pitches[way % 3];
    return (part){.shape = {.rows = p->rows,
                            .cols = cols,
                            .pitch = pitch,
                            .col0 = first,
                            .classes = p->classes,
                            .ignore_index = IGNORE,
                            .smoothing = p->smoothing,
                            .map = *p->map},
                  .x = columns(p, p->x, p->rows, first, cols, shard_pitch(pitch, cols)),
                  .probability = columns(p, p->probability, p->rows, first, cols, cols),
                  .weight = columns(p, p->weight, 1, first, cols, cols)};
}

static void part_free(part *a, shard_dtype dtype)
{
    array_free(a->x, a->shape.rows * pitch_of(a), dtype);
    array_free(a->probability, a->shape.rows * a->shape.cols, dtype);
    array_free(a->weight, a->shape.cols, dtype);
}

/* A number of the result, the same for every instruction set. */
typedef struct wanted {
    long double value, error;
} wanted;

/* [rows][SHARD_CE_STATS]. The exponentials are float's; a and b are double sums. */
static wanted *stats_wanted(const problem *p, const part *a)
{
    wanted *all = malloc((size_t)(p->rows * SHARD_CE_STATS + 1) * sizeof *all);
    for (int64_t row = 0; row < p->rows; row++) {
        long double max = -INFINITY, sum = 0, qx = 0, q = 0, size = 0, weight = 0, off = 0;
        for (int64_t c = a->shape.col0; c < a->shape.col0 + a->shape.cols; c++)
            max = fmaxl(max, mapped(p, array_get(p->x, row * p->classes + c, p->dtype)));
        for (int64_t c = a->shape.col0; c < a->shape.col0 + a->shape.cols; c++) {
            long double x = mapped(p, array_get(p->x, row * p->classes + c, p->dtype)), s = share(p, row, c);
            sum += expl(x - max);
            qx += s * x;
            q += s;
            size += fabsl(s * x);
            off += expl(x - max) * 2 * (fabsl(max) + fabsl(x));
            if (p->target && p->target[row] == c)
                weight = p->weight ? array_get(p->weight, c, p->dtype) : 1;
        }
        wanted *want = all + row * SHARD_CE_STATS;
        long double u = compute_unit(p->dtype), more = p->map->maps ? 8 * u : 0; /* of mapped logits */
        want[SHARD_CE_MAX] = (wanted){max, fabsl(max) * more};
        want[SHARD_CE_SUM] = (wanted){sum, sum * (p->dtype == SHARD_FLOAT64 ? 128 : 16) * u + off * more};
        want[SHARD_CE_A] = (wanted){qx, size * (1e-13L + more)};
        want[SHARD_CE_B] = (wanted){q, q * 1e-13L};
        want[SHARD_CE_WEIGHT] = (wanted){weight, 0};
    }
    return all;
}

static void check_stats(const problem *p, const part *a)
{
    static const char *const names[] = {
        [SHARD_CE_MAX] = "max", [SHARD_CE_A] = "a", [SHARD_CE_B] = "b", [SHARD_CE_WEIGHT] = "weight"};
    int64_t n = p->rows * SHARD_CE_STATS;
    wanted *want = stats_wanted(p, a);
    double *out = array_new(n, SHARD_FLOAT64);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, cross_entropy_stats, &a->shape, a->x, p->target, a->probability, a->weight, out, NULL, NULL, p->dtype);
        for (int64_t i = 0; i < n; i++)
            check_close(SHARD_FLOAT64, out[i], want[i].value, want[i].error,
                        i % SHARD_CE_STATS == SHARD_CE_SUM ? device->name : names[i % SHARD_CE_STATS], i / SHARD_CE_STATS);
    }
    array_free(out, n, SHARD_FLOAT64);
    free(want);
}

START_TEST(stats)
{
    shard_dtype dtype = float_dtypes[_i];
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < FORMS; form++) {
            problem p = problem_new(dtype, s, form);
            p.map = &maps[(form + s) % MAPS];
            for (int k = 0; k < shapes[s].parts; k++) {
                part a = part_new(&p, shapes[s].bounds[k], shapes[s].bounds[k + 1], s + form + k);
                check_stats(&p, &a);
                part_free(&a, dtype);
            }
            problem_free(&p);
        }
}
END_TEST

/* Row by row: the log-sum-exp over all classes, its rounding error, and the sum of q. */
static void whole_row(const problem *p, int64_t row, double *lse, double *error, double *b)
{
    long double max = -INFINITY, sum = 0, q = 0;
    for (int64_t c = 0; c < p->classes; c++)
        max = fmaxl(max, mapped(p, array_get(p->x, row * p->classes + c, p->dtype)));
    for (int64_t c = 0; c < p->classes; c++) {
        sum += expl(mapped(p, array_get(p->x, row * p->classes + c, p->dtype)) - max);
        q += share(p, row, c);
    }
    *lse = (double)(max + logl(sum));
    *error = (double)(max - *lse + logl(sum));
    *b = (double)q;
}

/* [rows][pitch]; NaN between the rows. */
static wanted *gradient_wanted(const problem *p, const part *a, const shard_loss_rows *rows)
{
    int64_t pitch = pitch_of(a), n = p->rows * pitch;
    wanted *all = malloc((size_t)(n + 1) * sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / pitch, c = a->shape.col0 + i % pitch;
        all[i] = (wanted){NAN, 0};
        if (i % pitch >= a->shape.cols)
            continue;
        long double logit = array_get(p->x, row * p->classes + c, p->dtype), x = mapped(p, logit), q = share(p, row, c);
        long double from_lse = x - rows->lse[row] - rows->lse_error[row], scale = rows->scale[row];
        long double exponential = rows->slope[row] * expl(from_lse), slope = derivative(p, logit);
        long double want = scale * (exponential - q) * slope, u = compute_unit(p->dtype);
        /* The difference x - lse is rounded, which exp turns into as many units as it is large. */
        long double error = fabsl(scale) * slope * ((8 + fabsl(from_lse)) * exponential + 8 * q) * u + 0x1p-120L;
        if (p->map->maps) /* of x in the exponential, and of 1 - t * t */
            error += fabsl(scale) * (slope * exponential * map_error(p, logit) + fabsl(exponential - q) * p->map->scale * 32 * u);
        all[i] = (wanted){want, error};
    }
    return all;
}

/* dx with the derivative at each row's target times factor[row]. */
static float *times_at_targets(const problem *p, const part *a, const double *factor, const float *dx)
{
    int64_t cols = a->shape.cols;
    float *all = array_of(p->rows * cols, SHARD_FLOAT32, dx);
    for (int64_t row = 0; row < p->rows && factor; row++) {
        int64_t label = p->target[row], col0 = a->shape.col0;
        if (label != a->shape.ignore_index && label >= col0 && label < col0 + cols)
            all[row * cols + label - col0] *= (float)factor[row];
    }
    return all;
}

/* The same bits as those of float32, rounded; also where packs of both cannot be written together, and with factors of the
 * targets. */
static void check_narrow(shard_device *device, const problem *p, const part *a, const shard_loss_rows *rows, const void *dx)
{
    static const shard_dtype types[] = {SHARD_BFLOAT16, SHARD_FLOAT16};
    int64_t n = p->rows * a->shape.cols;
    if (p->dtype != SHARD_FLOAT32 || a->probability || (a->shape.pitch && a->shape.pitch != a->shape.cols))
        return;
    for (int i = 0; i < 8; i++) {
        shard_dtype to = types[i % 2];
        const double *factor = i < 4 || !p->target ? NULL : rows->scale;
        void *x = array_of(n, p->dtype, a->x), *rounded = array_new(n, to), *room = array_new(n + 1, to);
        float *want = times_at_targets(p, a, factor, dx);
        char *out = (char *)room + (i % 4 < 2 ? 0 : shard_dtype_size(to));
        RUN(device, cast, n, want, SHARD_FLOAT32, rounded, to);
        RUN(device, cross_entropy_backward_narrow, &a->shape, x, p->target, a->weight, rows, factor, out, to);
        check_same(to, n, out, rounded, "narrow");
        array_free(want, n, SHARD_FLOAT32);
        array_free(x, n, p->dtype);
        array_free(rounded, n, to);
        array_free(room, n + 1, to);
    }
}

static void check_backward(const problem *p, const part *a, const shard_loss_rows *rows)
{
    int64_t n = p->rows * pitch_of(a);
    wanted *want = gradient_wanted(p, a, rows);
    void *dx = array_new(n, p->dtype);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        void *in_place = array_of(n, p->dtype, a->x);
        memset(dx, 0xff, (size_t)n * shard_dtype_size(p->dtype));
        RUN(device, cross_entropy_backward, &a->shape, a->x, p->target, a->probability, a->weight, rows, dx, p->dtype);
        for (int64_t i = 0; i < n; i++)
            check_close(p->dtype, array_get(dx, i, p->dtype), want[i].value, want[i].error, device->name, i);
        RUN(device, cross_entropy_backward, &a->shape, in_place, p->target, a->probability, a->weight, rows, in_place, p->dtype);
        check_same(p->dtype, n, in_place, dx, "in place");
        check_narrow(device, p, a, rows, dx);
        array_free(in_place, n, p->dtype);
    }
    array_free(dx, n, p->dtype);
    free(want);
}

START_TEST(backward)
{
    shard_dtype dtype = float_dtypes[_i];
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < FORMS; form++) {
            problem p = problem_new(dtype, s, form);
            p.map = &maps[(form + s / 2) % MAPS];
            double *lse = array_new(p.rows, SHARD_FLOAT64), *error = array_new(p.rows, SHARD_FLOAT64);
            double *b = array_new(p.rows, SHARD_FLOAT64), *scale = array_noise(p.rows, SHARD_FLOAT64, 5, 0.25, 2);
            const shard_loss_rows rows = {lse, error, b, scale};
            for (int64_t row = 0; row < p.rows; row++)
                whole_row(&p, row, &lse[row], &error[row], &b[row]);
            for (int k = 0; k < shapes[s].parts; k++) {
                part a = part_new(&p, shapes[s].bounds[k], shapes[s].bounds[k + 1], s + form + k);
                check_backward(&p, &a, &rows);
                part_free(&a, dtype);
            }
            array_free(lse, p.rows, SHARD_FLOAT64);
            array_free(error, p.rows, SHARD_FLOAT64);
            array_free(b, p.rows, SHARD_FLOAT64);
            array_free(scale, p.rows, SHARD_FLOAT64);
            problem_free(&p);
        }
}
END_TEST

/* The gradient of an ignored row is 0 even where its logits are not numbers. */
START_TEST(ignores_nan)
{
    enum { COLS = 3 };
    float *x = array_of(2 * COLS, SHARD_FLOAT32, (const float[]){NAN, INFINITY, 1, 1, 2, 3});
    float *dx = array_new(2 * COLS, SHARD_FLOAT32);
    int64_t *target = array_of(2, SHARD_INT64, (const int64_t[]){IGNORE, 1});
    double *lse = array_of(2, SHARD_FLOAT64, (const double[]){NAN, 3.4076059644443804});
    double *b = array_of(2, SHARD_FLOAT64, (const double[]){0, 1}), *scale = array_of(2, SHARD_FLOAT64, (const double[]){1, 1});
    const shard_loss_rows rows = {.lse = lse, .slope = b, .scale = scale};
    shard_cross_entropy_shape shape = {.rows = 2, .cols = COLS, .classes = COLS, .ignore_index = IGNORE};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, cross_entropy_backward, &shape, x, target, NULL, NULL, &rows, dx, SHARD_FLOAT32);
        ck_assert(dx[0] == 0 && dx[1] == 0 && dx[2] == 0);
        ck_assert_double_eq_tol((double)(dx[3] + dx[4] + dx[5]), 0, 1e-6);
    }
}
END_TEST

/* Values of few kinds, so that there are many ties, and some NaNs. */
static void make_ties(problem *p)
{
    for (int64_t i = 0; i < p->rows * p->classes; i++)
        array_put(p->x, i, p->dtype, fabs(noise(6, i)) < 0.05 ? NAN : round(noise(7, i) * 5));
}

START_TEST(counts_ahead)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int s = 0; s < SHAPES; s++) {
        problem p = problem_new(dtype, s, 0);
        make_ties(&p);
        double *logit = array_new(p.rows, SHARD_FLOAT64), *picked = array_new(p.rows, SHARD_FLOAT64);
        int64_t *ahead = array_new(p.rows, SHARD_INT64), *total = array_new(p.rows, SHARD_INT64);
        for (int set = 0; (device = kernel_device(set)); set++) {
            for (int64_t row = 0; row < p.rows; row++) {
                int64_t target = p.target[row];
                logit[row] = is_ignored(&p, row) ? 0 : array_get(p.x, row * p.classes + target, dtype);
                total[row] = 0;
            }
            for (int k = 0; k < shapes[s].parts; k++) {
                part a = part_new(&p, shapes[s].bounds[k], shapes[s].bounds[k + 1], s + k + _i);
                RUN(device, pick_target, &a.shape, a.x, p.target, picked, dtype);
                RUN(device, count_ahead, &a.shape, a.x, p.target, logit, 1000 + k, ahead, dtype);
                for (int64_t row = 0; row < p.rows; row++) {
                    int64_t column = is_ignored(&p, row) ? -1 : p.target[row] - a.shape.col0;
                    bool own = column >= 0 && column < a.shape.cols;
                    check_close(dtype, picked[row], own ? logit[row] : 0, 0, "picked", row);
                    total[row] += ahead[row];
                    if (is_ignored(&p, row))
                        ck_assert_int_eq(ahead[row], 1000 + k);
                }
                part_free(&a, dtype);
            }
            for (int64_t row = 0; row < p.rows; row++) {
                int64_t want = 0, target = p.target[row];
                for (int64_t c = 0; !is_ignored(&p, row) && c < p.classes; c++) {
                    double x = array_get(p.x, row * p.classes + c, dtype), l = logit[row];
                    bool tie = isnan(l) ? isnan(x) : x == l;
                    want += tie ? c < target : isnan(x) || x > l;
                }
                if (!is_ignored(&p, row))
                    ck_assert_int_eq(total[row], want);
            }
        }
        array_free(logit, p.rows, SHARD_FLOAT64);
        array_free(picked, p.rows, SHARD_FLOAT64);
        array_free(ahead, p.rows, SHARD_INT64);
        array_free(total, p.rows, SHARD_INT64);
        problem_free(&p);
    }
}
END_TEST

/* Of the row's columns in the part, but for the target's, those that are larger than the logit. */
static int64_t count_larger(const problem *p, const part *a, int64_t row, double logit)
{
    int64_t larger = 0;
    for (int64_t c = a->shape.col0; c < a->shape.col0 + a->shape.cols && !is_ignored(p, row); c++) {
        double x = array_get(p->x, row * p->classes + c, p->dtype);
        larger += c != p->target[row] && (isnan(x) || x > logit);
    }
    return larger;
}

/* A head's logit of the target comes from another product, whose last bit may differ: the target does not precede itself. */
static void check_other_logit(shard_device *device, const problem *p, const part *a, const double *logit, double *found,
                              int64_t *ahead)
{
    double *lower = array_new(p->rows, SHARD_FLOAT64);
    for (int64_t row = 0; row < p->rows; row++)
        lower[row] =
            p->dtype == SHARD_FLOAT64 ? nextafter(logit[row], -INFINITY) : (double)nextafterf((float)logit[row], -INFINITY);
    RUN(device, cross_entropy_stats, &a->shape, a->x, p->target, NULL, a->weight, found, lower, ahead, p->dtype);
    for (int64_t row = 0; row < p->rows; row++)
        if (!isnan(logit[row]))
            ck_assert_int_eq(ahead[row], count_larger(p, a, row, lower[row]));
    array_free(lower, p->rows, SHARD_FLOAT64);
}

/* The statistics' own count is count_ahead's, and changes nothing of the statistics. */
static void check_counted_with(shard_device *device, const problem *p, const part *a, const double *logit)
{
    int64_t n = p->rows * SHARD_CE_STATS;
    double *plain = array_new(n, SHARD_FLOAT64), *counted = array_new(n, SHARD_FLOAT64);
    int64_t *want = array_new(p->rows, SHARD_INT64), *got = array_new(p->rows, SHARD_INT64);
    RUN(device, count_ahead, &a->shape, a->x, p->target, logit, 0, want, p->dtype);
    RUN(device, cross_entropy_stats, &a->shape, a->x, p->target, NULL, a->weight, plain, NULL, NULL, p->dtype);
    for (int own = 0; own <= (a->shape.cols == p->classes); own++) { /* the part finds the logit itself */
        for (int64_t row = 0; row < p->rows; row++)
            got[row] = -1;
        RUN(device, cross_entropy_stats, &a->shape, a->x, p->target, NULL, a->weight, counted, own ? NULL : logit, got, p->dtype);
        check_same(SHARD_INT64, p->rows, got, want, "ahead");
        check_same(SHARD_FLOAT64, n, counted, plain, "stats");
    }
    check_other_logit(device, p, a, logit, counted, got);
    array_free(plain, n, SHARD_FLOAT64);
    array_free(counted, n, SHARD_FLOAT64);
    array_free(want, p->rows, SHARD_INT64);
    array_free(got, p->rows, SHARD_INT64);
}

START_TEST(counts_ahead_with_stats)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < PROBABILITIES; form++) {
            problem p = problem_new(dtype, s, form);
            make_ties(&p);
            double *logit = array_new(p.rows, SHARD_FLOAT64);
            for (int64_t row = 0; row < p.rows; row++)
                logit[row] = is_ignored(&p, row) ? 0 : array_get(p.x, row * p.classes + p.target[row], dtype);
            for (int set = 0; (device = kernel_device(set)); set++)
                for (int k = 0; k < shapes[s].parts; k++) {
                    part a = part_new(&p, shapes[s].bounds[k], shapes[s].bounds[k + 1], form + k);
                    check_counted_with(device, &p, &a, logit);
                    part_free(&a, dtype);
                }
            array_free(logit, p.rows, SHARD_FLOAT64);
            problem_free(&p);
        }
}
END_TEST

/* The loss of one row over many classes, from one part and from four, in float32. */
START_TEST(split_loss)
{
    enum { CLASSES = 400003 };
    shard_device *device;
    float *x = array_noise(CLASSES, SHARD_FLOAT32, 1, -10, 10);
    int64_t *target = array_of(1, SHARD_INT64, &(int64_t){123456});
    double(*parts)[SHARD_CE_STATS] = array_new(4 * SHARD_CE_STATS, SHARD_FLOAT64);
    for (int set = 0; (device = kernel_device(set)); set++) {
        double loss[2];
        for (int form = 0; form < 2; form++) {
            double max = -INFINITY, sum = 0, a = 0, b = 0;
            int count = form ? 4 : 1;
            for (int k = 0; k < count; k++) {
                int64_t first = (int64_t)CLASSES * k / count, end = (int64_t)CLASSES * (k + 1) / count;
                shard_cross_entropy_shape shape = {
                    .rows = 1, .cols = end - first, .col0 = first, .classes = CLASSES, .ignore_index = IGNORE, .smoothing = 0.1};
                RUN(device, cross_entropy_stats, &shape, x + first, target, NULL, NULL, parts[k], NULL, NULL, SHARD_FLOAT32);
                max = fmax(max, parts[k][SHARD_CE_MAX]);
            }
            for (int k = 0; k < count; k++) {
                sum += parts[k][SHARD_CE_SUM] * exp(parts[k][SHARD_CE_MAX] - max);
                a += parts[k][SHARD_CE_A];
                b += parts[k][SHARD_CE_B];
            }
            loss[form] = b * (max + log(sum)) - a;
        }
        ck_assert_double_eq_tol(loss[0], loss[1], 2e-7);
    }
}
END_TEST

/* ---- the members' parts joined ---- */

enum { JOIN_MEMBERS = 3, GAP = 3 /* doubles between parts */ };

/* Made-up statistics of parts, one of which has no columns. */
static double *make_parts(int64_t rows, bool soft)
{
    int64_t stride = rows * SHARD_CE_STATS + GAP;
    double *parts = array_new(JOIN_MEMBERS * stride, SHARD_FLOAT64);
    for (int64_t i = 0; i < JOIN_MEMBERS * stride; i++)
        parts[i] = NAN; /* in the gaps */
    for (int64_t member = 0; member < JOIN_MEMBERS; member++)
        for (int64_t row = 0; row < rows; row++) {
            double *one = parts + member * stride + row * SHARD_CE_STATS;
            bool none = member == 1;
            one[SHARD_CE_MAX] = none ? -INFINITY : 20 * noise(11, row * JOIN_MEMBERS + member);
            one[SHARD_CE_SUM] = none ? 0 : 1.5 + noise(12, row * JOIN_MEMBERS + member);
            one[SHARD_CE_A] = none ? 0 : noise(13, row * JOIN_MEMBERS + member);
            one[SHARD_CE_B] = none ? 0 : 1 + noise(14, row * JOIN_MEMBERS + member);
            one[SHARD_CE_WEIGHT] = soft || member != row % 3 ? 0 : 0.5 + fabs(noise(15, row));
        }
    return parts;
}

/* of_rows: with row weights and z-loss. */
static void check_join(shard_device *device, int64_t rows, bool mean, const double *parts, const int64_t *target, bool of_rows)
{
    int64_t stride = rows * SHARD_CE_STATS + GAP, count = SHARD_CE_NUMBERS * rows;
    double *numbers = array_new(count, SHARD_FLOAT64), *result = array_new(1, SHARD_FLOAT64);
    int64_t *ahead = array_new(JOIN_MEMBERS * stride, SHARD_INT64), *rank = array_new(rows, SHARD_INT64);
    for (int64_t i = 0; i < JOIN_MEMBERS * stride; i++)
        ahead[i] = i % 1000 + (INT64_C(1) << 40);
    shard_cross_entropy_shape shape = {.rows = rows, .classes = 10, .ignore_index = 4, .z_loss = of_rows ? 0.125 : 0};
    double *row_weight = of_rows ? array_noise(rows, SHARD_FLOAT64, 16, 0, 2) : NULL;
    RUN(device, cross_entropy_join, &shape, mean, JOIN_MEMBERS, stride, parts, ahead, target, row_weight, numbers, result, rank);
    long double sum = 0, size = 0, weights = 0;
    for (int64_t row = 0; row < rows; row++) {
        long double exponentials = 0, a = 0, b = 0, weight = 0, r = row_weight ? row_weight[row] : 1;
        bool ignored = target && (target[row] == 4 || target[row] < 0 || target[row] >= 10);
        for (int64_t member = 0; member < JOIN_MEMBERS; member++) {
            const double *one = parts + member * stride + row * SHARD_CE_STATS;
            exponentials += one[SHARD_CE_SUM] * expl(one[SHARD_CE_MAX]);
            a += one[SHARD_CE_A];
            b += one[SHARD_CE_B];
            weight += target ? one[SHARD_CE_WEIGHT] : 0;
        }
        weights += ignored ? 0 : r * (target ? weight : 1);
        long double lse = logl(exponentials), loss = ignored ? 0 : r * (b * lse - a + shape.z_loss * lse * lse);
        check_close(SHARD_FLOAT64, numbers[SHARD_CE_LSE * rows + row], lse, 1e-14L, "lse", row);
        check_close(SHARD_FLOAT64, numbers[SHARD_CE_LSE_ERROR * rows + row], 0, 4e-15L, "error of lse", row);
        check_close(SHARD_FLOAT64, numbers[SHARD_CE_SLOPE * rows + row], b + 2 * shape.z_loss * lse, 1e-14L, "slope", row);
        check_close(SHARD_FLOAT64, numbers[SHARD_CE_LOSS * rows + row], loss, of_rows ? 1e-12L : 1e-13L, "loss", row);
        ck_assert_int_eq(rank[row], ignored ? INT64_MAX : ahead[row] + ahead[stride + row] + ahead[2 * stride + row]);
        sum += loss;
        size += fabsl(loss) + 1;
    }
    for (int64_t row = 0; row < rows; row++) {
        bool ignored = target && (target[row] == 4 || target[row] < 0 || target[row] >= 10);
        long double factor = ignored ? 0 : (row_weight ? row_weight[row] : 1) / (mean ? weights : 1);
        check_close(SHARD_FLOAT64, numbers[SHARD_CE_FACTOR * rows + row], factor, factor * 1e-13L, "factor", row);
    }
    check_close(SHARD_FLOAT64, *result, mean ? sum / weights : sum, size * 1e-14L / (mean && rows ? weights : 1), "result", 0);
    array_free(numbers, count, SHARD_FLOAT64);
    array_free(result, 1, SHARD_FLOAT64);
    array_free(ahead, JOIN_MEMBERS * stride, SHARD_INT64);
    array_free(rank, rows, SHARD_INT64);
    array_free(row_weight, rows, SHARD_FLOAT64);
}

START_TEST(joins)
{
    static const int64_t sizes[] = {0, 1, 5, 300, 9001, 70001};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < 6; s++)
            for (int form = 0; form < (sizes[s] > 10000 ? 4 : 8); form++) {
                bool soft = form & 1, mean = form & 2, of_rows = form & 4;
                int64_t rows = sizes[s], *target = array_new(rows, SHARD_INT64);
                double *parts = make_parts(rows, soft);
                for (int64_t i = 0; i < rows; i++)
                    target[i] = i % 6 == 5 ? (int64_t[]){4, -1, 10, INT64_MIN}[i / 6 % 4] : i % 3;
                check_join(device, rows, mean, parts, soft ? NULL : target, of_rows);
                array_free(target, rows, SHARD_INT64);
                array_free(parts, JOIN_MEMBERS * (rows * SHARD_CE_STATS + GAP), SHARD_FLOAT64);
            }
}
END_TEST

/* Logits that are no numbers, and rows that are all ignored. */
START_TEST(joins_extremes)
{
    const double rows[4][SHARD_CE_STATS] = {
        {0, NAN, 0, 1, 1}, {NAN, 2, 0, 1, 1}, {-INFINITY, 0, -INFINITY, 1, 1}, {INFINITY, NAN, 0, 0, 0}};
    double *parts = array_of(20, SHARD_FLOAT64, rows), *numbers = array_new(4 * SHARD_CE_NUMBERS, SHARD_FLOAT64);
    double *result = array_new(1, SHARD_FLOAT64);
    int64_t *target = array_of(4, SHARD_INT64, (const int64_t[]){0, 0, 0, 4});
    shard_cross_entropy_shape shape = {.rows = 4, .classes = 10, .ignore_index = 4};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, cross_entropy_join, &shape, false, 1, 20, parts, NULL, target, NULL, numbers, result, NULL);
        for (int row = 0; row < 3; row++)
            ck_assert(isnan(numbers[SHARD_CE_LOSS * 4 + row]));
        ck_assert(numbers[SHARD_CE_LSE * 4 + 2] == -INFINITY);
        ck_assert(numbers[SHARD_CE_LOSS * 4 + 3] == 0 && isnan(*result));
        shape.rows = 1;
        RUN(device, cross_entropy_join, &shape, true, 1, 5, parts + 15, NULL, target + 3, NULL, numbers, result, NULL);
        ck_assert(numbers[SHARD_CE_FACTOR] == 0 && numbers[SHARD_CE_LOSS] == 0 && isnan(*result));
        RUN(device, cross_entropy_join, &shape, false, 1, 5, parts + 15, NULL, target + 3, NULL, numbers, result, NULL);
        ck_assert(*result == 0);
        shape.rows = 4;
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_cross_entropy");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, stats, 0, 4);
    tcase_add_loop_test(all, backward, 0, 4);
    tcase_add_test(all, ignores_nan);
    tcase_add_loop_test(all, counts_ahead, 0, 4);
    tcase_add_loop_test(all, counts_ahead_with_stats, 0, 4);
    tcase_add_test(all, split_loss);
    tcase_add_test(all, joins);
    tcase_add_test(all, joins_extremes);
    return test_run(suite);
}
