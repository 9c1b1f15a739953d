/* Attention, forward and backward, against long double loops. */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>
#include <string.h>

/* Batch, heads, key heads, queries, keys, in, out, offset, scale, causal. */
static const shard_attention_shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 1, false},       {2, 3, 3, 5, 7, 4, 6, 0, 0.5, false},
    {2, 4, 2, 5, 7, 4, 6, 0, 0.5, true},      {1, 2, 1, 70, 70, 16, 16, 0, 0.25, true},
    {1, 1, 1, 66, 130, 9, 5, 0, 0.3, false},  {1, 1, 1, 3, 101, 16, 20, 98, 0.25, true},
    {1, 1, 1, 100, 33, 8, 8, 0, -0.4, true},  {1, 6, 2, 65, 97, 17, 33, 20, 0.25, true},
    {1, 1, 1, 9, 9, 130, 140, 0, 0.1, true},  {3, 2, 2, 4, 5, 0, 3, 0, 1, false},
    {1, 2, 2, 4, 0, 3, 2, 0, 1, true},        {2, 2, 1, 0, 5, 3, 2, 0, 1, false},
    {0, 2, 2, 4, 5, 3, 2, 0, 1, false},       {1, 2, 2, 4, 5, 3, 0, 0, 1, false},
    {2, 2, 2, 64, 64, 8, 16, 0, 0.5, false},  {2, 4, 2, 70, 100, 8, 24, 0, 0.25, true},
    {1, 3, 1, 65, 97, 16, 8, 32, -0.5, true}, {1, 1, 1, 97, 30, 32, 8, 0, 0.2, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { QUERY, KEY, VALUE, DY, Y, OPERANDS };

typedef struct problem {
    const shard_attention_shape *s;
    shard_dtype dtype;
    int64_t size[OPERANDS];
    void *array[OPERANDS];
    long double *score, *softmax; /* [batch, heads, queries, keys] */
    long double *y, *lse;
    long double *rounding; /* of y, where the softmax is rounded to the type before it is multiplied */
} problem;

static int64_t queries_of(const shard_attention_shape *s)
{
    return s->batch * s->heads * s->queries;
}

/* Element k of row `row` of an operand. */
static long double at(const problem *p, int operand, int64_t row, int64_t k)
{
    int64_t cols = operand == QUERY || operand == KEY ? p->s->in : p->s->out;
    return array_get(p->array[operand], row * cols + k, p->dtype);
}

/* The row of key j for a query's row. */
static int64_t key_row(const shard_attention_shape *s, int64_t row, int64_t j)
{
    return row / s->queries / (s->heads / s->key_heads) * s->keys + j;
}

static int64_t seen(const shard_attention_shape *s, int64_t row)
{
    int64_t last = row % s->queries + s->offset;
    return s->causal && last < s->keys ? last + 1 : s->keys;
}

static void solve(problem *p)
{
    const shard_attention_shape *s = p->s;
    for (int64_t row = 0; row < queries_of(s); row++) {
        long double max = -INFINITY, sum = 0, *softmax = p->softmax + row * s->keys;
        for (int64_t j = 0; j < seen(s, row); j++) {
            long double score = 0;
            for (int64_t k = 0; k < s->in; k++)
                score += at(p, QUERY, row, k) * at(p, KEY, key_row(s, row, j), k);
            softmax[j] = score * (long double)s->scale;
            max = fmaxl(max, softmax[j]);
        }
        for (int64_t j = 0; j < seen(s, row); j++)
            sum += softmax[j] = expl(softmax[j] - max);
        p->lse[row] = s->keys ? max + logl(sum) : -INFINITY;
        for (int64_t j = 0; j < seen(s, row); j++)
            softmax[j] /= sum;
        for (int64_t k = 0; k < s->out; k++)
            for (int64_t j = 0; j < seen(s, row); j++) {
                long double term = softmax[j] * at(p, VALUE, key_row(s, row, j), k);
                p->y[row * s->out + k] += term;
                p->rounding[row * s->out + k] += fabsl(term) * (long double)unit(p->dtype);
            }
    }
}

static problem make(const shard_attention_shape *s, shard_dtype dtype)
{
    int64_t rows = queries_of(s), keys = s->batch * s->key_heads * s->keys;
    problem p = {.s = s, .dtype = dtype, .size = {rows * s->in, keys * s->in, keys * s->out, rows * s->out, rows * s->out}};
    for (int i = 0; i < Y; i++)
        p.array[i] = array_noise(p.size[i], dtype, 1 + (uint64_t)i, i == QUERY ? -2 : -1, i == KEY ? 2 : 1);
    p.array[Y] = array_new(p.size[Y], dtype);
    p.softmax = calloc((size_t)(rows * s->keys) + 1, sizeof *p.softmax);
    p.y = calloc((size_t)p.size[Y] + 1, sizeof *p.y);
    p.rounding = calloc((size_t)p.size[Y] + 1, sizeof *p.rounding);
    p.lse = calloc((size_t)rows + 1, sizeof *p.lse);
    solve(&p);
    return p;
}

static void free_problem(problem *p)
{
    for (int i = 0; i < OPERANDS; i++)
        array_free(p->array[i], p->size[i], p->dtype);
    free(p->softmax);
    free(p->y);
    free(p->rounding);
    free(p->lse);
}

/* Whether cuDNN computes it, which rounds weights and slopes to 16-bit types before it multiplies them. */
static bool rounds(const shard_device *device, const shard_attention_shape *s, shard_dtype dtype)
{
    return !device->ops->host_memory && shard_dtype_size(dtype) == 2 && s->queries >= 64 && s->in % 8 == 0 && s->out % 8 == 0;
}

START_TEST(forward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int i = 0; i < SHAPES; i++) {
            problem p = make(&shapes[i], dtype);
            double *lse = array_new(queries_of(p.s), SHARD_FLOAT64);
            RUN(device, attention, p.s, p.array[QUERY], p.array[KEY], p.array[VALUE], p.array[Y], lse, dtype);
            long double error = (16 + 2 * sqrtl(p.s->keys) + 4 * p.s->in) * (long double)compute_unit(dtype);
            for (int64_t row = 0; row < queries_of(p.s); row++)
                check_close(SHARD_FLOAT64, lse[row], p.lse[row], error, device->name, row);
            for (int64_t k = 0; k < p.size[Y]; k++)
                check_close(dtype, array_get(p.array[Y], k, dtype), p.y[k],
                            error + (rounds(device, p.s, dtype) ? p.rounding[k] : 0), device->name, k);
            array_free(lse, queries_of(p.s), SHARD_FLOAT64);
            free_problem(&p);
        }
}
END_TEST

