/*
 * The maximum of numbers and the sum of their exponentials, in one pass.
 *
 * Exponentials are taken relative to a reference near the maximum so far: a thread's
 * own follows it only when it is behind by more than LAG, so that the sum is seldom
 * rescaled. Batches are summed in their own precision, and added up in double. In
 * float, exp(x - r) is exp2(LOG2_E (x - r)): the difference comes first, or logits of a
 * large common size would lose it.
 */
#ifndef SHARD_DEVICE_CUDA_EXP_SUM_CUH
#define SHARD_DEVICE_CUDA_EXP_SUM_CUH

#include "device/cuda/rows.cuh"

namespace shard {

#define SHARD_LOG2_E 1.44269504f
#define SHARD_LAG 4

static __device__ inline float exp_relative(float x, float reference)
{
    return exp2f((x - reference) * SHARD_LOG2_E);
}
static __device__ inline double exp_relative(double x, double reference)
{
    return exp(x - reference);
}

/* Of nothing: -inf and 0. NaNs are in the sum, not in the maximum. */
template <class R> struct ExpSum {
    R max = -INFINITY, reference = 0, limit = -INFINITY;
    double sum = 0;

    template <int N> __device__ inline void add(const R (&x)[N])
    {
        R highest = x[0], total = 0;
#pragma unroll
        for (int k = 1; k < N; k++)
            highest = fmax(highest, x[k]);
        if (highest > limit)
            follow(highest);
        max = fmax(max, highest);
#pragma unroll
        for (int k = 0; k < N; k++)
            total += exp_relative(x[k], reference);
        sum += (double)total;
    }

    __device__ inline void follow(R highest)
    {
        if (sum != 0)
            sum *= (double)exp_relative(reference, highest);
        reference = highest;
        limit = highest + SHARD_LAG;
    }

    /* The sum relative to a larger maximum. */
    __device__ inline double relative_to(R larger) const
    {
        return sum != 0 ? sum * (double)exp_relative(reference, larger) : sum;
    }
};

} // namespace shard

#endif
