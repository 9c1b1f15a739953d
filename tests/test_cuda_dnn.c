/* Which of cuDNN's engines computes a convolution or attention, and what follows one that fails; the engines
 * are the emulation's, made to fail by SHARD_CUDA_EMULATION_ENGINES. */
#include "device/cuda/cuda.h"
#include "support/check.h"
#include "support/kernels.h"

#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT, KINDS };

static const shard_conv_shape shape = {.n = 2,
                                       .h = 5,
                                       .w = 6,
                                       .c = 8,
                                       .o = 16,
                                       .kh = 3,
                                       .kw = 3,
                                       .oh = 5,
                                       .ow = 6,
                                       .stride_h = 1,
                                       .stride_w = 1,
                                       .pad_h = 1,
                                       .pad_w = 1,
                                       .dilation_h = 1,
                                       .dilation_w = 1,
                                       .groups = 1};
enum { SIZE_X = 2 * 5 * 6 * 8, SIZE_WEIGHT = 16 * 8 * 9, SIZE_Y = 2 * 5 * 6 * 16, MOST = SIZE_WEIGHT, CHANNELS_OUT = 16 };

static void check_done(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

/* Numbers of three digits, which every type has. */
static double element(int seed, int i)
{
    return round(noise((uint64_t)seed, i) * 8) / 8;
}

static void *on_device(shard_device *device, shard_dtype dtype, int count, int seed)
{
    size_t bytes = (size_t)count * shard_dtype_size(dtype);
    void *memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes), *host = calloc(1, bytes);
    ck_assert_msg(memory != NULL, "%s", shard_last_error());
    for (int i = 0; i < count; i++)
        array_put(host, i, dtype, element(seed, i));
    check_done(device->ops->copy_in(device, memory, host, bytes));
    check_done(device->ops->synchronize(device));
    free(host);
    return memory;
}

/* The result of a kind, and the sums of its terms' absolute values. */
static void expect(int kind, bool with_bias, double *value, double *magnitude)
{
    const shard_conv_shape *s = &shape;
    memset(value, 0, MOST * sizeof *value);
    memset(magnitude, 0, MOST * sizeof *magnitude);
    for (int y = 0; y < SIZE_Y; y++) {
        int64_t o = y % s->o, ow = y / s->o % s->ow, oh = y / s->o / s->ow % s->oh, n = y / s->o / s->ow / s->oh;
        if (kind == FORWARD && with_bias)
            value[y] += element(4, (int)o);
        for (int64_t window = 0; window < s->kh * s->kw; window++) {
            int64_t h = oh + window / s->kw - s->pad_h, w = ow + window % s->kw - s->pad_w;
            if (h < 0 || h >= s->h || w < 0 || w >= s->w)
                continue;
            for (int64_t c = 0; c < s->c; c++) {
                int x = (int)(((n * s->h + h) * s->w + w) * s->c + c), weight = (int)((o * s->c + c) * 9 + window);
                double of_x = element(1, x), of_weight = element(2, weight), of_y = element(3, y);
                int to = kind == FORWARD ? y : kind == BACKWARD_DATA ? x : weight;
                double term = kind == FORWARD ? of_x * of_weight : kind == BACKWARD_DATA ? of_y * of_weight : of_y * of_x;
                value[to] += term;
                magnitude[to] += fabs(term);
            }
        }
    }
}

