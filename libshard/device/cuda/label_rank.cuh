/* The order of logits for the labels' ranks. */
#ifndef SHARD_DEVICE_CUDA_LABEL_RANK_CUH
#define SHARD_DEVICE_CUDA_LABEL_RANK_CUH

#include "device/cuda/kernel.cuh"

namespace shard
{

/* Whether an element comes before the target, whose logit is own: it is larger, or as large and `left` of it. A NaN counts as the
 * largest of all. */
template <class R> static __device__ inline bool comes_before(R value, R own, bool left)
{
    if (own != own)
        return value != value && left;
    return !(value <= own) || (value == own && left);
}

} // namespace shard

#endif
