#include "device/cpu/cpu_head_products.h"

#include "base/math.h"

#include <string.h>

enum {
    PANEL_BYTES = 16 << 10, /* of a block of a product of few columns: its panel stays in the first-level cache, of 32 KiB */
    LEAST_DEPTH = 128,      /* elements of a block */
    ELEMENT = 4,            /* bytes of a tiler's element */
    ROW_BYTES = 32,         /* a panel's rows are multiples of it */
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

/* The elements along the sum of a block of a product, whose panel has so many columns. */
static int64_t depth_of_block(int64_t cols)
{
    return shard_max(PANEL_BYTES / (ELEMENT * cols), LEAST_DEPTH);
}

/* ---- fetching ---- */

/* How often a product of `rows` rows fetches. */
static int64_t fetches(int64_t rows, int64_t depth)
{
    return shard_divide_up(rows, SHARD_CPU_TILE_ROWS) * shard_divide_up(depth, SHARD_CPU_TILE_FETCH);
}

static int64_t panels(const shard_cpu_head_sweep *s, int64_t cols)
{
    return shard_divide_up(cols, (int64_t)s->tiler->width * s->tiler->most_vectors);
}

int64_t shard_cpu_head_fetches_of_tile(const shard_cpu_head_sweep *s, int64_t count, bool sum)
{
    const shard_head *h = s->h;
    int64_t logits = h->loss.rows == 1 ? 0 : panels(s, s->pitch) * fetches(count, shard_divide_up(h->in, s->tiler->pack));
    return logits + (sum ? panels(s, s->in_pitch) * fetches(h->loss.rows, shard_divide_up(count, s->tiler->pack)) : 0);
}

int64_t shard_cpu_head_fetches_of_gradient(const shard_cpu_head_sweep *s, int64_t count)
{
    return panels(s, s->in_pitch) * fetches(count, shard_divide_up(s->h->loss.rows, s->tiler->pack));
}

void shard_cpu_head_fetch(shard_cpu_head_ahead *ahead, const void *memory, int64_t bytes)
{
    if (bytes <= 0 || ahead->parts == SHARD_CPU_HEAD_PARTS)
        return;
    ahead->part[ahead->parts++] = (shard_cpu_head_part){memory, shard_divide_up(bytes, SHARD_CPU_CACHE_LINE)};
    ahead->lines += shard_divide_up(bytes, SHARD_CPU_CACHE_LINE);
}

/* Has a product fetch some lines of what is ahead. */
static void fetch_part(shard_cpu_head_ahead *ahead, int64_t rows, shard_cpu_tile *product)
{
    int64_t here = fetches(rows, product->depth);
    shard_cpu_head_part *part = &ahead->part[ahead->current];
    if (ahead->lines <= 0 || ahead->fetches <= 0)
        return;
    int64_t lines = shard_min(shard_divide_up(ahead->lines, ahead->fetches), shard_divide_up(part->lines, here));
    int64_t fetched = shard_min(part->lines, here * lines);
    product->fetch = part->memory;
    product->fetch_end = part->memory + fetched * SHARD_CPU_CACHE_LINE;
    product->fetch_lines = (int)lines;
    part->memory += fetched * SHARD_CPU_CACHE_LINE;
    part->lines -= fetched;
    ahead->lines -= fetched;
    ahead->fetches -= here;
    ahead->current += part->lines == 0;
}

/* ---- products ---- */

void shard_cpu_head_add_logits(const shard_cpu_head_sweep *s, shard_cpu_head_tile *t, float *z)
{
    if (s->h->loss.rows == 1) {
        s->kernels->add_products(shard_cpu_head_products_dtype(s->tiler), t->count, s->h->in, t->weight, t->pitch, s->x, z,
                                 s->pitch);
        return;
    }
    int64_t depth = shard_divide_up(s->h->in, s->tiler->pack);
    for (int64_t row = 0, cols; row < s->pitch; row += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->loss.rows, row);
        for (int64_t k = 0, steps; k < depth; k += steps) {
            steps = shard_min(depth_of_block(cols), depth - k);
            shard_cpu_tile product = {.images = 1,
                                      .lines = 1,
                                      .depth = steps,
                                      .a = element(t->weight, k),
                                      .a_row = t->pitch / s->tiler->pack,
                                      .a_step = 1,
                                      .b = element(s->by_row, row * depth + k * cols),
                                      .b_step = cols,
                                      .c = z + row,
                                      .c_row = s->pitch,
                                      .accumulate = true};
            fetch_part(&t->ahead, t->count, &product);
            s->tiler->multiply(&product, t->count, (int)(cols / s->tiler->width));
        }
    }
}