/* Computes it and compares: within one rounding, or a `coarse` one of each sum so far. */
static void check_result(shard_device *device, int kind, shard_dtype dtype, bool with_bias, bool coarse)
{
    static double value[MOST], magnitude[MOST];
    static const int sizes[] = {SIZE_Y, SIZE_X, SIZE_WEIGHT};
    const shard_device_ops *ops = device->ops;
    void *x = on_device(device, dtype, SIZE_X, 1), *weight = on_device(device, dtype, SIZE_WEIGHT, 2),
         *y = on_device(device, dtype, SIZE_Y, 3), *bias = on_device(device, dtype, CHANNELS_OUT, 4);
    void *result = on_device(device, dtype, sizes[kind], 5), *host = calloc(MOST, sizeof(double));
    expect(kind, with_bias, value, magnitude);
    check_done(kind == FORWARD         ? ops->conv2d(device, &shape, x, weight, with_bias ? bias : NULL, result, dtype)
               : kind == BACKWARD_DATA ? ops->conv2d_backward_data(device, &shape, weight, y, result, dtype)
                                       : ops->conv2d_backward_weight(device, &shape, x, y, result, NULL, dtype));
    check_done(ops->copy_out(device, host, result, (size_t)sizes[kind] * shard_dtype_size(dtype)));
    for (int i = 0; i < sizes[kind]; i++) {
        double got = array_get(host, i, dtype), error = coarse ? 8 * magnitude[i] : fabs(value[i]) + magnitude[i] * 0x1p-12;
        ck_assert_msg(fabs(got - value[i]) <= error * unit(dtype), "kind %d, %s: element %d is %g, not %g", kind,
                      shard_dtype_name(dtype), i, got, value[i]);
    }
    free(host);
    void *const all[] = {x, weight, y, bias, result};
    const int counts[] = {SIZE_X, SIZE_WEIGHT, SIZE_Y, CHANNELS_OUT, sizes[kind]};
    for (int i = 0; i < 5; i++)
        shard_device_release(device, SHARD_MEMORY_WORKSPACE, all[i], (size_t)counts[i] * shard_dtype_size(dtype));
}

/* ---- what is logged ---- */

static FILE *log_file;
static int kept_error;

static shard_device *open_with(const char *engines, const char *level)
{
    setenv("SHARD_CUDA_EMULATION_ENGINES", engines, 1);
    setenv("SHARD_LOG", level, 1);
    shard_device *device = shard_device_open("cuda");
    ck_assert_msg(device != NULL, "%s", shard_last_error());
    log_file = tmpfile();
    kept_error = dup(STDERR_FILENO);
    ck_assert(log_file && kept_error >= 0 && dup2(fileno(log_file), STDERR_FILENO) >= 0);
    return device;
}

/* All that was logged since open_with, or the last call. */
static const char *logged(void)
{
    static char text[1 << 16];
    fflush(stderr);
    size_t length = (size_t)ftell(log_file);
    fseek(log_file, 0, SEEK_SET);
    length = fread(text, 1, sizeof text - 1, log_file);
    text[length] = '\0';
    ck_assert_int_eq(ftruncate(fileno(log_file), 0), 0);
    rewind(log_file);
    lseek(STDERR_FILENO, 0, SEEK_SET);
    dprintf(kept_error, "%s", text);
    return text;
}

static int count(const char *text, const char *part)
{
    int found = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        found++;
    return found;
}

#define CHECK_COUNT(text, part, number)                                                                                          \
    ck_assert_msg(count(text, part) == (number), "%d times \"%s\" in:\n%s", count(text, part), part, text)

/* ---- the choice ---- */

/* Each plan's engine, once: the exact precompiled one, though the heuristic names one first that
 * is compiled at run time. */
START_TEST(tells_the_engine)
{
    shard_device *device = open_with("", "debug");
    for (int run = 0; run < 3; run++)
        for (int kind = 0; kind < KINDS; kind++)
            check_result(device, kind, SHARD_BFLOAT16, false, false);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine 6", 3);
    CHECK_COUNT(text, "is computed by engine", 3);
    CHECK_COUNT(text, "engine 6 (numerical notes TENSOR_CORE; behavior notes none), 0 bytes of workspace", 1);
    CHECK_COUNT(text, "engine 6 (numerical notes TENSOR_CORE; behavior notes none), 4096 bytes of workspace", 2);
    CHECK_COUNT(text, "a convolution (forward, bfloat16, 8 channels to 16 in 1 groups, kernel 3 x 3) is computed by", 1);
}
END_TEST

