/*
 * Stand-in for CUDA's cuda_runtime.h: what kernels are written in. A kernel is a
 * plain function that is called once for each thread; threads of a block are fibers
 * (launch.cpp), so that one which waits for others is set aside.
 *
 * Not as a GPU has it: shared memory is one static array for all blocks, which run
 * one after another, so that a block finds in it what the last one left.
 */
#ifndef CUDA_EMULATION_RUNTIME_H
#define CUDA_EMULATION_RUNTIME_H

#ifndef __cplusplus
#error "cuda_runtime.h is for kernels, in C++; C includes cuda_runtime_api.h"
#endif

#include "cuda_runtime_api.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- launching ---- */

namespace emulation
{

/* A kernel with its arguments, taken at the launch. */
struct Kernel {
    const void *function = nullptr;
    std::vector<const void *> words; /* of its arguments: pointers, or what in a struct may be one */
    virtual void run_thread() const = 0;
    virtual ~Kernel() = default;
};

template <class... Parameters> struct KernelCall final : Kernel {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;

    KernelCall(void (*kernel_)(Parameters...), Parameters... arguments_) : kernel(kernel_), arguments(arguments_...)
    {
        function = (const void *)kernel_;
        (note(arguments_), ...);
    }
    template <class T> void note(const T &argument)
    {
        if constexpr (std::is_pointer_v<T>)
            words.push_back((const void *)argument);
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding) /* where gaps hold nothing by chance: not in clang 14 */
        else if constexpr (std::is_class_v<T> && alignof(T) % sizeof(void *) == 0) {
            T copy = argument;
            __builtin_clear_padding(&copy);
            size_t count = words.size();
            words.resize(count + sizeof copy / sizeof(void *));
            memcpy((void *)(words.data() + count), (const void *)&copy, sizeof copy);
        }
#endif
    }
    void run_thread() const override
    {
        std::apply(kernel, arguments);
    }
};

cudaError_t launch(const cudaLaunchConfig_t *config, std::shared_ptr<const Kernel> kernel);

/* What the threads of a block do together; launch.cpp. */
enum Vote { VOTE_COUNT, VOTE_AND, VOTE_OR };
int sync_threads(Vote vote, bool predicate);
int lane();
uint64_t shuffle(unsigned mask, uint64_t value, int source);
unsigned ballot(unsigned mask, bool predicate);

template <class T> T shuffle(unsigned mask, T value, int source)
{
    static_assert(sizeof value <= 8 && std::is_trivially_copyable_v<T>, "shuffles are of 8 bytes at most");
    uint64_t word = 0;
    memcpy((void *)&word, &value, sizeof value);
    word = shuffle(mask, word, source);
    memcpy((void *)&value, &word, sizeof value);
    return value;
}

} // namespace emulation

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...), Arguments &&...arguments)
{
    return emulation::launch(config, std::make_shared<emulation::KernelCall<Parameters...>>(
                                         kernel, Parameters(std::forward<Arguments>(arguments))...));
}

template <class Function>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, Function, int blockSize, size_t)
{
    *numBlocks = 2048 / (blockSize < 64 ? 64 : blockSize);
    return cudaSuccess;
}

/* ---- threads together ---- */

static inline void __syncthreads()
{
    emulation::sync_threads(emulation::VOTE_COUNT, false);
}
static inline int __syncthreads_count(int predicate)
{
    return emulation::sync_threads(emulation::VOTE_COUNT, predicate != 0);
}
static inline int __syncthreads_and(int predicate)
{
    return emulation::sync_threads(emulation::VOTE_AND, predicate != 0);
}
static inline int __syncthreads_or(int predicate)
{
    return emulation::sync_threads(emulation::VOTE_OR, predicate != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulation::ballot(mask, false);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return emulation::ballot(mask, predicate != 0);
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return emulation::ballot(mask, predicate != 0) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return emulation::ballot(mask, predicate == 0) == 0;
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __threadfence_system()
{
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    return emulation::shuffle(mask, value, (emulation::lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = emulation::lane(), in = lane & (width - 1);
    return emulation::shuffle(mask, value, in < (int)delta ? lane : lane - (int)delta);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = emulation::lane(), in = lane & (width - 1);
    return emulation::shuffle(mask, value, in + (int)delta >= width ? lane : lane + (int)delta);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32)
{
    int lane = emulation::lane(), source = lane ^ lane_mask;
    return emulation::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

/* ---- atomics: of integers; sums of floats by atomics would differ from run to run ---- */

template <class T, class U, class Update> static inline T emulation_atomic(T *at, U value, Update update)
{
    static_assert(std::is_integral_v<T> && sizeof(T) >= 4, "atomics are of int, unsigned and unsigned long long");
    T old = *at;
    *at = update(old, (T)value);
    return old;
}
#define EMULATION_ATOMIC(name, expression)                                                                                       \
    template <class T, class U> static inline T name(T *at, U by)                                                                \
    {                                                                                                                            \
        return emulation_atomic(at, by, [](T old, T value) -> T { return expression; });                                         \
    }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, ((void)old, value))
EMULATION_ATOMIC(atomicMin, old < value ? old : value)
EMULATION_ATOMIC(atomicMax, old > value ? old : value)
EMULATION_ATOMIC(atomicAnd, old &value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
EMULATION_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef EMULATION_ATOMIC
template <class T, class U, class V> static inline T atomicCAS(T *at, U compare, V value)
{
    return emulation_atomic(at, value, [=](T old, T by) { return old == (T)compare ? by : old; });
}

/* ---- memory ---- */

template <class T> static inline T __ldg(const T *at)
{
    return *at;
}
template <class T> static inline T __ldcs(const T *at)
{
    return *at;
}
template <class T> static inline T __ldcg(const T *at)
{
    return *at;
}
template <class T> static inline void __stcs(T *at, T value)
{
    *at = value;
}
template <class T> static inline void __stcg(T *at, T value)
{
    *at = value;
}

/* ---- numbers ---- */

#define EMULATION_MAKE(type, base)                                                                                               \
    static inline base##1 make_##base##1(type x)                                                                                 \
    {                                                                                                                            \
        return {x};                                                                                                              \
    }                                                                                                                            \
    static inline base##2 make_##base##2(type x, type y)                                                                         \
    {                                                                                                                            \
        return {x, y};                                                                                                           \
    }                                                                                                                            \
    static inline base##3 make_##base##3(type x, type y, type z)                                                                 \
    {                                                                                                                            \
        return {x, y, z};                                                                                                        \
    }                                                                                                                            \
    static inline base##4 make_##base##4(type x, type y, type z, type w)                                                         \
    {                                                                                                                            \
        return {x, y, z, w};                                                                                                     \
    }
EMULATION_MAKE(int, int)
EMULATION_MAKE(unsigned int, uint)
EMULATION_MAKE(float, float)
EMULATION_MAKE(double, double)
EMULATION_MAKE(long long, longlong)
EMULATION_MAKE(unsigned long long, ulonglong)
#undef EMULATION_MAKE

template <class To, class From> static inline To emulation_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x)
{
    return emulation_bits<int>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return emulation_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return emulation_bits<float>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emulation_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return emulation_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return emulation_bits<double>(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return (T)fmin((T)a, (T)b);
    else
        return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return (T)fmax((T)a, (T)b);
    else
        return (T)a > (T)b ? (T)a : (T)b;
}
static inline float rsqrtf(float x)
{
    return (float)(1 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}
#define __expf expf /* the C library has functions of these names */
#define __logf logf
static inline double normcdf(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}
static inline float __frcp_rn(float x)
{
    return 1 / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

#endif
