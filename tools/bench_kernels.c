/*
 * bench_kernels [float32 | bfloat16 | float16]: GB/s of the CPU's memory-bound kernels, and the ratio to plain loops
 * of the same run that read, write, copy or update in the same way. Bytes are those that a kernel must read or
 * write, each once; times are the best of some repetitions in turn. SHARD_CPU_ISA selects another instruction set,
 * OMP_NUM_THREADS the threads.
 */
#include "clock.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MILLION = 1 << 20,
    N = 24 * MILLION, /* elements of an array, larger than any cache */
    CHANNELS = 64,
    LONG = 1024,
    BLOCK = 4096,
    REPETITIONS = 9,
};

/* Four arrays of N elements, and the other arguments of a call. */
static struct {
    shard_device *device;
    const shard_device_ops *ops;
    shard_dtype dtype;
    size_t size;
    void *a, *b, *c, *d;
    float *gamma, *beta;
    double *mean, *rstd, *sums, *stats;
    int64_t *index;
    int32_t *argmax;
} m;

static const shard_cross_entropy_shape loss = {.rows = N / MILLION, .cols = MILLION, .classes = MILLION, .ignore_index = -100};
static const shard_cross_entropy_shape smooth = {
    .rows = N / MILLION, .cols = MILLION, .classes = MILLION, .ignore_index = -100, .smoothing = 0.1};
static const shard_pool_shape pool = {.n = N / (112 * 112 * CHANNELS),
                                      .h = 112,
                                      .w = 112,
                                      .c = CHANNELS,
                                      .kh = 3,
                                      .kw = 3,
                                      .oh = 56,
                                      .ow = 56,
                                      .stride_h = 2,
                                      .stride_w = 2,
                                      .pad_h = 1,
                                      .pad_w = 1};
static const shard_pool_shape whole_pool = {
    .n = N / (7 * 7 * 512), .h = 7, .w = 7, .c = 512, .kh = 7, .kw = 7, .oh = 1, .ow = 1, .stride_h = 1, .stride_w = 1};
static const shard_expansion alike = {.ndim = 1, .size = {N}, .step = {{1}, {1}}};
static const shard_expansion by_row = {.ndim = 2, .size = {N / CHANNELS, CHANNELS}, .step = {{CHANNELS, 1}, {0, 1}}};
static const shard_expansion by_column = {.ndim = 2, .size = {N / CHANNELS, CHANNELS}, .step = {{CHANNELS, 1}, {1, 0}}};
static const shard_region region = {1, N, 0, 0, N};
static const shard_draw draw = {1, 2};
static const shard_sgd_arguments sgd = {.momentum = 0.9};
static const shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decoupled = true};

/* ---- plain loops ---- */

static void plain_read(void)
{
    uint64_t total = 0;
    const uint64_t *x = m.a;
    int64_t words = (int64_t)N * (int64_t)m.size / 8;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t block = 0; block < words; block += BLOCK) {
        uint64_t sum[16] = {0};
        for (int64_t i = block; i < block + BLOCK; i += 16)
            for (int k = 0; k < 16; k++)
                sum[k] += x[i + k];
        for (int k = 0; k < 16; k++)
            total += sum[k];
    }
    m.stats[0] = (double)total;
}

static void plain_write(void)
{
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < 64; part++)
        memset((char *)m.b + part * (N / 64) * (int64_t)m.size, 0, N / 64 * m.size);
}

static void plain_copy(void)
{
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < 64; part++) {
        int64_t start = part * (N / 64) * (int64_t)m.size;
        memcpy((char *)m.b + start, (const char *)m.a + start, N / 64 * m.size);
    }
}

static void plain_update(void)
{
    uint64_t *x = m.b;
    int64_t words = (int64_t)N * (int64_t)m.size / 8;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < words; i++)
        x[i] ^= 1;
}

/* ---- the kernels ---- */

#define CALL(entry, ...) m.ops->entry(m.device, __VA_ARGS__)
#define BENCH(name, call)                                                                                                        \
    static void name(void)                                                                                                       \
    {                                                                                                                            \
        call;                                                                                                                    \
    }