/* Rather one that is compiled at run time than a fallback; and a fallback where nothing else is. */
START_TEST(compiles_at_last)
{
    shard_device *device = open_with("fast=absent", "debug");
    shard_set_allow_tf32(device, true);
    check_result(device, FORWARD, SHARD_FLOAT16, false, false);
    CHECK_COUNT(logged(), "engine 0 (numerical notes TENSOR_CORE; behavior notes RUNTIME_COMPILATION)", 1);
    shard_set_allow_tf32(device, false);
    check_result(device, FORWARD, SHARD_FLOAT32, false, false);
    CHECK_COUNT(logged(), "is computed by engine 7 (numerical notes none; behavior notes none)", 1);
}
END_TEST

/* ---- engines that fail ---- */

static const struct {
    const char *engines, *why; /* NULL: nothing is warned of */
} failures[] = {
    {"fast=prerequisite", NULL},
    {"fast=support", NULL},
    {"fast=parameter", "CUDNN_STATUS_BAD_PARAM: an engine that takes its arguments for wrong"},
    {"fast=internal", "CUDNN_STATUS_INTERNAL_ERROR: an engine that finds no memory of its own"},
    {"fast=execution", "CUDNN_STATUS_EXECUTION_FAILED: an engine whose last kernel is not launched"},
    {"fast=workspace", "no memory for 1073741824 bytes"},
};
enum { FAILURES = sizeof failures / sizeof *failures };

/* The next engine computes it at once, and from then on; the failure is told once. */
START_TEST(next_engine)
{
    setenv("SHARD_CUDA_EMULATION_MEMORY", "512M", 1);
    shard_device *device = open_with(failures[_i].engines, "debug");
    for (int run = 0; run < 3; run++)
        check_result(device, FORWARD, SHARD_BFLOAT16, false, false);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine 0 ", 1);
    CHECK_COUNT(text, "engine 6 fails", 1);
    CHECK_COUNT(text, "warn:", failures[_i].why ? 1 : 0);
    if (failures[_i].why)
        CHECK_COUNT(text, failures[_i].why, 1);
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
}
END_TEST

/* One that begins to fail after it has computed. */
START_TEST(later_failure)
{
    shard_device *device = open_with("", "debug");
    check_result(device, BACKWARD_WEIGHT, SHARD_BFLOAT16, false, false);
    setenv("SHARD_CUDA_EMULATION_ENGINES", "fast=execution", 1);
    check_result(device, BACKWARD_WEIGHT, SHARD_BFLOAT16, false, false);
    setenv("SHARD_CUDA_EMULATION_ENGINES", "", 1);
    check_result(device, BACKWARD_WEIGHT, SHARD_BFLOAT16, false, false);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine 6 ", 1);
    CHECK_COUNT(text, "engine 6 fails", 1);
    CHECK_COUNT(text, "is computed by engine 0 ", 1);
}
END_TEST

/* What a failed engine may have added to the bias is not added to again. */
START_TEST(failure_with_bias)
{
    static const char *const engines[] = {"fast=execution", "fast=execution,compiled=execution,coarse=absent",
                                          "fast=execution,compiled=execution,coarse=execution"};
    shard_device *device = open_with(engines[_i], "debug");
    for (int run = 0; run < 3; run++)
        check_result(device, FORWARD, SHARD_BFLOAT16, true, true);
    CHECK_COUNT(logged(), "engine 6 fails", 2); /* with and without adding to what is there */
}
END_TEST

