/* Convolutions on the CPU write to their results and their workspaces alone, also those of oneDNN, whose code no sanitizer sees.
 */
#include "support/check.h"

#include "device/cpu/cpu.h"
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 64, MOST = 65536, BLOCKS = 400, PATTERN = 0x7b, IMAGES = 9 };

/* Blocks of the pool on both sides of a free one, of each size that a workspace may have. */
typedef struct surroundings {
    char *block[BLOCKS];
    size_t bytes[BLOCKS];
    int count;
} surroundings;

static shard_device *device;

static void surround(surroundings *s)
{
    s->count = 0;
    for (size_t bytes = LEAST; bytes <= MOST; bytes += bytes / 16) {
        char *free_one = NULL;
        for (int i = 0; i < 3; i++) {
            char *block = shard_cpu_scratch(device, bytes);
            ck_assert(block != NULL && s->count < BLOCKS);
            memset(block, PATTERN, bytes);
            if (i == 1) {
                free_one = block;
                continue;
            }
            s->bytes[s->count] = bytes;
            s->block[s->count++] = block;
        }
        shard_cpu_scratch_release(device, free_one, bytes);
    }
}

static void check_surroundings(surroundings *s, const char *what, const shard_conv_shape *shape)
{
    for (int i = 0; i < s->count; i++) {
        size_t at = 0;
        while (at < s->bytes[i] && s->block[i][at] == PATTERN)
            at++;
        ck_assert_msg(at == s->bytes[i],
                      "%s of %lld to %lld channels, kernel %lld, stride %lld, side %lld writes into a block of %zu bytes", what,
                      (long long)shape->c, (long long)shape->o, (long long)shape->kh, (long long)shape->stride_h,
                      (long long)shape->h, s->bytes[i]);
        shard_cpu_scratch_release(device, s->block[i], s->bytes[i]);
    }
}

/* Of [-1, 1], the same in each dtype. */
static void *numbers(int64_t count, shard_dtype dtype)
{
    char *array = malloc((size_t)count * shard_dtype_size(dtype));
    ck_assert_ptr_nonnull(array);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(i * 7919 % 1009 - 504) / 504;
        if (dtype == SHARD_FLOAT32)
            ((float *)array)[i] = value;
        else
            ((double *)array)[i] = (double)value;
    }
    return array;
}

static void check_run(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

static void check_shape(int64_t c, int64_t o, int64_t kernel, int64_t stride, int64_t side)
{
    int64_t out = (side + kernel / 2 * 2 - kernel) / stride + 1, pixels = IMAGES * side * side, outputs = IMAGES * out * out;
    const shard_conv_shape s = {.n = IMAGES,
                                .h = side,
                                .w = side,
                                .c = c,
                                .o = o,
                                .kh = kernel,
                                .kw = kernel,
                                .oh = out,
                                .ow = out,
                                .stride_h = stride,
                                .stride_w = stride,
                                .pad_h = kernel / 2,
                                .pad_w = kernel / 2,
                                .dilation_h = 1,
                                .dilation_w = 1,
                                .groups = 1};
    int64_t weights = o * c * kernel * kernel;
    float *x = numbers(pixels * c, SHARD_FLOAT32), *y = numbers(outputs * o, SHARD_FLOAT32),
          *weight = numbers(weights, SHARD_FLOAT32);
    float *bias = numbers(o, SHARD_FLOAT32);
    double *x_wide = numbers(pixels * c, SHARD_FLOAT64), *y_wide = numbers(outputs * o, SHARD_FLOAT64);
    double *wanted = numbers(weights, SHARD_FLOAT64);
    surroundings around;
    surround(&around);
    check_run(shard_cpu_conv2d_backward_weight(device, &s, x, y, weight, NULL, SHARD_FLOAT32));
    check_surroundings(&around, "a gradient of the weights", &s);
    check_run(shard_cpu_conv2d_backward_weight(device, &s, x_wide, y_wide, wanted, NULL, SHARD_FLOAT64));
    for (int64_t i = 0; i < weights; i++)
        ck_assert_double_eq_tol((double)weight[i], wanted[i], 1e-5 * (double)outputs);
    surround(&around);
    check_run(shard_cpu_conv2d(device, &s, x, weight, bias, y, SHARD_FLOAT32));
    check_surroundings(&around, "a convolution", &s);
    surround(&around);
    check_run(shard_cpu_conv2d_backward_data(device, &s, weight, y, x, SHARD_FLOAT32));
    check_surroundings(&around, "a gradient of the images", &s);
    free(x);
    free(y);
    free(weight);
    free(bias);
    free(x_wide);
    free(y_wide);
    free(wanted);
}

/* The loop's number is that of channels, less one. */
START_TEST(writes_to_its_memory)
{
    static const int64_t outputs[] = {4, 9, 16}, kernels[] = {1, 3};
    for (int o = 0; o < 3; o++)
        for (int k = 0; k < 2; k++)
            for (int64_t stride = 1; stride <= 2; stride++) {
                check_shape(_i + 1, outputs[o], kernels[k], stride, 28);
                check_shape(_i + 1, outputs[o], kernels[k], stride, 14);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_conv2d");
    TCase *all = test_case(suite, "all");
    device = shard_cpu();
    tcase_add_loop_test(all, writes_to_its_memory, 0, 17);
    return test_run_on_cpu(suite);
}
