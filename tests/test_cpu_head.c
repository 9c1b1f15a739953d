/* The CPU's sweeps of a classifier, by each tiler that this machine runs, against loops in double: any number of rows, odd
 * sizes, tiles with and without a place in the stash, one to three threads. */
#include "support/check.h"
#include "support/kernels.h"
#include "support/loss.h"
#include "support/threads.h"

#include "base/dtype.h"
#include "base/math.h"
#include "device/cpu/cpu_head_products.h"
#include "device/cpu/kernels/pick.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HAS_BIAS = 1, WEIGHTED = 2, SMOOTHED = 4, STASHED = 8, TAKEN = 16, FORMS = 32, MOST_ROWS = 33 };
enum { X, WEIGHT, BIAS, CLASS_WEIGHT, SCALE, LSE, SLOPE, OLD, OLD_BIAS };

typedef struct problem {
    shard_head h;
    shard_dtype products;
    int form;
    double *x, *weight, *bias, *class_weight; /* the operands of the products, as numbers */
    double *z, *max;                          /* [rows, cols], [rows] */
    double *scale, *lse, *slope;
    int64_t *target;
} problem;

static shard_device *device;

static double *numbers_of(const void *array, int64_t n, shard_dtype dtype, shard_dtype rounded)
{
    double *numbers = calloc((size_t)n + 1, sizeof *numbers);
    for (int64_t i = 0; i < n; i++)
        numbers[i] = round_to(rounded, array_get(array, i, dtype));
    return numbers;
}

static void compute_logits(problem *p)
{
    const shard_head *h = &p->h;
    p->z = calloc((size_t)(h->loss.rows * h->loss.cols), sizeof *p->z);
    p->max = calloc((size_t)h->loss.rows, sizeof *p->max);
    for (int64_t i = 0; i < h->loss.rows; i++) {
        p->max[i] = -INFINITY;
        for (int64_t c = 0; c < h->loss.cols; c++) {
            double z = p->bias[c];
            for (int64_t k = 0; k < h->in; k++)
                z += p->x[i * h->in + k] * p->weight[c * h->in + k];
            p->z[i * h->loss.cols + c] = z;
            p->max[i] = z > p->max[i] ? z : p->max[i];
        }
    }
}

static problem problem_make(int64_t rows, int64_t in, int64_t cols, shard_dtype dtype, shard_dtype weight_dtype, int form)
{
    problem p = {.form = form, .target = calloc((size_t)rows, sizeof(int64_t))};
    p.h = (shard_head){.loss = {.rows = rows,
                                .cols = cols,
                                .col0 = 3,
                                .classes = cols + 5,
                                .ignore_index = -100,
                                .smoothing = form & SMOOTHED ? 0.1 : 0},
                       .in = in,
                       .dtype = dtype,
                       .weight_dtype = weight_dtype};
    p.products = shard_cpu_head_products_dtype(shard_cpu_head_tiler(dtype));
    p.h.x = array_noise(rows * in, dtype, X, -1, 1);
    p.h.weight = array_noise(cols * in, weight_dtype, WEIGHT, -1, 1);
    const void *bias = array_noise(cols, weight_dtype, BIAS, -2, 2),
               *class_weight = array_noise(cols, SHARD_FLOAT32, CLASS_WEIGHT, 0.5, 2);
    p.h.bias = form & HAS_BIAS ? bias : NULL;
    p.h.class_weight = form & WEIGHTED ? class_weight : NULL;
    for (int64_t i = 0; i < rows; i++) /* some of other ranks, some that are ignored */
        p.target[i] = i % 5 == 3 ? -100 : i * 31 % (cols + 5);
    p.h.target = p.target;
    p.x = numbers_of(p.h.x, rows * in, dtype, dtype);
    p.weight = numbers_of(p.h.weight, cols * in, weight_dtype, dtype); /* of one type, or rounded to that of x */
    p.bias = numbers_of(bias, cols, weight_dtype, weight_dtype);
    p.class_weight = numbers_of(class_weight, cols, SHARD_FLOAT32, SHARD_FLOAT32);
    for (int64_t c = 0; c < cols; c++) {
        p.bias[c] = p.h.bias ? p.bias[c] : 0;
        p.class_weight[c] = p.h.class_weight ? p.class_weight[c] : 1;
    }
    p.scale = array_noise(rows, SHARD_FLOAT64, SCALE, 0.5, 1.5);
    p.slope = array_noise(rows, SHARD_FLOAT64, SLOPE, 0.8, 1.2);
    p.lse = array_noise(rows, SHARD_FLOAT64, LSE, 0, 1);
    compute_logits(&p);
    for (int64_t i = 0; i < rows; i++)
        p.lse[i] += p.max[i] + log((double)cols);
    return p;
}

