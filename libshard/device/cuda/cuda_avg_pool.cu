/*
 * Average pooling of images [n, h, w, c]; both ways gather, so that each element is
 * written once. Own kernels: cuDNN divides by the whole kernel where a last window
 * hangs over the padding (ceil_mode), PyTorch by its part of the padded image.
 *
 * Invariants: a thread owns a pack of 16 bytes of channels, or one channel where
 * they are no multiple of that; sums of 16-bit types are in float32, of others in
 * float64.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

template <class T> struct SumOf { using type = float; };
template <> struct SumOf<float> { using type = double; };
template <> struct SumOf<double> { using type = double; };

/* What kernels take of a shard_pool_shape; without gaps. */
struct Shape {
    int64_t h, w, c, kh, kw, oh, ow, stride_h, stride_w, pad_h, pad_w, include_pad;
    explicit Shape(const shard_pool_shape &s)
        : h(s.h), w(s.w), c(s.c), kh(s.kh), kw(s.kw), oh(s.oh), ow(s.ow), stride_h(s.stride_h), stride_w(s.stride_w), pad_h(s.pad_h),
          pad_w(s.pad_w), include_pad(s.count_include_pad)
    {
    }
};

struct Range {
    int64_t first, end;
};

/* The inputs of an output's window, of `size`. */
static __device__ inline Range window(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t first = output * stride - pad, end = first + kernel;
    return {first < 0 ? 0 : first, end < size ? end : size};
}

/* The outputs, of `size`, in whose windows an input is. */
static __device__ inline Range covering(int64_t input, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t last = input + pad, before = last - kernel, end = last / stride + 1;
    return {before < 0 ? 0 : before / stride + 1, end < size ? end : size};
}

/* How many elements of an output's window count. */
static __device__ inline int64_t extent(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t size, bool include_pad)
{
    Range inside = window(output, stride, pad, kernel, size);
    int64_t first = output * stride, end = first + kernel, padded = size + 2 * pad;
    return include_pad ? (end < padded ? end : padded) - first : inside.end - inside.first;
}

static __device__ inline int64_t divisor(const Shape &s, int64_t h, int64_t w)
{
    return extent(h, s.stride_h, s.pad_h, s.kh, s.h, s.include_pad) *
           extent(w, s.stride_w, s.pad_w, s.kw, s.w, s.include_pad);
}

/* N neighbours, by one access where they are a pack. */
template <class T, int N> struct Few {
    T value[N];
    __device__ void load(const T *from)
    {
        if (N == 1)
            value[0] = *from;
        else
            *(Pack<T> *)value = load_pack(from);
    }
    __device__ void store(T *to) const
    {
        if (N == 1)
            *to = value[0];
        else
            store_pack(to, *(const Pack<T> *)value);
    }
};

/* Channels of one pixel of the array that is written: [n, h, w, c] of `h` by `w`. */
struct Spot {
    int64_t n, h, w, c;
    __device__ Spot(int64_t i, int64_t packs, int64_t each, int64_t height, int64_t width)
    {
        c = i % packs * each;
        w = i / packs % width;
        h = i / packs / width % height;
        n = i / packs / width / height;
    }
};

template <class T, int N> static __global__ void average(Shape s, int64_t count, const T *x, T *y)
{
    using Sum = typename SumOf<T>::type;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        Spot at(i, s.c / N, N, s.oh, s.ow);
        Range rows = window(at.h, s.stride_h, s.pad_h, s.kh, s.h), cols = window(at.w, s.stride_w, s.pad_w, s.kw, s.w);
        Sum sum[N] = {};
        for (int64_t h = rows.first; h < rows.end; h++)
#pragma unroll 4
            for (int64_t w = cols.first; w < cols.end; w++) {
                alignas(16) Few<T, N> few;
                few.load(x + ((at.n * s.h + h) * s.w + w) * s.c + at.c);
                for (int k = 0; k < N; k++)
                    sum[k] += to_real(few.value[k]);
            }
        Sum share = 1 / (Sum)divisor(s, at.h, at.w);
        alignas(16) Few<T, N> mean;
        for (int k = 0; k < N; k++)
            mean.value[k] = round_to<T>((Real<T>)(sum[k] * share));
        mean.store(y + i * N);
    }
}

template <class T, int N> static __global__ void average_backward(Shape s, int64_t count, const T *dy, T *dx)
{
    using Sum = typename SumOf<T>::type;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        Spot at(i, s.c / N, N, s.h, s.w);
        Range rows = covering(at.h, s.stride_h, s.pad_h, s.kh, s.oh), cols = covering(at.w, s.stride_w, s.pad_w, s.kw, s.ow);
        Sum sum[N] = {};
        for (int64_t h = rows.first; h < rows.end; h++)
            for (int64_t w = cols.first; w < cols.end; w++) {
                Sum share = 1 / (Sum)divisor(s, h, w);
                alignas(16) Few<T, N> few;
                few.load(dy + ((at.n * s.oh + h) * s.ow + w) * s.c + at.c);
                for (int k = 0; k < N; k++)
                    sum[k] += to_real(few.value[k]) * share;
            }
        alignas(16) Few<T, N> gradient;
        for (int k = 0; k < N; k++)
            gradient.value[k] = round_to<T>((Real<T>)sum[k]);
        gradient.store(dx + i * N);
    }
}

/* `pixels` of the array that is written. */
template <class T>
static shard_status run(shard_device *device, bool backward, const shard_pool_shape *s, int64_t pixels, const void *from, void *to)
{
    constexpr int PACK = Pack<T>::SIZE;
    bool packs = s->c % PACK == 0 && aligned16(from, to);
    int64_t count = pixels * s->c / (packs ? PACK : 1);
    if (count == 0)
        return SHARD_OK;
    auto kernel = backward ? packs ? average_backward<T, PACK> : average_backward<T, 1> : packs ? average<T, PACK> : average<T, 1>;
    return launch(device, kernel, blocks_for(device, count, BLOCK), BLOCK, Shape(*s), count, (const T *)from, (T *)to);
}

shard_status shard_cuda_avg_pool(shard_device *device, const shard_pool_shape *s, const void *x, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) { return run<decltype(t)>(device, false, s, s->n * s->oh * s->ow, x, y); });
}

shard_status shard_cuda_avg_pool_backward(shard_device *device, const shard_pool_shape *s, const void *dy, void *dx, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) { return run<decltype(t)>(device, true, s, s->n * s->h * s->w, dy, dx); });
}
