/* matmul and linear against plain loops in double. */
#include "support/sample.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_primitive.h"
#include "device/cpu/cpu_tile.h"
#include "support/check.h"
#include "support/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sums and the sums of absolute values; c holds what is added to, if accumulate. No ld is 0. */
static void reference(const shard_matmul_shape *s, const double *a, const double *b, double *c, double *magnitude)
{
    for (int64_t i = 0; i < s->batch * s->m * s->n; i++) {
        int64_t batch = i / (s->m * s->n), row = i / s->n % s->m, col = i % s->n;
        int64_t at = batch * s->stride_c + row * s->ld_c + col;
        double sum = s->accumulate ? c[at] : 0.0;
        magnitude[at] = fabs(sum);
        for (int64_t k = 0; k < s->k; k++) {
            double x = a[batch * s->stride_a + (s->transpose_a ? k * s->ld_a + row : row * s->ld_a + k)];
            double y = b[batch * s->stride_b + (s->transpose_b ? col * s->ld_b + k : k * s->ld_b + col)];
            sum += x * y;
            magnitude[at] += fabs(x * y);
        }
        c[at] = sum;
    }
}

/* From the first element of a matrix to its last. */
static int64_t extent(int64_t rows, int64_t cols, int64_t ld)
{
    return rows && cols ? (rows - 1) * ld + cols : 0;
}

/* The shape with what its ld of 0 stand for. */
static shard_matmul_shape resolved(const shard_matmul_shape *given)
{
    shard_matmul_shape s = *given;
    s.ld_a = shard_pitch(s.ld_a, s.transpose_a ? s.m : s.k);
    s.ld_b = shard_pitch(s.ld_b, s.transpose_b ? s.k : s.n);
    s.ld_c = shard_pitch(s.ld_c, s.n);
    return s;
}

/* cuBLAS may round a product to 16 bits before it is added to c, and rounds the sum again. To the magnitudes, of which an error
 * is this part: that of the other rounding. added: c before, NULL for a bias of these columns. */
static void allow_two_roundings(const shard_matmul_shape *s, shard_dtype to, int64_t size, const double *expected,
                                const double *added, const double *bias, double *magnitude)
{
    if (!s->accumulate || shard_dtype_size(to) != 2 || products_are_exact())
        return;
    double part = compute_unit(to) * (4 + sqrt((double)s->k));
    for (int64_t i = 0; i < size; i++) {
        double before = added ? added[i] : i % s->ld_c < s->n ? bias[i % s->ld_c] : 0;
        magnitude[i] += unit(to) * fabs(expected[i] - before) / part;
    }
}

/* What is between the rows of c is to be left as it is. */
static void compare(const shard_matmul_shape *given, shard_dtype dtype)
{
    shard_matmul_shape all = resolved(given);
    const shard_matmul_shape *s = &all;
    int64_t last = s->batch > 0 ? s->batch - 1 : 0, size_c = last * s->stride_c + extent(s->m, s->n, s->ld_c);
    sample a = sample_random(last * s->stride_a + (s->transpose_a ? extent(s->k, s->m, s->ld_a) : extent(s->m, s->k, s->ld_a)),
                             dtype, 1);
    sample b = sample_random(last * s->stride_b + (s->transpose_b ? extent(s->n, s->k, s->ld_b) : extent(s->k, s->n, s->ld_b)),
                             dtype, 2);
    shard_dtype to = s->wide_c ? SHARD_FLOAT32 : dtype;
    sample c = s->accumulate ? sample_random(size_c, to, 3) : sample_unset(size_c, to);
    sample_read(&c);
    double *expected = calloc((size_t)size_c + 1, sizeof *expected), *magnitude = calloc((size_t)size_c + 1, sizeof *magnitude);
    memcpy(expected, c.value, (size_t)size_c * sizeof *expected);
    reference(s, a.value, b.value, expected, magnitude);
    allow_two_roundings(s, to, size_c, expected, c.value, NULL, magnitude);
    char what[160];
    snprintf(what, sizeof what, "batch %d, %d x %d x %d, strides %d %d %d%s%s%s%s", (int)s->batch, (int)s->m, (int)s->n,
             (int)s->k, (int)s->stride_a, (int)s->stride_b, (int)s->stride_c, s->transpose_a ? ", transpose a" : "",
             s->transpose_b ? ", transpose b" : "", s->accumulate ? ", accumulate" : "", s->wide_c ? ", wide" : "");
    RUN(tested_device(), matmul, given, a.data, b.data, c.data, dtype);
    if (s->batch > 0)
        sample_check(&c, expected, magnitude, s->k, what);
    free(expected);
    free(magnitude);
    sample_free(&a);
    sample_free(&b);
    sample_free(&c);
}

