/*
 * How kernels read operands that are repeated to the shape of a result (device/expansion.h).
 * A Source is an array like the result, rows that follow each other (a pack is within a row,
 * or it may cross its end), or of any steps.
 */
#ifndef SHARD_DEVICE_CUDA_EXPANSION_CUH
#define SHARD_DEVICE_CUDA_EXPANSION_CUH

#include "device/cuda/map.cuh"

namespace shard
{

enum Columns { SAME /* an array like the result */, PACKED /* a pack is within a row */, ANY, STRIDED };

template <class T, Columns COLUMNS> struct Source {
    const T *x;
    int64_t cols; /* in packs where they are PACKED */

    template <int N, int PACK> __device__ Pack<T, N> load(int64_t i) const
    {
        if (COLUMNS == SAME)
            return load_pack<T, N>(x + i);
        if (COLUMNS == PACKED && N > 1)
            return load_pack<T, N>(x + i / N % cols * N);
        Pack<T, N> pack;
        int64_t width = COLUMNS == PACKED ? cols * PACK : cols, j = i % width;
        for (int k = 0; k < N; k++) {
            pack.value[k] = x[j++];
            j = j == width ? 0 : j;
        }
        return pack;
    }
};

template <class T> struct Source<T, STRIDED> {
    const T *x;
    shard_expansion over;
    int operand;

    template <int N, int PACK> __device__ Pack<T, N> load(int64_t i) const
    {
        Pack<T, N> pack;
        int64_t last = over.ndim - 1, length = over.size[last], step = over.step[operand][last], j = i % length;
        int64_t at = shard_expansion_locate(&over, operand, i);
        for (int k = 0; k < N; k++) {
            pack.value[k] = x[at];
            at += step;
            if (++j == length) {
                j = 0;
                at = k + 1 < N ? shard_expansion_locate(&over, operand, i + k + 1) : at;
            }
        }
        return pack;
    }
};

} // namespace shard

#endif
