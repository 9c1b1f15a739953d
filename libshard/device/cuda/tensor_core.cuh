/*
 * Instructions of tensor cores for bfloat16 and float16 with sums in float32: a warp multiplies a [16, 16] by b [16, 8].
 * Names and layouts are those of PTX: ldmatrix and mma.m16n8k16. With g = lane / 4 and q = lane % 4, a lane has
 *     of a    rows g and g + 8, columns 2 q and 2 q + 1: a[0], a[1]; the same 8 columns on: a[2], a[3]
 *     of b    rows 2 q and 2 q + 1 of column g: b[0]; 8 rows on: b[1]
 *     sums    columns 2 q and 2 q + 1 of row g: d[0], d[1]; of row g + 8: d[2], d[3]
 */
#ifndef SHARD_DEVICE_CUDA_TENSOR_CORE_CUH
#define SHARD_DEVICE_CUDA_TENSOR_CORE_CUH

#include "device/cuda/kernel.cuh"

#include <type_traits>

namespace shard
{

#ifdef __CUDACC__

/* Four transposed 8 x 8 matrices of shared memory: `row` of lane i is row i % 8 of matrix i / 8, 16 bytes at a multiple of 16. A
 * lane gets rows 2 q and 2 q + 1 of column g of each. */
template <class T> static __device__ inline void load_transposed(const T *row, uint32_t (&to)[4])
{
#if __CUDA_ARCH__ >= 800
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
#else /* whose devices have no steps of products (cuda.c) */
    __trap();
#endif
}

/* d += a b */
template <class T> static __device__ inline void multiply_add(const uint32_t (&a)[4], const uint32_t *b, float (&d)[4])
{
#if __CUDA_ARCH__ >= 800
#define SHARD_MMA(type)                                                                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "    \
                 "{%0, %1, %2, %3};"                                                                                             \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        SHARD_MMA("bf16");
    else
        SHARD_MMA("f16");
#undef SHARD_MMA
#else
    __trap();
#endif
}

#else /* for the emulation, from the layouts above */

template <class T> static inline void load_transposed(const T *row, uint32_t (&to)[4])
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, q = lane % 4;
    SHARD_CHECK_ALIGNED(row, 16);
    for (int matrix = 0; matrix < 4; matrix++) {
        T pair[2];
        for (int k = 0; k < 2; k++)
            pair[k] = __shfl_sync(0xffffffffu, row, 8 * matrix + 2 * q + k)[g];
        memcpy(&to[matrix], pair, sizeof pair);
    }
}

template <class T> static inline void multiply_add(const uint32_t (&a)[4], const uint32_t *b, float (&d)[4])
{
    enum { DEPTH = 16 };
    int lane = (int)threadIdx.x % WARP, g = lane / 4, q = lane % 4;
    float rows[2][DEPTH], columns[2][DEPTH];
    auto take = [](uint32_t word, float *to) {
        T pair[2];
        memcpy((void *)pair, &word, sizeof pair);
        to[0] = to_real(pair[0]);
        to[1] = to_real(pair[1]);
    };
    for (int t = 0; t < 4; t++) {
        for (int k = 0; k < 4; k++)
            take(__shfl_sync(0xffffffffu, a[k], 4 * g + t), &rows[k % 2][2 * t + k / 2 * 8]);
        for (int k = 0; k < 4; k++)
            take(__shfl_sync(0xffffffffu, b[k / 2], 4 * (2 * q + k % 2) + t), &columns[k % 2][2 * t + k / 2 * 8]);
    }
    for (int i = 0; i < 4; i++) {
        float sum = 0;
        for (int k = 0; k < DEPTH; k++)
            sum += rows[i / 2][k] * columns[i % 2][k];
        d[i] += sum;
    }
}

#endif

} // namespace shard

#endif
