/* Which pixels a window has, and which windows a pixel is in, along one direction. */
#ifndef SHARD_DEVICE_CUDA_POOL_CUH
#define SHARD_DEVICE_CUDA_POOL_CUH

#include "device/cuda/divisor.cuh"
#include "device/cuda/kernel.cuh"

namespace shard
{

/* Positions first ... end - 1. */
struct Range {
    int64_t first, end;
};

static __device__ inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One direction of a shard_pool_shape; all bytes are defined, as the emulation requires of kernels' arguments. */
struct Direction {
    int64_t inputs, outputs, kernel, pad;
    Divisor stride;

    /* The inputs of an output's window. */
    __device__ Range window(int64_t output) const
    {
        int64_t first = output * stride.size - pad;
        return Range{first < 0 ? 0 : first, smaller(first + kernel, inputs)};
    }

    /* The outputs in whose windows an input is. */
    __device__ Range covering(int64_t input) const
    {
        int64_t last = input + pad, before = last - kernel;
        return Range{before < 0 ? 0 : stride.quotient(before) + 1, smaller(stride.quotient(last) + 1, outputs)};
    }
};

inline Direction direction_h(const shard_pool_shape *s)
{
    return Direction{s->h, s->oh, s->kh, s->pad_h, Divisor(s->stride_h)};
}
inline Direction direction_w(const shard_pool_shape *s)
{
    return Direction{s->w, s->ow, s->kw, s->pad_w, Divisor(s->stride_w)};
}

} // namespace shard

#endif