static void copy_row(const float *from, int64_t cols, float *to)
{
    for (int64_t j = 0; j < cols; j += ROW_BYTES / ELEMENT)
        memcpy(to + j, from + j, ROW_BYTES);
}

/* Columns [first, first + cols) of `count` of the tile's rows: those are apart by what may be a power of two, few sets of a
 * cache. */
static void pack_columns(const shard_cpu_head_sweep *s, const shard_cpu_head_tile *t, int64_t row, int64_t count, int64_t first,
                         int64_t cols, void *panel)
{
    for (int64_t i = 0; i < count && s->tiler->pack == 1; i++)
        copy_row((const float *)t->weight + (row + i) * t->pitch + first, cols, (float *)panel + i * cols);
    for (int64_t i = 0; i < count && s->tiler->pack == 2; i += 2) {
        const uint16_t *from = (const uint16_t *)t->weight + (row + i) * t->pitch + first;
        s->kernels->interleave(cols, from, i + 1 < count ? from + t->pitch : NULL, (uint32_t *)panel + i / 2 * cols);
    }
}

void shard_cpu_head_add_weighted(const shard_cpu_head_sweep *s, shard_cpu_head_tile *t, const void *exponentials, void *panel,
                                 float *sum)
{
    int64_t pack = s->tiler->pack;
    for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
        for (int64_t first = 0, count; first < t->count; first += count) {
            count = shard_min(depth_of_block(cols) * pack, t->count - first);
            pack_columns(s, t, first, count, k, cols, panel);
            shard_cpu_tile product = {.images = 1,
                                      .lines = 1,
                                      .depth = shard_divide_up(count, pack),
                                      .a = element(exponentials, first / pack * s->pitch),
                                      .a_row = 1,
                                      .a_step = s->pitch,
                                      .b = panel,
                                      .b_step = cols,
                                      .c = sum + k,
                                      .c_row = s->in_pitch,
                                      .accumulate = true};
            fetch_part(&t->ahead, s->h->loss.rows, &product);
            s->tiler->multiply(&product, s->h->loss.rows, (int)(cols / s->tiler->width));
        }
    }
}

void shard_cpu_head_multiply_gradient(const shard_cpu_head_sweep *s, int64_t count, const void *dz, float *gradient,
                                      shard_cpu_head_ahead *ahead)
{
    int64_t depth = shard_divide_up(s->h->loss.rows, s->tiler->pack);
    int64_t calls = shard_max(shard_divide_up(ahead->parts, panels(s, s->in_pitch)), 1); /* at least one for each part */
    int64_t rows = shard_round_up(shard_divide_up(count, calls), SHARD_CPU_TILE_ROWS);
    for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
        shard_cpu_tile product = {.images = 1,
                                  .lines = 1,
                                  .depth = depth,
                                  .a_row = s->pitch / s->tiler->pack,
                                  .a_step = 1,
                                  .b = element(s->by_feature, k * depth),
                                  .b_step = cols,
                                  .c_row = s->in_pitch};
        for (int64_t i = 0, some; i < count; i += some) {
            some = shard_min(rows, count - i);
            product.a = element(dz, i * product.a_row);
            product.c = gradient + i * s->in_pitch + k;
            fetch_part(ahead, some, &product);
            s->tiler->multiply(&product, some, (int)(cols / s->tiler->width));
        }
    }
}