/* Both transposes of both, with and without accumulation, some of 16 bits into float32. */
static void compare_all(int64_t batch, int64_t m, int64_t n, int64_t k, shard_dtype dtype)
{
    for (int flags = 0; flags < 8; flags++) {
        shard_matmul_shape s = {.batch = batch,
                                .m = m,
                                .n = n,
                                .k = k,
                                .transpose_a = flags & 1,
                                .transpose_b = flags & 2,
                                .accumulate = flags & 4,
                                .wide_c = shard_dtype_size(dtype) == 2 && (m + flags) % 3 == 0,
                                .stride_a = m * k,
                                .stride_b = k * n,
                                .stride_c = m * n};
        compare(&s, dtype);
    }
}

START_TEST(single_products)
{
    static const int64_t sizes[][3] = {{1, 1, 1},      {1, 7, 5},     {5, 1, 9},     {3, 4, 1},     {17, 31, 13},
                                       {64, 64, 64},   {33, 129, 65}, {100, 3, 200}, {4, 1000, 37}, {2, 3, 1001},
                                       {130, 70, 300}, {64, 777, 48}, {300, 16, 9}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        compare_all(1, sizes[i][0], sizes[i][1], sizes[i][2], float_dtypes[_i]);
}
END_TEST

START_TEST(batches)
{
    compare_all(3, 5, 7, 4, float_dtypes[_i]);
    compare_all(4, 1, 1, 1, float_dtypes[_i]);
    compare_all(6, 33, 17, 20, float_dtypes[_i]);
    compare_all(2, 70, 64, 130, float_dtypes[_i]);
}
END_TEST

/* One matrix for the whole batch, and matrices with room between them. */
START_TEST(strides)
{
    for (int flags = 0; flags < (shard_dtype_size(float_dtypes[_i]) == 2 ? 16 : 8); flags++) {
        shard_matmul_shape s = {.batch = 4,
                                .m = 6,
                                .n = 9,
                                .k = 11,
                                .transpose_a = flags & 1,
                                .transpose_b = flags & 2,
                                .accumulate = flags & 4,
                                .wide_c = flags & 8,
                                .stride_a = 0,
                                .stride_b = 99,
                                .stride_c = 54};
        compare(&s, float_dtypes[_i]);
        s.stride_a = 66;
        s.stride_b = 0;
        compare(&s, float_dtypes[_i]);
        s.stride_a = 0;
        compare(&s, float_dtypes[_i]);
        s.stride_a = 70;
        s.stride_b = 120;
        compare(&s, float_dtypes[_i]);
    }
}
END_TEST

START_TEST(empty_sizes)
{
    for (int64_t batch = 1; batch < 4; batch += 2) {
        compare_all(batch, 0, 3, 4, float_dtypes[_i]);
        compare_all(batch, 3, 0, 4, float_dtypes[_i]);
        compare_all(batch, 3, 4, 0, float_dtypes[_i]);
        compare_all(batch, 0, 0, 0, float_dtypes[_i]);
    }
    compare_all(0, 3, 4, 5, float_dtypes[_i]);
}
END_TEST

/* What lies between two results of a batch is not touched. */
START_TEST(keeps_the_gaps)
{
    shard_matmul_shape s = {.batch = 3, .m = 4, .n = 5, .k = 6, .stride_a = 24, .stride_b = 30, .stride_c = 27};
    for (int k = 6; k >= 0; k -= 6) {
        s.k = k;
        sample a = sample_random(72, float_dtypes[_i], 1), b = sample_random(90, float_dtypes[_i], 2),
               c = sample_unset(81, float_dtypes[_i]);
        RUN(tested_device(), matmul, &s, a.data, b.data, c.data, float_dtypes[_i]);
        sample_read(&c);
        for (int i = 0; i < 81; i++)
            ck_assert_msg(isnan(c.value[i]) == (i % 27 >= 20), "element %d is %g", i, c.value[i]);
        sample_free(&a);
        sample_free(&b);
        sample_free(&c);
    }
}
END_TEST

/* Rows that are not dense, of some matrices or all. */
static void compare_pitches(int64_t batch, int64_t m, int64_t n, int64_t k, shard_dtype dtype)
{
    static const int64_t pads[][3] = {{3, 0, 0}, {0, 5, 0}, {0, 0, 1}, {8, 13, 24}};
    for (int flags = 0; flags < 32; flags++) {
        const int64_t *pad = pads[flags / 8];
        shard_matmul_shape s = {.batch = batch,
                                .m = m,
                                .n = n,
                                .k = k,
                                .transpose_a = flags & 1,
                                .transpose_b = flags & 2,
                                .accumulate = flags & 4,
                                .wide_c = shard_dtype_size(dtype) == 2 && (m + flags) % 3 == 0};
        s.ld_a = (s.transpose_a ? m : k) + pad[0];
        s.ld_b = (s.transpose_b ? k : n) + pad[1];
        s.ld_c = n + pad[2];
        s.stride_a = (s.transpose_a ? k : m) * s.ld_a;
        s.stride_b = (s.transpose_b ? n : k) * s.ld_b;
        s.stride_c = m * s.ld_c;
        compare(&s, dtype);
    }
}

START_TEST(pitches)
{
    static const int64_t sizes[][4] = {{1, 1, 1, 1},      {1, 5, 7, 3},      {1, 33, 129, 65},  {3, 5, 7, 4}, {1, 3, 4, 0},
                                       {1, 20, 4999, 33}, {1, 4099, 40, 13}, {1, 130, 61, 300}, {2, 1, 9, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i][1] * sizes[i][2] < 50000 || float_dtypes[_i] == SHARD_FLOAT32) /* long ones have a way of their own */
            compare_pitches(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], float_dtypes[_i]);
}
END_TEST

