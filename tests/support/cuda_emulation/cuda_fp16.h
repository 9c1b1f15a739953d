/* Stand-in for CUDA's cuda_fp16.h: the type and its conversions, rounded to nearest even. */
#ifndef CUDA_EMULATION_FP16_H
#define CUDA_EMULATION_FP16_H

#ifndef __cplusplus
#error "cuda_fp16.h is for kernels, in C++"
#endif

#include "vector_types.h"

extern "C" {
#include "base/dtype.h"
}

typedef struct __half_raw {
    unsigned short x;
} __half_raw;

struct __half {
  protected:
    unsigned short x;

  public:
    __half() = default;
    __half(const __half_raw &raw) : x(raw.x)
    {
    }
    __half(float value) : x(shard_float_to_float16(value))
    {
    }
    operator __half_raw() const
    {
        return {x};
    }
    operator float() const
    {
        return shard_float16_to_float(x);
    }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

static inline float __half2float(__half a)
{
    return a;
}
static inline __half __float2half(float a)
{
    return __half(a);
}
static inline __half __float2half_rn(float a)
{
    return __half(a);
}
static inline unsigned short __half_as_ushort(__half a)
{
    return __half_raw(a).x;
}
static inline __half __ushort_as_half(unsigned short bits)
{
    return __half(__half_raw{bits});
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {__half(a), __half(b)};
}
static inline __half2 __float22half2_rn(float2 a)
{
    return {__half(a.x), __half(a.y)};
}
static inline float2 __half22float2(__half2 a)
{
    return {(float)a.x, (float)a.y};
}

#endif
