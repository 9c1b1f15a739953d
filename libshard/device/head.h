/*
 * The head: a classifier's last linear layer together with its softmax loss. Sweeps go over tiles of the weight, runs of
 * its rows, so that logits exist for one tile at a time and the weight's gradient need not exist as a whole.
 *
 * With logits z_ic = x_i . weight_c + bias_c of the local classes, and q of shard_cross_entropy_shape:
 *   forward          for each row the statistics of the loss; and sum_i = sum over c of exp(z_ic - max_i) weight_c, as
 *                    online softmax does it (Milakov and Gimelshein 2018; Dao et al. 2022, with the weight as values)
 *   input gradient   from these sums, without another sweep (but with one for capped logits and smoothed labels)
 *   weight gradient  dz_ic = scale_i (slope_i exp(z_ic - lse_i) - q_ic), of logits that are computed again, and from it
 *                    the gradients of the tile's rows, which are passed to a function or added to memory
 * Of binary cross-entropy the derivatives of a row's losses are known without the other logits: they are the factors in the sum,
 * and dz but for scale_i.
 *
 * Products are of `dtype`, summed in the wide type: float64 for float64, else float32. A gradient in memory is rounded once, or where
 * it is added to as shard_matmul_shape says; one that is passed to a function is not.
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
    /* Memory of shard_head_stash_bytes, or NULL: the forward keeps the logits of some tiles in it (a GPU: their exponentials, or
     * a binary loss's derivatives), of which the weight gradient of the same rows does not compute the products again. */
    void *stash;
    size_t stash_bytes;
    /* [in], wide, where shard_head_spreads: the sum of the weight's rows, each times its class weight. The forward that makes
     * `sum` sets it, and the input gradient reads it; else NULL. */
    void *spread;
    /* For the labels' ranks: their logits [rows], and [rows] that the forward sets to the number of local logits that come before
     * the label's as count_ahead counts, 0 for ignored rows. Both NULL: not wanted. */
    const double *label_logit;
    int64_t *ahead;
    /* Binary cross-entropy of pairs in place of softmax cross-entropy of labels; of `loss` the ranges of rows and classes are
     * read. */
    bool binary;
    bool gradient_only;  /* the forward computes no loss: 0 */
    const int64_t *pair; /* [2, pairs], of all classes */
    int64_t pairs;
    const void *positive;     /* [cols] of the wide type, or NULL */
    const double *row_weight; /* [rows], or NULL: of the loss that the forward computes */
    /* The first k logits of each row in place of a loss, as shard_head_top_k; 0: a loss. */
    int64_t k;
    void *top_value;    /* [rows, k] of the wide type */
    int64_t *top_index; /* [rows, k] */

    /* The classes as rows of another weight than [cols, in]; then no stash is used (head_prepared.h). All arrays but the weight
     * are as above, in the order of the classes. */
    int64_t weight_rows;         /* of the weight, where there is a list */
    const int64_t *list;         /* [cols]: the weight's rows that are the classes, ascending; NULL: all rows */
    const int64_t *list_on_host; /* the same in host memory */
    const int64_t *label_row;    /* [rows]: where there is a list, the weight's rows of the labels, -1: none */
    bool normalized;             /* classes are rows divided by their norms, or by SHARD_HEAD_EPS where that is larger; no bias */

    /* Margins at the labels (shard_head_label_margins); NULL: none. Arrays [rows]. */
    const void *margin_shift;   /* wide: added to the label's logit */
    const double *margin_slope; /* the derivative of the label's logit by what it is without the margin */
    const double *margin_logit; /* the label's logit with its margin; read for the features' gradient */
} shard_head;

