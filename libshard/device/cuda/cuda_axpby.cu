/*
 * y = alpha x + beta y, as y + alpha (x - y) where alpha + beta is 1.
 *
 * Invariants: y is not read where beta is 0; x may be y.
 */
#include "device/cuda/map.cuh"

using namespace shard;

enum Form { SCALED, BLENDED, SUMMED };

template <class T, Form FORM> struct Axpby {
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
        if (FORM != SCALED)
            in.y = load_pack<T, N>(y + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++) {
            Real<T> from = to_real(in.x.value[k]), old = FORM == SCALED ? 0 : to_real(in.y.value[k]);
            out.value[k] = round_to<T>(FORM == SCALED    ? alpha * from
                                       : FORM == BLENDED ? old + alpha * (from - old)
                                                         : alpha * from + beta * old);
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
            return run(Axpby<T, SCALED>{(Real<T>)alpha, 0, (const T *)x, (T *)y});
        if (alpha + beta == 1)
            return run(Axpby<T, BLENDED>{(Real<T>)alpha, 0, (const T *)x, (T *)y});
        return run(Axpby<T, SUMMED>{(Real<T>)alpha, (Real<T>)beta, (const T *)x, (T *)y});
    });
}