/* Where none can be run at all: products of windows, which is warned of once a plan. */
START_TEST(no_engine)
{
    shard_device *device = open_with(
        "fast=execution,compiled=prerequisite,coarse=absent,late=absent,odd=absent,strange=absent,plain=internal", "warn");
    for (int run = 0; run < 2; run++) {
        check_result(device, FORWARD, SHARD_BFLOAT16, false, false);
        check_result(device, BACKWARD_DATA, SHARD_FLOAT32, false, false);
    }
    const char *text = logged();
    CHECK_COUNT(text, "which is slower", 2);
    CHECK_COUNT(text, "fails", 2); /* the fast and the plain one */
}
END_TEST

/* What the engines that failed have left is not added to. */
START_TEST(no_engine_with_bias)
{
    shard_device *device =
        open_with("fast=execution,compiled=absent,coarse=absent,late=absent,odd=absent,strange=absent,plain=internal", "warn");
    for (int run = 0; run < 2; run++)
        check_result(device, FORWARD, SHARD_BFLOAT16, true, false);
}
END_TEST

/* Sums of lower precision: of 16-bit types alone, where no exact engine can be run, and told once. */
START_TEST(reduced_precision)
{
    shard_device *device = open_with("fast=absent,compiled=prerequisite", "warn");
    for (int run = 0; run < 2; run++)
        for (int kind = 0; kind < KINDS; kind++) {
            check_result(device, kind, SHARD_BFLOAT16, false, true);
            check_result(device, kind, SHARD_FLOAT32, false, false);
        }
    const char *text = logged();
    CHECK_COUNT(text, "reduced precision", 1);
    CHECK_COUNT(text, "warn:", 1);
    setenv("SHARD_LOG", "debug", 1);
    check_result(device, FORWARD, SHARD_FLOAT16, false, true);
    CHECK_COUNT(logged(), "engine 1 (numerical notes TENSOR_CORE, REDUCED_PRECISION_REDUCTION; behavior notes none)", 1);
}
END_TEST

/* ---- attention ---- */

/* Of a batch of 3, two key heads with two heads each. */
static const shard_attention_shape attention_shape = {3, 4, 2, 66, 71, 8, 16, 5, 0.5, true};
enum { QUERY, KEY, VALUE, DY, RESULT, DQUERY, DKEY, DVALUE, ARRAYS };

typedef struct attended {
    shard_dtype dtype;
    int count[ARRAYS];
    void *array[ARRAYS], *host[ARRAYS];
    double lse[7 * 2 * 66];
} attended;

/* Memory of the host, until the test's process ends. */
static void *host_array(int count, shard_dtype dtype)
{
    static void *made[64];
    static size_t next;
    ck_assert(next < sizeof made / sizeof *made);
    made[next] = calloc((size_t)count, shard_dtype_size(dtype));
    ck_assert(made[next] != NULL);
    return made[next++];
}

/* Computes attention, and the gradients of the mask. */
static attended attend(shard_device *device, const shard_attention_shape *s, shard_dtype dtype, int wanted)
{
    int rows = (int)(s->batch * s->heads * s->queries), keys = (int)(s->batch * s->key_heads * s->keys), in = (int)s->in,
        out = (int)s->out;
    attended a = {
        dtype, {rows * in, keys * in, keys * out, rows * out, rows * out, rows * in, keys * in, keys * out}, {NULL}, {NULL}, {0}};
    for (int i = 0; i < ARRAYS; i++)
        a.array[i] = i >= DQUERY && !(wanted & 1 << (i - DQUERY)) ? NULL : on_device(device, dtype, a.count[i], i);
    double *lse = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, sizeof a.lse);
    check_done(device->ops->attention(device, s, a.array[QUERY], a.array[KEY], a.array[VALUE], a.array[RESULT], lse, dtype));
    check_done(device->ops->attention_backward(device, s, a.array[QUERY], a.array[KEY], a.array[VALUE], a.array[RESULT], lse,
                                               a.array[DY], a.array[DQUERY], a.array[DKEY], a.array[DVALUE], dtype));
    check_done(device->ops->copy_out(device, a.lse, lse, (size_t)rows * sizeof *lse));
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, lse, sizeof a.lse);
    for (int i = RESULT; i < ARRAYS; i++)
        if (a.array[i]) {
            a.host[i] = host_array(a.count[i], dtype);
            check_done(device->ops->copy_out(device, a.host[i], a.array[i], (size_t)a.count[i] * shard_dtype_size(dtype)));
        }
    for (int i = 0; i < ARRAYS; i++)
        if (a.array[i])
            shard_device_release(device, SHARD_MEMORY_WORKSPACE, a.array[i], (size_t)a.count[i] * shard_dtype_size(dtype));
    return a;
}

