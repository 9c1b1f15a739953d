/* Convolutions, forward and both backwards, against plain loops in double. */
#include "support/sample.h"
#include "device/cpu/cpu.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An array's expected values, their magnitudes, and how many terms they have at most. */
typedef struct expectation {
    double *value, *magnitude;
    int64_t terms;
} expectation;

static expectation expectation_new(int64_t count, int64_t terms)
{
    return (expectation){calloc((size_t)count + 1, sizeof(double)), calloc((size_t)count + 1, sizeof(double)), terms};
}

static void expectation_free(expectation *e)
{
    free(e->value);
    free(e->magnitude);
}

static void add(expectation *e, int64_t i, double term)
{
    e->value[i] += term;
    e->magnitude[i] += fabs(term);
}

typedef struct arrays {
    const double *x, *weight, *dy;
    expectation y, dx, dweight;
} arrays;

/* Adds the products in which one output pixel takes part. */
static void add_products(const shard_conv_shape *s, int64_t n, int64_t oh, int64_t ow, arrays *a)
{
    int64_t group_o = s->o / s->groups, group_c = s->c / s->groups;
    for (int64_t o = 0; o < s->o; o++) {
        int64_t at_y = ((n * s->oh + oh) * s->ow + ow) * s->o + o;
        for (int64_t kh = 0; kh < s->kh; kh++) {
            for (int64_t kw = 0; kw < s->kw; kw++) {
                int64_t h = oh * s->stride_h + kh * s->dilation_h - s->pad_h;
                int64_t w = ow * s->stride_w + kw * s->dilation_w - s->pad_w;
                if (h < 0 || h >= s->h || w < 0 || w >= s->w)
                    continue;
                for (int64_t c = 0; c < group_c; c++) {
                    int64_t at_x = ((n * s->h + h) * s->w + w) * s->c + o / group_o * group_c + c;
                    int64_t at_weight = ((o * group_c + c) * s->kh + kh) * s->kw + kw;
                    add(&a->y, at_y, a->x[at_x] * a->weight[at_weight]);
                    add(&a->dx, at_x, a->dy[at_y] * a->weight[at_weight]);
                    add(&a->dweight, at_weight, a->dy[at_y] * a->x[at_x]);
                }
            }
        }
    }
}

static void check_forward(const shard_conv_shape *s, const sample *x, const sample *weight, const sample *bias, expectation *y,
                          const char *what)
{
    int64_t count = s->n * s->oh * s->ow * s->o;
    sample result = sample_unset(count, x->dtype);
    for (int64_t i = 0; i < count && bias; i++) {
        if (on_other_device()) /* which may round the sums before it adds the bias; see sample_check */
            y->magnitude[i] += fabs(y->value[i]) * unit(x->dtype) / compute_unit(x->dtype) / 4;
        add(y, i, bias->value[i % s->o]);
    }
    RUN(tested_device(), conv2d, s, x->data, weight->data, bias ? bias->data : NULL, result.data, x->dtype);
    sample_check(&result, y->value, y->magnitude, y->terms, what);
    sample_free(&result);
}

static void check_backward_data(const shard_conv_shape *s, const sample *weight, const sample *dy, expectation *dx,
                                const char *what)
{
    sample result = sample_unset(s->n * s->h * s->w * s->c, dy->dtype);
    RUN(tested_device(), conv2d_backward_data, s, weight->data, dy->data, result.data, dy->dtype);
    sample_check(&result, dx->value, dx->magnitude, dx->terms, what);
    sample_free(&result);
}

static void check_backward_weight(const shard_conv_shape *s, const sample *x, const sample *dy, bool with_bias,
                                  expectation *dweight, const char *what)
{
    int64_t pixels = s->n * s->oh * s->ow;
    sample result = sample_unset(s->o * (s->c / s->groups) * s->kh * s->kw, x->dtype), dbias = sample_unset(s->o, x->dtype);
    RUN(tested_device(), conv2d_backward_weight, s, x->data, dy->data, result.data, with_bias ? dbias.data : NULL, x->dtype);
    sample_check(&result, dweight->value, dweight->magnitude, dweight->terms, what);
    if (with_bias) {
        expectation e = expectation_new(s->o, pixels);
        for (int64_t i = 0; i < pixels * s->o; i++)
            add(&e, i % s->o, dy->value[i]);
        sample_check(&dbias, e.value, e.magnitude, e.terms, what);
        expectation_free(&e);
    }
    sample_free(&result);
    sample_free(&dbias);
}

