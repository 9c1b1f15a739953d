/* The parts of a fused sweep (cpu_head.c), and its table of a loss: a loss reads the logits of a tile and leaves there what
 * the tile's rows, or those of x, are multiplied by. */
#ifndef SHARD_DEVICE_CPU_HEAD_SWEEP_H
#define SHARD_DEVICE_CPU_HEAD_SWEEP_H

#include "device/cpu/cpu_head_products.h"

typedef struct head_loss head_loss;

typedef shard_cpu_head_sweep sweep;
typedef shard_cpu_head_tile tile;

/* One thread's arrays. */
typedef struct lane {
    const sweep *s;
    float *z;        /* [tile, pitch] */
    float *slopes;   /* [pitch]: of the labels' capped logits */
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

/* A tile's z is l->z [count, pitch], classes by rows of x. A tile with a place in the stash keeps its logits there. */
struct head_loss {
    int stats; /* numbers of a row; 0: one of all rows */
    /* Before a forward. */
    void (*begin)(sweep *, double *stats);
    /* z: logits become the factors of the tile's rows in the sum; the lane's statistics get the tile's. Whether the factors of
     * l->columns apply to the sum so far. */
    bool (*forward)(lane *, const tile *);
    /* Joins the lanes' statistics of a row, in their order, and sets its factor in each lane's columns: of the lane's sum. */
    void (*join)(const sweep *, int lanes, const lane *, int64_t row, double *stats);
    /* Sets s->constants; past the last row of x they give zeros. */
    void (*fill)(const sweep *, const shard_loss_rows *);
    /* z: logits, or nothing if the tile has a place in the stash, become derivatives by the logits before the map. */
    void (*gradient)(lane *, const tile *, const shard_loss_rows *);
};

/* A tile's place in the stash: logits in 16 bits [tile, pitch], and two numbers of each column. */
static inline size_t place_bytes(const sweep *s)
{
    return (size_t)s->pitch * ((size_t)s->tile * sizeof(uint16_t) + 2 * sizeof(float));
}

static inline shard_cpu_head_codes codes_at(const sweep *s, void *place)
{
    uint16_t *code = place;
    float *highest = (float *)(code + s->tile * s->pitch);
    return (shard_cpu_head_codes){code, highest, highest + s->pitch};
}

/* The derivatives of the ones of a binary loss [pairs] follow the places: their logits may be above all others. */
static inline size_t stashed_ones_bytes(const shard_head *h)
{
    return h->binary ? (size_t)h->pairs * sizeof(float) : 0;
}

static inline float *stashed_ones(const sweep *s)
{
    return (float *)((char *)s->h->stash + (size_t)s->stashed * place_bytes(s));
}

/* Keeps the tile's logits z. */
static inline void stash_logits(const lane *l, const tile *t, float most, float span)
{
    const shard_cpu_head_codes codes = codes_at(l->s, t->stash);
    l->s->kernels->encode(t->count, l->s->pitch, l->z, &codes, most, span);
}

/* Sets z to the logits that were kept. */
static inline void take_logits(lane *l, const tile *t)
{
    const shard_cpu_head_codes codes = codes_at(l->s, t->stash);
    l->s->kernels->decode(t->count, l->s->pitch, &codes, l->z);
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