BENCH(fill, CALL(fill, N, 1, m.b, m.dtype))
BENCH(cast, CALL(cast, N, m.a, m.dtype, m.b, m.dtype == SHARD_FLOAT32 ? SHARD_BFLOAT16 : SHARD_FLOAT32))
BENCH(axpby, CALL(axpby, N, 0.5, m.a, 0.5, m.b, m.dtype))
BENCH(relu, CALL(unary, SHARD_RELU, NULL, N, m.a, m.b, m.dtype))
BENCH(relu_backward, CALL(unary_backward, SHARD_RELU, NULL, N, m.a, m.c, m.b, m.dtype))
BENCH(gelu, CALL(unary, SHARD_GELU, NULL, N, m.a, m.b, m.dtype))
BENCH(gelu_backward, CALL(unary_backward, SHARD_GELU, NULL, N, m.a, m.c, m.b, m.dtype))
BENCH(add, CALL(binary, SHARD_ADD, &alike, m.a, m.c, m.b, m.dtype))
BENCH(mul, CALL(binary, SHARD_MUL, &alike, m.a, m.c, m.b, m.dtype))
BENCH(divide, CALL(binary, SHARD_DIV, &alike, m.a, m.c, m.b, m.dtype))
BENCH(add_column, CALL(binary, SHARD_ADD, &by_column, m.b, m.c, m.b, m.dtype))
BENCH(less, CALL(compare, SHARD_LT, &alike, m.a, m.c, m.b, m.dtype))
BENCH(add_bias, CALL(binary, SHARD_ADD, &by_row, m.b, m.c, m.b, m.dtype))
BENCH(sum_rows, CALL(sum_rows, N / CHANNELS, CHANNELS, 0, m.a, m.dtype, false, m.d, m.dtype))
BENCH(sum_rows_wide, CALL(sum_rows, N / MILLION, MILLION, 0, m.a, m.dtype, false, m.d, m.dtype))
BENCH(permute, CALL(permute, 3, (int64_t[]){N / (CHANNELS * LONG), CHANNELS, LONG}, (int[]){0, 2, 1}, m.a, m.b, m.dtype))
BENCH(uniform, CALL(random_uniform, &region, draw, 0, 1, m.b, m.dtype))
BENCH(normal, CALL(random_normal, &region, draw, 0, 1, m.b, m.dtype))
BENCH(dropout, CALL(dropout, &region, draw, 0.5, m.a, m.b, m.dtype))
BENCH(max_pool, CALL(max_pool, &pool, m.a, m.b, m.argmax, m.dtype))
BENCH(max_pool_backward, CALL(max_pool_backward, &pool, m.a, m.argmax, m.b, m.dtype))
BENCH(avg_pool, CALL(avg_pool, &whole_pool, m.a, m.d, m.dtype))
BENCH(avg_pool_backward, CALL(avg_pool_backward, &whole_pool, m.a, m.b, m.dtype))
BENCH(layer_norm, CALL(layer_norm, N / LONG, LONG, m.a, m.gamma, m.beta, 1e-5, m.b, m.mean, m.rstd, m.dtype))
BENCH(layer_norm_backward,
      CALL(layer_norm_backward, N / LONG, LONG, m.a, m.gamma, m.mean, m.rstd, m.c, m.b, m.sums, m.stats, m.dtype))
BENCH(batch_norm_sums, CALL(batch_norm_sums, N / CHANNELS, CHANNELS, m.a, m.mean, m.sums, m.dtype))
BENCH(batch_norm, CALL(batch_norm, N / CHANNELS, CHANNELS, m.a, m.mean, m.rstd, m.gamma, m.beta, NULL, true, m.b, m.dtype))
BENCH(batch_norm_residual,
      CALL(batch_norm, N / CHANNELS, CHANNELS, m.a, m.mean, m.rstd, m.gamma, m.beta, m.c, true, m.b, m.dtype))
BENCH(batch_norm_backward_sums,
      CALL(batch_norm_backward_sums, N / CHANNELS, CHANNELS, m.a, m.b, m.c, m.mean, m.rstd, m.sums, NULL, NULL, m.dtype))
BENCH(batch_norm_backward, CALL(batch_norm_backward, N / CHANNELS, CHANNELS, m.a, m.b, m.c, m.mean, m.rstd, m.gamma, m.sums,
                                N / CHANNELS, m.c, NULL, m.dtype))