/* The gradients by the formulas, of the softmax as the forward should have it, and their errors where each y, of which the
 * backward takes a row's term, is rounded to the type, and weights and slopes of relative errors `rounding`. */
static void gradients_of(const problem *p, long double rounding, long double *const *gradient, long double *const *error)
{
    const shard_attention_shape *s = p->s;
    for (int64_t row = 0; row < queries_of(s); row++) {
        const long double *softmax = p->softmax + row * s->keys;
        long double term = 0, off = 0;
        for (int64_t k = 0; k < s->out; k++) {
            term += p->y[row * s->out + k] * at(p, DY, row, k);
            off += fabsl(p->y[row * s->out + k] * at(p, DY, row, k)) * (long double)unit(p->dtype);
        }
        for (int64_t j = 0; j < seen(s, row); j++) {
            int64_t other = key_row(s, row, j);
            long double slope = 0;
            for (int64_t k = 0; k < s->out; k++) {
                slope += at(p, VALUE, other, k) * at(p, DY, row, k);
                gradient[VALUE][other * s->out + k] += softmax[j] * at(p, DY, row, k);
                error[VALUE][other * s->out + k] +=
                    2 * rounding * softmax[j] * fabsl(at(p, DY, row, k)); /* also of a head's sum */
            }
            slope = softmax[j] * (slope - term) * (long double)s->scale;
            long double slope_error = softmax[j] * off * fabsl((long double)s->scale) + rounding * fabsl(slope);
            for (int64_t k = 0; k < s->in; k++) {
                gradient[QUERY][row * s->in + k] += slope * at(p, KEY, other, k);
                gradient[KEY][other * s->in + k] += slope * at(p, QUERY, row, k);
                error[QUERY][row * s->in + k] += slope_error * fabsl(at(p, KEY, other, k));
                error[KEY][other * s->in + k] += (slope_error + rounding * fabsl(slope)) * fabsl(at(p, QUERY, row, k));
            }
        }
    }
}

/* wanted: a mask of the gradients. */
static void check_backward(shard_device *device, const problem *p, const double *lse, long double *const *want,
                           long double *const *error, int wanted)
{
    const shard_attention_shape *s = p->s;
    void *gradient[3];
    for (int i = 0; i < 3; i++)
        gradient[i] = wanted & 1 << i ? array_noise(p->size[i], p->dtype, 9, 5, 6) : NULL;
    RUN(device, attention_backward, s, p->array[QUERY], p->array[KEY], p->array[VALUE], p->array[Y], lse, p->array[DY],
        gradient[QUERY], gradient[KEY], gradient[VALUE], p->dtype);
    long double terms = s->queries * shard_attention_group(s) + s->in + s->out;
    long double of_sums = (64 + 8 * terms) * compute_unit(p->dtype);
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; k < p->size[i] && gradient[i]; k++)
            check_close(p->dtype, array_get(gradient[i], k, p->dtype), want[i][k], error[i][k] + of_sums, device->name, k);
        if (gradient[i])
            array_free(gradient[i], p->size[i], p->dtype);
    }
}

