/*
 * The maximum of numbers and the sum of their exponentials, in one pass.
 *
 * Exponentials are taken relative to a reference near the maximum so far: a thread's
 * own follows it only when it is behind by more than LAG, so that the sum is seldom
 * rescaled. Batches are summed in their own precision, and added up in double. In
 * float, exp(x - r) is exp2(LOG2_E x - r') with one rounding in the argument; that
 * LOG2_E is rounded too cancels where the sum is taken relative to the maximum.
 */
#ifndef SHARD_DEVICE_CUDA_EXP_SUM_CUH
#define SHARD_DEVICE_CUDA_EXP_SUM_CUH

#include "device/cuda/rows.cuh"

namespace shard {

#define SHARD_LOG2_E 1.44269504f
#define SHARD_LAG 4

static __device__ inline float exp_reference(float x)
{
    return x * SHARD_LOG2_E;
}
static __device__ inline double exp_reference(double x)
{
    return x;
}
static __device__ inline float exp_relative(float x, float reference)
{
    return exp2f(fmaf(x, SHARD_LOG2_E, -reference));
}
static __device__ inline double exp_relative(double x, double reference)
{
    return exp(x - reference);
}
/* exp(reference - x). */
static __device__ inline float exp_rescale(float reference, float x)
{
    return exp2f(fmaf(-x, SHARD_LOG2_E, reference));
}
static __device__ inline double exp_rescale(double reference, double x)
{
    return exp(reference - x);
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
            sum *= (double)exp_rescale(reference, highest);
        reference = exp_reference(highest);
        limit = highest + SHARD_LAG;
    }

    /* The sum relative to a larger maximum. */
    __device__ inline double relative_to(R larger) const
    {
        return sum != 0 ? sum * (double)exp_rescale(reference, larger) : sum;
    }
};

} // namespace shard

#endif