static void check_same_bits(const attended *a, const attended *b)
{
    ck_assert_mem_eq(a->lse, b->lse, sizeof a->lse);
    for (int i = RESULT; i < ARRAYS; i++)
        if (a->host[i] && b->host[i])
            ck_assert_mem_eq(a->host[i], b->host[i], (size_t)a->count[i] * shard_dtype_size(a->dtype));
}

/* Within roundings of a's type of the largest number around, b's of float32. */
static void check_near(const attended *a, const attended *b)
{
    for (int i = RESULT; i < ARRAYS; i++)
        for (int k = 0; k < a->count[i]; k++) {
            double most = 0, got = array_get(a->host[i], k, a->dtype), want = array_get(b->host[i], k, b->dtype);
            for (int j = k / 8 * 8; j < k / 8 * 8 + 8; j++) /* of a row */
                most = fmax(most, fabs(array_get(b->host[i], j, b->dtype)));
            ck_assert_msg(fabs(got - want) <= 16 * unit(a->dtype) * fmax(most, 0.05), "array %d: element %d is %g, not %g", i, k,
                          got, want);
        }
    for (size_t k = 0; k < sizeof a->lse / sizeof *a->lse; k++)
        ck_assert_double_eq_tol(a->lse[k], b->lse[k], 1e-5);
}

/* cuDNN computes the 16-bit types; the kernels all others, and queries that are fewer than 64. */
START_TEST(attention_engine)
{
    shard_device *device = open_with("", "debug");
    shard_attention_shape few = attention_shape;
    few.queries = 63;
    attended first = attend(device, &attention_shape, SHARD_BFLOAT16, 7),
             second = attend(device, &attention_shape, SHARD_BFLOAT16, 7);
    check_same_bits(&first, &second);
    attend(device, &attention_shape, SHARD_FLOAT32, 7);
    attend(device, &few, SHARD_BFLOAT16, 7);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine", 2);
    CHECK_COUNT(text,
                "attention (forward, bfloat16, 66 queries, 71 keys, 6 key heads of 2 heads, 8 and 16 features, causal) is "
                "computed by engine 9 (",
                1);
    CHECK_COUNT(text, "attention (backward, bfloat16,", 1);
    CHECK_COUNT(text, "warn:", 0);
}
END_TEST

/* Gradients that are not wanted change nothing of the others. */
START_TEST(attention_gradients)
{
    shard_device *device = open_with("", "warn");
    attended all = attend(device, &attention_shape, SHARD_FLOAT16, 7);
    for (int wanted = 0; wanted < 7; wanted++) {
        attended some = attend(device, &attention_shape, SHARD_FLOAT16, wanted);
        check_same_bits(&all, &some);
    }
    CHECK_COUNT(logged(), "warn:", 0);
}
END_TEST

