/* a op b as 1 or 0, of operands that are repeated: of every dtype, 16-bit types as float. */
#include "device/cuda/expansion.cuh"

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

template <class N> static __device__ inline bool holds(shard_comparison comparison, N a, N b)
{
    switch (comparison) {
    case SHARD_EQ:
        return a == b;
    case SHARD_NE:
        return a != b;
    case SHARD_LT:
        return a < b;
    case SHARD_LE:
        return a <= b;
    case SHARD_GT:
        return a > b;
    case SHARD_GE:
        return a >= b;
    }
    return false;
}

template <class T, Columns COLUMNS> struct Compare {
    shard_comparison comparison;
    Source<T, COLUMNS> a, b;
    uint8_t *y;

    template <int N> struct In {
        Pack<T, N> a, b;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        const int pack = Pack<T>::SIZE;
        return {a.template load<N, pack>(i), b.template load<N, pack>(i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<uint8_t, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = holds(comparison, number(in.a.value[k]), number(in.b.value[k]));
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_compare(shard_device *device, shard_comparison comparison, const shard_expansion *over, const void *a,
                                const void *b, uint8_t *y, shard_dtype dtype)
{
    return by_dtype(dtype, [&](auto t) {
        using T = decltype(t);
        const int pack = Pack<T>::SIZE;
        const T *left = (const T *)a, *right = (const T *)b;
        int64_t n = shard_expansion_count(over);
        if (shard_expansion_dense(over, 0) && shard_expansion_dense(over, 1))
            return run_map<pack, 2>(device, n, aligned16(a, b, y), Compare<T, SAME>{comparison, {left, 0}, {right, 0}, y});
        return run_map<pack, 1>(device, n, aligned16(y), Compare<T, STRIDED>{comparison, {left, *over, 0}, {right, *over, 1}, y});
    });
}