START_TEST(pitches_of_blocks)
{
    shard_cpu_wide_elements = 500;
    compare_pitches(2, 70, 61, 43, float_dtypes[_i]);
}
END_TEST

START_TEST(large_products)
{
    compare_all(1, 3, 20000, 60, float_dtypes[_i]);
    compare_all(1, 2, 3, 300000, float_dtypes[_i]);
}
END_TEST

static void compare_linear_apart(int64_t rows, int64_t in, int64_t out, bool with_bias, int64_t pad_x, int64_t pad_y,
                                 shard_dtype dtype)
{
    shard_matmul_shape s = {.batch = 1, .m = rows, .n = out, .k = in, .transpose_b = true, .accumulate = with_bias};
    s.ld_a = in + pad_x;
    s.ld_b = in;
    s.ld_c = out + pad_y;
    int64_t count = extent(rows, out, s.ld_c);
    sample x = sample_random(extent(rows, in, s.ld_a), dtype, 4), weight = sample_random(out * in, dtype, 5),
           bias = sample_random(out, dtype, 6), y = sample_unset(count, dtype);
    double *expected = calloc((size_t)count + 1, sizeof *expected), *magnitude = calloc((size_t)count + 1, sizeof *magnitude);
    for (int64_t i = 0; i < count; i++)
        expected[i] = i % s.ld_c >= out ? NAN : with_bias ? bias.value[i % s.ld_c] : 0;
    reference(&s, x.value, weight.value, expected, magnitude);
    allow_two_roundings(&s, dtype, count, expected, NULL, bias.value, magnitude);
    char what[120];
    snprintf(what, sizeof what, "linear of %d rows, %d -> %d%s, %d and %d apart", (int)rows, (int)in, (int)out,
             with_bias ? ", bias" : "", (int)pad_x, (int)pad_y);
    const shard_linear_shape shape = {
        .rows = rows, .in = in, .out = out, .pitch_x = pad_x ? in + pad_x : 0, .pitch_y = pad_y ? out + pad_y : 0};
    RUN(tested_device(), linear, &shape, x.data, weight.data, with_bias ? bias.data : NULL, y.data, dtype);
    sample_check(&y, expected, magnitude, in, what);
    free(expected);
    free(magnitude);
    sample_free(&x);
    sample_free(&weight);
    sample_free(&bias);
    sample_free(&y);
}

