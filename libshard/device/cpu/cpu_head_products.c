#include "device/cpu/cpu_head_products.h"

#include "base/math.h"

#include <string.h>

enum {
    DEPTH = 128,     /* elements of a block of a product: its panel stays in the first-level cache */
    CACHE_LINE = 64, /* bytes */
    ELEMENT = 4,     /* bytes of a tiler's element */
};

int shard_cpu_head_choice;

const shard_cpu_tiler *shard_cpu_head_tiler(shard_dtype dtype)
{
    bool faster;
    const shard_cpu_tiler *pairs = shard_cpu_tiler_of_pairs(&faster);
    int choice = shard_cpu_head_choice, wide = 0;
    if (dtype != SHARD_BFLOAT16 || !pairs)
        return shard_cpu_tiler_at(choice);
    while (shard_cpu_tiler_at(wide))
        wide++;
    int place = faster ? 0 : wide;
    return choice == place ? pairs : shard_cpu_tiler_at(choice > place ? choice - 1 : choice);
}

void shard_cpu_head_pack_x(const shard_cpu_head_sweep *s, bool gradient)
{
    int64_t rows = s->h->loss.rows, in = s->h->in;
    if (s->tiler->pack == 2) {
        shard_cpu_pack_pairs(s->tiler, in, rows, s->x, 1, in, s->by_row);
        if (gradient)
            shard_cpu_pack_pairs(s->tiler, rows, in, s->x, in, 1, s->by_feature);
        return;
    }
    shard_cpu_pack_panels(s->tiler, in, rows, s->x, 1, in, s->by_row);
    if (gradient)
        shard_cpu_pack_panels(s->tiler, rows, in, s->x, in, 1, s->by_feature);
}

/* The address of an element of an operand. */
static const void *element(const void *array, int64_t index)
{
    return (const char *)array + index * ELEMENT;
}

int64_t shard_cpu_head_blocks(const shard_cpu_head_sweep *s, int64_t count, bool sum)
{
    int64_t panel = (int64_t)s->tiler->width * s->tiler->most_vectors, depth = shard_divide_up(s->h->in, s->tiler->pack);
    int64_t classes = shard_divide_up(count, DEPTH * s->tiler->pack);
    int64_t logits =
        shard_divide_up(s->pitch, panel) * shard_divide_up(depth, DEPTH) * shard_divide_up(count, SHARD_CPU_TILE_ROWS);
    return (s->h->loss.rows == 1 ? 0 : logits) +
           (sum ? classes * shard_divide_up(s->in_pitch, panel) * shard_divide_up(s->h->loss.rows, SHARD_CPU_TILE_ROWS) : 0);
}

/* Fetches a block's part of the weight's next tile, if its rows are used in place: memory is read while the products of this
 * one are computed. */
static void fetch_part(const shard_cpu_head_sweep *s, shard_cpu_head_tile *t)
{
    const shard_head *h = s->h;
    int64_t row = h->in * (int64_t)shard_dtype_size(h->weight_dtype), next = t->first + s->tile;
    int64_t bytes = shard_min(s->tile, h->loss.cols - next) * row, block = t->computed++;
    if (bytes <= 0 || block >= t->blocks)
        return;
    const char *from = (const char *)h->weight + next * row;
    int64_t lines = shard_divide_up(bytes, CACHE_LINE);
    for (int64_t i = lines * block / t->blocks; i < lines * (block + 1) / t->blocks; i++)
        __builtin_prefetch(from + i * CACHE_LINE, 0, 2);
}

