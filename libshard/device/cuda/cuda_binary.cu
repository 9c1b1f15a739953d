/*
 * y[i, j] = a[i, j] op b[j], and of two arrays of one shape, where i is always 0.
 *
 * Invariants: y may be a. a and y move in packs wherever they are aligned, also where
 * a pack crosses the end of a row; b then comes one by one, from the caches.
 */
#include "device/cuda/map.cuh"

using namespace shard;

enum Columns { SAME /* b is like a */, PACKED /* a pack is within a row */, ANY };

template <class T, shard_binary BINARY, Columns COLUMNS> struct Binary {
    int64_t cols; /* in packs where they are PACKED */
    const T *a, *b;
    T *y;

    template <int N> struct In {
        Pack<T, N> a, b;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in;
        in.a = load_pack<T, N>(a + i);
        if (COLUMNS == SAME)
            in.b = load_pack<T, N>(b + i);
        else if (COLUMNS == PACKED && N > 1)
            in.b = load_pack<T, N>(b + i / N % cols * N);
        else {
            int64_t width = COLUMNS == PACKED ? cols * Pack<T>::SIZE : cols, j = i % width;
            for (int k = 0; k < N; k++) {
                in.b.value[k] = b[j++];
                j = j == width ? 0 : j;
            }
        }
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++) {
            Real<T> left = to_real(in.a.value[k]), right = to_real(in.b.value[k]);
            out.value[k] = round_to<T>(BINARY == SHARD_ADD ? left + right : left * right);
        }
        store_pack(y + i, out);
    }
};

template <class T, shard_binary BINARY>
static shard_status run(shard_device *device, int64_t rows, int64_t cols, const T *a, const T *b, T *y)
{
    const int pack = Pack<T>::SIZE;
    int64_t n = rows * cols;
    if (rows <= 1)
        return run_map<pack, 2>(device, n, aligned16(a, b, y), Binary<T, BINARY, SAME>{0, a, b, y});
    if (cols % pack == 0 && aligned16(b))
        return run_map<pack, 2>(device, n, aligned16(a, y), Binary<T, BINARY, PACKED>{cols / pack, a, b, y});
    return run_map<pack, 2>(device, n, aligned16(a, y), Binary<T, BINARY, ANY>{cols, a, b, y});
}

shard_status shard_cuda_binary(shard_device *device, shard_binary binary, int64_t rows, int64_t cols, const void *a,
                               const void *b, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return binary == SHARD_ADD ? run<T, SHARD_ADD>(device, rows, cols, (const T *)a, (const T *)b, (T *)y)
                                   : run<T, SHARD_MUL>(device, rows, cols, (const T *)a, (const T *)b, (T *)y);
    });
}
