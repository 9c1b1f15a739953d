/*
 * cast, between every two types, and fill, which casts one value.
 *
 * Invariants: 16-bit types go through float; from an integer to a floating type is
 * rounded once. To an integer truncates; a value outside its range becomes the nearest
 * one, NaN 0. Integers wrap among themselves.
 */
#include "device/cuda/map.cuh"

#include <type_traits>

using namespace shard;

/* A floating number as float or double, an integer as it is. */
template <class T> static __device__ inline auto number(T x)
{
    if constexpr (std::is_integral<T>::value)
        return x;
    else
        return to_real(x);
}

template <class To> static __device__ inline To truncate(double x)
{
    const double low = sizeof(To) == 8 ? -0x1p63 : sizeof(To) == 4 ? -0x1p31 : 0;
    const double high = sizeof(To) == 8 ? 0x1p63 : sizeof(To) == 4 ? 0x1p31 : 0x1p8;
    const To lowest = sizeof(To) == 8 ? (To)INT64_MIN : sizeof(To) == 4 ? (To)INT32_MIN : (To)0;
    if (x >= high)
        return (To)~lowest;
    if (x <= low)
        return lowest;
    return x == x ? (To)x : (To)0;
}

template <class To, class From> static __device__ inline To convert(From x)
{
    if constexpr (!std::is_integral<To>::value)
        return round_to<To>((Real<To>)number(x));
    else if constexpr (std::is_integral<From>::value)
        return (To)x;
    else
        return truncate<To>((double)to_real(x));
}

template <class From, class To> struct Cast {
    const From *x;
    To *y;

    template <int N> using In = Pack<From, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return load_pack<From, N>(x + i);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<To, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = convert<To>(in.value[k]);
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_cast(shard_device *device, int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to)
{
    return by_dtype(from, [&](auto f) {
        return by_dtype(to, [&](auto t) {
            using From = decltype(f);
            using To = decltype(t);
            const int pack = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
            return run_map<pack, 4>(device, n, aligned16(x, y), Cast<From, To>{(const From *)x, (To *)y});
        });
    });
}

template <class T> struct Fill {
    double value;
    T *y;

    template <int N> struct In {
    };
    template <int N> __device__ In<N> load(int64_t) const
    {
        return {};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = convert<T>(value);
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_fill(shard_device *device, int64_t n, double value, void *y, shard_dtype dtype)
{
    return by_dtype(dtype, [&](auto t) {
        using T = decltype(t);
        return run_map<Pack<T>::SIZE, 4>(device, n, aligned16(y), Fill<T>{value, (T *)y});
    });
}
