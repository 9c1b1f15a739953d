/*
 * Convolutions in float64, the reference for gradient checks. The weights are
 * first brought into a layout in which the innermost loop runs along channels:
 * [group, kh, kw, c, o] or [group, kh, kw, o, c], where c and o count the
 * channels of one group.
 */
#include "device/cpu/cpu_conv2d.h"

#include "device/cpu/cpu.h"

#include <string.h>

typedef struct loops {
    shard_conv_shape s;
    int64_t c, o, taps; /* of one group */
    const double *x_in, *y_in;
    double *x, *y, *weight, *bias;
} loops;

/* to_plain: back into the weights' own layout. */
static void arrange(const loops *l, double *plain, double *arranged, bool outputs_inside, bool to_plain)
{
    for (int64_t g = 0; g < l->s.groups; g++) {
        for (int64_t o = 0; o < l->o; o++) {
            for (int64_t c = 0; c < l->c; c++) {
                for (int64_t t = 0; t < l->taps; t++) {
                    double *p = plain + ((g * l->o + o) * l->c + c) * l->taps + t;
                    double *a = arranged + (g * l->taps + t) * l->c * l->o + (outputs_inside ? c * l->o + o : o * l->c + c);
                    *(to_plain ? p : a) = *(to_plain ? a : p);
                }
            }
        }
    }
}

/* y[j] += sum over i of x[i] * weight[i, j]. */
static void multiply_add(int64_t rows, int64_t cols, const double *x, const double *weight, double *restrict y)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            y[j] += x[i] * weight[i * cols + j];
    }
}

static void forward_row(const loops *l, int64_t n, int64_t oh)
{
    const shard_conv_shape *s = &l->s;
    for (int64_t ow = 0; ow < s->ow; ow++) {
        double *y = l->y + ((n * s->oh + oh) * s->ow + ow) * s->o;
        for (int64_t o = 0; o < s->o; o++)
            y[o] = l->bias ? l->bias[o] : 0.0;
        for (int64_t t = 0; t < l->taps; t++) {
            int64_t h = oh * s->stride_h - s->pad_h + t / s->kw * s->dilation_h;
            int64_t w = ow * s->stride_w - s->pad_w + t % s->kw * s->dilation_w;
            if (h < 0 || h >= s->h || w < 0 || w >= s->w)
                continue;
            const double *x = l->x_in + ((n * s->h + h) * s->w + w) * s->c;
            for (int64_t g = 0; g < s->groups; g++)
                multiply_add(l->c, l->o, x + g * l->c, l->weight + (g * l->taps + t) * l->c * l->o, y + g * l->o);
        }
    }
}

static void backward_data_row(const loops *l, int64_t n, int64_t h)
{
    const shard_conv_shape *s = &l->s;
    for (int64_t w = 0; w < s->w; w++) {
        double *x = l->x + ((n * s->h + h) * s->w + w) * s->c;
        memset(x, 0, (size_t)s->c * sizeof *x);
        for (int64_t t = 0; t < l->taps; t++) {
            int64_t oh = h + s->pad_h - t / s->kw * s->dilation_h, ow = w + s->pad_w - t % s->kw * s->dilation_w;
            if (oh < 0 || ow < 0 || oh % s->stride_h || ow % s->stride_w)
                continue;
            oh /= s->stride_h;
            ow /= s->stride_w;
            if (oh >= s->oh || ow >= s->ow)
                continue;
            const double *y = l->y_in + ((n * s->oh + oh) * s->ow + ow) * s->o;
            for (int64_t g = 0; g < s->groups; g++)
                multiply_add(l->o, l->c, y + g * l->o, l->weight + (g * l->taps + t) * l->c * l->o, x + g * l->c);
        }
    }
}

/* The weights of one tap, group and input channel. */
static void backward_weight_row(const loops *l, int64_t g, int64_t t, int64_t c)
{
    const shard_conv_shape *s = &l->s;
    double *weight = l->weight + ((g * l->taps + t) * l->c + c) * l->o;
    memset(weight, 0, (size_t)l->o * sizeof *weight);
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t oh = 0; oh < s->oh; oh++) {
            int64_t h = oh * s->stride_h - s->pad_h + t / s->kw * s->dilation_h;
            for (int64_t ow = 0; ow < s->ow && h >= 0 && h < s->h; ow++) {
                int64_t w = ow * s->stride_w - s->pad_w + t % s->kw * s->dilation_w;
                if (w < 0 || w >= s->w)
                    continue;
                const double *x = l->x_in + ((n * s->h + h) * s->w + w) * s->c + g * l->c + c;
                const double *y = l->y_in + ((n * s->oh + oh) * s->ow + ow) * s->o + g * l->o;
                multiply_add(1, l->o, x, y, weight);
            }
        }
    }
}

static void backward_weight(const loops *l)
{
    const shard_conv_shape *s = &l->s;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s->groups * l->taps * l->c; i++)
        backward_weight_row(l, i / (l->taps * l->c), i / l->c % l->taps, i % l->c);
    if (!l->bias)
        return;
    const double one = 1.0;
    memset(l->bias, 0, (size_t)s->o * sizeof *l->bias);
    for (int64_t i = 0; i < s->n * s->oh * s->ow; i++)
        multiply_add(1, s->o, &one, l->y_in + i * s->o, l->bias);
}

shard_status shard_cpu_conv2d_double(shard_device *device, const shard_cpu_conv *conv)
{
    const shard_conv_shape *s = conv->shape;
    loops l = {.s = *s, .c = s->c / s->groups, .o = s->o / s->groups, .taps = s->kh * s->kw};
    l.x_in = l.x = conv->x;
    l.y_in = l.y = conv->y;
    l.bias = conv->bias;
    size_t bytes = (size_t)(s->o * l.c * l.taps) * sizeof(double);
    if (bytes > 0 && !(l.weight = shard_cpu_scratch(device, bytes)))
        return SHARD_ERROR_MEMORY;
    switch (conv->kind) {
    case SHARD_CPU_CONV_FORWARD:
        arrange(&l, conv->weight, l.weight, true, false);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < s->n * s->oh; i++)
            forward_row(&l, i / s->oh, i % s->oh);
        break;
    case SHARD_CPU_CONV_BACKWARD_DATA:
    case SHARD_CPU_CONV_TRANSPOSED:
        arrange(&l, conv->weight, l.weight, false, false);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < s->n * s->h; i++)
            backward_data_row(&l, i / s->h, i % s->h);
        break;
    case SHARD_CPU_CONV_BACKWARD_WEIGHT:
        backward_weight(&l);
        arrange(&l, conv->weight, l.weight, true, true);
        break;
    }
    shard_cpu_scratch_release(device, l.weight, bytes);
    return SHARD_OK;
}
