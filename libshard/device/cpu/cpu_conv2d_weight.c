/*
 * The gradient of a convolution's weights in float32, as sums of outer products
 * of input pixels and gradients of output pixels, both as they lie in
 * channels-last images.
 *
 * Where oneDNN's is slow on such images (stride 2, few channels) this one is up
 * to two times faster. Some pixels at a time, whose gradients are packed into
 * panels of a tile's width, are multiplied with all taps; the sums of a tile
 * stay in registers. Sums are [kh, kw, c, o] until all pixels are in.
 */
#include "device/cpu/cpu_conv2d.h"

#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_tile.h"

#include <string.h>

enum {
    PIXELS = 128,      /* output pixels at a time, about */
    MOST_PIXELS = 256, /* as many as one row may have */
    WINDOW = 64,       /* floats of a window across all kw that is taken as one tap */
    COLS = SHARD_CPU_TILE_MOST_COLS,
};

/* The walk through the input; pitches are in floats. A tap is `window` floats wide: the channels; or, if they are
 * few, those of all kw at once, of images that are copied with their padding first. */
typedef struct walk {
    const shard_cpu_tiler *tiler;
    shard_conv_shape s;
    const float *x, *dy;
    bool padded;
    int64_t taps_w, window;     /* kw and c, or 1 and kw * c */
    int64_t h, w, pad_h, pad_w; /* of the input */
    int64_t rows, images;       /* of output, at a time */
    int64_t panel;              /* output channels of a tile */
    int64_t size;               /* of all weights */
} walk;

/* The range of a thread: some images and some panels. */
typedef struct part {
    int64_t image, image_end, panel, panel_end;
    float *sums, *padded;
} part;

bool shard_cpu_conv2d_weight_pays(const shard_conv_shape *s)
{
    const shard_cpu_tiler *tiler = shard_cpu_tiler_at(0);
    return tiler && s->groups == 1 && s->o % COLS == 0 && s->ow <= MOST_PIXELS &&
           (s->c >= 16 || (s->dilation_w == 1 && s->kw * s->c >= 16 && s->kw * s->c <= WINDOW));
}

/* The outputs [*first, *end) of `count` whose input under a tap lies inside. */
static void valid_range(int64_t count, int64_t size, int64_t offset, int64_t stride, int64_t *first, int64_t *end)
{
    int64_t low = offset < 0 ? shard_divide_up(-offset, stride) : 0;
    int64_t high = size - offset <= 0 ? 0 : shard_divide_up(size - offset, stride);
    *first = low > *first ? low : *first;
    *end = shard_min(high, shard_min(count, *end));
}

/* One tap and the packed pixels of the rows [row, row_end) of some images. */
static void multiply_tap(const walk *w, const float *x, int64_t images, int64_t row, int64_t row_end, int64_t tap,
                         const float *packed, float *sums)
{
    const shard_conv_shape *s = &w->s;
    int64_t offset_h = tap / w->taps_w * s->dilation_h - w->pad_h, offset_w = tap % w->taps_w * s->dilation_w - w->pad_w;
    int64_t first = row, end = row_end, left = 0, right = s->ow;
    valid_range(s->oh, w->h, offset_h, s->stride_h, &first, &end);
    valid_range(s->ow, w->w, offset_w, s->stride_w, &left, &right);
    if (first >= end || left >= right)
        return;
    shard_cpu_tile tile = {.images = images,
                           .lines = end - first,
                           .depth = right - left,
                           .a = x + ((first * s->stride_h + offset_h) * w->w + left * s->stride_w + offset_w) * s->c,
                           .a_row = 1,
                           .a_image = w->h * w->w * s->c,
                           .a_line = s->stride_h * w->w * s->c,
                           .a_step = s->stride_w * s->c,
                           .b = packed + ((first - row) * s->ow + left) * w->panel,
                           .b_image = (row_end - row) * s->ow * w->panel,
                           .b_line = s->ow * w->panel,
                           .b_step = w->panel,
                           .c = sums + tap * w->window * s->o,
                           .c_row = s->o,
                           .accumulate = true};
    w->tiler->multiply(&tile, w->window, (int)(w->panel / w->tiler->width));
}

/* The rows [row, row_end) of some images, one panel of output channels. */
static void multiply_panel(const walk *w, const float *x, int64_t image, int64_t image_end, int64_t row, int64_t row_end,
                           int64_t panel, float *sums)
{
    float packed[MOST_PIXELS * COLS] __attribute__((aligned(64)));
    const shard_conv_shape *s = &w->s;
    int64_t pixels = (row_end - row) * s->ow, o = panel * w->panel;
    for (int64_t i = image; i < image_end; i++) {
        const float *dy = w->dy + (i * s->oh + row) * s->ow * s->o + o;
        float *target = packed + (i - image) * pixels * w->panel;
        for (int64_t p = 0; p < pixels; p++)
            memcpy(target + p * w->panel, dy + p * s->o, (size_t)w->panel * sizeof *dy);
    }
    for (int64_t tap = 0; tap < s->kh * w->taps_w; tap++)
        multiply_tap(w, x, image_end - image, row, row_end, tap, packed, sums + o);
}