BENCH(softmax, CALL(softmax, false, N / LONG, LONG, m.a, m.b, m.dtype))
BENCH(softmax_backward, CALL(softmax_backward, false, N / LONG, LONG, m.a, m.c, m.b, m.dtype))
BENCH(cross_entropy_stats, CALL(cross_entropy_stats, &loss, m.a, m.index, NULL, NULL, m.stats, NULL, NULL, m.dtype))
BENCH(cross_entropy_stats_smooth, CALL(cross_entropy_stats, &smooth, m.a, m.index, NULL, NULL, m.stats, NULL, NULL, m.dtype))
BENCH(cross_entropy_backward, CALL(cross_entropy_backward, &loss, m.b, m.index, NULL, NULL,
                                   &((shard_loss_rows){.lse = m.mean, .slope = m.rstd, .scale = m.rstd}), m.b, m.dtype))
BENCH(count_ahead, CALL(count_ahead, &loss, m.a, m.index, m.mean, 0, m.index + LONG, m.dtype))
BENCH(embedding, CALL(embedding, N / LONG, LONG, 0, N / LONG, m.index, m.a, m.b, m.dtype))
BENCH(embedding_backward, CALL(embedding_backward, N / LONG, LONG, 0, N / LONG, m.index, m.a, false, false, m.b, m.dtype))
#define STEPPED                                                                                                                  \
    &(shard_update)                                                                                                              \
    {                                                                                                                            \
        .size = N, .lr = 1e-6, .weight_decay = 1e-4, .step = 2, .gradient = m.a, .value = m.c, .state = { m.b, m.d }             \
    }
BENCH(sgd_step, CALL(sgd, 1, STEPPED, &sgd, shard_update_types_of(m.dtype)))
BENCH(adamw_step, CALL(adam, 1, STEPPED, &adam, shard_update_types_of(m.dtype)))
/* A 16-bit value, by a gradient of its type. */
static shard_update_types rounded_at_random(void)
{
    shard_update_types types = shard_update_types_of(m.dtype);
    types.stochastic = true;
    return types;
}
BENCH(sgd_stochastic, CALL(sgd, 1, STEPPED, &(shard_sgd_arguments){0}, rounded_at_random()))
BENCH(sgd_plain, CALL(sgd, 1, STEPPED, &(shard_sgd_arguments){0}, shard_update_types_of(m.dtype)))
BENCH(power_sum, CALL(power_sum, N, 2, m.a, m.sums, m.dtype))

enum { READ, WRITE, COPY, UPDATE, PLAIN };

/* arrays: how many times N elements are read or written; like: the plain loop to compare with; others: bytes an element of
 * another type. */
static const struct {
    const char *name;
    void (*run)(void);
    double arrays;
    int like;
    double others;
} benches[] = {
    {"plain read", plain_read, 1, READ},
    {"plain write", plain_write, 1, WRITE},
    {"plain copy", plain_copy, 2, COPY},
    {"plain update", plain_update, 2, UPDATE},
    {"fill", fill, 1, WRITE},
    {"cast", cast, 1, COPY},
    {"axpby", axpby, 3, UPDATE},
    {"relu", relu, 2, COPY},
    {"relu_backward", relu_backward, 3, COPY},
    {"gelu", gelu, 2, COPY},
    {"gelu_backward", gelu_backward, 3, COPY},
    {"add", add, 3, COPY},
    {"mul", mul, 3, COPY},
    {"div", divide, 3, COPY},
    {"add [*, 1] to [*, 64] in place", add_column, 2, UPDATE},
    {"lt", less, 2, READ, 1},
    {"add bias [*, 64] in place", add_bias, 2, UPDATE},
    {"sum_rows [*, 64]", sum_rows, 1, READ},
    {"sum_rows [*, million]", sum_rows_wide, 1, READ},
    {"permute [*, 64, 1024] 0 2 1", permute, 2, COPY},
    {"random_uniform", uniform, 1, WRITE},
    {"random_normal", normal, 1, WRITE},
    {"dropout", dropout, 2, COPY},
    {"max_pool 3x3 of 112x112x64", max_pool, 1.25, COPY, 1},
    {"max_pool_backward", max_pool_backward, 1.25, COPY, 1},
    {"avg_pool 7x7 of 7x7x512", avg_pool, 1, READ},
    {"avg_pool_backward", avg_pool_backward, 1, WRITE},
    {"layer_norm [*, 1024]", layer_norm, 2, COPY},
    {"layer_norm_backward", layer_norm_backward, 3, COPY},
    {"batch_norm_sums [*, 64]", batch_norm_sums, 1, READ},
    {"batch_norm relu", batch_norm, 2, COPY},
    {"batch_norm residual relu", batch_norm_residual, 3, COPY},
    {"batch_norm_backward_sums", batch_norm_backward_sums, 3, READ},
    {"batch_norm_backward in place", batch_norm_backward, 4, UPDATE},
    {"softmax [*, 1024]", softmax, 2, COPY},
    {"softmax_backward", softmax_backward, 3, COPY},
    {"cross_entropy_stats [24, million]", cross_entropy_stats, 1, READ},
    {"cross_entropy_stats smooth", cross_entropy_stats_smooth, 1, READ},
    {"cross_entropy_backward in place", cross_entropy_backward, 2, UPDATE},
    {"count_ahead", count_ahead, 1, READ},
    {"embedding [*, 1024]", embedding, 2, COPY},
    {"embedding_backward", embedding_backward, 2, COPY},
    {"sgd momentum", sgd_step, 5, UPDATE},
    {"sgd", sgd_plain, 3, UPDATE},
    {"sgd, rounded at random", sgd_stochastic, 3, UPDATE},
    {"adamw", adamw_step, 7, UPDATE},
    {"power_sum of squares", power_sum, 1, READ},
};
enum { BENCHES = sizeof benches / sizeof *benches };