static void problem_free(problem *p)
{
    const shard_head *h = &p->h;
    double *numbers[] = {p->x, p->weight, p->bias, p->class_weight, p->z, p->max};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        free(numbers[i]);
    free(p->target);
    array_free((void *)h->x, h->loss.rows * h->in, h->dtype);
    array_free((void *)h->weight, h->loss.cols * h->in, h->weight_dtype);
    array_free(p->scale, h->loss.rows, SHARD_FLOAT64);
    array_free(p->slope, h->loss.rows, SHARD_FLOAT64);
    array_free(p->lse, h->loss.rows, SHARD_FLOAT64);
}

static void close_to(const problem *p, const char *what, int64_t index, double found, double expected, double error)
{
    ck_assert_msg(
        fabs(found - expected) <= error,
        "%s[%lld] is %.9g, not %.9g within %g: %lld rows, %lld features, %lld classes, %s and %s, products of %s, form %d", what,
        (long long)index, found, expected, error, (long long)p->h.loss.rows, (long long)p->h.in, (long long)p->h.loss.cols,
        shard_dtype_name(p->h.dtype), shard_dtype_name(p->h.weight_dtype), shard_dtype_name(p->products), p->form);
}

static double rounding(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? 0x1p-8 : 0;
}

/* The relative error of an exponential of logits that are sums of at most 200 products. */
static const double relative = 0x1p-15;

static void check_forward(const problem *p, const double *stats, const float *sum)
{
    const shard_head *h = &p->h;
    for (int64_t i = 0; i < h->loss.rows; i++) {
        const double *found = stats + i * SHARD_CE_STATS;
        double exponentials = 0, a = 0, b = 0, weight = 0;
        int64_t label = p->target[i] - h->loss.col0;
        for (int64_t c = 0; c < h->loss.cols; c++) {
            double q = h->loss.smoothing / (double)h->loss.classes + (c == label ? 1 - h->loss.smoothing : 0);
            exponentials += exp(p->z[i * h->loss.cols + c] - p->max[i]);
            if (p->target[i] == -100)
                continue;
            a += q * p->class_weight[c] * p->z[i * h->loss.cols + c];
            b += q * p->class_weight[c];
            weight += c == label ? p->class_weight[c] : 0;
        }
        close_to(p, "maximum", i, found[SHARD_CE_MAX], p->max[i], 1e-4);
        close_to(p, "lse", i, found[SHARD_CE_MAX] + log(found[SHARD_CE_SUM]), p->max[i] + log(exponentials), relative);
        close_to(p, "a", i, found[SHARD_CE_A], a, 1e-4);
        close_to(p, "b", i, found[SHARD_CE_B], b, 1e-6);
        close_to(p, "weight", i, found[SHARD_CE_WEIGHT], weight, 1e-6);
        for (int64_t k = 0; k < h->in; k++) {
            double expected = 0, size = 0;
            for (int64_t c = 0; c < h->loss.cols; c++) {
                double summand = exp(p->z[i * h->loss.cols + c] - p->max[i]) * p->weight[c * h->in + k];
                expected += summand;
                size += fabs(summand);
            }
            double factor = exp(found[SHARD_CE_MAX] - p->max[i]);
            close_to(p, "sum", i * h->in + k, factor * (double)sum[i * h->in + k], expected,
                     (relative * 4 + rounding(p->products)) * size);
        }
    }
}

