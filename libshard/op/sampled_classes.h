/* The classes that a loss counts (shard_cross_entropy_options.sample), as rows of a weight or columns of logits; and labels as
 * positions among them. The host makes lists, and the device finds labels in them. */
#ifndef SHARD_OP_SAMPLED_CLASSES_H
#define SHARD_OP_SAMPLED_CLASSES_H

#include "op/class_rows.h"

typedef struct shard_sampled {
    int64_t count;         /* of this rank's classes in the sample */
    shard_tensor *on_host; /* int64 [count]: the rows of the local weight, ascending */
    shard_tensor *list;    /* the same in device memory */
    /* Labels as positions in the list: -1 where a row is ignored, count where the label's row is not on this rank. */
    shard_tensor *target;
    shard_tensor *label_row; /* the rows of the local weight that the labels are, -1: none */
} shard_sampled;

/* Reads the sample of the rows' classes, and makes *shape that of a layer of these classes alone, of which this rank has the
 * first ones, for labels sampled->target. After shard_class_rows_read with labels. correction: of the options, or NULL. Tensors
 * of the innermost scope. Does not wait for the device, unless that has the sample. Errors: the sample is no ascending list of
 * local classes; the correction is not of it; here or of the device, the sample lacks a label. Collective over the rows' group
 * if labels are smoothed over the classes (smoothing is not 0); ready is false if this rank has failed. A rank that fails has
 * been in the first gather, in which all ranks fail. */
shard_status shard_sampled_open(shard_class_rows *rows, bool ready, shard_tensor *sample, shard_tensor *correction,
                                double smoothing, shard_sampled *sampled, shard_cross_entropy_shape *shape);

/* The sample's elements of x [local classes] (NULL: NULL), in the innermost scope; NULL with the error set. */
shard_tensor *shard_sampled_pick(const shard_sampled *sampled, shard_tensor *x);

/* The correction on like's device and of its type, divided by the scale of the logits that it is added to before they are scaled;
 * in the innermost scope. NULL with the error set. */
shard_tensor *shard_sampled_correction(shard_tensor *correction, double logit_scale, const shard_tensor *like);

/* The sample's columns of logits [..., local classes], in the innermost scope: a tensor [..., count], local if the classes are
 * split, whose gradient has zeros in the other columns. NULL with the error set. */
shard_tensor *shard_sampled_columns(const shard_sampled *sampled, shard_tensor *logits);

#endif