static void *allocate(size_t bytes)
{
    void *memory = m.ops->allocate(m.device, bytes);
    if (!memory) {
        fprintf(stderr, "%s\n", shard_last_error());
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void set_up(shard_dtype dtype)
{
    m.device = shard_cpu();
    if (!m.device) {
        fprintf(stderr, "%s\n", shard_last_error());
        exit(1);
    }
    m.ops = m.device->ops;
    m.dtype = dtype;
    m.size = shard_dtype_size(dtype);
    m.a = allocate(N * m.size);
    m.b = allocate(N * sizeof(float)); /* of casts too */
    m.c = allocate(N * m.size);
    m.d = allocate(N * m.size);
    m.gamma = allocate(LONG * sizeof *m.gamma);
    m.beta = allocate(LONG * sizeof *m.beta);
    m.mean = allocate(N / LONG * sizeof *m.mean);
    m.rstd = allocate(N / LONG * sizeof *m.rstd);
    m.sums = allocate(2 * LONG * sizeof *m.sums);
    m.stats = allocate(2 * LONG * sizeof *m.stats);
    m.index = allocate(N / LONG * sizeof *m.index);
    m.argmax = allocate(N / 4 * sizeof *m.argmax);
    m.ops->random_normal(m.device, &region, draw, 0, 1, m.a, dtype);
    m.ops->random_normal(m.device, &region, draw, 0, 1, m.c, dtype);
    for (int64_t i = 0; i < N / LONG; i++)
        m.index[i] = i * 7919 % (N / LONG);
    for (int64_t i = 0; i < LONG; i++)
        m.gamma[i] = 1;
    for (int64_t i = 0; i < N / LONG; i++)
        m.rstd[i] = 1;
}

static double bytes_of(int i)
{
    double others = benches[i].run == cast ? 6 - (double)m.size /* from or to 2 bytes, or 4 */ : benches[i].others;
    return (double)N * (benches[i].arrays * (double)m.size + others);
}

int main(int argc, char **argv)
{
    shard_dtype dtype = SHARD_FLOAT32;
    for (int i = 0; argc > 1 && i < SHARD_DTYPES; i++)
        if (strcmp(argv[1], shard_dtype_name((shard_dtype)i)) == 0)
            dtype = (shard_dtype)i;
    if (argc > 2 || (argc > 1 && strcmp(argv[1], shard_dtype_name(dtype)) != 0) || !shard_dtype_is_float(dtype) ||
        dtype == SHARD_FLOAT64) {
        fprintf(stderr, "usage: bench_kernels [float32 | bfloat16 | float16]\n");
        return 2;
    }
    set_up(dtype);
    double seconds[BENCHES];
    for (int repetition = 0; repetition < REPETITIONS; repetition++)
        for (int i = 0; i < BENCHES; i++) {
            double start = now();
            benches[i].run();
            double took = now() - start;
            seconds[i] = repetition == 0 || took < seconds[i] ? took : seconds[i];
        }
    printf("%-36s %9s %8s %6s\n", shard_dtype_name(dtype), "ms", "GB/s", "%");
    for (int i = 0; i < BENCHES; i++) {
        int like = benches[i].like;
        double rate = bytes_of(i) / seconds[i], plain = bytes_of(like) / seconds[like];
        printf("%-36s %9.2f %8.1f %6.0f\n", benches[i].name, seconds[i] * 1e3, rate * 1e-9, rate / plain * 100);
    }
    return 0;
}
