/* Clipping: the factor of a norm that is too large, and bounds of single elements. */
#include "device/cuda/map.cuh"

using namespace shard;

static __global__ void clip_scale(double power, double max_norm, const double *sum, double *norm, double *scale)
{
    double all = *scale * (power == INFINITY ? *sum : power == 2 ? sqrt(*sum) : pow(*sum, 1 / power));
    double coefficient = max_norm / (all + 1e-6);
    *norm = all;
    *scale *= coefficient > 1 || max_norm == INFINITY ? 1 : coefficient;
}

shard_status shard_cuda_clip_scale(shard_device *device, double power, double max_norm, const double *sum, double *norm,
                                   double *scale)
{
    return launch(device, clip_scale, 1, 1, power, max_norm, sum, norm, scale);
}

template <class T> struct Clip {
    double bound;
    const double *scale;
    T *x;

    template <int N> struct In {
        Pack<T, N> x;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return {load_pack<T, N>(x + i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        Real<T> high = (Real<T>)(bound / scalar<double>(scale)), low = -high;
        for (int k = 0; k < N; k++) {
            Real<T> value = to_real(in.x.value[k]);
            value = value > high ? high : value;
            out.value[k] = round_to<T>(value < low ? low : value);
        }
        store_pack(x + i, out);
    }
};

shard_status shard_cuda_clip_value(shard_device *device, int64_t n, double bound, const double *scale, void *x, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(x), Clip<T>{bound, scale, (T *)x});
    });
}
