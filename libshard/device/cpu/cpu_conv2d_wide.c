/* Convolutions of a 16-bit type that the processor does not multiply: in float32,
 * some images at a time. */
#include "device/cpu/cpu_conv2d.h"

#include "base/error.h"
#include "device/cpu/cpu.h"

#include <string.h>

/* Float32 copies of a 16-bit convolution's arrays, for some of its images. */
typedef struct wide {
    float *x, *weight, *bias, *y;
    float *weight_part, *bias_part; /* of the current images */
    int64_t weights;
    int64_t images; /* in x and y */
} wide;

static shard_status allocate_wide(shard_device *device, const shard_cpu_conv *c, wide *w, size_t *bytes, void **memory)
{
    const shard_conv_shape *s = c->shape;
    int64_t x = s->h * s->w * s->c, y = s->oh * s->ow * s->o;
    int64_t images = shard_cpu_wide_elements / (x + y);
    w->images = images < 1 ? 1 : images > s->n ? s->n : images;
    w->weights = s->o * (s->c / s->groups) * s->kh * s->kw;
    int64_t parts[] = {w->images * x, w->images * y, w->weights, w->weights, s->o, s->o}, total = 0;
    float **place[] = {&w->x, &w->y, &w->weight, &w->weight_part, &w->bias, &w->bias_part};
    for (int i = 0; i < 6; i++)
        total += (parts[i] + 15) / 16 * 16;
    *bytes = (size_t)total * sizeof(float);
    float *next = *memory = shard_cpu_scratch(device, *bytes);
    if (!next)
        return SHARD_ERROR_MEMORY;
    for (int i = 0; i < 6; i++) {
        *place[i] = next;
        next += (parts[i] + 15) / 16 * 16;
    }
    return SHARD_OK;
}

static void add(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* The images from `first` on, as many as shape says. */
static shard_status compute_wide_part(shard_device *device, const shard_cpu_conv *c, const wide *w, int64_t first,
                                      const shard_conv_shape *shape, shard_dtype dtype)
{
    size_t size = shard_dtype_size(dtype);
    int64_t x = shape->h * shape->w * shape->c, y = shape->oh * shape->ow * shape->o;
    char *x_part = (char *)c->x + (size_t)(first * x) * size, *y_part = (char *)c->y + (size_t)(first * y) * size;
    shard_cpu_conv part = {c->kind, shape, w->x, w->weight, c->bias ? w->bias : NULL, w->y};
    if (c->kind != SHARD_CPU_CONV_BACKWARD_DATA)
        SHARD_TRY(device->ops->cast(device, shape->n * x, x_part, dtype, w->x, SHARD_FLOAT32));
    if (c->kind != SHARD_CPU_CONV_FORWARD)
        SHARD_TRY(device->ops->cast(device, shape->n * y, y_part, dtype, w->y, SHARD_FLOAT32));
    if (c->kind == SHARD_CPU_CONV_BACKWARD_WEIGHT) {
        part.weight = w->weight_part;
        part.bias = c->bias ? w->bias_part : NULL;
    }
    SHARD_TRY(shard_cpu_conv2d_float(device, &part));
    if (c->kind == SHARD_CPU_CONV_FORWARD)
        return device->ops->cast(device, shape->n * y, w->y, SHARD_FLOAT32, y_part, dtype);
    if (c->kind == SHARD_CPU_CONV_BACKWARD_DATA)
        return device->ops->cast(device, shape->n * x, w->x, SHARD_FLOAT32, x_part, dtype);
    add(w->weights, w->weight_part, w->weight);
    if (c->bias)
        add(shape->o, w->bias_part, w->bias);
    return SHARD_OK;
}

static shard_status compute_wide_parts(shard_device *device, const shard_cpu_conv *c, const wide *w, shard_dtype dtype)
{
    int64_t o = c->shape->o;
    bool backward_weight = c->kind == SHARD_CPU_CONV_BACKWARD_WEIGHT;
    if (backward_weight) {
        memset(w->weight, 0, (size_t)w->weights * sizeof(float));
        memset(w->bias, 0, (size_t)o * sizeof(float));
    } else {
        SHARD_TRY(device->ops->cast(device, w->weights, c->weight, dtype, w->weight, SHARD_FLOAT32));
        if (c->bias)
            SHARD_TRY(device->ops->cast(device, o, c->bias, dtype, w->bias, SHARD_FLOAT32));
    }
    for (int64_t first = 0; first < c->shape->n; first += w->images) {
        shard_conv_shape shape = *c->shape;
        shape.n = c->shape->n - first < w->images ? c->shape->n - first : w->images;
        SHARD_TRY(compute_wide_part(device, c, w, first, &shape, dtype));
    }
    if (backward_weight) {
        SHARD_TRY(device->ops->cast(device, w->weights, w->weight, SHARD_FLOAT32, c->weight, dtype));
        if (c->bias)
            SHARD_TRY(device->ops->cast(device, o, w->bias, SHARD_FLOAT32, c->bias, dtype));
    }
    return SHARD_OK;
}

shard_status shard_cpu_conv2d_wide(shard_device *device, const shard_cpu_conv *c, shard_dtype dtype)
{
    wide w = {0};
    size_t bytes;
    void *memory;
    SHARD_TRY(allocate_wide(device, c, &w, &bytes, &memory));
    shard_status status = compute_wide_parts(device, c, &w, dtype);
    shard_cpu_scratch_release(device, memory, bytes);
    return status;
}