static void copy_padded(const walk *w, const float *image, float *padded)
{
    const shard_conv_shape *s = &w->s;
    memset(padded, 0, (size_t)(w->h * w->w * s->c) * sizeof *padded);
    for (int64_t row = 0; row < s->h; row++)
        memcpy(padded + ((row + s->pad_h) * w->w + s->pad_w) * s->c, image + row * s->w * s->c,
               (size_t)(s->w * s->c) * sizeof *padded);
}

static void multiply_part(const walk *w, const part *p)
{
    const shard_conv_shape *s = &w->s;
    int64_t o = p->panel * w->panel, o_end = p->panel_end * w->panel;
    for (int64_t i = 0; i < w->size; i += s->o)
        memset(p->sums + i + o, 0, (size_t)(o_end - o) * sizeof *p->sums);
    for (int64_t image = p->image; image < p->image_end; image += w->images) {
        int64_t image_end = shard_min(image + w->images, p->image_end);
        const float *x = w->x + image * s->h * s->w * s->c;
        if (w->padded) {
            copy_padded(w, x, p->padded);
            x = p->padded;
        }
        for (int64_t row = 0; row < s->oh; row += w->rows) {
            for (int64_t panel = p->panel; panel < p->panel_end; panel++)
                multiply_panel(w, x, image, image_end, row, shard_min(row + w->rows, s->oh), panel, p->sums);
        }
    }
}

/* Sums over all ranges of images, as [o, c, kh, kw]. */
static void finish(const walk *w, const float *sums, int64_t count, float *weight)
{
    enum { BLOCK = 16 };
    const shard_conv_shape *s = &w->s;
    int64_t taps = s->kh * s->kw, blocks_c = shard_divide_up(s->c, BLOCK);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s->o / BLOCK * blocks_c; i++) {
        int64_t o0 = i / blocks_c * BLOCK, c0 = i % blocks_c * BLOCK, c_end = shard_min(c0 + BLOCK, s->c);
        for (int64_t tap = 0; tap < taps; tap++) {
            for (int64_t c = c0; c < c_end; c++) {
                float total[BLOCK];
                memcpy(total, sums + (tap * s->c + c) * s->o + o0, sizeof total);
                for (int64_t other = 1; other < count; other++) {
                    for (int j = 0; j < BLOCK; j++)
                        total[j] += sums[other * w->size + (tap * s->c + c) * s->o + o0 + j];
                }
                for (int j = 0; j < BLOCK; j++)
                    weight[((o0 + j) * s->c + c) * taps + tap] = total[j];
            }
        }
    }
}

static walk plan_walk(const shard_cpu_conv *conv)
{
    const shard_conv_shape *s = conv->shape;
    walk w = {.tiler = shard_cpu_tiler_at(0), .s = *s, .x = conv->x, .dy = conv->y, .padded = s->c < 16};
    w.taps_w = w.padded ? 1 : s->kw;
    w.window = w.padded ? s->kw * s->c : s->c;
    w.h = w.padded ? s->h + 2 * s->pad_h : s->h;
    w.w = w.padded ? s->w + 2 * s->pad_w : s->w;
    w.pad_h = w.padded ? 0 : s->pad_h;
    w.pad_w = w.padded ? 0 : s->pad_w;
    w.rows = PIXELS / s->ow > 1 ? shard_min(PIXELS / s->ow, s->oh) : 1;
    w.images = w.rows == s->oh && !w.padded ? MOST_PIXELS / (s->oh * s->ow) : 1;
    w.panel = w.tiler->width * w.tiler->most_vectors;
    w.size = s->kh * s->kw * s->c * s->o;
    return w;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

shard_status shard_cpu_conv2d_weight(shard_device *device, const shard_cpu_conv *conv)
{
    walk w = plan_walk(conv);
    int64_t threads = shard_cpu_threads(), panels = w.s.o / w.panel;
    /* Threads that share the panels need no sums of their own. */
    int64_t by_panels = greatest_common_divisor(threads, panels), by_images = shard_min(threads / by_panels, w.s.n);
    int64_t padded = w.padded ? w.h * w.w * w.s.c : 0;
    size_t bytes = (size_t)(by_images * w.size + by_panels * by_images * padded) * sizeof(float);
    float *memory = shard_cpu_scratch(device, bytes);
    if (!memory)
        return SHARD_ERROR_MEMORY;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < by_panels * by_images; i++) {
        int64_t across = i % by_panels, along = i / by_panels;
        part p = {.image = w.s.n * along / by_images,
                  .image_end = w.s.n * (along + 1) / by_images,
                  .panel = panels * across / by_panels,
                  .panel_end = panels * (across + 1) / by_panels,
                  .sums = memory + along * w.size,
                  .padded = memory + by_images * w.size + i * padded};
        multiply_part(&w, &p);
    }
    finish(&w, memory, by_images, conv->weight);
    shard_cpu_scratch_release(device, memory, bytes);
    if (!conv->bias)
        return SHARD_OK;
    return device->ops->sum_rows(device, w.s.n * w.s.oh * w.s.ow, w.s.o, 0, conv->y, SHARD_FLOAT32, false, conv->bias,
                                 SHARD_FLOAT32);
}
