/* Conversions of the 16-bit types and copies past the caches. */
#include "device/cpu/kernels/span.h"

#include "base/dtype.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

static void widen_float16(int64_t n, const uint16_t *x, float *y)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
    for (; i < n; i++)
        y[i] = shard_float16_to_float(x[i]);
}

static void narrow_float16(int64_t n, const float *x, uint16_t *y)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(y + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        y[i] = shard_float_to_float16(x[i]);
}

static void widen_bfloat16(int64_t n, const uint16_t *x, float *y)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_si512(y + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(x + i))), 16));
#endif
#pragma omp simd
    for (int64_t j = i; j < n; j++)
        y[j] = shard_bfloat16_to_float(x[j]);
}

static void narrow_bfloat16(int64_t n, const float *x, uint16_t *y)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    /* Not AVX512_BF16's instruction, which takes subnormal numbers for 0. */
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(0x400000);
    for (; i + 16 <= n; i += 16) {
        __m512 value = _mm512_loadu_ps(x + i);
        __m512i bits = _mm512_castps_si512(value), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
        __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, half), odd);
        rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), bits, quiet);
        _mm256_storeu_si256((__m256i *)(y + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }
#endif
#pragma omp simd
    for (int64_t j = i; j < n; j++) {
        uint32_t bits = shard_float_bits(x[j]), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        y[j] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
    }
}

void KERNEL(widen)(shard_dtype dtype, int64_t n, const uint16_t *x, float *y)
{
    if (dtype == SHARD_BFLOAT16)
        widen_bfloat16(n, x, y);
    else
        widen_float16(n, x, y);
}

void KERNEL(narrow)(shard_dtype dtype, bool stream, int64_t n, const float *x, uint16_t *y)
{
    uint16_t buffer[SPAN], *place = stream ? buffer : y;
    if (dtype == SHARD_BFLOAT16)
        narrow_bfloat16(n, x, place);
    else
        narrow_float16(n, x, place);
    if (stream)
        KERNEL(stream)(y, buffer, (size_t)n * sizeof *y);
}

void KERNEL(stream)(void *to, const void *from, size_t bytes)
{
    char *y = to;
    const char *x = from;
#if defined(__SSE2__)
    size_t head = (size_t)(-(uintptr_t)y & 63u);
    if (head < bytes) {
        memcpy(y, x, head);
        y += head, x += head, bytes -= head;
        for (; bytes >= 64; y += 64, x += 64, bytes -= 64) {
#if defined(__AVX512F__)
            _mm512_stream_si512((void *)y, _mm512_loadu_si512(x));
#else
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128((__m128i *)(y + i), _mm_loadu_si128((const __m128i *)(x + i)));
#endif
        }
    }
#endif
    memcpy(y, x, bytes);
}

void KERNEL(stream_fence)(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
