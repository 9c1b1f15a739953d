/* The parts of a sweep that is composed of a device's entries (head.c), and its table of a loss, which may be of a device. */
#ifndef SHARD_DEVICE_HEAD_SWEEP_H
#define SHARD_DEVICE_HEAD_SWEEP_H

#include "device/head.h"

typedef struct shard_head_loss head_loss;

enum { SHARD_HEAD_CHUNK = 8192 /* classes of a chunk of a row, at most */ };

/* One sweep's arrays, in one block of workspace. */
typedef struct sweep {
    shard_device *device;
    const shard_head *h;
    const head_loss *loss;
    shard_dtype wide;
    int64_t tile; /* classes of a tile, at most */
    size_t bytes; /* of `memory` */
    char *memory;
    void *logits;                  /* [rows, tile], wide */
    void *narrow;                  /* [rows, tile] of dtype, for a tile's; may be the logits' memory where that is wide */
    void *weight;                  /* [tile, in] of dtype; NULL: the weight is */
    void *taken;                   /* [tile, in] of the weight's type: rows of a list before they are cast; NULL: not needed */
    double *square;                /* [tile]: the sums of the squares of normalized rows; NULL: there are none */
    void *bias;                    /* [tile], wide; NULL: there is none, or it is */
    void *gradient;                /* of some rows of a tile, wide; where `narrow` has memory of its own, in that of the logits */
    bool wide_derivatives;         /* those by the logits are read from `logits`, too */
    double *stats, *center, *one;  /* of a tile, [rows, SHARD_CE_STATS], [rows], [rows] */
    float *reference, *largest;    /* [rows], of a softmax with kernels of its own */
    double *parts;                 /* [rows, chunks of a tile], of a binary loss with kernels of its own */
    int64_t stashed;               /* tiles in the stash, the first ones */
    int64_t *ahead;                /* [rows], of a tile; NULL: the labels' ranks are not wanted */
    double *aheads[2];             /* [rows]: the same, and of all tiles so far */
    void *top_value, *both_values; /* of a tile [rows, k], and with those so far [rows, 2 k], wide; NULL: not wanted */
    int64_t *top_index, *both_indices;
} sweep;

/* A tile: its first class, how many, and its operands in the products' type. */
typedef struct tile {
    int64_t first, count;
    const void *weight, *bias, *class_weight;
    void *narrow;           /* [rows, count] of dtype: factors in the sum, or derivatives by the logits */
    void *stash;            /* [rows, count] of dtype: the factors, kept by the forward; NULL: not kept */
    float *stash_reference; /* [rows]: the exponents' subtrahends in these factors; not of a binary loss */
} tile;

/* A tile's logits are s->logits [rows, count]; with a stash the gradient has none. */
struct shard_head_loss {
    /* Of a device's own kernels (shard_device.head_softmax, head_binary), else 0: */
    bool (*fits)(const shard_head *);
    bool adds_bias; /* to the logits, which are without it */
    bool separate;  /* in the forward t->narrow is other memory than the logits */
    /* Sets the statistics of no classes. */
    shard_status (*begin)(sweep *, double *stats);
    /* Adds the tile's statistics, and brings sum to the new maxima; the factors of the tile's rows in it are in t->narrow. sum
     * may be NULL. */
    shard_status (*forward)(sweep *, const tile *, double *stats, void *sum);
    /* Completes the statistics and sums of all tiles. NULL: they are complete. */
    shard_status (*end)(sweep *, double *stats, void *sum);
    /* The derivatives by the logits are in t->narrow, with s->wide_derivatives also where the logits were. */
    shard_status (*gradient)(sweep *, const tile *, const shard_loss_rows *);
};

/* Rounds what is where the logits were to the products' type. */
shard_status shard_head_narrow(sweep *s, const tile *t);

extern const head_loss shard_head_softmax, shard_head_binary, shard_head_first;

/* The classes of a tile as those of the loss. */
static inline shard_cross_entropy_shape head_tile_shape(const sweep *s, const tile *t)
{
    shard_cross_entropy_shape shape = s->h->loss;
    shape.col0 += t->first;
    shape.cols = t->count;
    shape.pitch = 0;
    return shape;
}

#endif