/* The gradient of a logit, and in *error that of its rounding. */
static double gradient_of(const problem *p, int64_t row, int64_t c, double *error)
{
    const shard_head *h = &p->h;
    if (p->target[row] == -100)
        return *error = 0;
    double probability = p->scale[row] * p->slope[row] * exp(p->z[row * h->loss.cols + c] - p->lse[row]);
    double spread = h->loss.smoothing / (double)h->loss.classes,
           target = c == p->target[row] - h->loss.col0 ? 1 - h->loss.smoothing : 0;
    double gradient = probability - p->scale[row] * (spread + target) * p->class_weight[c];
    double stashed = p->form & STASHED ? 0x1p-12 : 0; /* of logits up to 32 apart */
    *error =
        (relative * 4 + stashed) * fabs(probability) + (1e-6 + rounding(p->products)) * (fabs(gradient) + stashed * probability);
    return gradient;
}

static void check_gradient(const problem *p, const void *found, const void *bias, const void *old, const void *old_bias)
{
    const shard_head *h = &p->h;
    double *expected = calloc((size_t)h->in, sizeof *expected), *error = calloc((size_t)h->in, sizeof *error);
    for (int64_t c = 0; c < h->loss.cols; c++) {
        double sum = old_bias ? array_get(old_bias, c, h->weight_dtype) : 0, sum_error = 1e-6 * fabs(sum);
        for (int64_t k = 0; k < h->in; k++) {
            expected[k] = old ? array_get(old, c * h->in + k, h->weight_dtype) : 0;
            error[k] = 1e-6 * fabs(expected[k]);
        }
        for (int64_t i = 0; i < h->loss.rows; i++) {
            double of_logit, dz = gradient_of(p, i, c, &of_logit);
            sum += dz;
            sum_error += of_logit + 1e-7 * fabs(dz);
            for (int64_t k = 0; k < h->in; k++) {
                expected[k] += dz * p->x[i * h->in + k];
                error[k] += (of_logit + 1e-6 * fabs(dz)) * fabs(p->x[i * h->in + k]);
            }
        }
        double unit = rounding(h->weight_dtype) * 1.01;
        close_to(p, "bias", c, array_get(bias, c, h->weight_dtype), sum, sum_error * (1 + unit) + unit * fabs(sum) + 1e-9);
        for (int64_t k = 0; k < h->in; k++)
            close_to(p, "gradient", c * h->in + k, array_get(found, c * h->in + k, h->weight_dtype), expected[k],
                     error[k] * (1 + unit) + unit * fabs(expected[k]) + 1e-9);
    }
    free(expected);
    free(error);
}

/* Rows of a gradient that are taken are put where the whole gradient would be. */
typedef struct taken {
    const problem *p;
    char *memory;
} taken;

static shard_status take(void *context, shard_device *of, int64_t first, int64_t count, void *gradient)
{
    const taken *t = context;
    shard_dtype dtype = t->p->h.weight_dtype, wide = shard_head_wide(t->p->h.dtype);
    int64_t numbers = count * t->p->h.in;
    void *to = t->memory + (size_t)(first * t->p->h.in) * shard_dtype_size(dtype);
    ck_assert_int_eq(of->ops->cast(of, numbers, gradient, wide, to, dtype), SHARD_OK);
    memset(gradient, 0xff, (size_t)numbers * shard_dtype_size(wide)); /* what is taken may be written to */
    return SHARD_OK;
}

/* The sum of the weight's rows, which are not rounded to the products' type. */
static void check_spread(const problem *p)
{
    const shard_head *h = &p->h;
    double *weight = h->spread ? numbers_of(h->weight, h->loss.cols * h->in, h->weight_dtype, h->weight_dtype) : NULL;
    for (int64_t k = 0; k < h->in && h->spread; k++) {
        double sum = 0;
        for (int64_t c = 0; c < h->loss.cols; c++)
            sum += p->class_weight[c] * weight[c * h->in + k];
        close_to(p, "spread", k, (double)((float *)h->spread)[k], sum, 1e-6 * (double)(h->loss.cols + 1));
    }
    free(weight);
}

