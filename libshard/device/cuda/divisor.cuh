/*
 * Division by a number that is known at the launch: a product and a shift in place of a
 * 64-bit division's tens of instructions, as PyTorch's IntDivider.
 */
#ifndef SHARD_DEVICE_CUDA_DIVISOR_CUH
#define SHARD_DEVICE_CUDA_DIVISOR_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace shard
{

/* Not inline, as it is hardly ever called. */
static __host__ __device__ __noinline__ int64_t divide(int64_t n, int64_t size)
{
    return n / size;
}

/* By `size` > 0. Numbers below 2^32 are divided fast, others right. With 2^shift the power of two
 * that size fits in and factor = 2^32 (2^shift - size) / size + 1, rounded down, the quotient is
 * (factor n / 2^32 + n) / 2^shift (Granlund and Montgomery, 1994). */
struct Divisor {
    int64_t size;
    uint64_t factor; /* of 32 bits; 64-bit fields leave no gaps between kernels' arguments */
    uint64_t shift;

    Divisor() : Divisor(1)
    {
    }
    explicit Divisor(int64_t size_) : size(size_), factor(0), shift(0)
    {
        while (shift < 33 && (uint64_t)1 << shift < (uint64_t)size)
            shift++;
        if (shift < 33) /* else every n below 2^32 gives 0 */
            factor = (((uint64_t)1 << 32) * (((uint64_t)1 << shift) - (uint64_t)size)) / (uint64_t)size + 1;
    }

    /* Of n >= 0. */
    __host__ __device__ inline int64_t quotient(int64_t n) const
    {
        if ((uint64_t)n >> 32 != 0)
            return divide(n, size);
        uint64_t high = (uint64_t)(uint32_t)factor * (uint32_t)n >> 32;
        return (int64_t)((high + (uint64_t)n) >> shift);
    }

    /* The remainder; *n becomes the quotient. */
    __host__ __device__ inline int64_t split(int64_t *n) const
    {
        int64_t whole = quotient(*n), rest = *n - whole * size;
        *n = whole;
        return rest;
    }
};

} // namespace shard

#endif
