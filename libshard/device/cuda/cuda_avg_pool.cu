/*
 * Average pooling of images [n, h, w, c]; both ways gather, so that each element is
 * written once. Own kernels: cuDNN divides by the whole kernel where a last window
 * hangs over the padding (ceil_mode), PyTorch by the part that is in the padded image.
 *
 * Invariants: a thread owns a pack of 16 bytes of channels, or one channel where
 * they are no multiple of that; sums of 16-bit types are in float32, of others in
 * float64.
 */
#include "device/cuda/pool.cuh"

using namespace shard;

template <class T> struct SumOf {
    using type = float;
};
template <> struct SumOf<float> {
    using type = double;
};
template <> struct SumOf<double> {
    using type = double;
};

struct Shape {
    Direction vertical, horizontal;
    int64_t channels, include_pad;
    Divisor packs, width, height; /* of the array that is written */
    Shape(const shard_pool_shape *s, bool backward, int pack)
        : vertical(direction_h(s)), horizontal(direction_w(s)), channels(s->c), include_pad(s->count_include_pad),
          packs(s->c / pack), width(backward ? s->w : s->ow), height(backward ? s->h : s->oh)
    {
    }
};

/* How many elements of an output's window count. */
static __device__ inline int64_t extent(const Direction &d, int64_t output, bool include_pad)
{
    Range inside = d.window(output);
    int64_t first = output * d.stride.size;
    return include_pad ? smaller(first + d.kernel, d.inputs + 2 * d.pad) - first : inside.end - inside.first;
}

static __device__ inline int64_t divisor(const Shape &s, int64_t h, int64_t w)
{
    return extent(s.vertical, h, s.include_pad) * extent(s.horizontal, w, s.include_pad);
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

/* The i-th pack of channels of the array that is written, [n, h, w, c]. */
struct Spot {
    int64_t n, h, w, c;
    __device__ Spot(const Shape &s, int64_t i, int64_t each)
    {
        n = i;
        c = s.packs.split(&n) * each;
        w = s.width.split(&n);
        h = s.height.split(&n);
    }
};

template <class T, int N> static __global__ void average(Shape s, int64_t count, const T *x, T *y)
{
    using Sum = typename SumOf<T>::type;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        Spot at(s, i, N);
        Range rows = s.vertical.window(at.h), cols = s.horizontal.window(at.w);
        Sum sum[N] = {};
        for (int64_t h = rows.first; h < rows.end; h++)
#pragma unroll 4
            for (int64_t w = cols.first; w < cols.end; w++) {
                alignas(16) Few<T, N> few;
                few.load(x + ((at.n * s.vertical.inputs + h) * s.horizontal.inputs + w) * s.channels + at.c);
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
        Spot at(s, i, N);
        Range rows = s.vertical.covering(at.h), cols = s.horizontal.covering(at.w);
        Sum sum[N] = {};
        for (int64_t h = rows.first; h < rows.end; h++)
            for (int64_t w = cols.first; w < cols.end; w++) {
                Sum share = 1 / (Sum)divisor(s, h, w);
                alignas(16) Few<T, N> few;
                few.load(dy + ((at.n * s.vertical.outputs + h) * s.horizontal.outputs + w) * s.channels + at.c);
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
static shard_status run(shard_device *device, bool backward, const shard_pool_shape *s, int64_t pixels, const void *from,
                        void *to)
{
    constexpr int PACK = Pack<T>::SIZE;
    bool packs = s->c % PACK == 0 && aligned16(from, to);
    int64_t count = pixels * s->c / (packs ? PACK : 1);
    if (count == 0)
        return SHARD_OK;
    auto kernel = backward ? packs ? average_backward<T, PACK> : average_backward<T, 1>
                  : packs ? average<T, PACK>
                           : average<T, 1>;
    return launch(device, kernel, blocks_for(device, count, BLOCK), BLOCK, Shape(s, backward, packs ? PACK : 1), count,
                  (const T *)from, (T *)to);
}

shard_status shard_cuda_avg_pool(shard_device *device, const shard_pool_shape *s, const void *x, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) { return run<decltype(t)>(device, false, s, s->n * s->oh * s->ow, x, y); });
}

shard_status shard_cuda_avg_pool_backward(shard_device *device, const shard_pool_shape *s, const void *dy, void *dx,
                                          shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) { return run<decltype(t)>(device, true, s, s->n * s->h * s->w, dy, dx); });
}
