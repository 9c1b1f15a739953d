/*
 * The head: a classifier's last linear layer together with its softmax loss. Sweeps go over tiles of the weight, runs of
 * its rows, so that logits exist for one tile at a time and the weight's gradient need not exist as a whole.
 *
 * With logits z_ic = x_i . weight_c + bias_c of the local classes, and q of shard_cross_entropy_shape:
 *   forward          for each row the statistics of the loss; and sum_i = sum over c of exp(z_ic - max_i) weight_c, as
 *                    online softmax does it (Milakov and Gimelshein 2018; Dao et al. 2022, with the weight as values)
 *   input gradient   from these sums, without another sweep
 *   weight gradient  dz_ic = scale_i (slope_i exp(z_ic - lse_i) - q_ic), of logits that are computed again, and from it
 *                    the gradients of the tile's rows, which are passed to a function or added to memory
 *
 * Products are of `dtype`, summed in the wide type: float64 for float64, else float32. A gradient is rounded once.
 */
#ifndef SHARD_DEVICE_HEAD_H
#define SHARD_DEVICE_HEAD_H

#include "device/device.h"

typedef struct shard_head {
    shard_cross_entropy_shape loss; /* cols: the local classes; pitch is not read */
    int64_t in;                     /* features */
    shard_dtype dtype;              /* of x */
    shard_dtype weight_dtype;       /* of weight and bias: dtype or the wide type */
    const void *x;                  /* [rows, in] */
    const void *weight;             /* [cols, in] */
    const void *bias;               /* [cols], or NULL */
    const int64_t *target;          /* [rows], labels */
    const void *class_weight;       /* [cols] of the wide type, or NULL */
    /* Memory of shard_head_stash_bytes, or NULL: the forward keeps exponentials of the logits of some tiles in it, which the
     * weight gradient of the same rows then does not compute again. */
    void *stash;
    size_t stash_bytes;
} shard_head;

static inline shard_dtype shard_head_wide(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

/* Gradients with respect to a row's loss: SHARD_CE_LSE and SHARD_CE_SLOPE, and the derivative of the
 * result by the row's loss; arrays [rows] in device memory. */
typedef struct shard_head_rows {
    const double *lse, *slope, *scale;
} shard_head_rows;

/* The receiver of the weight's gradient. */
typedef struct shard_head_gradient {
    /* [cols, in] of the weight's type; NULL: `take` gets the gradient, or nobody if that is NULL too. */
    void *weight;
    /* Takes the gradient of `count` weight rows from `first` on, [count, in] of the weight's type, which it may write to. A
     * device may call it from several threads at a time, for different rows. */
    shard_status (*take)(void *context, shard_device *, int64_t first, int64_t count, void *gradient);
    void *context;
    void *bias;                       /* [cols] of the weight's type, or NULL */
    bool accumulate, accumulate_bias; /* add to the memory; else overwrite it */
} shard_head_gradient;

/* A device's fused sweeps; shard_device.head, NULL for a device that has none. The functions below call these where
 * they fit, else they are composed of the device's entries. */
struct shard_head_ops {
    bool (*fits)(const shard_head *);
    size_t (*stash_bytes)(const shard_head *, size_t most);
    shard_status (*forward)(shard_device *, const shard_head *, double *stats, void *sum);
    shard_status (*weight_gradient)(shard_device *, const shard_head *, const shard_head_rows *, const shard_head_gradient *);
};

/* The bytes of a stash that the device makes use of, up to `most`; 0: none. */
size_t shard_head_stash_bytes(const shard_device *, const shard_head *, size_t most);

/* stats [rows, SHARD_CE_STATS] as the entry cross_entropy_stats; sum [rows, in] of the wide type, or NULL. */
shard_status shard_head_forward(shard_device *, const shard_head *, double *stats, void *sum);

/* dx [rows, in] of the wide type, the summand of the local classes, from the local stats and sum of the forward. */
shard_status shard_head_input_gradient(shard_device *, const shard_head *, const double *stats, const void *sum,
                                       const shard_head_rows *, void *dx);

shard_status shard_head_weight_gradient(shard_device *, const shard_head *, const shard_head_rows *, const shard_head_gradient *);

/* Classes of a tile at most; 0: as the device chooses. Only tests set it. */
extern int64_t shard_head_tile;

/* The same, composed of the device's entries alone: for devices without fused sweeps, and the reference in tests. */
shard_status shard_head_forward_composed(shard_device *, const shard_head *, double *stats, void *sum);
shard_status shard_head_weight_gradient_composed(shard_device *, const shard_head *, const shard_head_rows *,
                                                 const shard_head_gradient *);

#endif
