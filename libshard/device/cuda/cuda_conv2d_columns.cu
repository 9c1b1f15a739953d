/*
 * Convolutions as products of matrices: the windows of some images as rows,
 * columns [groups, pixels, c / groups * kh * kw], whose columns are in the order of
 * the weights'. For float64, and for what cuDNN refuses.
 *
 * Invariants: so many images at a time that the columns stay within COLUMNS_BYTES,
 * one at least; sums over images are in their order; both ways gather, so that each
 * element is written once.
 */
#include "device/cuda/divisor.cuh"
#include "device/cuda/kernel.cuh"

#include "device/cuda/cuda_blas.h"
#include "device/cuda/cuda_conv2d.h"

using namespace shard;

static const int64_t COLUMNS_BYTES = (int64_t)64 << 20;

/* The divisors of kernels, for n images. */
struct Divisors {
    Divisor inner, pixels, oh, ow, taps, kw;       /* of the columns */
    Divisor c, h, w, channels, stride_h, stride_w; /* of the images; channels: of a group */
    Divisors(const shard_conv_shape &s, int64_t n)
        : inner(s.c / s.groups * s.kh * s.kw), pixels(n * s.oh * s.ow), oh(s.oh), ow(s.ow), taps(s.kh * s.kw), kw(s.kw), c(s.c),
          h(s.h), w(s.w), channels(s.c / s.groups), stride_h(s.stride_h), stride_w(s.stride_w)
    {
    }
};

/* columns[g, (n, oh, ow), (c, kh, kw)] of n images. */
template <class T> static __global__ void unfold(shard_conv_shape s, Divisors by, const T *x, T *columns)
{
    int64_t count = s.groups * by.pixels.size * by.inner.size;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        int64_t group = i, c = by.inner.split(&group), tap = by.taps.split(&c), kw = by.kw.split(&tap);
        int64_t image = by.pixels.split(&group), ow = by.ow.split(&image), oh = by.oh.split(&image);
        int64_t h = oh * s.stride_h - s.pad_h + tap * s.dilation_h, w = ow * s.stride_w - s.pad_w + kw * s.dilation_w;
        bool inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
        columns[i] = inside ? x[((image * s.h + h) * s.w + w) * s.c + group * by.channels.size + c] : T(0);
    }
}

/* The output whose window has the input at offset `window`; -1 if none has. */
static __device__ inline int64_t output_of(int64_t input, int64_t window, const Divisor &stride, int64_t size)
{
    int64_t output = input - window;
    return output >= 0 && stride.split(&output) == 0 && output < size ? output : -1;
}

/* x[n, h, w, c] = the sum of the columns' elements that come from it. */
template <class T> static __global__ void fold(shard_conv_shape s, Divisors by, int64_t n, const T *columns, T *x)
{
    int64_t inner = by.inner.size, count = n * s.h * s.w * s.c;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        int64_t image = i, group = by.c.split(&image), c = by.channels.split(&group);
        int64_t w = by.w.split(&image), h = by.h.split(&image);
        const T *from = columns + group * by.pixels.size * inner + c * s.kh * s.kw;
        T sum = 0;
        for (int64_t r = 0; r < s.kh; r++) {
            int64_t oh = output_of(h + s.pad_h, r * s.dilation_h, by.stride_h, s.oh);
            for (int64_t q = 0; oh >= 0 && q < s.kw; q++) {
                int64_t ow = output_of(w + s.pad_w, q * s.dilation_w, by.stride_w, s.ow);
                if (ow >= 0)
                    sum += from[((image * s.oh + oh) * s.ow + ow) * inner + r * s.kw + q];
            }
        }
        x[i] = sum;
    }
}