static void check_problem(problem *p)
{
    shard_head *h = &p->h;
    int64_t rows = h->loss.rows, numbers = h->loss.cols * h->in;
    double *stats = array_new(rows * SHARD_CE_STATS, SHARD_FLOAT64);
    float *sum = array_new(rows * h->in, SHARD_FLOAT32);
    size_t most = rows % 2 ? (size_t)1 << 30 : (size_t)(rows * h->loss.cols); /* all tiles, or some of them */
    h->stash_bytes = p->form & STASHED ? device->head->stash_bytes(h, most) : 0;
    h->spread = shard_head_spreads(h) ? array_new(h->in, SHARD_FLOAT32) : NULL;
    h->stash = h->stash_bytes ? array_new((int64_t)h->stash_bytes, SHARD_UINT8) : NULL;
    ck_assert(device->head->fits(h));
    ck_assert_int_eq(device->head->forward(device, h, stats, sum), SHARD_OK);
    check_forward(p, stats, sum);
    check_spread(p);
    bool accumulate = !(p->form & TAKEN) && rows % 3 == 0;
    void *old = array_noise(numbers, h->weight_dtype, OLD, -1, 1),
         *old_bias = array_noise(h->loss.cols, h->weight_dtype, OLD_BIAS, -1, 1);
    void *gradient = array_noise(numbers, h->weight_dtype, OLD, -1, 1),
         *bias = array_noise(h->loss.cols, h->weight_dtype, OLD_BIAS, -1, 1);
    const shard_loss_rows numbers_of_rows = {.lse = p->lse, .slope = p->slope, .scale = p->scale};
    taken context = {p, gradient};
    shard_head_gradient to = {.weight = gradient, .bias = bias, .accumulate = accumulate, .accumulate_bias = accumulate};
    if (p->form & TAKEN)
        to = (shard_head_gradient){.take = take, .context = &context, .bias = bias};
    ck_assert_int_eq(device->head->weight_gradient(device, h, &numbers_of_rows, &to), SHARD_OK);
    check_gradient(p, gradient, bias, accumulate ? old : NULL, accumulate ? old_bias : NULL);
    array_free(stats, rows * SHARD_CE_STATS, SHARD_FLOAT64);
    array_free(sum, rows * h->in, SHARD_FLOAT32);
    array_free(h->spread, h->in, SHARD_FLOAT32);
    array_free(h->stash, (int64_t)h->stash_bytes, SHARD_UINT8);
    array_free(old, numbers, h->weight_dtype);
    array_free(gradient, numbers, h->weight_dtype);
    array_free(old_bias, h->loss.cols, h->weight_dtype);
    array_free(bias, h->loss.cols, h->weight_dtype);
}

/* The loops of the instruction sets that this machine runs, in turn; one in a process, which picks them once. */
static void choose_set(int turn)
{
    const char *set;
    bool runs;
    const shard_device_ops *ops = shard_cpu_kernel_set(turn % 3, &set, &runs);
    if (ops && runs)
        setenv("SHARD_CPU_ISA", set, 1);
    device = shard_cpu();
    ck_assert_ptr_nonnull(device);
    ck_assert(!ops || !runs || shard_cpu_kernels() == ops);
}

static void check_rows(int64_t rows, int turn)
{
    static const int64_t features[] = {1, 3, 16, 31, 33, 64, 130}, classes[] = {1, 2, 5, 49, 100, 257}, tiles[] = {0, 3, 24, 50};
    static const shard_dtype dtypes[][2] = {
        {SHARD_FLOAT32, SHARD_FLOAT32}, {SHARD_BFLOAT16, SHARD_BFLOAT16}, {SHARD_BFLOAT16, SHARD_FLOAT32}};
    choose_set(turn);
    for (int form = 0; form < FORMS; form += 3)
        for (int d = 0; d < 3; d++)
            for (shard_cpu_head_choice = 0; shard_cpu_head_tiler(dtypes[d][0]); shard_cpu_head_choice++) {
                int at = form + 3 * turn;
                set_threads(1 + at % 3);
                shard_head_tile = tiles[at / 5 % 4];
                problem p = problem_make(rows, features[at % 7], classes[(at / 2 + turn) % 6], dtypes[d][0], dtypes[d][1], form);
                check_problem(&p);
                problem_free(&p);
            }
    shard_cpu_head_choice = 0;
    shard_head_tile = 0;
}

/* The loop's number is that of rows, less one, each with an instruction set in turn; and at last one row, which has products of
 * its own, with the other two. */
START_TEST(equals_double)
{
    int other = _i - MOST_ROWS;
    check_rows(other < 0 ? _i + 1 : 1, other < 0 ? _i : other + 1);
}
END_TEST