static void compare(shard_conv_shape s, shard_dtype dtype)
{
    s.oh = (s.h + 2 * s.pad_h - s.dilation_h * (s.kh - 1) - 1) / s.stride_h + 1;
    s.ow = (s.w + 2 * s.pad_w - s.dilation_w * (s.kw - 1) - 1) / s.stride_w + 1;
    int64_t size_x = s.n * s.h * s.w * s.c, size_y = s.n * s.oh * s.ow * s.o, size_weight = s.o * (s.c / s.groups) * s.kh * s.kw;
    sample x = sample_random(size_x, dtype, 1), weight = sample_random(size_weight, dtype, 2),
           bias = sample_random(s.o, dtype, 3);
    sample dy = sample_random(size_y, dtype, 4);
    arrays a = {.x = x.value, .weight = weight.value, .dy = dy.value};
    a.y = expectation_new(size_y, s.c / s.groups * s.kh * s.kw + 1);
    a.dx = expectation_new(size_x, s.o / s.groups * s.kh * s.kw);
    a.dweight = expectation_new(size_weight, s.n * s.oh * s.ow);
    for (int64_t i = 0; i < s.n * s.oh * s.ow; i++)
        add_products(&s, i / (s.oh * s.ow), i / s.ow % s.oh, i % s.ow, &a);
    char what[200];
    int length =
        snprintf(what, sizeof what, "%d x %d x %d x %d -> %d, kernel %d x %d, stride %d %d, pad %d %d, dilation %d %d, groups %d",
                 (int)s.n, (int)s.h, (int)s.w, (int)s.c, (int)s.o, (int)s.kh, (int)s.kw, (int)s.stride_h, (int)s.stride_w,
                 (int)s.pad_h, (int)s.pad_w, (int)s.dilation_h, (int)s.dilation_w, (int)s.groups);
    size_t room = sizeof what - (size_t)length;
    snprintf(what + length, room, ": backward data");
    check_backward_data(&s, &weight, &dy, &a.dx, what);
    snprintf(what + length, room, ": backward weight");
    check_backward_weight(&s, &x, &dy, false, &a.dweight, what);
    check_backward_weight(&s, &x, &dy, true, &a.dweight, what);
    snprintf(what + length, room, ": forward");
    check_forward(&s, &x, &weight, NULL, &a.y, what);
    check_forward(&s, &x, &weight, &bias, &a.y, what);
    expectation_free(&a.y);
    expectation_free(&a.dx);
    expectation_free(&a.dweight);
    sample_free(&x);
    sample_free(&weight);
    sample_free(&bias);
    sample_free(&dy);
}

static void compare_case(const int *v, shard_dtype dtype)
{
    compare((shard_conv_shape){.n = v[0],
                               .h = v[1],
                               .w = v[2],
                               .c = v[3],
                               .o = v[4],
                               .kh = v[5],
                               .kw = v[6],
                               .stride_h = v[7],
                               .stride_w = v[8],
                               .pad_h = v[9],
                               .pad_w = v[10],
                               .dilation_h = v[11],
                               .dilation_w = v[12],
                               .groups = v[13]},
            dtype);
}

#define CASES(NAME, ...)                                                                                                         \
    START_TEST(NAME)                                                                                                             \
    {                                                                                                                            \
        /* n, h, w, c, o, kernel, stride, padding, dilation, groups */                                                           \
        static const int cases[][14] = {__VA_ARGS__};                                                                            \
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)                                                                \
            compare_case(cases[i], float_dtypes[_i]);                                                                            \
    }                                                                                                                            \
    END_TEST