static void compare_linear(int64_t rows, int64_t in, int64_t out, bool with_bias, shard_dtype dtype)
{
    compare_linear_apart(rows, in, out, with_bias, 0, 0, dtype);
}

START_TEST(linear_pitches)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {3, 0, 4}, {64, 40, 1000}, {15, 33, 4099}, {33, 24, 40}};
    static const int64_t pads[][2] = {{3, 0}, {0, 5}, {8, 24}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 6; way++)
            compare_linear_apart(sizes[i][0], sizes[i][1], sizes[i][2], way & 1, pads[way / 2][0], pads[way / 2][1],
                                 float_dtypes[_i]);
}
END_TEST

/* Larger than the blocks in which 16-bit products are widened. */
START_TEST(blocks)
{
    shard_cpu_wide_elements = 500;
    compare_all(1, 3, 700, 21, float_dtypes[_i]);
    compare_all(1, 900, 2, 10, float_dtypes[_i]);
    compare_all(2, 2, 3, 1003, float_dtypes[_i]);
    compare_all(1, 70, 61, 43, float_dtypes[_i]);
    compare_linear(50, 33, 91, true, float_dtypes[_i]);
}
END_TEST

START_TEST(linear)
{
    static const int64_t sizes[][3] = {{0, 3, 4},      {3, 0, 4},       {3, 4, 0},     {1, 1, 1},
                                       {5, 7, 3},      {64, 40, 1000},  {1, 64, 333},  {64, 128, 5000},
                                       {15, 33, 4099}, {200, 20, 3000}, {300, 64, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        compare_linear(sizes[i][0], sizes[i][1], sizes[i][2], false, float_dtypes[_i]);
        compare_linear(sizes[i][0], sizes[i][1], sizes[i][2], true, float_dtypes[_i]);
    }
}
END_TEST

static void check_tile(const shard_cpu_tiler *tiler, int64_t rows, int vectors, const int64_t counts[3], bool accumulate)
{
    int64_t cols = vectors * tiler->width, pitch = cols + 3, depth = counts[2], lines = counts[1],
            terms = counts[0] * lines * depth;
    shard_cpu_tile tile = {.images = counts[0],
                           .lines = lines,
                           .depth = depth,
                           .a_row = 240,
                           .a_image = 120,
                           .a_line = 40,
                           .a_step = 1,
                           .b_image = 130 * pitch,
                           .b_line = 41 * pitch,
                           .b_step = pitch,
                           .c_row = pitch,
                           .accumulate = accumulate};
    sample a = sample_random(6 * 240, SHARD_FLOAT32, 1), b = sample_random(2 * 130 * pitch, SHARD_FLOAT32, 2);
    sample c = sample_random(rows * pitch, SHARD_FLOAT32, 3);
    double *wanted = calloc((size_t)c.count, sizeof *wanted), *magnitude = calloc((size_t)c.count, sizeof *magnitude);
    for (int64_t i = 0; i < c.count; i++) {
        bool inside = i % pitch < cols;
        wanted[i] = accumulate || !inside ? c.value[i] : 0.0;
        for (int64_t t = 0; t < terms && inside; t++) {
            int64_t image = t / (lines * depth), line = t / depth % lines, step = t % depth;
            double left = a.value[i / pitch * tile.a_row + image * tile.a_image + line * tile.a_line + step];
            double product = left * b.value[image * tile.b_image + line * tile.b_line + step * pitch + i % pitch];
            wanted[i] += product;
            magnitude[i] += fabs(product);
        }
    }
    tile.a = a.data;
    tile.b = b.data;
    tile.c = c.data;
    tiler->multiply(&tile, rows, vectors);
    char what[80];
    snprintf(what, sizeof what, "tile of %d x %d floats, %d terms", (int)rows, (int)cols, (int)terms);
    sample_check(&c, wanted, magnitude, terms, what);
    free(wanted);
    free(magnitude);
    sample_free(&a);
    sample_free(&b);
    sample_free(&c);
}

/* Each instruction set's, not only the one that is used here. */
START_TEST(tiles)
{
    const shard_cpu_tiler *tiler;
    int i;
    for (i = 0; (tiler = shard_cpu_tiler_at(i)); i++) {
        for (int64_t rows = 1; rows <= SHARD_CPU_TILE_ROWS; rows++) {
            for (int vectors = 1; vectors <= tiler->most_vectors; vectors++) {
                check_tile(tiler, rows, vectors, (const int64_t[]){1, 0, 5}, rows & 1);
                check_tile(tiler, rows, vectors, (const int64_t[]){2, 3, 37}, rows & 1);
                check_tile(tiler, rows, vectors, (const int64_t[]){1, 1, 40}, !(rows & 1));
            }
        }
    }
#ifdef __x86_64__
    ck_assert(i > 0 || !__builtin_cpu_supports("avx2"));
#endif
}
END_TEST

/* Elements that are aligned to nothing but their size. */
START_TEST(unaligned)
{
    sample_offset = 1;
    compare_all(3, 5, 7, 4, float_dtypes[_i]);
    compare_linear(33, 40, 24, true, float_dtypes[_i]);
    sample_offset = 0;
    compare_linear(33, 40, 24, true, float_dtypes[_i]);
}
END_TEST

/* One shape again after another, and more shapes than are kept prepared. */
START_TEST(many_shapes)
{
    for (int round = 0; round < 2; round++)
        for (int64_t out = 1; out < 1100; out += round ? 100 : 1)
            compare_linear(2, 3, out, true, SHARD_FLOAT32);
}
END_TEST

/* Of float32 that TF32 rounds to 1; the bias is added as it is. */
START_TEST(tf32)
{
    enum { SIDE = 256, COUNT = SIDE * SIDE };
    const double a_bit_more = 1 + 0x1p-12;
    shard_device *device = tested_device();
    shard_matmul_shape s = {.batch = 1, .m = SIDE, .n = SIDE, .k = SIDE};
    sample a = sample_unset(COUNT, SHARD_FLOAT32), c = sample_unset(COUNT, SHARD_FLOAT32);
    for (int i = 0; i < COUNT; i++)
        array_put(a.data, i, SHARD_FLOAT32, a_bit_more);
    ck_assert(!shard_allow_tf32(device));
    for (int allow = 1; allow >= 0; allow--) {
        double each = allow && on_other_device() ? 1 : a_bit_more;
        shard_set_allow_tf32(device, allow);
        ck_assert(shard_allow_tf32(device) == allow);
        RUN(device, matmul, &s, a.data, a.data, c.data, SHARD_FLOAT32);
        sample_read(&c);
        ck_assert_double_eq_tol(c.value[SIDE + 1], SIDE * each * each, 1e-4);
        RUN(device, linear, &(shard_linear_shape){.rows = SIDE, .in = SIDE, .out = SIDE}, a.data, a.data, a.data, c.data,
            SHARD_FLOAT32);
        sample_read(&c);
        ck_assert_double_eq_tol(c.value[SIDE + 1], SIDE * each * each + a_bit_more, 1e-4);
    }
    sample_free(&a);
    sample_free(&c);
}
END_TEST

START_TEST(transposes)
{
    float from[11][14], to[14][11];
    for (int j = 0; j < 11 * 14; j++)
        from[j / 14][j % 14] = (float)j;
    shard_cpu_transpose(11, 14, &from[0][0], 14, &to[0][0], 11);
    for (int j = 0; j < 11 * 14; j++)
        ck_assert(to[j % 14][j / 14] == (float)j);
}
END_TEST

/* As on a processor that does not multiply bfloat16 numbers. */
START_TEST(without_instructions)
{
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1); /* read at the first use, in this test's own process */
    ck_assert(!shard_cpu_multiplies(SHARD_BFLOAT16));
    compare_all(2, 33, 129, 65, SHARD_BFLOAT16);
    compare_linear(64, 40, 100, true, SHARD_BFLOAT16);
}
END_TEST

