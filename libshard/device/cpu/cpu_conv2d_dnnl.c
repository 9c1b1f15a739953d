/*
 * Convolutions of channels-last images by oneDNN, which chooses the layout of
 * the weights: they are small, and reordered in every call.
 *
 * The gradient of the images of a convolution with stride 1 is a convolution of
 * the output's gradient with the flipped and transposed weights. oneDNN does
 * that one faster than its own backward, except on small images, where the
 * latter skips the padding.
 */
#include "device/cpu/cpu_conv2d.h"

#include "device/cpu/cpu.h"
#include "device/cpu/cpu_primitive.h"

#include <string.h>

/* The smallest image for which TRANSPOSED pays. */
#define TRANSPOSED_PIXELS 25

/* The largest image that is worth reordering for a forward convolution, from
 * channels last to blocks of channels. */
#define BLOCKED_PIXELS 4

static shard_cpu_key key_of(shard_cpu_conv_kind kind, const shard_conv_shape *shape, bool bias, shard_dtype dtype)
{
    shard_cpu_key key = {.word = {SHARD_CPU_CONV2D, (int64_t)kind, (int64_t)dtype, bias}};
    _Static_assert(sizeof *shape <= sizeof key - 4 * sizeof(int64_t), "the shape fits into the key");
    memcpy(&key.word[4], shape, sizeof *shape);
    return key;
}

static dnnl_status_t plan_images(shard_cpu_plan *plan, int argument, int64_t n, int64_t h, int64_t w, int64_t c,
                                 dnnl_data_type_t type, bool any)
{
    return shard_cpu_plan_array(plan, argument, 4, (dnnl_dims_t){n, c, h, w}, (dnnl_dims_t){h * w * c, 1, w * c, c}, type, any);
}

/* transposed: [c, o] for [o, c], in each group. */
static dnnl_status_t plan_weight(shard_cpu_plan *plan, int argument, const shard_conv_shape *s, bool transposed,
                                 dnnl_data_type_t type)
{
    int64_t o = s->o / s->groups, c = s->c / s->groups, k = s->kh * s->kw;
    dnnl_dims_t dims = {s->groups, transposed ? c : o, transposed ? o : c, s->kh, s->kw};
    dnnl_dims_t strides = {o * c * k, transposed ? k : c * k, transposed ? c * k : k, s->kw, 1};
    int skip = s->groups == 1;
    return shard_cpu_plan_array(plan, argument, 5 - skip, dims + skip, strides + skip, type, true);
}

