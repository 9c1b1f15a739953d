/*
 * Convolutions with 1 x 1 kernels in float32 as products of matrices, whose rows
 * are pixels. With a stride the input's pixels are gathered first, or scattered
 * between zeros. That needs no reorder of the weights, which costs as much as
 * the convolution itself if there are few pixels.
 */
#include "device/cpu/cpu_conv2d.h"

#include "device/cpu/cpu.h"

#include <string.h>

enum {
    FEW_PIXELS = 512,   /* for which oneDNN's reorder of the weights costs too much */
    FEW_GATHERED = 1024 /* that are gathered in less time than the weights' gradient is brought into their layout */
};

static bool is_strided(const shard_conv_shape *s)
{
    return s->stride_h != 1 || s->stride_w != 1;
}

bool shard_cpu_conv2d_product_pays(const shard_cpu_conv *c)
{
    const shard_conv_shape *s = c->shape;
    int64_t pixels = s->n * s->oh * s->ow;
    if (s->groups > 1 || s->kh * s->kw > 1 || s->pad_h > 0 || s->pad_w > 0)
        return false;
    if (c->kind == SHARD_CPU_CONV_FORWARD)
        return pixels <= FEW_PIXELS;
    return !is_strided(s) || shard_cpu_conv2d_dnnl_overruns(c) ||
           pixels <= (c->kind == SHARD_CPU_CONV_BACKWARD_DATA ? FEW_PIXELS : FEW_GATHERED);
}

/* The pixels of x that have an output, as rows. */
static void gather(const shard_conv_shape *s, const float *x, float *rows)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s->n * s->oh; i++) {
        const float *line = x + (i / s->oh * s->h + i % s->oh * s->stride_h) * s->w * s->c;
        for (int64_t ow = 0; ow < s->ow; ow++)
            memcpy(rows + (i * s->ow + ow) * s->c, line + ow * s->stride_w * s->c, (size_t)s->c * sizeof *rows);
    }
}

/* The rows to their pixels of x, zeros to all others. */
static void scatter(const shard_conv_shape *s, const float *rows, float *x)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s->n * s->h; i++) {
        int64_t h = i % s->h;
        float *line = x + i * s->w * s->c;
        memset(line, 0, (size_t)(s->w * s->c) * sizeof *line);
        if (h % s->stride_h || h / s->stride_h >= s->oh)
            continue;
        for (int64_t ow = 0; ow < s->ow; ow++)
            memcpy(line + ow * s->stride_w * s->c, rows + ((i / s->h * s->oh + h / s->stride_h) * s->ow + ow) * s->c,
                   (size_t)s->c * sizeof *line);
    }
}

static shard_status multiply(shard_device *device, const shard_cpu_conv *c, float *x)
{
    const shard_conv_shape *s = c->shape;
    int64_t pixels = s->n * s->oh * s->ow;
    if (c->kind == SHARD_CPU_CONV_FORWARD)
        return shard_cpu_linear(device, &(shard_linear_shape){.rows = pixels, .in = s->c, .out = s->o}, x, c->weight, c->bias,
                                c->y, SHARD_FLOAT32);
    shard_matmul_shape dx = {.batch = 1, .m = pixels, .n = s->c, .k = s->o};
    if (c->kind == SHARD_CPU_CONV_BACKWARD_DATA)
        return shard_cpu_matmul(device, &dx, c->y, c->weight, x, SHARD_FLOAT32);
    shard_matmul_shape dweight = {.batch = 1, .m = s->o, .n = s->c, .k = pixels, .transpose_a = true};
    shard_status status = shard_cpu_matmul(device, &dweight, c->y, x, c->weight, SHARD_FLOAT32);
    if (status != SHARD_OK || !c->bias)
        return status;
    return device->ops->sum_rows(device, pixels, s->o, 0, c->y, SHARD_FLOAT32, false, c->bias, SHARD_FLOAT32);
}

shard_status shard_cpu_conv2d_product(shard_device *device, const shard_cpu_conv *c)
{
    const shard_conv_shape *s = c->shape;
    if (!is_strided(s))
        return multiply(device, c, c->x);
    size_t bytes = (size_t)(s->n * s->oh * s->ow * s->c) * sizeof(float);
    float *rows = shard_cpu_scratch(device, bytes);
    if (!rows)
        return SHARD_ERROR_MEMORY;
    if (c->kind != SHARD_CPU_CONV_BACKWARD_DATA)
        gather(s, c->x, rows);
    shard_status status = multiply(device, c, rows);
    if (status == SHARD_OK && c->kind == SHARD_CPU_CONV_BACKWARD_DATA)
        scatter(s, rows, c->x);
    shard_cpu_scratch_release(device, rows, bytes);
    return status;
}