/* Tilers of float32 are for every dtype; the one of pairs is for bfloat16 alone, once, and first where it is the fastest. */
START_TEST(tilers_in_order)
{
    bool faster;
    const shard_cpu_tiler *pairs = shard_cpu_tiler_of_pairs(&faster);
    int wide = 0, found = 0;
    for (shard_cpu_head_choice = 0; shard_cpu_head_tiler(SHARD_BFLOAT16); shard_cpu_head_choice++) {
        const shard_cpu_tiler *tiler = shard_cpu_head_tiler(SHARD_BFLOAT16);
        ck_assert_int_eq(tiler->pack, tiler == pairs ? 2 : 1);
        if (tiler == pairs) {
            found++;
            ck_assert(faster ? wide == 0 : !shard_cpu_tiler_at(wide));
        } else {
            ck_assert_ptr_eq(tiler, shard_cpu_tiler_at(wide));
            wide++;
        }
    }
    ck_assert_int_eq(found, pairs != NULL);
    ck_assert_ptr_null(shard_cpu_tiler_at(wide));
    shard_cpu_head_choice = 0;
    ck_assert_ptr_eq(shard_cpu_head_tiler(SHARD_FLOAT32), shard_cpu_tiler_at(0));
    ck_assert_ptr_eq(shard_cpu_head_tiler(SHARD_FLOAT16), shard_cpu_tiler_at(0));
}
END_TEST

/* Codes of logits, as the losses make them and of a small range: each column's highest and lowest ones, those that are above
 * `most` or more than the span below the highest, infinities and NaN, and logits that are nearly the same. Columns end inside a
 * vector of 16, and behind a block of them. */
START_TEST(codes_are_near)
{
    enum { COUNT = 50, PITCH = 72, KINDS = 12 };
    static const float mosts[] = {5, FLT_MAX, 32, 17}, spans[] = {32, 32, INFINITY, 64};
    const float most = mosts[_i / 3], span = spans[_i / 3];
    static float z[COUNT * PITCH], found[COUNT * PITCH], highest[PITCH], step[PITCH];
    static uint16_t code[COUNT * PITCH];
    const shard_cpu_head_codes codes = {code, highest, step};
    choose_set(_i % 3);
    const shard_cpu_head_kernels *kernels = shard_cpu_head_kernels_picked();
    float *noise = array_noise(COUNT * PITCH, SHARD_FLOAT32, X, -1, 1);
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t j = 0; j < PITCH; j++) {
            float x = noise[i * PITCH + j];
            const float of_kind[KINDS] = {x,
                                          10 * x,
                                          i % 3 ? 40 * x - 40 : -INFINITY,
                                          i % 7 ? 0.25F : NAN,
                                          i % 5 ? -3 : INFINITY,
                                          INFINITY,
                                          i % 2 ? 7 : -1e30F,
                                          i % 2 ? 1e-36F : 0,
                                          1e6F * x,
                                          i % 9 ? x : INFINITY,
                                          i == 30 ? 1 : NAN,
                                          -INFINITY};
            z[i * PITCH + j] = of_kind[j % KINDS];
        }
    kernels->encode(COUNT, PITCH, z, &codes, most, span);
    kernels->decode(COUNT, PITCH, &codes, found);
    for (int64_t j = 0; j < PITCH; j++) {
        float high = -INFINITY, low = INFINITY;
        for (int64_t i = 0; i < COUNT; i++) {
            float x = z[i * PITCH + j];
            high = x > high ? x : high;
            low = x < low && x > -INFINITY ? x : low;
        }
        high = fminf(high, most);
        low = fmaxf(low, high - span);
        float top = high > -INFINITY ? high : 0;
        double bound =
            high > low ? (double)(high - low) / 131000 + 2e-7 * fmax(fabs((double)high), fabs((double)low)) + 0x1p-100 : 0;
        for (int64_t i = 0; i < COUNT; i++) {
            float x = z[i * PITCH + j], got = found[i * PITCH + j];
            if (isnan(x))
                ck_assert_float_nan(got);
            else if (x == -INFINITY || x < low)
                ck_assert_float_eq(got, -INFINITY);
            else if (x > FLT_MAX && most == FLT_MAX)
                ck_assert_float_ge(got, FLT_MAX);
            else
                ck_assert_msg(is_within((double)got, (double)fminf(x, most), x >= top ? 0 : bound), "column %d: %.9g is %.9g",
                              (int)j, (double)x, (double)got);
        }
    }
    array_free(noise, COUNT * PITCH, SHARD_FLOAT32);
}
END_TEST