static inline shard_dtype shard_head_wide(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

#define SHARD_HEAD_EPS 1e-12

/* Classes: a GPU's products of numbers that are no multiple of it are several times slower. */
enum { SHARD_HEAD_ALIGNED = 8 };

/* A margin of logits that are `of.scale` times cosines; row_m2 and row_m3 [rows] in place of m2 and m3, or NULL. */
typedef struct shard_head_margin {
    shard_margin of;
    const double *row_m2, *row_m3;
} shard_head_margin;

/* Arrays of an update, at most: the value, its compensation, and the states. */
enum { SHARD_UPDATE_ARRAYS = 2 + SHARD_OPTIMIZER_STATES };

/* Ascending rows of a matrix, in device and in host memory. */
typedef struct shard_row_list {
    int64_t count;
    const int64_t *row, *row_on_host; /* [count] */
} shard_row_list;

/* Rows of memory, `bytes` each and without gaps. */
typedef struct shard_row_array {
    const char *memory;
    int64_t bytes;
} shard_row_array;

/* The address of an element; NULL of NULL. */
static inline const void *shard_head_element(const void *array, int64_t index, shard_dtype dtype)
{
    return array ? (const char *)array + (size_t)index * shard_dtype_size(dtype) : NULL;
}

/* The receiver of the weight's gradient. */
typedef struct shard_head_gradient {
    /* Like the weight, of its type; NULL: `take` gets the gradient; if that is NULL too, it is not returned. With a list the
     * other rows get zeros, or stay as they are if `accumulate`; `take` gets the rows of the list, in runs. */
    void *weight;
    /* Takes the gradient of `count` weight rows from `first` on, [count, in] of the wide type, which it may write to. A
     * device may call it from several threads at a time, for different rows. */
    shard_status (*take)(void *context, shard_device *, int64_t first, int64_t count, void *gradient);
    /* With a list, in place of `take`, which is set too: takes the gradient [count, in] of some rows of the list, not none, one
     * part after the other; NULL: they are given to `take` in runs. */
    shard_status (*take_list)(void *context, shard_device *, const shard_row_list *, void *gradient);
    /* In place of `take`, which is set too, where the device's steps_product says so: takes the gradient as a product; NULL: it
     * is always computed. */
    shard_status (*take_product)(void *context, shard_device *, int64_t first, int64_t count, const shard_update_product *);
    void *context;
    /* Arrays that `take` reads and writes, from the weight's first row on, without a list: a device may fetch them ahead. */
    shard_row_array updated[SHARD_UPDATE_ARRAYS];
    int updated_arrays;
    void *bias;                       /* [cols] of the weight's type, or NULL; with a list [weight_rows] */
    bool accumulate, accumulate_bias; /* add to the memory; else overwrite it */
    void *input;                      /* [rows, in] of the wide type, which dz weight is added to, or NULL; without a stash */
} shard_head_gradient;

/* A device's fused sweeps; shard_device.head, NULL for a device that has none. The functions below call these where
 * they fit, else they are composed of the device's entries, and of its kernels for a tile's loss (head_sweep.h). */
struct shard_head_ops {
    bool (*fits)(const shard_head *);
    size_t (*stash_bytes)(const shard_head *, size_t most);
    shard_status (*label_logits)(shard_device *, const shard_head *, double *logit);
    shard_status (*forward)(shard_device *, const shard_head *, double *stats, void *sum);
    shard_status (*weight_gradient)(shard_device *, const shard_head *, const shard_loss_rows *, const shard_head_gradient *);
};

/* The bytes of a stash that the device makes use of, up to `most`; 0: none. */
size_t shard_head_stash_bytes(const shard_device *, const shard_head *, size_t most);

/* logit [rows]: that of the row's label, of a product as the sweeps make it; 0 where the label is none of the local classes. */
shard_status shard_head_label_logits(shard_device *, const shard_head *, double *logit);

/* Sets margin_logit, margin_slope and margin_shift of a head without them, whose x has the margin's scale. Where a label is none
 * of the local classes they are finite. */
shard_status shard_head_label_margins(shard_device *, const shard_head *, const shard_head_margin *, double *logit, double *slope,
                                      void *shift);

/* stats [rows, SHARD_CE_STATS] as the entry cross_entropy_stats, of binary cross-entropy one number, the sum of the losses; sum
 * [rows, in] of the wide type, or NULL. */
shard_status shard_head_forward(shard_device *, const shard_head *, double *stats, void *sum);

/* Whether the input gradient is made from the sum of the forward: smoothed classes have a factor each if they are capped. */
static inline bool shard_head_sums(const shard_head *h)
{
    return h->loss.map.soft_cap == 0 || h->loss.smoothing == 0;
}

/* Whether smoothed labels make the sum of the weight's rows a part of the input gradient. Not where the classes are other rows
 * than the weight's, which that gradient prepares. */
bool shard_head_spreads(const shard_head *);

/* dx [rows, in] of the wide type, the summand of the local classes, from the local stats and sum of the forward, or, without
 * shard_head_sums, by another sweep. */
shard_status shard_head_input_gradient(shard_device *, const shard_head *, const double *stats, const void *sum,
                                       const shard_loss_rows *, void *dx);

shard_status shard_head_weight_gradient(shard_device *, const shard_head *, const shard_loss_rows *, const shard_head_gradient *);

/* spread [in], wide: the sum of the weight's rows, each times its class weight, added to it if `accumulate`. Not with a list. */
shard_status shard_head_sum_weight(shard_device *, const shard_head *, bool accumulate, void *spread);

/* value [rows, k] of the wide type, index [rows, k]: the largest k local logits of each row and their classes, counted from
 * loss.col0 on, as the entry top_k. k > 0. Of the loss the ranges of rows and classes are read. */
shard_status shard_head_top_k(shard_device *, const shard_head *, int64_t k, void *value, int64_t *index);

/* Classes of a tile at most, and of a part of it whose gradient is passed on at a time where a device has no fused sweeps; 0: as
 * the device chooses. Only tests and benchmarks set them. */
extern int64_t shard_head_tile, shard_head_part;

/* The same without fused sweeps: for devices that have none, and the reference in tests. */
shard_status shard_head_label_logits_composed(shard_device *, const shard_head *, double *logit);
shard_status shard_head_forward_composed(shard_device *, const shard_head *, double *stats, void *sum);
shard_status shard_head_weight_gradient_composed(shard_device *, const shard_head *, const shard_loss_rows *,
                                                 const shard_head_gradient *);

#endif
