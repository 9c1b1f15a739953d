/*
 * y = alpha x + beta y.
 *
 * Invariants: y is not read where beta is 0; x may be y.
 */
#include "device/cuda/map.cuh"

using namespace shard;

template <class T, bool READS> struct Axpby {
    Real<T> alpha, beta;
    const T *x;
    T *y;

    template <int N> struct In {
        Pack<T, N> x, y;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in;
        in.x = load_pack<T, N>(x + i);
        if (READS)
            in.y = load_pack<T, N>(y + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++) {
            Real<T> value = alpha * to_real(in.x.value[k]);
            out.value[k] = round_to<T>(READS ? value + beta * to_real(in.y.value[k]) : value);
        }
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_axpby(shard_device *device, int64_t n, double alpha, const void *x, double beta, void *y,
                              shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        auto run = [&](auto body) { return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(x, y), body); };
        if (beta == 0)
            return run(Axpby<T, false>{(Real<T>)alpha, 0, (const T *)x, (T *)y});
        return run(Axpby<T, true>{(Real<T>)alpha, (Real<T>)beta, (const T *)x, (T *)y});
    });
}
