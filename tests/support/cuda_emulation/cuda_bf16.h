/* Stand-in for CUDA's cuda_bf16.h: the type and its conversions, rounded to nearest even. */
#ifndef CUDA_EMULATION_BF16_H
#define CUDA_EMULATION_BF16_H

#ifndef __cplusplus
#error "cuda_bf16.h is for kernels, in C++"
#endif

#include "vector_types.h"

extern "C" {
#include "base/dtype.h"
}

typedef struct __nv_bfloat16_raw {
    unsigned short x;
} __nv_bfloat16_raw;

struct __nv_bfloat16 {
  protected:
    unsigned short x;

  public:
    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : x(raw.x)
    {
    }
    __nv_bfloat16(float value) : x(shard_float_to_bfloat16(value))
    {
    }
    operator __nv_bfloat16_raw() const
    {
        return {x};
    }
    operator float() const
    {
        return shard_bfloat16_to_float(x);
    }
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 a)
{
    return a;
}
static inline __nv_bfloat16 __float2bfloat16(float a)
{
    return __nv_bfloat16(a);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float a)
{
    return __nv_bfloat16(a);
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a)
{
    return __nv_bfloat16_raw(a).x;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return __nv_bfloat16(__nv_bfloat16_raw{bits});
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 a)
{
    return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 a)
{
    return {(float)a.x, (float)a.y};
}

#endif