/* A range of images in each computation; x and y begin at its first image. */
template <class T> struct Part {
    shard_device *device;
    const shard_cuda_conv *c;
    int64_t images;
    bool first;
    T *x, *y, *columns;

    int64_t inner() const
    {
        return c->shape->c / c->shape->groups * c->shape->kh * c->shape->kw;
    }
    int64_t pixels() const
    {
        return images * c->shape->oh * c->shape->ow;
    }
    int64_t outputs() const
    {
        return c->shape->o / c->shape->groups;
    }

    shard_status run_unfold() const
    {
        unsigned blocks = blocks_for(device, c->shape->groups * pixels() * inner(), BLOCK);
        return launch(device, unfold<T>, blocks, BLOCK, *c->shape, Divisors(*c->shape, images), (const T *)x, columns);
    }

    shard_status run_fold() const
    {
        unsigned blocks = blocks_for(device, images * c->shape->h * c->shape->w * c->shape->c, BLOCK);
        return launch(device, fold<T>, blocks, BLOCK, *c->shape, Divisors(*c->shape, images), images, (const T *)columns, x);
    }

    /* Of each group: y [pixels, outputs], whose rows are o apart, weight [outputs, inner], columns [pixels, inner]. */
    shard_status multiply() const
    {
        int64_t o = c->shape->o, window = inner(), of_weight = outputs() * window, of_columns = pixels() * window;
        shard_cuda_product p = {};
        p.batch = c->shape->groups;
        switch (c->kind) {
        case SHARD_CUDA_CONV_FORWARD: /* y = columns weight^T */
            p.m = pixels(), p.n = outputs(), p.k = window;
            p.transpose_b = true, p.accumulate = c->accumulate;
            p.a = columns, p.ld_a = window, p.stride_a = of_columns;
            p.b = c->weight, p.ld_b = window, p.stride_b = of_weight;
            p.c = y, p.ld_c = o, p.stride_c = outputs();
            break;
        case SHARD_CUDA_CONV_BACKWARD_DATA: /* columns = y weight */
            p.m = pixels(), p.n = window, p.k = outputs();
            p.a = y, p.ld_a = o, p.stride_a = outputs();
            p.b = c->weight, p.ld_b = window, p.stride_b = of_weight;
            p.c = columns, p.ld_c = window, p.stride_c = of_columns;
            break;
        default: /* weight = y^T columns */
            p.m = outputs(), p.n = window, p.k = pixels();
            p.transpose_a = true, p.accumulate = !first;
            p.a = y, p.ld_a = o, p.stride_a = outputs();
            p.b = columns, p.ld_b = window, p.stride_b = of_columns;
            p.c = c->weight, p.ld_c = window, p.stride_c = of_weight;
        }
        return shard_cuda_multiply(device, &p, c->dtype);
    }

    shard_status run() const
    {
        if (c->kind != SHARD_CUDA_CONV_BACKWARD_DATA)
            SHARD_TRY(run_unfold());
        SHARD_TRY(multiply());
        return c->kind == SHARD_CUDA_CONV_BACKWARD_DATA ? run_fold() : SHARD_OK;
    }
};

template <class T> static shard_status convolve(shard_device *device, const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    int64_t each = s->oh * s->ow * s->c * s->kh * s->kw, most = COLUMNS_BYTES / (each * (int64_t)sizeof(T));
    int64_t images = most < 1 ? 1 : most < s->n ? most : s->n;
    size_t bytes = (size_t)(images * each) * sizeof(T);
    T *columns = (T *)shard_cuda_scratch(device, bytes);
    if (!columns)
        return SHARD_ERROR_MEMORY;
    shard_status status = SHARD_OK;
    for (int64_t n = 0; n < s->n && status == SHARD_OK; n += images) {
        Part<T> part = {device,
                        c,
                        s->n - n < images ? s->n - n : images,
                        n == 0,
                        (T *)c->x + n * s->h * s->w * s->c,
                        (T *)c->y + n * s->oh * s->ow * s->o,
                        columns};
        status = part.run();
    }
    shard_cuda_scratch_release(device, columns, bytes);
    return status;
}

shard_status shard_cuda_conv2d_columns(shard_device *device, const shard_cuda_conv *c)
{
    return c->dtype == SHARD_FLOAT64 ? convolve<double>(device, c) : convolve<float>(device, c);
}