START_TEST(backward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int i = 0; i < SHAPES; i++) {
            problem p = make(&shapes[i], dtype);
            long double *want[3], *error[3];
            for (int g = 0; g < 3; g++) {
                want[g] = calloc((size_t)p.size[g] + 1, sizeof **want);
                error[g] = calloc((size_t)p.size[g] + 1, sizeof **error);
            }
            gradients_of(&p, rounds(device, p.s, dtype) ? (long double)unit(dtype) : 0, want, error);
            double *lse = array_new(queries_of(p.s), SHARD_FLOAT64);
            RUN(device, attention, p.s, p.array[QUERY], p.array[KEY], p.array[VALUE], p.array[Y], lse, dtype);
            check_backward(device, &p, lse, want, error, 7);
            for (int g = 0; g < 3 && i == 7; g++)
                check_backward(device, &p, lse, want, error, 1 << g);
            for (int g = 0; g < 3; g++) {
                free(want[g]);
                free(error[g]);
            }
            array_free(lse, queries_of(p.s), SHARD_FLOAT64);
            free_problem(&p);
        }
}
END_TEST

/* Scores far from 0, and far from one another: nothing overflows, and a key that is far ahead comes last. */
START_TEST(large_scores)
{
    enum { KEYS = 200 };
    const shard_attention_shape s = {1, 1, 1, 2, KEYS, 1, 1, 0, 1, false};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float query[2] = {1, -1}, key[KEYS], value[KEYS];
        for (int i = 0; i < KEYS; i++) {
            key[i] = (float)(i * 5 - 700);
            value[i] = (float)i;
        }
        float *y = array_new(2, SHARD_FLOAT32);
        double *lse = array_new(2, SHARD_FLOAT64);
        RUN(device, attention, &s, array_of(2, SHARD_FLOAT32, query), array_of(KEYS, SHARD_FLOAT32, key),
            array_of(KEYS, SHARD_FLOAT32, value), y, lse, SHARD_FLOAT32);
        double ratio = exp(-5), log_sum = -log(1 - ratio);
        check_close(SHARD_FLOAT64, lse[0], 295 + log_sum, 1e-4L, device->name, 0);
        check_close(SHARD_FLOAT64, lse[1], 700 + log_sum, 1e-4L, device->name, 1);
        check_close(SHARD_FLOAT32, (double)y[0], 199 - ratio / (1 - ratio), 1e-3L, device->name, 0);
        check_close(SHARD_FLOAT32, (double)y[1], ratio / (1 - ratio), 1e-3L, device->name, 1);
    }
}
END_TEST

/* Scores that are not finite: NaN for the query alone, as softmax has it. */
START_TEST(not_finite)
{
    const shard_attention_shape s = {1, 1, 1, 3, 3, 1, 1, 0, 1, false};
    const float query[3] = {1, NAN, -INFINITY}, key[3] = {1, 2, 3}, value[3] = {4, 5, 6};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float *y = array_new(3, SHARD_FLOAT32);
        RUN(device, attention, &s, array_of(3, SHARD_FLOAT32, query), array_of(3, SHARD_FLOAT32, key),
            array_of(3, SHARD_FLOAT32, value), y, array_new(3, SHARD_FLOAT64), SHARD_FLOAT32);
        ck_assert(isfinite(y[0]));
        ck_assert(isnan(y[1]) && isnan(y[2]));
    }
}
END_TEST

/* The same bits in each run and, on the CPU, with any number of threads. */
START_TEST(repeats)
{
    const shard_attention_shape s = {1, 4, 2, 300, 200, 24, 16, 0, 0.2, true};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        int64_t rows = queries_of(&s), keys = s.batch * s.key_heads * s.keys;
        const int64_t size[] = {rows * s.out, rows * s.in, keys * s.in, keys * s.out};
        void *query = array_noise(size[1], SHARD_FLOAT32, 1, -1, 1), *key = array_noise(size[2], SHARD_FLOAT32, 2, -1, 1);
        void *value = array_noise(size[3], SHARD_FLOAT32, 3, -1, 1), *dy = array_noise(size[0], SHARD_FLOAT32, 4, -1, 1),
             *first[4];
        int threads = shard_cpu_threads();
        for (int run = 0; run < 3; run++) {
            void *got[4];
            double *lse = array_new(rows, SHARD_FLOAT64);
            for (int i = 0; i < 4; i++)
                got[i] = array_new(size[i], SHARD_FLOAT32);
            shard_cpu_set_threads(run == 0 ? 1 : run == 1 ? 4 : 3);
            RUN(device, attention, &s, query, key, value, got[0], lse, SHARD_FLOAT32);
            RUN(device, attention_backward, &s, query, key, value, got[0], lse, dy, got[1], got[2], got[3], SHARD_FLOAT32);
            for (int i = 0; i < 4 && run > 0; i++)
                check_same(SHARD_FLOAT32, size[i], got[i], first[i], device->name);
            if (run == 0)
                memcpy(first, got, sizeof got);
        }
        shard_cpu_set_threads(threads);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_attention");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, 4);
    tcase_add_loop_test(all, backward, 0, 4);
    tcase_add_test(all, large_scores);
    tcase_add_test(all, not_finite);
    tcase_add_test(all, repeats);
    return test_run(suite);
}
