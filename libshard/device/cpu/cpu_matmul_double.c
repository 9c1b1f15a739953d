/* Products in float64, the reference for gradient checks: by blocks of c, each
 * the sum of products with a panel of b that stays in the cache, strip by strip of its columns. */
#include "device/cpu/cpu_matmul.h"

#include "base/math.h"

#include <string.h>

enum {
    ROWS = 64,
    COLS = 64,
    DEPTH = 128,
    STRIP = 8,          /* columns whose sums stay in registers */
    PARALLEL = 1 << 15, /* products from which on several threads pay */
};

static void fill_panel(const shard_matmul_shape *s, const double *b, int64_t k0, int64_t depth, int64_t j0, int64_t cols,
                       double panel[][COLS])
{
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t j = 0; j < shard_round_up(cols, STRIP); j++) {
            int64_t index = s->transpose_b ? (j0 + j) * s->ld_b + k0 + k : (k0 + k) * s->ld_b + j0 + j;
            panel[k][j] = j < cols ? b[index] : 0.0;
        }
    }
}

/* Adds the products of a's row i and the panel's columns from `first` on to c [count]. */
static void add_strip(const shard_matmul_shape *s, const double *a, int64_t i, int64_t k0, int64_t depth, double panel[][COLS],
                      int64_t first, double *c, int64_t count)
{
    double sum[STRIP] = {0};
    for (int64_t k = 0; k < depth; k++) {
        double value = s->transpose_a ? a[(k0 + k) * s->ld_a + i] : a[i * s->ld_a + k0 + k];
        for (int j = 0; j < STRIP; j++)
            sum[j] += value * panel[k][first + j];
    }
    for (int64_t j = 0; j < count; j++)
        c[j] += sum[j];
}

static void multiply_block(const shard_matmul_shape *s, const double *a, const double *b, const double *bias, double *c,
                           int64_t i0, int64_t j0)
{
    double panel[DEPTH][COLS];
    int64_t cols = shard_min(s->n - j0, COLS), rows = shard_min(s->m - i0, ROWS);
    for (int64_t i = i0; i < i0 + rows && !s->accumulate; i++) {
        for (int64_t j = j0; j < j0 + cols; j++)
            c[i * s->ld_c + j] = bias ? bias[j] : 0.0;
    }
    for (int64_t k0 = 0; k0 < s->k; k0 += DEPTH) {
        int64_t depth = shard_min(s->k - k0, DEPTH);
        fill_panel(s, b, k0, depth, j0, cols, panel);
        for (int64_t j = 0; j < cols; j += STRIP)
            for (int64_t i = i0; i < i0 + rows; i++)
                add_strip(s, a, i, k0, depth, panel, j, c + i * s->ld_c + j0 + j, shard_min(STRIP, cols - j));
    }
}

shard_status shard_cpu_matmul_double(const shard_cpu_product *p)
{
    const shard_matmul_shape *s = &p->shape;
    int64_t row_blocks = shard_divide_up(s->m, ROWS), col_blocks = shard_divide_up(s->n, COLS);
#pragma omp parallel for schedule(static) if (s->batch * s->m * s->n * s->k >= PARALLEL)
    for (int64_t i = 0; i < s->batch * row_blocks * col_blocks; i++) {
        int64_t batch = i / (row_blocks * col_blocks);
        multiply_block(s, (const double *)p->a + batch * s->stride_a, (const double *)p->b + batch * s->stride_b, p->bias,
                       (double *)p->c + batch * s->stride_c, i / col_blocks % row_blocks * ROWS, i % col_blocks * COLS);
    }
    return SHARD_OK;
}
