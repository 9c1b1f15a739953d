/* The parts of a fused sweep (cpu_head.c), and its table of a loss: a loss reads the logits of a tile and leaves there what
 * the tile's rows, or those of x, are multiplied by. */
#ifndef SHARD_DEVICE_CPU_HEAD_SWEEP_H
#define SHARD_DEVICE_CPU_HEAD_SWEEP_H

#include "base/math.h"
#include "device/cpu/cpu_head_products.h"

typedef struct head_loss head_loss;

typedef shard_cpu_head_sweep sweep;
typedef shard_cpu_head_tile tile;

/* One thread's arrays. */
typedef struct lane {
    const sweep *s;
    float *z;        /* [tile, pitch]: of the lane, or the tile's place in the stash */
    float *own;      /* the lane's */
    float *scale;    /* [pitch]: factors of what is written to the stash in float16, or read from a stash */
    void *weight;    /* [tile, in_pitch] of the products' type, unless in place */
    float *bias;     /* [tile] */
    float *buffer;   /* [tile] or [in_pitch]: numbers that are added to */
    float *gradient; /* [BLOCK, in_pitch] */
    void *dz;        /* [BLOCK, pitch] of bfloat16; NULL: z has them */
    void *pairs;     /* [(tile + 1) / 2, pitch]: exponentials as pairs; NULL: z has them */
    void *panel;     /* [tile, TILE_MOST_COLS] of the tile's weight */
    float *sum;      /* [rows, in_pitch] */
    double *spread;  /* [in], of shard_head.spread; NULL: not wanted */
    double *stats;   /* [rows, SHARD_CE_STATS]: without maxima and exponentials */
    double *logits;  /* [pitch], sums of all logits */
    shard_cpu_head_columns columns;
    shard_cpu_head_count count;
    float *last, *top_value; /* [pitch] the last of the first k logits of each row; these [rows, k], and their classes */
    int64_t *top_index;
    float *ones;         /* [pairs]: derivatives of a tile's ones */
    bool values, scales; /* of binary cross-entropy: losses are computed, derivatives are times the rows' factors */
    char *memory;
    size_t bytes;
} lane;

/* A tile's z is l->z [count, pitch], classes by rows of x. */
struct head_loss {
    int stats; /* numbers of a row; 0: one of all rows */
    /* Before a forward. */
    void (*begin)(sweep *, double *stats);
    /* z: logits become the factors of the tile's rows in the sum; the lane's statistics get the tile's. Whether the factors of
     * l->columns apply to the sum so far. z of a tile with a place in the stash is this place, unless
     *   s->packed    the caller copies z to it
     *   s->halved    the caller copies z to it, times l->scale, which is set here
     *   s->separate  it is filled here. */
    bool (*forward)(lane *, const tile *);
    /* Joins the lanes' statistics of a row, in their order, and sets the factors [lanes] of their sums. */
    void (*join)(const sweep *, int lanes, const lane *, int64_t row, double *stats, float *factor);
    /* Sets s->constants; past the last row of x they give zeros. */
    void (*fill)(const sweep *, const shard_loss_rows *);
    /* z: logits, or nothing if the tile has a place in the stash, become derivatives by the logits before the map. */
    void (*gradient)(lane *, const tile *, const shard_loss_rows *);
};

/* A tile's place in the stash has its exponentials, or derivatives, [tile, pitch] numbers of float32 or float16 or
 * [(tile + 1) / 2, pitch] pairs of bfloat16; then [pitch] floats, the centers that exponentials are relative to. The rows of
 * `pitch` floats before these. */
static inline int64_t place_rows(const sweep *s)
{
    return s->packed || s->halved ? shard_divide_up(s->tile, 2) : s->tile;
}

static inline float *centers_of(const sweep *s, void *place)
{
    return (float *)place + place_rows(s) * s->pitch;
}

/* z: the derivatives of a tile with a place in the stash; scale [pitch]: the factors of the numbers there. */
static inline void head_scale_stash(const lane *l, const tile *t, const float *class_weight, const float *scale)
{
    const sweep *s = l->s;
    const shard_cpu_head_scaled scaled = {scale, &s->constants};
    if (s->packed)
        s->kernels->scaled_pairs(t->count, s->pitch, t->stash, l->z, class_weight, &scaled);
    else if (s->halved)
        s->kernels->scaled_halves(t->count, s->pitch, t->stash, l->z, class_weight, &scaled);
    else
        s->kernels->scaled(t->count, s->pitch, t->stash, l->z, class_weight, &scaled);
}

extern const head_loss shard_cpu_head_softmax, shard_cpu_head_binary, shard_cpu_head_top_k;

static inline float head_class_weight(const shard_head *h, int64_t class)
{
    return h->class_weight ? ((const float *)h->class_weight)[class] : 1;
}

/* The weights of the tile's classes, or NULL. */
static inline const float *head_class_weights(const shard_head *h, const tile *t)
{
    return h->class_weight ? (const float *)h->class_weight + t->first : NULL;
}

#endif