static bool processor_has(const char *flag)
{
    char line[8192];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, "flags", 5) == 0 && strstr(line, flag);
    if (file)
        fclose(file);
    return found;
}

/* Where the processor multiplies bfloat16 numbers it is had to: no float32 copies of the operands are made. */
START_TEST(with_instructions)
{
    enum { SIDE = 256 };
    unsetenv("DNNL_MAX_CPU_ISA");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    if (!processor_has(" avx512_bf16"))
        return;
    ck_assert(shard_cpu_multiplies(SHARD_BFLOAT16));
    shard_device *cpu = shard_cpu();
    shard_matmul_shape s = {.batch = 1, .m = SIDE, .n = SIDE, .k = SIDE};
    uint16_t *from = calloc(SIDE * SIDE, sizeof *from), *to = calloc(SIDE * SIDE, sizeof *to);
    int threads = set_threads(1); /* each thread has a workspace, and many of them have more than the copies */
    shard_reset_peak_memory(cpu);
    RUN(cpu, matmul, &s, from, from, to, SHARD_BFLOAT16);
    shard_memory_stats stats = shard_get_memory_stats(cpu);
    set_threads(threads);
    ck_assert_int_lt(stats.peak - stats.current, SIDE * SIDE * 4);
    free(from);
    free(to);
}
END_TEST

