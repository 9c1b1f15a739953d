/*
 * Max pooling of images [n, h, w, c]. Both directions gather: the forward, for each
 * output, over the inputs of its window; the backward, for each input, over the outputs
 * whose windows it is in. So each element is written once, and sums have one order.
 *
 * A block takes a row of pixels that are written, a thread N channels of one.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

/* Of shard_pool_shape; all of it is defined, as the emulation wants of what kernels take. */
struct Pool {
    int64_t n, h, w, c;
    int64_t kh, kw, oh, ow;
    int64_t stride_h, stride_w, pad_h, pad_w;
    Pool(const shard_pool_shape *s)
        : n(s->n), h(s->h), w(s->w), c(s->c), kh(s->kh), kw(s->kw), oh(s->oh), ow(s->ow), stride_h(s->stride_h),
          stride_w(s->stride_w), pad_h(s->pad_h), pad_w(s->pad_w)
    {
    }
};

/* Positions first ... end - 1. */
struct Range {
    int64_t first, end;
};

static __device__ inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The inputs of an output's window, of `size`. */
static __device__ inline Range window(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t first = output * stride - pad;
    return Range{first < 0 ? 0 : first, smaller(first + kernel, size)};
}

/* The outputs, of `size`, in whose windows an input is. */
static __device__ inline Range covering(int64_t input, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t last = input + pad, before = last - kernel;
    return Range{before < 0 ? 0 : before / stride + 1, smaller(last / stride + 1, size)};
}

/* Calls body(n, h, w, channel) for all pixels [h, w] of all images and each N of their channels. */
template <int N, class Body>
static __device__ inline void for_pixels(const Pool &s, int64_t h, int64_t w, Body &&body)
{
    int64_t slots = s.c / N;
    for (int64_t row = blockIdx.x; row < s.n * h; row += gridDim.x) {
        int64_t image = row / h, y = row % h, x = threadIdx.x / slots, slot = threadIdx.x % slots;
        while (x < w) {
            body(image, y, x, slot * N);
            x += BLOCK / slots;
            slot += BLOCK % slots;
            if (slot >= slots) {
                slot -= slots;
                x++;
            }
        }
    }
}

template <int N> static __device__ inline void store_positions(int32_t *to, const int32_t (&position)[N])
{
    enum { SIZE = N < 4 ? N : 4 };
    for (int k = 0; k < N; k += SIZE) {
        Pack<int32_t, SIZE> pack;
        for (int j = 0; j < SIZE; j++)
            pack.value[j] = position[k + j];
        store_pack(to + k, pack);
    }
}

template <class T, int N> static __global__ void max_pool(Pool s, const T *x, T *y, int32_t *argmax)
{
    for_pixels<N>(s, s.oh, s.ow, [&](int64_t image, int64_t oh, int64_t ow, int64_t channel) {
        Range rows = window(oh, s.stride_h, s.pad_h, s.kh, s.h), cols = window(ow, s.stride_w, s.pad_w, s.kw, s.w);
        Real<T> best[N];
        int32_t position[N];
        for (int k = 0; k < N; k++) {
            best[k] = -INFINITY;
            position[k] = (int32_t)(rows.first * s.w + cols.first);
        }
        for (int64_t h = rows.first; h < rows.end; h++)
            for (int64_t w = cols.first; w < cols.end; w++) {
                Pack<T, N> pack = load_pack<T, N>(x + ((image * s.h + h) * s.w + w) * s.c + channel);
                for (int k = 0; k < N; k++) {
                    Real<T> value = to_real(pack.value[k]);
                    bool takes = !(value <= best[k]) && best[k] == best[k]; /* a NaN is never left again */
                    best[k] = takes ? value : best[k];
                    position[k] = takes ? (int32_t)(h * s.w + w) : position[k];
                }
            }
        int64_t to = ((image * s.oh + oh) * s.ow + ow) * s.c + channel;
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(best[k]);
        store_pack(y + to, out);
        if (argmax)
            store_positions(argmax + to, position);
    });
}

template <int N> static __device__ inline void load_positions(const int32_t *from, int32_t (&position)[N])
{
    enum { SIZE = N < 4 ? N : 4 };
    for (int k = 0; k < N; k += SIZE) {
        Pack<int32_t, SIZE> pack = load_pack<int32_t, SIZE>(from + k);
        for (int j = 0; j < SIZE; j++)
            position[k + j] = pack.value[j];
    }
}

template <class T, int N> static __global__ void max_pool_backward(Pool s, const T *dy, const int32_t *argmax, T *dx)
{
    for_pixels<N>(s, s.h, s.w, [&](int64_t image, int64_t h, int64_t w, int64_t channel) {
        Range rows = covering(h, s.stride_h, s.pad_h, s.kh, s.oh), cols = covering(w, s.stride_w, s.pad_w, s.kw, s.ow);
        int32_t own = (int32_t)(h * s.w + w), position[N];
        Real<T> sum[N] = {};
        for (int64_t oh = rows.first; oh < rows.end; oh++)
            for (int64_t ow = cols.first; ow < cols.end; ow++) {
                int64_t from = ((image * s.oh + oh) * s.ow + ow) * s.c + channel;
                Pack<T, N> pack = load_pack<T, N>(dy + from);
                load_positions(argmax + from, position);
                for (int k = 0; k < N; k++)
                    sum[k] += position[k] == own ? to_real(pack.value[k]) : 0;
            }
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(sum[k]);
        store_pack(dx + ((image * s.h + h) * s.w + w) * s.c + channel, out);
    });
}

/* Blocks for `rows` rows of pixels. */
static unsigned blocks_of(int64_t rows)
{
    return (unsigned)(rows < 1 << 30 ? rows : 1 << 30);
}

shard_status shard_cuda_max_pool(shard_device *device, const shard_pool_shape *shape, const void *x, void *y, int32_t *argmax,
                                 shard_dtype dtype)
{
    if (shape->n == 0 || shape->c == 0 || shape->oh == 0 || shape->ow == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const int pack = Pack<T>::SIZE;
        bool packed = shape->c % pack == 0 && aligned16(x, y, argmax);
        return launch(device, packed ? max_pool<T, pack> : max_pool<T, 1>, blocks_of(shape->n * shape->oh), BLOCK, Pool(shape),
                      (const T *)x, (T *)y, argmax);
    });
}

shard_status shard_cuda_max_pool_backward(shard_device *device, const shard_pool_shape *shape, const void *dy,
                                          const int32_t *argmax, void *dx, shard_dtype dtype)
{
    if (shape->n == 0 || shape->c == 0 || shape->h == 0 || shape->w == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const int pack = Pack<T>::SIZE;
        bool packed = shape->c % pack == 0 && aligned16(dy, argmax, dx);
        return launch(device, packed ? max_pool_backward<T, pack> : max_pool_backward<T, 1>, blocks_of(shape->n * shape->h),
                      BLOCK, Pool(shape), (const T *)dy, argmax, (T *)dx);
    });
}