/* Those of a ResNet, smaller. */
CASES(resnet_shapes, {2, 20, 20, 3, 64, 7, 7, 2, 2, 3, 3, 1, 1, 1}, {2, 12, 12, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {2, 12, 12, 32, 64, 3, 3, 2, 2, 1, 1, 1, 1, 1}, {2, 9, 9, 32, 64, 3, 3, 2, 2, 1, 1, 1, 1, 1},
      {2, 14, 14, 64, 128, 1, 1, 1, 1, 0, 0, 1, 1, 1}, {3, 14, 14, 64, 32, 1, 1, 2, 2, 0, 0, 1, 1, 1},
      {2, 7, 7, 48, 32, 1, 1, 2, 2, 0, 0, 1, 1, 1}, {4, 2, 2, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {4, 4, 4, 32, 64, 3, 3, 2, 2, 1, 1, 1, 1, 1}, {2, 4, 4, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1})

CASES(odd_shapes, {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1}, {3, 5, 7, 3, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {1, 9, 4, 7, 11, 2, 3, 1, 1, 0, 2, 1, 1, 1}, {2, 6, 11, 17, 19, 5, 1, 2, 1, 2, 0, 1, 1, 1},
      {1, 8, 8, 1, 6, 5, 5, 1, 1, 0, 0, 1, 1, 1}, {2, 13, 10, 6, 1, 4, 4, 4, 4, 0, 0, 1, 1, 1},
      {1, 7, 9, 4, 4, 3, 3, 3, 2, 1, 0, 1, 1, 1}, {5, 3, 3, 8, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1})

CASES(padding_strides_dilation, {2, 6, 5, 4, 8, 1, 1, 1, 1, 1, 2, 1, 1, 1}, {1, 6, 6, 8, 8, 3, 3, 1, 1, 3, 3, 1, 1, 1},
      {1, 11, 12, 8, 16, 3, 3, 1, 1, 2, 2, 2, 2, 1}, {2, 14, 10, 16, 16, 3, 3, 1, 1, 1, 3, 1, 3, 1},
      {1, 15, 15, 5, 6, 3, 2, 2, 3, 2, 1, 2, 4, 1}, {1, 10, 17, 16, 32, 3, 3, 1, 2, 1, 1, 1, 1, 1},
      {1, 10, 17, 16, 32, 3, 5, 2, 1, 0, 2, 1, 1, 1})

CASES(groups, {2, 7, 7, 8, 12, 3, 3, 1, 1, 1, 1, 1, 1, 2}, {1, 9, 8, 32, 64, 3, 3, 1, 1, 1, 1, 1, 1, 4},
      {2, 8, 8, 64, 32, 3, 3, 2, 2, 1, 1, 1, 1, 2}, {2, 6, 6, 12, 12, 1, 1, 1, 1, 0, 0, 1, 1, 3},
      {2, 9, 9, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 16}, {1, 9, 9, 32, 32, 3, 3, 2, 2, 1, 1, 1, 1, 32},
      {1, 8, 11, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1, 5}, {1, 8, 8, 6, 12, 3, 3, 1, 1, 2, 2, 2, 2, 6})

/* Those that are computed by tiles of several images, if the machine has the
 * instructions. */
CASES(small_images, {7, 2, 2, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1}, {13, 4, 4, 64, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1},
      {6, 4, 3, 70, 64, 3, 2, 1, 2, 1, 0, 1, 1, 1}, {8, 8, 8, 64, 70, 3, 3, 2, 2, 1, 1, 1, 1, 1},
      {9, 5, 4, 128, 64, 3, 3, 3, 1, 2, 1, 1, 2, 1}, {6, 1, 1, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {12, 4, 4, 64, 64, 5, 5, 1, 1, 2, 2, 1, 1, 1}, {6, 3, 5, 64, 64, 2, 2, 1, 1, 3, 0, 1, 1, 1})

CASES(empty_sizes, {0, 7, 7, 4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1}, {2, 7, 7, 0, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {2, 7, 7, 4, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 4, 6, 3, 3, 1, 1, 0, 0, 1, 1, 1},
      {2, 0, 5, 4, 6, 1, 3, 1, 1, 1, 1, 1, 1, 1})

/* Those whose gradient of the weights is summed by tiles, if the machine has the
 * instructions. */
CASES(tiled_weight_gradients, {5, 12, 12, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1}, {1, 25, 25, 16, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1},
      {2, 24, 27, 17, 64, 1, 1, 2, 2, 0, 0, 1, 1, 1}, {3, 14, 20, 35, 64, 2, 3, 1, 1, 0, 2, 2, 3, 1},
      {2, 30, 31, 16, 64, 5, 3, 1, 2, 4, 0, 1, 1, 1}, {2, 40, 40, 3, 64, 7, 7, 2, 2, 3, 3, 1, 1, 1},
      {3, 9, 13, 4, 64, 3, 5, 1, 1, 1, 0, 2, 1, 1}, {1, 3, 300, 16, 64, 3, 3, 1, 2, 1, 1, 1, 1, 1},
      {2, 2, 14, 20, 64, 3, 3, 1, 1, 3, 1, 1, 1, 1}, {3, 14, 14, 24, 192, 3, 3, 1, 1, 1, 1, 1, 1, 1})

/* Leaves NaNs in memory that the device gives out next, workspaces too. */
static void leave_nans(void)
{
    sample unset[48];
    for (int i = 0; i < 48; i++)
        unset[i] = sample_unset((int64_t)32 << i / 4, SHARD_FLOAT32);
    for (int i = 0; i < 48; i++)
        sample_free(&unset[i]);
}

/* Images narrower than the stride: some weights touch nothing but padding, and their gradient is 0. */
START_TEST(narrow_images)
{
    /* n, h, w, c, o, kernel, stride, padding, dilation, groups */
    static const int cases[][14] = {
        {1, 7, 1, 6, 32, 2, 5, 1, 2, 0, 2, 1, 1, 1},  {3, 14, 1, 2, 8, 5, 3, 3, 2, 0, 1, 1, 1, 1},
        {2, 8, 2, 16, 32, 3, 2, 2, 3, 1, 1, 1, 1, 1}, {1, 7, 1, 16, 32, 3, 3, 2, 2, 1, 2, 1, 1, 2},
        {3, 7, 1, 2, 4, 1, 3, 2, 2, 0, 1, 1, 1, 1},   {3, 3, 1, 16, 1, 5, 3, 1, 2, 1, 1, 1, 1, 1},
        {1, 3, 2, 16, 16, 3, 3, 4, 1, 1, 1, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        leave_nans();
        compare_case(cases[i], float_dtypes[_i]);
    }
}
END_TEST

/* More images than are widened at a time. */
START_TEST(many_images)
{
    shard_cpu_wide_elements = 3000;
    compare_case((const int[]){10, 8, 9, 8, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1}, float_dtypes[_i]);
    compare_case((const int[]){3, 20, 20, 8, 4, 3, 3, 2, 2, 1, 1, 1, 1, 4}, float_dtypes[_i]);
}
END_TEST

/* Elements that are aligned to nothing but their size. */
START_TEST(unaligned)
{
    sample_offset = 1;
    compare_case((const int[]){2, 7, 6, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1}, float_dtypes[_i]);
    compare_case((const int[]){2, 6, 6, 8, 16, 1, 1, 2, 2, 0, 0, 1, 1, 1}, float_dtypes[_i]);
    compare_case((const int[]){2, 6, 6, 9, 15, 1, 1, 1, 1, 0, 0, 1, 1, 1}, float_dtypes[_i]);
}
END_TEST

/* More windows than are laid out at a time. */
START_TEST(many_windows)
{
    compare_case((const int[]){3, 60, 60, 100, 2, 3, 3, 1, 1, 1, 1, 1, 1, 1}, SHARD_FLOAT64);
    compare_case((const int[]){5, 40, 40, 100, 4, 3, 3, 1, 1, 1, 1, 1, 1, 2}, SHARD_FLOAT64);
}
END_TEST

/* Of float32 that TF32 rounds to 1; inside, where no window hangs over. */
START_TEST(tf32)
{
    enum { SIDE = 8, CHANNELS = 64, COUNT = SIDE * SIDE * CHANNELS, WEIGHTS = CHANNELS * CHANNELS * 9 };
    const double a_bit_more = 1 + 0x1p-12;
    shard_device *device = tested_device();
    shard_conv_shape s = {1, SIDE, SIDE, CHANNELS, CHANNELS, 3, 3, SIDE, SIDE, 1, 1, 1, 1, 1, 1, 1};
    sample x = sample_unset(COUNT, SHARD_FLOAT32), weight = sample_unset(WEIGHTS, SHARD_FLOAT32),
           y = sample_unset(COUNT, SHARD_FLOAT32);
    for (int i = 0; i < WEIGHTS; i++) {
        array_put(weight.data, i, SHARD_FLOAT32, a_bit_more);
        if (i < COUNT)
            array_put(x.data, i, SHARD_FLOAT32, a_bit_more);
    }
    for (int allow = 1; allow >= 0; allow--) {
        double each = allow && on_other_device() ? 1 : a_bit_more;
        shard_set_allow_tf32(device, allow);
        RUN(device, conv2d, &s, x.data, weight.data, NULL, y.data, SHARD_FLOAT32);
        sample_read(&y);
        ck_assert_double_eq_tol(y.value[(SIDE + 1) * CHANNELS], 9 * CHANNELS * each * each, 1e-3);
    }
    sample_free(&x);
    sample_free(&weight);
    sample_free(&y);
}
END_TEST

/* Many of cuDNN's engines refuse, some to make a plan, some to run it, and there are
 * graphs without any in which the sums begin with a bias: none of that leaves these
 * convolutions to what is slower, which is logged. */
START_TEST(refusals)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    ck_assert(log && kept >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    setenv("SHARD_LOG", "warn", 1);
    for (int again = 0; again < 2; again++) {
        compare_case((const int[]){2, 9, 9, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1}, float_dtypes[_i]);
        compare_case((const int[]){1, 11, 12, 8, 16, 3, 3, 1, 1, 2, 2, 2, 2, 1}, float_dtypes[_i]);
        compare_case((const int[]){2, 7, 7, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 2}, float_dtypes[_i]);
    }
    dup2(kept, STDERR_FILENO);
    char text[512] = "";
    rewind(log);
    size_t length = fread(text, 1, sizeof text - 1, log);
    ck_assert_msg(length == 0, "%s", text);
}
END_TEST

/* An engine that refuses only when it is run is followed by the next at once: the first
 * run of a shape takes no other way, and so no more memory, than later ones. */
START_TEST(late_refusals)
{
    shard_device *device = tested_device();
    shard_conv_shape s = {1, 9, 9, 8, 16, 3, 3, 7, 7, 1, 1, 0, 0, 1, 1, 1};
    sample x = sample_random(9 * 9 * 8, float_dtypes[_i], 1), weight = sample_random(16 * 8 * 9, float_dtypes[_i], 2);
    sample y = sample_unset(7 * 7 * 16, float_dtypes[_i]);
    int64_t peak[4];
    for (int run = 0; run < 4; run++) {
        shard_memory_count_reset_peak(&device->memory[SHARD_MEMORY_WORKSPACE]);
        RUN(device, conv2d, &s, x.data, weight.data, NULL, y.data, float_dtypes[_i]);
        peak[run] = device->memory[SHARD_MEMORY_WORKSPACE].peak;
    }
    if (on_other_device()) { /* oneDNN prepares a shape at its first run */
        ck_assert_int_gt(peak[0], 0);
        ck_assert_int_eq(peak[0], peak[3]);
    }
    sample_free(&x);
    sample_free(&weight);
    sample_free(&y);
}
END_TEST

/* More shapes than are kept prepared; the first ones must then be made anew. */
START_TEST(many_shapes)
{
    for (int round = 0; round < 2; round++) {
        for (int w = 3; w < 220; w++)
            compare_case((const int[]){1, 3, w, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1}, SHARD_FLOAT32);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conv2d");
    TCase *tcase = test_case(suite, "conv2d");
    int count = (int)(sizeof float_dtypes / sizeof *float_dtypes);
    tcase_add_loop_test(tcase, resnet_shapes, 0, count);
    tcase_add_loop_test(tcase, odd_shapes, 0, count);
    tcase_add_loop_test(tcase, padding_strides_dilation, 0, count);
    tcase_add_loop_test(tcase, groups, 0, count);
    tcase_add_loop_test(tcase, tiled_weight_gradients, 0, count);
    tcase_add_loop_test(tcase, small_images, 0, count);
    tcase_add_loop_test(tcase, empty_sizes, 0, count);
    tcase_add_loop_test(tcase, narrow_images, 0, count);
    tcase_add_loop_test(tcase, many_images, 0, count);
    tcase_add_loop_test(tcase, unaligned, 0, count);
    tcase_add_loop_test(tcase, refusals, 0, count);
    tcase_add_loop_test(tcase, late_refusals, 0, count);
    tcase_add_test(tcase, many_windows);
    tcase_add_test(tcase, tf32);
    tcase_add_test(tcase, many_shapes);
    return test_run(suite);
}