/* Few rows by very many: by tiles, if the machine has the instructions. */
START_TEST(long_outputs)
{
    static const int64_t sizes[][3] = {{11, 16, 4096},  {12, 16, 4096},  {20, 33, 4999},
                                       {64, 130, 4097}, {100, 40, 5000}, {128, 129, 4100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        compare_linear(sizes[i][0], sizes[i][1], sizes[i][2], i & 1, float_dtypes[_i]);
}
END_TEST

START_TEST(long_gradients)
{
    static const int64_t sizes[][3] = {{4099, 2050, 12}, {210001, 40, 13}, {130000, 65, 14}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        shard_matmul_shape s = {
            .batch = 1, .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .transpose_a = true, .accumulate = true};
        compare(&s, SHARD_FLOAT32);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("matmul");
    TCase *tcase = test_case(suite, "matmul");
    int count = (int)(sizeof float_dtypes / sizeof *float_dtypes);
    tcase_add_loop_test(tcase, single_products, 0, count);
    tcase_add_loop_test(tcase, batches, 0, count);
    tcase_add_loop_test(tcase, strides, 0, count);
    tcase_add_loop_test(tcase, empty_sizes, 0, count);
    tcase_add_loop_test(tcase, keeps_the_gaps, 0, count);
    tcase_add_loop_test(tcase, pitches, 0, count);
    tcase_add_loop_test(tcase, pitches_of_blocks, 0, count);
    tcase_add_loop_test(tcase, linear_pitches, 0, count);
    tcase_add_loop_test(tcase, large_products, 0, count);
    tcase_add_loop_test(tcase, blocks, 0, count);
    tcase_add_loop_test(tcase, linear, 0, count);
    tcase_add_loop_test(tcase, unaligned, 0, count);
    tcase_add_test(tcase, many_shapes);
    tcase_add_test(tcase, without_instructions);
    tcase_add_test(tcase, with_instructions);
    tcase_add_test(tcase, tf32);
    tcase_add_test(tcase, tiles);
    tcase_add_test(tcase, transposes);
    tcase_add_loop_test(tcase, long_outputs, 0, count);
    tcase_add_test(tcase, long_gradients);
    return test_run(suite);
}
