/*
 * The innermost loop of products whose operands are used as they lie, without
 * packing both: a tile of c in registers, a sum of outer products.
 */
#ifndef SHARD_DEVICE_CPU_TILE_H
#define SHARD_DEVICE_CPU_TILE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SHARD_CPU_TILE_ROWS = 6, /* of a block, which are computed at a time; fewer in some */
    SHARD_CPU_TILE_MOST_COLS = 64,
    SHARD_CPU_TILE_FETCH = 8, /* steps of the depth between fetches */
    SHARD_CPU_CACHE_LINE = 64 /* bytes */
};

/* c[i, j] = sum over n < images, l < lines, k < depth of
 *     a[i * a_row + n * a_image + l * a_line + k * a_step] * b[n * b_image + l * b_line + k * b_step + j]
 * (+ c[i, j] if accumulate), for i < rows and all columns j of a tile, of which
 * there are `vectors` times `width`. */
typedef struct shard_cpu_tile {
    int64_t images, lines, depth;
    const void *a; /* elements of the tiler's kind, as those of b */
    int64_t a_row, a_image, a_line, a_step;
    const void *b;
    int64_t b_image, b_line, b_step;
    float *c;
    int64_t c_row;
    bool accumulate;
    /* Memory from `fetch` up to `fetch_end` that is fetched into the second-level cache meanwhile: `fetch_lines` lines once for
     * every TILE_FETCH steps of the depth, in each block of rows. */
    const char *fetch, *fetch_end;
    int fetch_lines;
} shard_cpu_tile;

/* An element of a and b has 4 bytes. It is a float32 number or a pair of bfloat16 numbers, of which a product is the sum of
 * two: subnormal numbers of a pair count as 0. c is of float32. */
typedef struct shard_cpu_tiler {
    int pack;         /* numbers of an element */
    int width;        /* floats of a vector */
    int most_vectors; /* of a tile */
    void (*multiply)(const shard_cpu_tile *, int64_t rows, int vectors);
} shard_cpu_tiler;

/* The i-th of those of float32 that this machine runs, the fastest first; NULL past the last. */
const shard_cpu_tiler *shard_cpu_tiler_at(int i);

/* That of pairs of bfloat16, and whether it is faster than those of float32; NULL if this machine runs none. */
const shard_cpu_tiler *shard_cpu_tiler_of_pairs(bool *faster);

/* A panel is some columns of a matrix [depth, cols], at most `width * most_vectors` and rounded up to `width` with
 * zeros, one after the other for each step of the depth. Panels follow each other; that of column `first` begins at
 * first * depth. */
static inline int64_t shard_cpu_panel_cols(const shard_cpu_tiler *tiler, int64_t cols, int64_t first)
{
    int64_t width = tiler->width, most = width * tiler->most_vectors, rest = (cols - first + width - 1) / width * width;
    return rest < most ? rest : most;
}

static inline int64_t shard_cpu_panels_size(const shard_cpu_tiler *tiler, int64_t depth, int64_t cols)
{
    return (cols + tiler->width - 1) / tiler->width * tiler->width * depth;
}

/* From element (step k, column j) at source[k * step + j * col]. */
void shard_cpu_pack_panels(const shard_cpu_tiler *tiler, int64_t depth, int64_t cols, const float *source, int64_t step,
                           int64_t col, float *to);

/* The same of bfloat16 for a tiler of pairs: numbers 2 k and 2 k + 1 of a column are element k of it; 0 follows the last
 * number of an odd depth. */
void shard_cpu_pack_pairs(const shard_cpu_tiler *tiler, int64_t depth, int64_t cols, const uint16_t *source, int64_t step,
                          int64_t col, uint32_t *to);

/* to[j * to_row + i] = from[i * from_row + j] */
void shard_cpu_transpose(int64_t rows, int64_t cols, const float *from, int64_t from_row, float *to, int64_t to_row);

#endif