void shard_cpu_head_add_logits(const shard_cpu_head_sweep *s, shard_cpu_head_tile *t, float *z)
{
    if (s->h->loss.rows == 1) {
        s->kernels->add_products(shard_cpu_head_products_dtype(s->tiler), t->count, s->h->in, t->weight, t->pitch, s->x, z,
                                 s->pitch);
        return;
    }
    int64_t depth = shard_divide_up(s->h->in, s->tiler->pack), pitch = t->pitch / s->tiler->pack;
    for (int64_t row = 0, cols; row < s->pitch; row += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->loss.rows, row);
        for (int64_t k = 0; k < depth; k += DEPTH) {
            for (int64_t i = 0; i < t->count; i += SHARD_CPU_TILE_ROWS) {
                fetch_part(s, t);
                shard_cpu_tile product = {.images = 1,
                                          .lines = 1,
                                          .depth = shard_min(DEPTH, depth - k),
                                          .a = element(t->weight, i * pitch + k),
                                          .a_row = pitch,
                                          .a_step = 1,
                                          .b = element(s->by_row, row * depth + k * cols),
                                          .b_step = cols,
                                          .c = z + i * s->pitch + row,
                                          .c_row = s->pitch,
                                          .accumulate = true};
                s->tiler->multiply(&product, shard_min(t->count - i, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
            }
        }
    }
}

/* Columns [first, first + cols) of `count` of the tile's rows: those are apart by what may be a power of two, few sets of a
 * cache. */
static void pack_columns(const shard_cpu_head_sweep *s, const shard_cpu_head_tile *t, int64_t row, int64_t count, int64_t first,
                         int64_t cols, void *panel)
{
    for (int64_t i = 0; i < count && s->tiler->pack == 1; i++)
        memcpy((float *)panel + i * cols, (const float *)t->weight + (row + i) * t->pitch + first, (size_t)cols * sizeof(float));
    for (int64_t i = 0; i < count && s->tiler->pack == 2; i += 2) {
        const uint16_t *from = (const uint16_t *)t->weight + (row + i) * t->pitch + first;
        s->kernels->interleave(cols, from, i + 1 < count ? from + t->pitch : NULL, (uint32_t *)panel + i / 2 * cols);
    }
}

void shard_cpu_head_add_weighted(const shard_cpu_head_sweep *s, shard_cpu_head_tile *t, const void *exponentials, void *panel,
                                 float *sum)
{
    int64_t rows = s->h->loss.rows, classes = DEPTH * s->tiler->pack;
    for (int64_t first = 0; first < t->count; first += classes) {
        int64_t count = shard_min(classes, t->count - first);
        for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
            cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
            pack_columns(s, t, first, count, k, cols, panel);
            for (int64_t row = 0; row < rows; row += SHARD_CPU_TILE_ROWS) {
                fetch_part(s, t);
                shard_cpu_tile product = {.images = 1,
                                          .lines = 1,
                                          .depth = shard_divide_up(count, s->tiler->pack),
                                          .a = element(exponentials, first / s->tiler->pack * s->pitch + row),
                                          .a_row = 1,
                                          .a_step = s->pitch,
                                          .b = panel,
                                          .b_step = cols,
                                          .c = sum + row * s->in_pitch + k,
                                          .c_row = s->in_pitch,
                                          .accumulate = true};
                s->tiler->multiply(&product, shard_min(rows - row, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
            }
        }
    }
}

void shard_cpu_head_multiply_gradient(const shard_cpu_head_sweep *s, int64_t count, const void *dz, float *gradient)
{
    int64_t depth = shard_divide_up(s->h->loss.rows, s->tiler->pack), pitch = s->pitch / s->tiler->pack;
    for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
        for (int64_t i = 0; i < count; i += SHARD_CPU_TILE_ROWS) {
            shard_cpu_tile product = {.images = 1,
                                      .lines = 1,
                                      .depth = depth,
                                      .a = element(dz, i * pitch),
                                      .a_row = pitch,
                                      .a_step = 1,
                                      .b = element(s->by_feature, k * depth),
                                      .b_step = cols,
                                      .c = gradient + i * s->in_pitch + k,
                                      .c_row = s->in_pitch};
            s->tiler->multiply(&product, shard_min(count - i, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
        }
    }
}
