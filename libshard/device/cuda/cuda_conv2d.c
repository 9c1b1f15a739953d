/* Convolutions: selects the way each of them is computed. */
#include "device/cuda/cuda_blas.h"
#include "device/cuda/cuda_conv2d.h"

static int64_t x_count(const shard_conv_shape *s)
{
    return s->n * s->h * s->w * s->c;
}

static int64_t weight_count(const shard_conv_shape *s)
{
    return s->o * (s->c / s->groups) * s->kh * s->kw;
}

static int64_t y_count(const shard_conv_shape *s)
{
    return s->n * s->oh * s->ow * s->o;
}

/* Without images, or without channels on one side, all sums are empty. */
static shard_status compute_empty(shard_device *device, const shard_cuda_conv *c)
{
    size_t size = shard_dtype_size(c->dtype);
    switch (c->kind) {
    case SHARD_CUDA_CONV_FORWARD:
        return c->accumulate ? SHARD_OK : shard_cuda_zero(device, c->y, (size_t)y_count(c->shape) * size);
    case SHARD_CUDA_CONV_BACKWARD_DATA:
        return shard_cuda_zero(device, c->x, (size_t)x_count(c->shape) * size);
    default:
        return shard_cuda_zero(device, c->weight, (size_t)weight_count(c->shape) * size);
    }
}

/* A window of one pixel: a product with the images' pixels as rows. */
static bool is_product(const shard_conv_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->stride_h == 1 && s->stride_w == 1 && s->pad_h == 0 && s->pad_w == 0 && s->groups == 1;
}

static shard_status multiply(shard_device *device, const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    int64_t pixels = s->n * s->h * s->w;
    shard_matmul_shape forward = {
        .batch = 1, .m = pixels, .n = s->o, .k = s->c, .transpose_b = true, .accumulate = c->accumulate};
    shard_matmul_shape data = {.batch = 1, .m = pixels, .n = s->c, .k = s->o};
    shard_matmul_shape weight = {.batch = 1, .m = s->o, .n = s->c, .k = pixels, .transpose_a = true};
    switch (c->kind) {
    case SHARD_CUDA_CONV_FORWARD:
        return shard_cuda_matmul(device, &forward, c->x, c->weight, c->y, c->dtype);
    case SHARD_CUDA_CONV_BACKWARD_DATA:
        return shard_cuda_matmul(device, &data, c->y, c->weight, c->x, c->dtype);
    default:
        return shard_cuda_matmul(device, &weight, c->y, c->x, c->weight, c->dtype);
    }
}

/* Weights [o, c / groups, kh, kw] to [o, kh, kw, c / groups], or back. */
static shard_status turn_weight(shard_device *device, const shard_conv_shape *s, bool back, const void *from, void *to,
                                shard_dtype dtype)
{
    int64_t inner[2] = {s->c / s->groups, s->kh * s->kw};
    int64_t shape[3] = {s->o, inner[back], inner[!back]};
    return shard_cuda_permute(device, 3, shape, (const int[]){0, 2, 1}, from, to, dtype);
}

/* cuDNN's engines want weights whose channels are last, as the images'. */
static shard_status convolve_turned(shard_device *device, const shard_cuda_conv *c, bool *there)
{
    const shard_conv_shape *s = c->shape;
    if (s->kh * s->kw == 1 || s->c == s->groups)
        return shard_cuda_dnn_convolve(device, c, there);
    size_t bytes = (size_t)weight_count(s) * shard_dtype_size(c->dtype);
    shard_cuda_conv turned = *c;
    turned.weight = shard_cuda_scratch(device, bytes);
    if (!turned.weight)
        return SHARD_ERROR_MEMORY;
    bool written = c->kind == SHARD_CUDA_CONV_BACKWARD_WEIGHT;
    shard_status status = written ? SHARD_OK : turn_weight(device, s, false, c->weight, turned.weight, c->dtype);
    if (status == SHARD_OK)
        status = shard_cuda_dnn_convolve(device, &turned, there);
    if (status == SHARD_OK && *there && written)
        status = turn_weight(device, s, true, turned.weight, c->weight, c->dtype);
    shard_cuda_scratch_release(device, turned.weight, bytes);
    return status;
}

static size_t part(int64_t count)
{
    return ((size_t)count * sizeof(float) + SHARD_CUDA_ALIGN - 1) / SHARD_CUDA_ALIGN * SHARD_CUDA_ALIGN;
}

