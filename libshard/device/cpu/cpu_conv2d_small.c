/*
 * Convolutions of very small images in float32, forward and the gradient of the
 * images. On 4 x 4 or 2 x 2 pixels a 3 x 3 kernel lies mostly in the padding,
 * and with a stride most taps of the gradient meet no pixel; here neither costs
 * anything. For one pixel of the result and one tap, the rows of a tile are the
 * images of the batch and its depth is the channels of the other side.
 */
#include "device/cpu/cpu_conv2d.h"

#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_tile.h"

#include <string.h>

enum {
    MOST_PIXELS = 16, /* of an image of the result */
    LEAST_IMAGES = SHARD_CPU_TILE_ROWS,
    BLOCK = SHARD_CPU_TILE_MOST_COLS,
};

/* From the side `from` to the side `to`, each [n, h, w, c]. */
typedef struct side {
    int64_t h, w, c;
    float *data;
} side;

typedef struct sides {
    const shard_conv_shape *s;
    bool backward;
    side from, to;
    const float *bias, *weight; /* the latter in blocks of BLOCK */
} sides;

static sides sides_of(const shard_cpu_conv *c)
{
    const shard_conv_shape *s = c->shape;
    side x = {s->h, s->w, s->c, c->x}, y = {s->oh, s->ow, s->o, c->y};
    bool backward = c->kind == SHARD_CPU_CONV_BACKWARD_DATA;
    return (sides){.s = s, .backward = backward, .from = backward ? y : x, .to = backward ? x : y, .bias = c->bias};
}

bool shard_cpu_conv2d_small_pays(const shard_cpu_conv *c)
{
    if (c->kind != SHARD_CPU_CONV_FORWARD && c->kind != SHARD_CPU_CONV_BACKWARD_DATA)
        return false;
    const shard_cpu_tiler *tiler = shard_cpu_tiler_at(0);
    sides d = sides_of(c);
    return tiler && tiler->width == 16 && d.s->kh * d.s->kw > 1 && shard_cpu_conv2d_can_pack(d.s) && d.s->n >= LEAST_IMAGES &&
           d.to.h * d.to.w <= (d.backward ? d.s->stride_h * d.s->stride_w : 1) * MOST_PIXELS && d.to.c % BLOCK == 0 &&
           d.from.c >= BLOCK;
}

/* The operand's position along one dimension for a tap of a result at `to`: -1 outside, or if a stride leaves none. */
static int64_t operand(bool backward, int64_t to, int64_t tap, int64_t stride, int64_t pad, int64_t dilation, int64_t size)
{
    int64_t at = backward ? to + pad - tap * dilation : to * stride - pad + tap * dilation;
    if (backward && (at < 0 || at % stride))
        return -1;
    at = backward ? at / stride : at;
    return at < size ? at : -1;
}

/* One pixel of the result, a block of its channels, all images. */
static void convolve_pixel(const sides *d, const shard_cpu_tiler *tiler, int64_t pixel, int64_t block)
{
    const shard_conv_shape *s = d->s;
    int64_t from_image = d->from.h * d->from.w * d->from.c, to_image = d->to.h * d->to.w * d->to.c;
    int64_t taps = s->kh * s->kw;
    float *to = d->to.data + pixel * d->to.c + block * BLOCK;
    for (int64_t n = 0; n < s->n; n++) {
        if (d->bias)
            memcpy(to + n * to_image, d->bias + block * BLOCK, BLOCK * sizeof *to);
        else
            memset(to + n * to_image, 0, BLOCK * sizeof *to);
    }
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t h = operand(d->backward, pixel / d->to.w, tap / s->kw, s->stride_h, s->pad_h, s->dilation_h, d->from.h);
        int64_t w = operand(d->backward, pixel % d->to.w, tap % s->kw, s->stride_w, s->pad_w, s->dilation_w, d->from.w);
        if (h < 0 || w < 0)
            continue;
        const float *from = d->from.data + (h * d->from.w + w) * d->from.c;
        shard_cpu_tile tile = {.images = 1,
                               .lines = 1,
                               .depth = d->from.c,
                               .a = from,
                               .a_row = from_image,
                               .a_step = 1,
                               .b = d->weight + (block * taps + tap) * d->from.c * BLOCK,
                               .b_step = BLOCK,
                               .c = to,
                               .c_row = to_image,
                               .accumulate = true};
        tiler->multiply(&tile, s->n, BLOCK / tiler->width);
    }
}

shard_status shard_cpu_conv2d_small(shard_device *device, const shard_cpu_conv *c)
{
    const shard_cpu_tiler *tiler = shard_cpu_tiler_at(0);
    sides d = sides_of(c);
    size_t bytes = (size_t)(d.s->o * d.s->c * d.s->kh * d.s->kw) * sizeof(float);
    float *weight = shard_cpu_scratch(device, bytes);
    if (!weight)
        return SHARD_ERROR_MEMORY;
    shard_cpu_conv2d_pack(d.s, d.backward, BLOCK, c->weight, weight);
    d.weight = weight;
    int64_t pixels = d.to.h * d.to.w;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < d.to.c / BLOCK * pixels; i++)
        convolve_pixel(&d, tiler, i % pixels, i / pixels);
    shard_cpu_scratch_release(device, weight, bytes);
    return SHARD_OK;
}
