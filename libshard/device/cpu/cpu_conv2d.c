/* Convolutions: selects the way each of them is computed. */
#include "device/cpu/cpu_conv2d.h"

#include "base/error.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_primitive.h"

/* Without images or without channels on one side all sums are empty. */
static shard_status compute_empty(shard_device *device, const shard_cpu_conv *c, shard_dtype dtype)
{
    const shard_conv_shape *s = c->shape;
    int64_t x = s->n * s->h * s->w * s->c, pixels = s->n * s->oh * s->ow;
    size_t size = shard_dtype_size(dtype);
    const shard_expansion over = shard_expansion_rows(pixels, s->o);
    switch (c->kind) {
    case SHARD_CPU_CONV_FORWARD:
        SHARD_TRY(shard_cpu_zero(device, c->y, (size_t)(pixels * s->o) * size));
        return c->bias ? device->ops->binary(device, SHARD_ADD, &over, c->y, c->bias, c->y, dtype) : SHARD_OK;
    case SHARD_CPU_CONV_BACKWARD_WEIGHT:
        SHARD_TRY(shard_cpu_zero(device, c->weight, (size_t)(s->o * (s->c / s->groups) * s->kh * s->kw) * size));
        return c->bias ? device->ops->sum_rows(device, pixels, s->o, 0, c->y, dtype, false, c->bias, dtype) : SHARD_OK;
    default:
        return shard_cpu_zero(device, c->x, (size_t)x * size);
    }
}

shard_status shard_cpu_conv2d_float(shard_device *device, const shard_cpu_conv *c)
{
    if (shard_cpu_conv2d_product_pays(c))
        return shard_cpu_conv2d_product(device, c);
    if (shard_cpu_conv2d_small_pays(c))
        return shard_cpu_conv2d_small(device, c);
    if (c->kind == SHARD_CPU_CONV_BACKWARD_WEIGHT && shard_cpu_conv2d_weight_pays(c->shape))
        return shard_cpu_conv2d_weight(device, c);
    return shard_cpu_conv2d_dnnl(device, c, SHARD_FLOAT32, NULL);
}

/* Whether oneDNN computes the convolution right in 16 bits. Its gradient of the weights (2.6) is wrong where weights of a row
 * touch nothing but padding, and by AMX where rows are dilated (more than 32 channels). */
static bool is_right(const shard_cpu_conv *c, shard_dtype dtype)
{
    const shard_conv_shape *s = c->shape;
    if (shard_cpu_conv2d_dnnl_overruns(c))
        return false;
    return c->kind != SHARD_CPU_CONV_BACKWARD_WEIGHT ||
           (s->w >= s->stride_w && (s->dilation_h == 1 || !shard_cpu_multiplies_tiles(dtype)));
}

static shard_status convolve(shard_device *device, shard_cpu_conv_kind kind, const shard_conv_shape *s, const void *x,
                             const void *weight, const void *bias, const void *y, shard_dtype dtype)
{
    /* The kind says which of them are written. */
    shard_cpu_conv c = {kind, s, (void *)x, (void *)weight, (void *)bias, (void *)y};
    if (s->n * s->h * s->w * s->c == 0 || s->n * s->oh * s->ow * s->o == 0)
        return compute_empty(device, &c, dtype);
    if (dtype == SHARD_FLOAT64)
        return shard_cpu_conv2d_double(device, &c);
    if (dtype == SHARD_FLOAT32)
        return shard_cpu_conv2d_float(device, &c);
    bool there = false;
    if (shard_cpu_multiplies(dtype) && is_right(&c, dtype))
        SHARD_TRY(shard_cpu_conv2d_dnnl(device, &c, dtype, &there));
    return there ? SHARD_OK : shard_cpu_conv2d_wide(device, &c, dtype);
}

shard_status shard_cpu_conv2d(shard_device *device, const shard_conv_shape *shape, const void *x, const void *weight,
                              const void *bias, void *y, shard_dtype dtype)
{
    return convolve(device, SHARD_CPU_CONV_FORWARD, shape, x, weight, bias, y, dtype);
}

shard_status shard_cpu_conv2d_backward_data(shard_device *device, const shard_conv_shape *shape, const void *weight,
                                            const void *dy, void *dx, shard_dtype dtype)
{
    return convolve(device, SHARD_CPU_CONV_BACKWARD_DATA, shape, dx, weight, NULL, dy, dtype);
}

shard_status shard_cpu_conv2d_backward_weight(shard_device *device, const shard_conv_shape *shape, const void *x, const void *dy,
                                              void *dweight, void *dbias, shard_dtype dtype)
{
    return convolve(device, SHARD_CPU_CONV_BACKWARD_WEIGHT, shape, x, dweight, dbias, dy, dtype);
}