enum { PARTS = 3, LINES = 1000 };

static char ahead_of_all[PARTS * LINES * SHARD_CPU_CACHE_LINE];
static bool is_fetched[PARTS * LINES];

/* In place of a product: notes what it fetches. */
static void note_fetches(const shard_cpu_tile *t, int64_t rows, int vectors)
{
    const char *at = t->fetch;
    int64_t times = shard_divide_up(rows, SHARD_CPU_TILE_ROWS) * shard_divide_up(t->depth, SHARD_CPU_TILE_FETCH);
    (void)vectors;
    for (int64_t i = 0; i < times * t->fetch_lines && at < t->fetch_end; i++, at += SHARD_CPU_CACHE_LINE) {
        int64_t line = (at - ahead_of_all) / SHARD_CPU_CACHE_LINE;
        ck_assert(line >= 0 && line < PARTS * LINES && !is_fetched[line]);
        is_fetched[line] = true;
    }
}

static shard_cpu_head_ahead ahead_of(int parts, int64_t fetches)
{
    shard_cpu_head_ahead ahead = {.fetches = fetches};
    memset(is_fetched, 0, sizeof is_fetched);
    for (int i = 0; i < parts; i++)
        shard_cpu_head_fetch(&ahead, ahead_of_all + i * LINES * SHARD_CPU_CACHE_LINE, LINES * SHARD_CPU_CACHE_LINE - (i == 1));
    return ahead;
}

static void check_all_fetched(const shard_cpu_head_sweep *s, const char *what, int parts)
{
    for (int i = 0; i < parts * LINES; i++)
        ck_assert_msg(is_fetched[i], "%s of %lld rows, %lld features, vectors of %d: line %d is not fetched", what,
                      (long long)s->h->loss.rows, (long long)s->h->in, s->tiler->width, i);
}

/* Products fetch the memory ahead, each line once. Those of a gradient have several arrays, and may be fewer than these. */
START_TEST(fetches_what_is_ahead)
{
    enum { CLASSES = 48, MOST_IN = 512 };
    static const int64_t rows_of[] = {2, 13, 32, 128}, features_of[] = {64, 128, MOST_IN};
    static float numbers[CLASSES * MOST_IN], panel[CLASSES * SHARD_CPU_TILE_MOST_COLS]; /* nothing is computed */
    for (int choice = 0; shard_cpu_tiler_at(choice); choice++)
        for (int f = 0; f < 3; f++) {
            shard_cpu_tiler tiler = *shard_cpu_tiler_at(choice);
            tiler.multiply = note_fetches;
            const shard_head h = {.loss = {.rows = rows_of[_i], .cols = CLASSES}, .in = features_of[f]};
            shard_cpu_head_sweep s = {
                .h = &h, .tiler = &tiler, .in_pitch = h.in, .in_place = true, .by_row = numbers, .by_feature = numbers};
            s.pitch = shard_round_up(h.loss.rows, tiler.width);
            shard_cpu_head_tile t = {.count = CLASSES, .pitch = h.in, .weight = numbers};
            t.ahead = ahead_of(1, shard_cpu_head_fetches_of_tile(&s, CLASSES, true));
            shard_cpu_head_add_logits(&s, &t, numbers);
            shard_cpu_head_add_weighted(&s, &t, numbers, panel, numbers);
            check_all_fetched(&s, "a tile", 1);
            shard_cpu_head_ahead ahead = ahead_of(PARTS, shard_cpu_head_fetches_of_gradient(&s, CLASSES));
            shard_cpu_head_multiply_gradient(&s, CLASSES, numbers, numbers, &ahead);
            check_all_fetched(&s, "a gradient", PARTS);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_head");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, equals_double, 0, MOST_ROWS + 2);
    tcase_add_loop_test(all, codes_are_near, 0, 12);
    tcase_add_test(all, tilers_in_order);
    tcase_add_loop_test(all, fetches_what_is_ahead, 0, 4);
    return test_run_on_cpu(suite);
}