/* A 16-bit type that cuDNN refuses, by way of float32. */
static shard_status convolve_widened(shard_device *device, const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    void *const narrow[] = {c->x, c->weight, c->y};
    const int64_t counts[] = {x_count(s), weight_count(s), y_count(s)};
    const int result = c->kind == SHARD_CUDA_CONV_FORWARD ? 2 : c->kind == SHARD_CUDA_CONV_BACKWARD_DATA ? 0 : 1;
    size_t bytes = part(counts[0]) + part(counts[1]) + part(counts[2]);
    char *memory = shard_cuda_scratch(device, bytes);
    if (!memory)
        return SHARD_ERROR_MEMORY;
    void *wide[] = {memory, memory + part(counts[0]), memory + part(counts[0]) + part(counts[1])};
    shard_status status = SHARD_OK;
    for (int i = 0; i < 3 && status == SHARD_OK; i++)
        if (i != result || c->accumulate)
            status = shard_cuda_cast(device, counts[i], narrow[i], c->dtype, wide[i], SHARD_FLOAT32);
    shard_cuda_conv widened = {c->kind, s, SHARD_FLOAT32, c->accumulate, wide[0], wide[1], wide[2]};
    if (status == SHARD_OK)
        status = shard_cuda_conv2d_columns(device, &widened);
    if (status == SHARD_OK)
        status = shard_cuda_cast(device, counts[result], wide[result], SHARD_FLOAT32, narrow[result], c->dtype);
    shard_cuda_scratch_release(device, memory, bytes);
    return status;
}

/* For convolutions that cuDNN cannot accumulate: a bias is added last. */
static shard_status convolve_then_add(shard_device *device, const shard_cuda_conv *c, const void *bias, bool *there)
{
    const shard_conv_shape *s = c->shape;
    shard_cuda_conv alone = *c;
    alone.accumulate = false;
    SHARD_TRY(convolve_turned(device, &alone, there));
    if (!*there)
        return SHARD_OK;
    const shard_expansion over = shard_expansion_rows(s->n * s->oh * s->ow, s->o);
    return shard_cuda_binary(device, SHARD_ADD, &over, c->y, bias, c->y, c->dtype);
}

/* cuDNN computes these in float32 with an engine whose notes name no lost digits, and loses them: on an H100, cuDNN 9.19, the
 * gradient of 64 filters of 5 x 5 differed by 3e-3. It has Winograd's tiles of 13 x 13 for this window. */
static bool loses_digits(const shard_device *device, const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    bool window = s->kh == 5 && s->kw == 5,
         dense = s->stride_h == 1 && s->stride_w == 1 && s->dilation_h == 1 && s->dilation_w == 1;
    return c->dtype == SHARD_FLOAT32 && !device->allow_tf32 && window && dense;
}

/* With a bias, it is in y already, and c accumulates. */
static shard_status convolve(shard_device *device, const shard_cuda_conv *c, const void *bias)
{
    if (x_count(c->shape) == 0 || y_count(c->shape) == 0)
        return compute_empty(device, c);
    if (is_product(c->shape))
        return multiply(device, c);
    bool there = false, tries = c->dtype != SHARD_FLOAT64 && !loses_digits(device, c); /* float64 is not there in channels-last */
    if (tries)
        SHARD_TRY(convolve_turned(device, c, &there));
    if (tries && !there && bias)
        SHARD_TRY(convolve_then_add(device, c, bias, &there));
    if (there)
        return SHARD_OK;
    if (tries && bias) /* again: an engine that failed may have added to it */
        SHARD_TRY(shard_cuda_spread(device, y_count(c->shape) / c->shape->o, c->shape->o, c->shape->o, bias, c->y, c->dtype));
    return c->dtype == SHARD_FLOAT32 || c->dtype == SHARD_FLOAT64 ? shard_cuda_conv2d_columns(device, c)
                                                                  : convolve_widened(device, c);
}

/* With a bias the sums begin with it, so that they are rounded once, where cuDNN can do that. */
shard_status shard_cuda_conv2d(shard_device *device, const shard_conv_shape *shape, const void *x, const void *weight,
                               const void *bias, void *y, shard_dtype dtype)
{
    if (bias)
        SHARD_TRY(shard_cuda_spread(device, shape->n * shape->oh * shape->ow, shape->o, shape->o, bias, y, dtype));
    shard_cuda_conv c = {SHARD_CUDA_CONV_FORWARD, shape, dtype, bias != NULL, (void *)x, (void *)weight, y};
    return convolve(device, &c, bias);
}

shard_status shard_cuda_conv2d_backward_data(shard_device *device, const shard_conv_shape *shape, const void *weight,
                                             const void *dy, void *dx, shard_dtype dtype)
{
    shard_cuda_conv c = {SHARD_CUDA_CONV_BACKWARD_DATA, shape, dtype, false, dx, (void *)weight, (void *)dy};
    return convolve(device, &c, NULL);
}

shard_status shard_cuda_conv2d_backward_weight(shard_device *device, const shard_conv_shape *shape, const void *x, const void *dy,
                                               void *dweight, void *dbias, shard_dtype dtype)
{
    shard_cuda_conv c = {SHARD_CUDA_CONV_BACKWARD_WEIGHT, shape, dtype, false, (void *)x, dweight, (void *)dy};
    SHARD_TRY(convolve(device, &c, NULL));
    return dbias ? shard_cuda_sum_rows(device, shape->n * shape->oh * shape->ow, shape->o, 0, dy, dtype, false, dbias, dtype)
                 : SHARD_OK;
}
