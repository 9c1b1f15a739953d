/*
 * Max pooling of images [n, h, w, c]. Both directions gather: the forward, for each
 * output, over the inputs of its window; the backward, for each input, over the outputs
 * whose windows it is in. So each element is written once, and sums have one order.
 *
 * A block takes a row of pixels that are written, a thread N channels of one.
 */
#include "device/cuda/pool.cuh"

using namespace shard;

struct Pool {
    Direction vertical, horizontal;
    int64_t channels;
    /* Of the array that is written: rows of all images, pixels of a row; each has `slots` of N channels. */
    int64_t rows, width;
    Divisor height, slots;
    int64_t pixels_on, slots_on; /* from a thread's slot of a row to its next one */
    Pool(const shard_pool_shape *s, bool forward, int pack)
        : vertical(direction_h(s)), horizontal(direction_w(s)), channels(s->c), rows(s->n * (forward ? s->oh : s->h)),
          width(forward ? s->ow : s->w), height(forward ? s->oh : s->h), slots(s->c / pack), pixels_on(BLOCK / slots.size),
          slots_on(BLOCK % slots.size)
    {
    }
};

/* Calls body(image, y, x, channel) for all pixels [y, x] of all images and each N of their channels. */
template <int N, class Body> static __device__ inline void for_pixels(const Pool &s, Body &&body)
{
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        int64_t image = row, y = s.height.split(&image), x = threadIdx.x, slot = s.slots.split(&x);
        while (x < s.width) {
            body(image, y, x, slot * N);
            x += s.pixels_on;
            slot += s.slots_on;
            if (slot >= s.slots.size) {
                slot -= s.slots.size;
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
    const int64_t height = s.vertical.inputs, width = s.horizontal.inputs;
    for_pixels<N>(s, [&](int64_t image, int64_t oh, int64_t ow, int64_t channel) {
        Range rows = s.vertical.window(oh), cols = s.horizontal.window(ow);
        Real<T> best[N];
        int32_t position[N];
        for (int k = 0; k < N; k++) {
            best[k] = -INFINITY;
            position[k] = (int32_t)(rows.first * width + cols.first);
        }
        for (int64_t h = rows.first; h < rows.end; h++)
            for (int64_t w = cols.first; w < cols.end; w++) {
                Pack<T, N> pack = load_pack<T, N>(x + ((image * height + h) * width + w) * s.channels + channel);
                for (int k = 0; k < N; k++) {
                    Real<T> value = to_real(pack.value[k]);
                    bool takes = !(value <= best[k]) && best[k] == best[k]; /* a NaN is never left again */
                    best[k] = takes ? value : best[k];
                    position[k] = takes ? (int32_t)(h * width + w) : position[k];
                }
            }
        int64_t to = ((image * s.vertical.outputs + oh) * s.horizontal.outputs + ow) * s.channels + channel;
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
    const int64_t height = s.vertical.outputs, width = s.horizontal.outputs;
    for_pixels<N>(s, [&](int64_t image, int64_t h, int64_t w, int64_t channel) {
        Range rows = s.vertical.covering(h), cols = s.horizontal.covering(w);
        int32_t own = (int32_t)(h * s.width + w), position[N];
        Real<T> sum[N] = {};
        for (int64_t oh = rows.first; oh < rows.end; oh++)
            for (int64_t ow = cols.first; ow < cols.end; ow++) {
                int64_t from = ((image * height + oh) * width + ow) * s.channels + channel;
                Pack<T, N> pack = load_pack<T, N>(dy + from);
                load_positions(argmax + from, position);
                for (int k = 0; k < N; k++)
                    sum[k] += position[k] == own ? to_real(pack.value[k]) : 0;
            }
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(sum[k]);
        store_pack(dx + ((image * s.vertical.inputs + h) * s.width + w) * s.channels + channel, out);
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
        return launch(device, packed ? max_pool<T, pack> : max_pool<T, 1>, blocks_of(shape->n * shape->oh), BLOCK,
                      Pool(shape, true, packed ? pack : 1), (const T *)x, (T *)y, argmax);
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
                      BLOCK, Pool(shape, false, packed ? pack : 1), (const T *)dy, argmax, (T *)dx);
    });
}
