#include "device/cpu/cpu_tile.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#define UNROLL /* does so unasked, and less if asked */
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define ELEMENT float

#define WIDTH 8
#define SUFFIX 8
#define VECTOR __m256
#define OPERAND __m256
#define PREFIX _mm256
#define TARGET "avx2,fma"
#define SPREAD(element) _mm256_set1_ps(*(element))
#define LOAD _mm256_loadu_ps
#define MULTIPLY _mm256_fmadd_ps
#include "device/cpu/cpu_tile_body.h"
#undef WIDTH
#undef SUFFIX
#undef VECTOR
#undef OPERAND
#undef PREFIX
#undef TARGET
#undef SPREAD
#undef LOAD
#undef MULTIPLY

#define WIDTH 16
#define SUFFIX 16
#define VECTOR __m512
#define OPERAND __m512
#define PREFIX _mm512
#define TARGET "avx512f"
#define SPREAD(element) _mm512_set1_ps(*(element))
#define LOAD _mm512_loadu_ps
#define MULTIPLY _mm512_fmadd_ps
#include "device/cpu/cpu_tile_body.h"
#undef SUFFIX
#undef OPERAND
#undef TARGET
#undef SPREAD
#undef LOAD
#undef MULTIPLY
#undef ELEMENT

/* Pairs are arrays of uint16_t, too: they are not read as elements. */
typedef struct pair {
    char bytes[4];
} pair;

static inline __attribute__((always_inline, target("avx512f"))) __m512i spread_pair(const pair *element)
{
    int32_t bits;
    memcpy(&bits, element, sizeof bits);
    return _mm512_set1_epi32(bits);
}

#define ELEMENT pair
#define SUFFIX _of_pairs
#define OPERAND __m512i
#define TARGET "avx512f,avx512bf16"
#define SPREAD spread_pair
#define LOAD _mm512_loadu_si512
#define MULTIPLY(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#include "device/cpu/cpu_tile_body.h"

const shard_cpu_tiler *shard_cpu_tiler_at(int i)
{
    static const shard_cpu_tiler avx2 = {.pack = 1, .width = 8, .most_vectors = 2, .multiply = multiply8};
    static const shard_cpu_tiler avx512 = {.pack = 1, .width = 16, .most_vectors = 4, .multiply = multiply16};
    bool has_avx512 = __builtin_cpu_supports("avx512f"),
         has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx512 && i == 0)
        return &avx512;
    return has_avx2 && i == has_avx512 ? &avx2 : NULL;
}

const shard_cpu_tiler *shard_cpu_tiler_of_pairs(bool *faster)
{
    static const shard_cpu_tiler pairs = {.pack = 2, .width = 16, .most_vectors = 4, .multiply = multiply_of_pairs};
    /* vdpbf16ps has twice the operations of a float32 FMA. AMD's processors begin as many of both in a cycle; Intel's begin
     * one in two cycles, and four FMAs (Golden Cove and Raptor Cove). */
    *faster = __builtin_cpu_is("amd");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16") ? &pairs : NULL;
}

#else

const shard_cpu_tiler *shard_cpu_tiler_at(int i)
{
    (void)i;
    return NULL;
}

const shard_cpu_tiler *shard_cpu_tiler_of_pairs(bool *faster)
{
    *faster = false;
    return NULL;
}

#endif

void shard_cpu_pack_panels(const shard_cpu_tiler *tiler, int64_t depth, int64_t cols, const float *source, int64_t step,
                           int64_t col, float *to)
{
    for (int64_t first = 0, count; first < cols; first += count) {
        float *panel = to + first * depth;
        count = shard_cpu_panel_cols(tiler, cols, first);
        int64_t filled = cols - first < count ? cols - first : count;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < count; j++)
                panel[k * count + j] = j < filled ? source[k * step + (first + j) * col] : 0.0f;
    }
}

void shard_cpu_pack_pairs(const shard_cpu_tiler *tiler, int64_t depth, int64_t cols, const uint16_t *source, int64_t step,
                          int64_t col, uint32_t *to)
{
    int64_t pairs = (depth + 1) / 2;
    for (int64_t first = 0, count; first < cols; first += count) {
        uint32_t *panel = to + first * pairs;
        count = shard_cpu_panel_cols(tiler, cols, first);
        int64_t filled = cols - first < count ? cols - first : count;
        for (int64_t k = 0; k < pairs; k++)
            for (int64_t j = 0; j < count; j++) {
                const uint16_t *low = source + 2 * k * step + (first + j) * col;
                uint32_t high = j < filled && 2 * k + 1 < depth ? low[step] : 0;
                panel[k * count + j] = j < filled ? (high << 16 | *low) : 0;
            }
    }
}

void shard_cpu_transpose(int64_t rows, int64_t cols, const float *from, int64_t from_row, float *to, int64_t to_row)
{
    int64_t whole_rows = 0, whole_cols = 0;
#ifdef __SSE__
    whole_rows = rows / 4 * 4;
    whole_cols = cols / 4 * 4;
    for (int64_t j = 0; j < whole_cols; j += 4) {
        for (int64_t i = 0; i < whole_rows; i += 4) {
            const float *source = from + i * from_row + j;
            float *target = to + j * to_row + i;
            __m128 a = _mm_loadu_ps(source), b = _mm_loadu_ps(source + from_row);
            __m128 c = _mm_loadu_ps(source + 2 * from_row), d = _mm_loadu_ps(source + 3 * from_row);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(target, a);
            _mm_storeu_ps(target + to_row, b);
            _mm_storeu_ps(target + 2 * to_row, c);
            _mm_storeu_ps(target + 3 * to_row, d);
        }
    }
#endif
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; i++)
            to[j * to_row + i] = from[i * from_row + j];
    }
}
