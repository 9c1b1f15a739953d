/*
 * The products of the head's sweeps (cpu_head.c): of a tile of the weight with all rows of x, by a tiler of float32 or of
 * pairs of bfloat16. Pairs are neighbours along the sum: features of the logits, classes of the sums, rows of x of the
 * gradient.
 */
#ifndef SHARD_DEVICE_CPU_HEAD_PRODUCTS_H
#define SHARD_DEVICE_CPU_HEAD_PRODUCTS_H

#include "device/cpu/cpu_head.h"
#include "device/cpu/cpu_tile.h"

/* One call: the operands as the products need them. */
typedef struct shard_cpu_head_sweep {
    const shard_head *h;
    const shard_cpu_tiler *tiler;
    const shard_cpu_head_kernels *kernels;
    const struct head_loss *loss;      /* cpu_head_sweep.h */
    int64_t pitch;                     /* rows of x, rounded up to vectors: the length of a row of class-major logits */
    int64_t in_pitch;                  /* features, rounded up to vectors */
    int64_t tile;                      /* classes */
    int64_t stashed;                   /* tiles that have a place in the stash: the first ones */
    bool in_place;                     /* the weight's rows are used where they are */
    bool rounds;                       /* products in float32 of rows that are rounded to the features' type */
    const void *x;                     /* [rows, in] of the products' type */
    void *by_row;                      /* panels of x's rows, along features */
    void *by_feature;                  /* panels of x's features, along rows */
    double weights;                    /* the sum of the local classes' weights, where classes are smoothed */
    shard_cpu_head_gradient constants; /* of each row, for gradients */
    char *memory;
    size_t bytes;
    int64_t *row_pair; /* [rows + 1]: the first pair of each row; NULL: there are no pairs */
} shard_cpu_head_sweep;

enum { SHARD_CPU_HEAD_PARTS = SHARD_UPDATE_ARRAYS };

typedef struct shard_cpu_head_part {
    const char *memory;
    int64_t lines; /* of a cache */
} shard_cpu_head_part;

/* Memory that products fetch into the second-level cache while they compute, in this order. */
typedef struct shard_cpu_head_ahead {
    shard_cpu_head_part part[SHARD_CPU_HEAD_PARTS];
    int parts, current;
    int64_t lines;   /* of all parts, that are still to be fetched */
    int64_t fetches; /* that the products still make, of some lines each */
} shard_cpu_head_ahead;

/* A tile: its first class, how many, and its rows of the products' type, `pitch` numbers apart. */
typedef struct shard_cpu_head_tile {
    int64_t first, count, pitch;
    const void *weight;
    void *stash;                /* the tile's place; NULL: it has none */
    shard_cpu_head_ahead ahead; /* the weight's next tile */
} shard_cpu_head_tile;

/* The tiler of sweeps over x of a dtype: the fastest that this machine runs, or the one of shard_cpu_head_choice; NULL: none. */
const shard_cpu_tiler *shard_cpu_head_tiler(shard_dtype dtype);

/* The number of a tiler of that order, the fastest is 0. Only tests set it. */
extern int shard_cpu_head_choice;

/* The type of the operands. */
static inline shard_dtype shard_cpu_head_products_dtype(const shard_cpu_tiler *tiler)
{
    return tiler->pack == 2 ? SHARD_BFLOAT16 : SHARD_FLOAT32;
}

/* Lays x out in by_row and, for a gradient, by_feature. */
void shard_cpu_head_pack_x(const shard_cpu_head_sweep *, bool gradient);

/* How often the products of a tile fetch: those of its logits, and of the sums. */
int64_t shard_cpu_head_fetches_of_tile(const shard_cpu_head_sweep *, int64_t count, bool sum);
/* The same of the gradient of `count` rows. */
int64_t shard_cpu_head_fetches_of_gradient(const shard_cpu_head_sweep *, int64_t count);
/* Adds a part. */
void shard_cpu_head_fetch(shard_cpu_head_ahead *, const void *memory, int64_t bytes);

/* z [count, pitch] += the tile's weight times x, classes by rows of x. */
void shard_cpu_head_add_logits(const shard_cpu_head_sweep *, shard_cpu_head_tile *, float *z);

/* sum [rows, in_pitch] += the exponentials, transposed, times the tile's weight; exponentials [count, pitch], or pairs
 * of classes [(count + 1) / 2, pitch]; panel [count, TILE_MOST_COLS] of elements is overwritten. */
void shard_cpu_head_add_weighted(const shard_cpu_head_sweep *, shard_cpu_head_tile *, const void *exponentials, void *panel,
                                 float *sum);

/* gradient [count, in_pitch] = dz [count, pitch] of the products' type, times x. */
void shard_cpu_head_multiply_gradient(const shard_cpu_head_sweep *, int64_t count, const void *dz, float *gradient,
                                      shard_cpu_head_ahead *);

#endif
