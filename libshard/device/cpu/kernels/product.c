#ifdef real

typedef real R(vector) __attribute__((vector_size(PRODUCT_VECTOR)));
typedef real R(unaligned) __attribute__((vector_size(PRODUCT_VECTOR), aligned(sizeof(real)), may_alias));

/* rows and vectors are constants, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void R(tile)(const product *p, const real *a, const real *b, real *c, int rows,
                                                          int vectors)
{
    enum { LANES = PRODUCT_VECTOR / sizeof(real) };
    R(vector) sum[ROWS][VECTORS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            if (p->accumulate)
                sum[i][v] = *(const R(unaligned) *)(c + i * p->c_row + v * LANES);
            else
                sum[i][v] = (R(vector)){0};
        }
    }
    for (int64_t k = 0; k < p->depth; k++, a += p->a_step, b += p->b_row) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            real factor = a[i * p->a_row];
            UNROLL
            for (int v = 0; v < vectors; v++)
                sum[i][v] = R(FUSED)(factor, *(const R(unaligned) *)(b + v * LANES), sum[i][v]);
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            *(R(unaligned) *)(c + i * p->c_row + v * LANES) = sum[i][v];
    }
}

/* As many vectors as tiles of constant size have; returns how many. */
static int R(rows_of_tile)(const product *p, const real *a, const real *b, real *c, int64_t rows, int64_t vectors)
{
#define CASE(COUNT)                                                                                                              \
    case COUNT:                                                                                                                  \
        if (VECTORS >= 4 && vectors >= 4) {                                                                                      \
            R(tile)(p, a, b, c, COUNT, VECTORS);                                                                                 \
            return VECTORS;                                                                                                      \
        }                                                                                                                        \
        if (vectors >= 2) {                                                                                                      \
            R(tile)(p, a, b, c, COUNT, 2);                                                                                       \
            return 2;                                                                                                            \
        }                                                                                                                        \
        R(tile)(p, a, b, c, COUNT, 1);                                                                                           \
        return 1;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
    default:
        CASE(ROWS)
    }
#undef CASE
}

void KERNEL(R(product))(const product *p)
{
    enum { LANES = PRODUCT_VECTOR / sizeof(real) };
    const real *a = p->a, *b = p->b;
    real *c = p->c;
    for (int64_t j = 0, cols; j < p->cols; j += cols) {
        cols = LANES;
        for (int64_t i = 0; i < p->rows; i += ROWS)
            cols = LANES * R(rows_of_tile)(p, a + i * p->a_row, b + j, c + i * p->c_row + j, shard_min(p->rows - i, ROWS),
                                           (p->cols - j) / LANES);
    }
}

#else

#include "device/cpu/kernels/product.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define FUSED_float(a, b, c) _mm512_fmadd_ps(_mm512_set1_ps(a), b, c)
#define FUSED_double(a, b, c) _mm512_fmadd_pd(_mm512_set1_pd(a), b, c)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define FUSED_float(a, b, c) _mm256_fmadd_ps(_mm256_set1_ps(a), b, c)
#define FUSED_double(a, b, c) _mm256_fmadd_pd(_mm256_set1_pd(a), b, c)
#else
#define FUSED_float(a, b, c) ((a) * (b) + (c))
#define FUSED_double FUSED_float
#endif

enum { ROWS = 6, VECTORS = PRODUCT_VECTOR == 64 ? 4 : 2 };

#ifdef __clang__
#define UNROLL /* does so unasked, and less if asked */
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define SELF "product.c"
#include "device/cpu/kernels/real.h"

#endif