/* Some of seven key heads at a time, as many as the workspace has room for; the last ones overlap. */
START_TEST(attention_workspace)
{
    static const struct {
        size_t room;
        const char *plan;
    } rooms[] = {{1, " 18744 bytes"}, {3, " 56232 bytes"}, {4, " 74976 bytes"}, {6, " 74976 bytes"}, {7, " 131208 bytes"}};
    static const shard_attention_shape shape_of_seven = {7, 2, 1, 66, 71, 8, 16, 5, 0.5, true};
    shard_device *device = open_with("", "debug");
    attended whole = attend(device, &shape_of_seven, SHARD_BFLOAT16, 7);
    CHECK_COUNT(logged(), " 131208 bytes of workspace", 1);
    ((shard_cuda *)device->state)->attention_workspace = rooms[_i].room * 2 * 2 * 128 * 128;
    attended parts = attend(device, &shape_of_seven, SHARD_BFLOAT16, 7);
    CHECK_COUNT(logged(), rooms[_i].plan, rooms[_i].room < 7 ? 1 : 0);
    check_same_bits(&whole, &parts);
    ((shard_cuda *)device->state)->attention_workspace = 1; /* room for none: one at a time */
    parts = attend(device, &shape_of_seven, SHARD_BFLOAT16, 7);
    check_same_bits(&whole, &parts);
}
END_TEST

/* Shapes and GPUs for which cuDNN is not asked: the log names each reason once. */
START_TEST(attention_hindered)
{
    static const shard_attention_shape odd = {1, 1, 1, 64, 64, 12, 16, 0, 0.5, true};
    shard_device *device = open_with("", "debug");
    attended exact = attend(device, &attention_shape, SHARD_FLOAT32, 7);
    ((shard_cuda *)device->state)->major = 10;
    attended got = attend(device, &attention_shape, SHARD_BFLOAT16, 7);
    check_near(&got, &exact);
    attend(device, &odd, SHARD_BFLOAT16, 7);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine", 1); /* the first forward */
    CHECK_COUNT(
        text,
        "attention (backward, bfloat16, 66 queries, 71 keys, 6 key heads of 2 heads, 8 and 16 features, causal) is computed "
        "by kernels without tensor cores, which is slower: on this GPU",
        1);
    CHECK_COUNT(text, "is computed by kernels without tensor cores, which is slower: its features are no multiples of 8", 1);
    CHECK_COUNT(text, "warn:", 2);
}
END_TEST

/* No memory for a workspace: the kernels compute it this time, and cuDNN when there is memory again. */
START_TEST(attention_without_memory)
{
    setenv("SHARD_CUDA_EMULATION_MEMORY", "512M", 1);
    shard_device *device = open_with("attention=workspace", "debug");
    attended exact = attend(device, &attention_shape, SHARD_FLOAT32, 7),
             got = attend(device, &attention_shape, SHARD_BFLOAT16, 7);
    check_near(&got, &exact);
    const char *text = logged();
    CHECK_COUNT(text, "is computed by engine", 0);
    CHECK_COUNT(text, "warn:", 0);
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
}
END_TEST

/* An engine that is not there, or fails before or after it has written: the kernels compute it. */
START_TEST(attention_without_engine)
{
    static const char *const engines[] = {"attention=absent",    "attention=prerequisite", "attention=support",
                                          "attention=parameter", "attention=internal",     "attention=execution"};
    shard_device *device = open_with(engines[_i], "warn");
    shard_attention_shape other = attention_shape;
    other.scale = 0.25; /* does not make another plan */
    for (int i = 0; i < 2; i++) {
        const shard_attention_shape *shape_of = i ? &other : &attention_shape;
        attended exact = attend(device, shape_of, SHARD_FLOAT32, 7), got = attend(device, shape_of, SHARD_BFLOAT16, 7);
        check_near(&got, &exact);
    }
    CHECK_COUNT(logged(), "by kernels without tensor cores, which is slower", 2);
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
}
END_TEST

/* ---- graphs by capture ---- */

