#include "device/cpu/cpu_tile.h"

#include <stddef.h>

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#define UNROLL /* does so unasked, and less if asked */
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define WIDTH 8
#define VECTOR __m256
#define PREFIX _mm256
#define TARGET "avx2,fma"
#include "device/cpu/cpu_tile_body.h"
#undef WIDTH
#undef VECTOR
#undef PREFIX
#undef TARGET

#define WIDTH 16
#define VECTOR __m512
#define PREFIX _mm512
#define TARGET "avx512f"
#include "device/cpu/cpu_tile_body.h"

const shard_cpu_tiler *shard_cpu_tiler_at(int i)
{
    static const shard_cpu_tiler avx2 = {.width = 8, .most_vectors = 2, .multiply = multiply8};
    static const shard_cpu_tiler avx512 = {.width = 16, .most_vectors = 4, .multiply = multiply16};
    bool has_avx512 = __builtin_cpu_supports("avx512f"),
         has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx512 && i == 0)
        return &avx512;
    return has_avx2 && i == has_avx512 ? &avx2 : NULL;
}

#else

const shard_cpu_tiler *shard_cpu_tiler_at(int i)
{
    (void)i;
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
