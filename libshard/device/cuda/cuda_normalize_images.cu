/* Converts 8-bit pixels to floating numbers: a mean and a factor for each channel. */
#include "device/cuda/map.cuh"

using namespace shard;

template <class T> struct NormalizeImages {
    int64_t channels;
    const uint8_t *x;
    T *y;
    Real<T> mean[SHARD_IMAGE_CHANNELS], factor[SHARD_IMAGE_CHANNELS];

    template <int N> using In = Pack<uint8_t, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return load_pack<uint8_t, N>(x + i);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        int count = (int)channels, c = i <= UINT32_MAX ? (int)((uint32_t)i % (uint32_t)count) : (int)(i % count);
        Pack<T, N> out;
        for (int k = 0; k < N; k++) {
            out.value[k] = round_to<T>(((Real<T>)in.value[k] - mean[c]) * factor[c]);
            c = c + 1 == count ? 0 : c + 1;
        }
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_normalize_images(shard_device *device, int64_t pixels, int64_t channels, const uint8_t *x,
                                         const double *mean_host, const double *factor_host, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        NormalizeImages<T> body = {};
        body.channels = channels;
        body.x = x;
        body.y = (T *)y;
        for (int64_t c = 0; c < channels; c++) {
            body.mean[c] = (Real<T>)mean_host[c];
            body.factor[c] = (Real<T>)factor_host[c];
        }
        return run_map<Pack<T>::SIZE, 4>(device, pixels * channels, aligned16(x, y), body);
    });
}