/* More shapes than the cache of plans has places for: of one window in one pixel, so that strides and dilations do nothing. */
static void evict_all(shard_device *device, const void *x, const void *weight, void *y)
{
    enum { EACH = 17 };
    shard_conv_shape s = {.n = 1, .h = 1, .w = 1, .c = 8, .o = 16, .kh = 1, .kw = 1, .oh = 1, .ow = 1, .groups = 1};
    for (int i = 0; i < EACH * EACH * EACH; i++) {
        s.stride_h = 1 + i % EACH;
        s.stride_w = 1 + i / EACH % EACH;
        s.dilation_h = 1 + i / EACH / EACH;
        s.dilation_w = 1;
        check_done(device->ops->conv2d(device, &s, x, weight, NULL, y, SHARD_BFLOAT16));
    }
}

/* A graph's plans stay as long as it does, if there are newer ones, or their engine fails later. */
START_TEST(captured_plan)
{
    static double value[MOST], magnitude[MOST];
    uint16_t host[SIZE_Y];
    shard_device *device = open_with("", "warn");
    expect(FORWARD, false, value, magnitude);
    void *x = on_device(device, SHARD_BFLOAT16, SIZE_X, 1), *weight = on_device(device, SHARD_BFLOAT16, SIZE_WEIGHT, 2),
         *y = on_device(device, SHARD_BFLOAT16, SIZE_Y, 3), *other = on_device(device, SHARD_BFLOAT16, SIZE_Y, 3);
    for (int run = 0; run < 2; run++) {
        check_result(device, FORWARD, SHARD_BFLOAT16, false, false);
        shard_graph *graph = shard_graph_begin(device);
        ck_assert_msg(graph != NULL, "%s", shard_last_error());
        check_done(device->ops->conv2d(device, &shape, x, weight, NULL, y, SHARD_BFLOAT16));
        check_done(shard_graph_end(graph));
        if (_i) {
            setenv("SHARD_CUDA_EMULATION_ENGINES", run ? "compiled=execution" : "fast=execution", 1);
            check_result(device, FORWARD, SHARD_BFLOAT16, false, true);
            setenv("SHARD_CUDA_EMULATION_ENGINES", "", 1);
        }
        evict_all(device, x, weight, other);
        check_done(device->ops->fill(device, SIZE_Y, 0, y, SHARD_BFLOAT16));
        check_done(shard_graph_replay(graph));
        check_done(device->ops->copy_out(device, host, y, sizeof host));
        for (int i = 0; i < SIZE_Y; i++) {
            double got = array_get(host, i, SHARD_BFLOAT16), error = 8 * magnitude[i] * unit(SHARD_BFLOAT16);
            ck_assert_msg(fabs(got - value[i]) <= error, "element %d is %g, not %g", i, got, value[i]);
        }
        shard_graph_destroy(graph);
        evict_all(device, x, weight, other);
    }
    void *const all[] = {x, weight, y, other};
    const int counts[] = {SIZE_X, SIZE_WEIGHT, SIZE_Y, SIZE_Y};
    for (int i = 0; i < 4; i++)
        shard_device_release(device, SHARD_MEMORY_WORKSPACE, all[i], (size_t)counts[i] * shard_dtype_size(SHARD_BFLOAT16));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_dnn");
    TCase *tcase = test_case(suite, "engines");
    tcase_add_test(tcase, tells_the_engine);
    tcase_add_test(tcase, compiles_at_last);
    tcase_add_loop_test(tcase, next_engine, 0, FAILURES);
    tcase_add_test(tcase, later_failure);
    tcase_add_loop_test(tcase, failure_with_bias, 0, 3);
    tcase_add_test(tcase, no_engine);
    tcase_add_test(tcase, no_engine_with_bias);
    tcase_add_test(tcase, reduced_precision);
    tcase_add_test(tcase, attention_engine);
    tcase_add_test(tcase, attention_gradients);
    tcase_add_loop_test(tcase, attention_workspace, 0, 5);
    tcase_add_test(tcase, attention_hindered);
    tcase_add_test(tcase, attention_without_memory);
    tcase_add_loop_test(tcase, attention_without_engine, 0, 6);
    tcase_add_loop_test(tcase, captured_plan, 0, 2);
    return test_run(suite);
}
