/*
 * How kernels go along one dimension of [outer, size, inner]. Each of the outer * inner
 * lines is a team's: of a block, of a warp where lines are short, of one thread where inner is
 * long enough that neighbouring threads read neighbouring elements. Element k of a line is
 * k * inner from its first; a lane takes every LANES-th.
 *
 * A Form has
 *     template <int LANES> __device__ void run(const Line &line, int lane) const;
 * Every thread of a team reaches each reduction in it.
 */
#ifndef SHARD_DEVICE_CUDA_AXIS_CUH
#define SHARD_DEVICE_CUDA_AXIS_CUH

#include "device/cuda/kernel.cuh"

namespace shard {

enum {
    SHORT_LINE = 2048,     /* elements up to which a warp is the team */
    MANY_LINES = 1 << 14,  /* from which on one thread may be */
};

struct Line {
    int64_t index;              /* of outer * inner */
    int64_t first, size, inner; /* element k is first + k * inner */
    __device__ int64_t at(int64_t k) const
    {
        return first + k * inner;
    }
};

/* Every lane of the team gets the sum. */
template <int LANES, class R> static __device__ inline R line_sum(R value)
{
    if constexpr (LANES == 1)
        return value;
    else if constexpr (LANES == WARP)
        return warp_reduce<Sum>(value);
    else
        return block_reduce<LANES, Sum>(value);
}

template <class Form, int LANES> static __global__ void go_along(Form form, shard_axis axis)
{
    int64_t lines = axis.outer * axis.inner, step = (int64_t)gridDim.x * (BLOCK / LANES);
    int lane = (int)threadIdx.x % LANES;
    for (int64_t i = (int64_t)blockIdx.x * (BLOCK / LANES) + (int)threadIdx.x / LANES; i < lines; i += step) {
        Line line = {i, i / axis.inner * axis.size * axis.inner + i % axis.inner, axis.size, axis.inner};
        form.template run<LANES>(line, lane);
    }
}

template <class Form> static shard_status run_along(shard_device *device, const Form &form, const shard_axis &axis)
{
    int64_t lines = axis.outer * axis.inner;
    if (lines == 0)
        return SHARD_OK;
    if (axis.size == 1 || (axis.inner >= WARP && lines >= MANY_LINES))
        return launch(device, go_along<Form, 1>, blocks_for(device, lines, BLOCK), BLOCK, form, axis);
    if (axis.size <= SHORT_LINE)
        return launch(device, go_along<Form, WARP>, blocks_for(device, lines, BLOCK / WARP), BLOCK, form, axis);
    return launch(device, go_along<Form, BLOCK>, blocks_for(device, lines, 1), BLOCK, form, axis);
}

} // namespace shard

#endif
