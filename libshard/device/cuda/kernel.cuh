/*
 * Declarations for all kernels: launching, types, 16-byte packs, sums of a warp and a block.
 *
 * Kernels are written once for T, the type in memory, and compute in Real<T>:
 * double for double, else float, rounded once on the way back. The same text is
 * compiled by nvcc and, for the tests, by a host compiler against stand-ins for
 * CUDA's headers (tests/support/cuda_emulation). Therefore: kernels are launched by
 * launch(), never by <<<>>>; shared memory is of a size known here, never `extern`;
 * every thread of a block reaches each block-wide sum.
 */
#ifndef SHARD_DEVICE_CUDA_KERNEL_CUH
#define SHARD_DEVICE_CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define SHARD_KERNEL static __host__ __device__ inline
#include "device/cuda/cuda_room.h"

namespace shard {

enum { WARP = 32, BLOCK = 256 /* threads, where nothing speaks for another number */ };

/* ---- launching ---- */

/* Launches kernel(args...) on the device's stream. The first launch of a kernel loads its code, which takes memory. */
template <class... Parameters, class... Arguments>
shard_status launch(shard_device *device, void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments &&...arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = shard_cuda_of(device)->stream;
    cudaError_t error =
        SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory, cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
    return shard_cuda_check(error, "kernel");
}

inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Blocks that keep the device busy. */
inline int64_t most_blocks(shard_device *device)
{
    return (int64_t)shard_cuda_of(device)->multiprocessors * 16;
}

/* Blocks for a loop over n items, `each` a block, that strides over the grid: as many
 * as keep the device busy, no more. At least 1. */
inline unsigned blocks_for(shard_device *device, int64_t n, int64_t each)
{
    int64_t most = most_blocks(device), blocks = divide_up(n, each);
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* ---- types ---- */

template <class T> struct RealOf { using type = float; };
template <> struct RealOf<double> { using type = double; };
template <class T> using Real = typename RealOf<T>::type;

static __device__ inline float to_real(float x) { return x; }
static __device__ inline double to_real(double x) { return x; }
static __device__ inline float to_real(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ inline float to_real(__half x) { return __half2float(x); }

template <class T> struct Rounded;
template <> struct Rounded<float> { static __device__ inline float from(float x) { return x; } };
template <> struct Rounded<double> { static __device__ inline double from(double x) { return x; } };
template <> struct Rounded<__nv_bfloat16> { static __device__ inline __nv_bfloat16 from(float x) { return __float2bfloat16_rn(x); } };
template <> struct Rounded<__half> { static __device__ inline __half from(float x) { return __float2half_rn(x); } };
template <class T> static __device__ inline T round_to(Real<T> x) { return Rounded<T>::from(x); }

/* Calls body(T()) for float32 and the 16-bit types. */
template <class Body> static shard_status by_narrow(shard_dtype dtype, Body &&body)
{
    if (dtype == SHARD_FLOAT32)
        return body(float());
    return dtype == SHARD_BFLOAT16 ? body(__nv_bfloat16()) : body(__half());
}

/* Calls body(T()) for the floating dtype's type: by_float(dtype, [&](auto t) { using T = decltype(t); ... }). */
template <class Body> shard_status by_float(shard_dtype dtype, Body &&body)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        return body(float());
    case SHARD_FLOAT64:
        return body(double());
    case SHARD_BFLOAT16:
        return body(__nv_bfloat16());
    case SHARD_FLOAT16:
        return body(__half());
    default:
        return shard_error(SHARD_ERROR_INTERNAL, "cuda: dtype %d is not a floating one", (int)dtype);
    }
}

/* As by_float for every dtype. */
template <class Body> shard_status by_dtype(shard_dtype dtype, Body &&body)
{
    switch (dtype) {
    case SHARD_INT64:
        return body(int64_t());
    case SHARD_INT32:
        return body(int32_t());
    case SHARD_UINT8:
        return body(uint8_t());
    default:
        return by_float(dtype, body);
    }
}

/* ---- packs ---- */

/* N elements that are moved in one access, or, above 16 bytes, in accesses of 16. */
template <class T, int N = 16 / sizeof(T)> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
    enum { SIZE = N };
    T value[N];
};

template <int BYTES> struct WordOf;
template <> struct WordOf<16> { using type = uint4; };
template <> struct WordOf<8> { using type = uint64_t; };
template <> struct WordOf<4> { using type = uint32_t; };
template <> struct WordOf<2> { using type = uint16_t; };
template <> struct WordOf<1> { using type = uint8_t; };
template <int BYTES> using Word = typename WordOf<BYTES>::type;

/* A GPU stops a kernel that accesses an address that is not a multiple of the access's size. */
#ifdef __CUDACC__
#define SHARD_CHECK_ALIGNED(pointer, bytes)
#else
#define SHARD_CHECK_ALIGNED(pointer, bytes) assert((uintptr_t)(pointer) % (bytes) == 0)
#endif

/* A pack from or to memory that is aligned as the pack is. */
template <class T, int N = 16 / sizeof(T)> static __device__ inline Pack<T, N> load_pack(const T *from)
{
    using Access = Word<alignof(Pack<T, N>)>;
    Pack<T, N> pack;
    SHARD_CHECK_ALIGNED(from, sizeof(Access));
    *(Access *)&pack = *(const Access *)from;
    if constexpr (sizeof pack > sizeof(Access)) /* packs of one access stay a plain assignment, which compiles best */
        for (size_t k = 1; k < sizeof pack / sizeof(Access); k++)
            ((Access *)&pack)[k] = ((const Access *)from)[k];
    return pack;
}
template <class T, int N> static __device__ inline void store_pack(T *to, const Pack<T, N> &pack)
{
    using Access = Word<alignof(Pack<T, N>)>;
    SHARD_CHECK_ALIGNED(to, sizeof(Access));
    /* A plain assignment may be cut up into stores of its elements. */
    __stcg((Access *)to, *(const Access *)&pack);
    if constexpr (sizeof pack > sizeof(Access))
        for (size_t k = 1; k < sizeof pack / sizeof(Access); k++)
            __stcg((Access *)to + k, ((const Access *)&pack)[k]);
}

/* Whether all of the pointers (NULL counts) are multiples of 16. */
template <class... Pointers> bool aligned16(Pointers... pointers)
{
    return ((... | (uintptr_t)pointers) & 15) == 0;
}

/* ---- reductions; every thread gets the result, in the same order each time ---- */

struct Sum {
    template <class R> static __device__ inline R join(R a, R b) { return a + b; }
};
struct Maximum { /* of numbers; a NaN wins */
    template <class R> static __device__ inline R join(R a, R b) { return a != a || a > b ? a : b; }
};

/* Every lane of the warp takes part. */
template <class Join, class R> static __device__ inline R warp_reduce(R value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

/* Every thread of a one-dimensional block of THREADS takes part; a multiple of WARP. */
template <int THREADS, class Join, class R> static __device__ inline R block_reduce(R value)
{
    __shared__ R warps[THREADS / WARP];
    value = warp_reduce<Join>(value);
    __syncthreads(); /* the last call's readers are done */
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = value;
    __syncthreads();
    value = warps[0];
    for (int i = 1; i < THREADS / WARP; i++)
        value = Join::join(value, warps[i]);
    return value;
}

} // namespace shard

#endif
