/*
 * Rows of logits with their labels; the classes may be split over a group. Common to the loss and the rank of the
 * label. Each rank computes a few numbers for each row of its local shard, and an all-gather collects them. Nothing
 * waits for a device that queues: values that the host knows (options, ranges of classes) are exchanged before and
 * compared by the host; labels are compared on the device.
 */
#ifndef SHARD_OP_CLASS_ROWS_H
#define SHARD_OP_CLASS_ROWS_H

#include "op/op.h"

#include <inttypes.h>

/* A function's error texts for labels and row weights; the formats have three int64_t, as the entries check_index, find_labels
 * and compare_digests need. */
typedef struct shard_class_faults {
    shard_fault label, unsampled, difference, weight_difference;
} shard_class_faults;
#define SHARD_CLASS_FAULTS(function)                                                                                             \
    {                                                                                                                            \
        {SHARD_ERROR_ARGUMENT, function ": label %" PRId64 " at row %" PRId64 " is outside [0, %" PRId64 ")"},                   \
            {SHARD_ERROR_ARGUMENT, function ": label %" PRId64 " at row %" PRId64 " is not in the sample of %" PRId64            \
                                            " classes; draw it with these labels"},                                              \
            {SHARD_ERROR_MISMATCH, function ": labels on rank %" PRId64 " differ from those on rank %" PRId64                    \
                                            "; every rank needs the same labels of all rows"},                                   \
        {                                                                                                                        \
            SHARD_ERROR_MISMATCH, function ": row weights on rank %" PRId64 " differ from those on rank %" PRId64                \
                                           "; every rank needs the same weights of all rows"                                     \
        }                                                                                                                        \
    }

typedef struct shard_class_rows {
    const char *function;
    const shard_class_faults *faults;
    shard_tensor *logits, *labels;   /* labels is NULL for a floating target */
    shard_tensor *x, *weight;        /* of a head: what the logits are computed from, whose types the ranks compare; or NULL */
    shard_tensor *pairs;             /* int64, targets that the ranks compare in place of labels; NULL: none */
    shard_tensor *row_weight;        /* [rows] float64, or NULL */
    shard_cross_entropy_shape shape; /* the caller sets smoothing, z_loss and map */
    shard_group *group;              /* over which the classes are split; NULL: they are not split */
    uint64_t options;                /* a hash of the other options that must be the same on every rank */

    /* After shard_class_rows_open: on the device, [ranks] of `stride` doubles, for each rank first its numbers;
     * complete after shard_class_rows_gather. */
    int ranks;
    int64_t stride;
    double *part, *local; /* of all ranks, and of this one */
    bool compared;        /* the first gather has compared calls and labels */
} shard_class_rows;

/* Fills rows for logits [..., classes], whose leading dimensions are the rows, and labels [...]. The caller handles
 * a floating target. False with the error set (NULL arguments, shapes and placements that do not fit); rows->group
 * is then set if an operand has it. */
bool shard_class_rows_read(shard_class_rows *rows, shard_tensor *logits, shard_tensor *target, int64_t ignore_index);
/* The same, where a floating target is an error. */
bool shard_class_rows_read_labels(shard_class_rows *rows, shard_tensor *logits, shard_tensor *labels, int64_t ignore_index);

/* Sets *local to the weights of the local classes, in the logits' dtype and the innermost scope: `weight` is floating, has those
 * of all classes or is split as they are, and requires no gradient; `name` is its name in messages. NULL for NULL. False with the
 * error set. */
bool shard_class_rows_read_weight(const shard_class_rows *rows, shard_tensor *weight, const char *name, shard_tensor **local);

/* Sets *wide to x [rows] as float64, in the innermost scope; x is a floating tensor of the rows' shape that requires no
 * gradient, `name` its name in messages. NULL for NULL. False with the error set. */
bool shard_class_rows_widen(const shard_class_rows *rows, shard_tensor *x, const char *name, shard_tensor **wide);

/* As shard_autocast_promote, of logits, target and `weights` class weights. Also without autocast, 16-bit logits become float32
 * where a weight is wider: its values may be out of their range. So do probabilities. */
void shard_class_rows_promote(int weights, shard_tensor **x);

/* The memory of the logits' gradient, for input 0 of a node. It overwrites logits that no other tensor uses: with many classes
 * they are the largest tensor. Else it has their pitch; of a leaf it is in the memory of the gradient before it. NULL with the
 * error set. */
shard_tensor *shard_class_rows_gradient(shard_node *node, shard_tensor *logits, int64_t pitch);

/* A tensor of one number for each row, shaped and placed as the rows are. */
shard_tensor *shard_class_rows_make(const shard_class_rows *rows, shard_dtype dtype);

/* Allocates `count` numbers of each rank, in the innermost scope, and checks the labels: a label that is neither a class
 * nor ignore_index is an error here or of the device. Can be called again after a gather, for other numbers of the
 * same rows; the labels are then not checked again. False with the error set. */
bool shard_class_rows_open(shard_class_rows *rows, int64_t count);

/* All-gathers the numbers at rows->local. Collective over rows->group; ready is false if this rank has failed, and
 * then all ranks fail. They also fail if options or local shards do not fit together, or labels or row weights differ
 * (here or by the device). A second gather is an all-gather of the numbers alone. */
shard_status shard_class_rows_gather(shard_class_rows *rows, bool ready);

/* Whether a loss that one rank computes alone is computed, also after an earlier error: where it is recorded, this rank's
 * backward takes part in the others' collectives, and no step follows an error. A value that is only read could be wrong: a
 * NULL in the options may be the result of an operation that failed. */
bool shard_class_rows_go_on(const shard_class_rows *rows);

/* Opens with one number for each row: the label's logit if this rank has it, else 0. */
bool shard_class_rows_pick(shard_class_rows *rows);
/* After the gather: the labels' logits, float64; the first [rows] elements are valid. NULL with the error set. */
shard_tensor *shard_class_rows_add_picked(const shard_class_rows *rows);

#endif