static dnnl_status_t plan_arrays(shard_cpu_plan *plan, shard_cpu_conv_kind kind, const shard_conv_shape *s, bool bias,
                                 dnnl_data_type_t type)
{
    static const int arguments[][4] = {
        [SHARD_CPU_CONV_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        [SHARD_CPU_CONV_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [SHARD_CPU_CONV_BACKWARD_WEIGHT] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
        [SHARD_CPU_CONV_TRANSPOSED] = {DNNL_ARG_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_SRC},
    };
    const int *argument = arguments[kind];
    bool any = kind == SHARD_CPU_CONV_FORWARD && s->kh * s->kw > 1 && s->oh * s->ow <= BLOCKED_PIXELS;
    dnnl_status_t status = plan_images(plan, argument[0], s->n, s->h, s->w, s->c, type, any);
    if (status == dnnl_success)
        status = plan_weight(plan, argument[1], s, kind == SHARD_CPU_CONV_TRANSPOSED, type);
    if (status == dnnl_success)
        status = plan_images(plan, argument[2], s->n, s->oh, s->ow, s->o, type, any);
    if (status == dnnl_success && bias)
        status = shard_cpu_plan_array(plan, argument[3], 1, (dnnl_dims_t){s->o}, (dnnl_dims_t){1}, type, false);
    return status;
}

static shard_conv_shape shape_of(const shard_cpu_key *key)
{
    shard_conv_shape s;
    memcpy(&s, &key->word[4], sizeof s);
    return s;
}

static void pack_weight(const shard_cpu_key *key, int64_t block, const void *data, void *packed)
{
    shard_conv_shape s = shape_of(key);
    shard_cpu_conv2d_pack(&s, key->word[1] == SHARD_CPU_CONV_TRANSPOSED, block, data, packed);
}

/* Whether oneDNN wants the weights in blocks of outputs. Its own reorder of kernels larger than 1 x 1
 * into them costs about as much as a twentieth of the convolution. */
static dnnl_status_t plan_packing(const shard_cpu_key *key, shard_cpu_plan *plan)
{
    static const struct {
        int64_t block;
        dnnl_format_tag_t tag;
    } layouts[] = {{16, dnnl_Acdb16a}, {32, dnnl_Acdb32a}, {48, dnnl_Acdb48a}, {64, dnnl_Acdb64a}};
    shard_conv_shape s = shape_of(key);
    if (key->word[2] != SHARD_FLOAT32 || !shard_cpu_conv2d_can_pack(&s) || s.kh * s.kw == 1)
        return dnnl_success;
    bool transposed = key->word[1] == SHARD_CPU_CONV_TRANSPOSED;
    dnnl_dims_t dims = {transposed ? s.c : s.o, transposed ? s.o : s.c, s.kh, s.kw};
    shard_dnnl_layout_borrowed wanted = dnnl_primitive_desc_query_md(plan->descriptor, dnnl_query_weights_md, 0);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        shard_dnnl_layout layout;
        dnnl_status_t status = shard_dnnl_layout_create_by_tag(&layout, 4, dims, dnnl_f32, layouts[i].tag);
        if (status != dnnl_success)
            return status;
        if (dnnl_memory_desc_equal(SHARD_DNNL_BORROW(&layout), wanted)) {
            plan->packer = pack_weight;
            plan->packed = 1;
            plan->block = layouts[i].block;
        }
        shard_dnnl_layout_destroy(&layout);
    }
    return dnnl_success;
}

static dnnl_status_t plan_convolution(const shard_cpu_key *key, shard_cpu_plan *plan, dnnl_engine_t engine,
                                      dnnl_primitive_attr_t attributes)
{
    shard_cpu_conv_kind kind = (shard_cpu_conv_kind)key->word[1];
    bool bias = key->word[3] != 0;
    shard_conv_shape s = shape_of(key);
    dnnl_status_t status = plan_arrays(plan, kind, &s, bias, shard_cpu_dnnl_type((shard_dtype)key->word[2]));
    if (status != dnnl_success)
        return status;
    shard_dnnl_convolution c = {
        .x = SHARD_DNNL_BORROW(&plan->asked[0]),
        .weight = SHARD_DNNL_BORROW(&plan->asked[1]),
        .y = SHARD_DNNL_BORROW(&plan->asked[2]),
        .bias = bias ? SHARD_DNNL_BORROW(&plan->asked[3]) : NULL,
        .stride = {s.stride_h, s.stride_w},
        .dilation = {s.dilation_h - 1, s.dilation_w - 1},
        .padding = {s.pad_h, s.pad_w},
    };
    if (kind == SHARD_CPU_CONV_TRANSPOSED) {
        shard_dnnl_layout_borrowed x = c.x;
        c.x = c.y;
        c.y = x;
        c.padding[0] = s.dilation_h * (s.kh - 1) - s.pad_h;
        c.padding[1] = s.dilation_w * (s.kw - 1) - s.pad_w;
    }
    if (kind == SHARD_CPU_CONV_FORWARD || kind == SHARD_CPU_CONV_TRANSPOSED) {
        status = shard_dnnl_convolution_forward(&plan->descriptor, engine, &c, attributes);
        return status == dnnl_success ? plan_packing(key, plan) : status;
    }
    dnnl_primitive_desc_t forward = NULL;
    status = shard_dnnl_convolution_forward(&forward, engine, &c, attributes);
    if (status == dnnl_success && kind == SHARD_CPU_CONV_BACKWARD_DATA)
        status = shard_dnnl_convolution_backward_data(&plan->descriptor, engine, &c, forward, attributes);
    else if (status == dnnl_success)
        status = shard_dnnl_convolution_backward_weights(&plan->descriptor, engine, &c, forward, attributes);
    dnnl_primitive_desc_destroy(forward);
    return status;
}

static shard_status run(shard_device *device, const shard_cpu_conv *c, shard_dtype dtype, bool *there)
{
    shard_cpu_key key = key_of(c->kind, c->shape, c->bias != NULL, dtype);
    return shard_cpu_run(device, &key, plan_convolution, (const void *[]){c->x, c->weight, c->y, c->bias}, there);
}

/* Each filter from its last tap to its first. */
static void flip(const void *weight, void *flipped, int64_t filters, int64_t taps, size_t size)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < filters * taps; i += taps) {
        for (int64_t j = 0; j < taps; j++) {
            if (size == sizeof(float))
                ((float *)flipped)[i + taps - 1 - j] = ((const float *)weight)[i + j];
            else
                ((uint16_t *)flipped)[i + taps - 1 - j] = ((const uint16_t *)weight)[i + j];
        }
    }
}

static bool transposed_pays(const shard_conv_shape *s)
{
    return s->stride_h == 1 && s->stride_w == 1 && s->pad_h <= s->dilation_h * (s->kh - 1) &&
           s->pad_w <= s->dilation_w * (s->kw - 1) && (s->kh * s->kw == 1 || s->oh * s->ow >= TRANSPOSED_PIXELS);
}

shard_status shard_cpu_conv2d_dnnl(shard_device *device, const shard_cpu_conv *conv, shard_dtype dtype, bool *there)
{
    const shard_conv_shape *s = conv->shape;
    shard_cpu_conv c = *conv;
    if (conv->kind != SHARD_CPU_CONV_BACKWARD_DATA || !transposed_pays(s))
        return run(device, &c, dtype, there);
    c.kind = SHARD_CPU_CONV_TRANSPOSED;
    int64_t taps = s->kh * s->kw, filters = s->o * (s->c / s->groups);
    if (taps == 1)
        return run(device, &c, dtype, there);
    size_t bytes = (size_t)(filters * taps) * shard_dtype_size(dtype);
    c.weight = shard_cpu_scratch(device, bytes);
    if (!c.weight)
        return SHARD_ERROR_MEMORY;
    flip(conv->weight, c.weight, filters, taps, shard_dtype_size(dtype));
    shard_status status = run(device, &c, dtype, there);
    shard_cpu_scratch_release(device, c.weight, bytes);
    return status;
}
