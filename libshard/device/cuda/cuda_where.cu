/* a or b as a condition says, of operands that are repeated: elements are words of their size. */
#include "device/cuda/expansion.cuh"

using namespace shard;

template <class W, Columns COLUMNS> struct Where {
    Source<uint8_t, COLUMNS> condition;
    Source<W, COLUMNS> a, b;
    W *y;

    template <int N> struct In {
        Pack<uint8_t, N> condition;
        Pack<W, N> a, b;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        const int pack = Pack<W>::SIZE;
        return {condition.template load<N, pack>(i), a.template load<N, pack>(i), b.template load<N, pack>(i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<W, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = in.condition.value[k] ? in.a.value[k] : in.b.value[k];
        store_pack(y + i, out);
    }
};

shard_status shard_cuda_where(shard_device *device, const shard_expansion *over, const uint8_t *condition, const void *a,
                              const void *b, void *y, shard_dtype dtype)
{
    return by_dtype(dtype, [&](auto t) {
        using W = Word<sizeof t>;
        const int pack = Pack<W>::SIZE;
        const W *left = (const W *)a, *right = (const W *)b;
        int64_t n = shard_expansion_count(over);
        if (shard_expansion_dense(over, 0) && shard_expansion_dense(over, 1) && shard_expansion_dense(over, 2)) {
            Where<W, SAME> body = {{condition, 0}, {left, 0}, {right, 0}, (W *)y};
            return run_map<pack, 2>(device, n, aligned16(condition, a, b, y), body);
        }
        Where<W, STRIDED> body = {{condition, *over, 0}, {left, *over, 1}, {right, *over, 2}, (W *)y};
        return run_map<pack, 1>(device, n, aligned16(y), body);
    });
}
