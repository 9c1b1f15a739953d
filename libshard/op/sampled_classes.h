/* The classes that a loss counts (shard_cross_entropy_options.sample), as rows of a weight; and labels as positions among
 * them. Lists are made and read by the host. */
#ifndef SHARD_OP_SAMPLED_CLASSES_H
#define SHARD_OP_SAMPLED_CLASSES_H

#include "op/class_rows.h"

typedef struct shard_sampled {
    int64_t count;         /* of this rank's classes in the sample */
    int64_t classes;       /* of the whole sample; count + 1 until shard_sampled_count */
    shard_tensor *on_host; /* int64 [count]: the rows of the local weight, ascending */
    shard_tensor *list;    /* the same in device memory */
    /* Labels as positions in the list: -1 where a row is ignored, count where the label's row is not on this rank. */
    shard_tensor *target;
    shard_tensor *label_row; /* the rows of the local weight that the labels are, -1: none */
} shard_sampled;

/* Reads the sample of the rows' classes, after shard_class_rows_read with labels. Waits for the device. False with the error
 * set: it is no ascending list of local classes, or lacks a label. Tensors of the innermost scope. */
bool shard_sampled_read(const shard_class_rows *rows, shard_tensor *sample, shard_sampled *sampled);

/* Sets `classes`. Collective over the rows' group; ready is false if this rank has failed, and then all ranks fail. */
shard_status shard_sampled_count(const shard_class_rows *rows, bool ready, shard_sampled *sampled);

/* The sample's elements of x [local classes] (NULL: NULL), in the innermost scope; NULL with the error set. */
shard_tensor *shard_sampled_pick(const shard_sampled *sampled, shard_tensor *x);

/* Whether the correction is of the sample: local, floating, [count]. False with the error set. */
bool shard_sampled_check_correction(const shard_class_rows *rows, const shard_sampled *sampled, shard_tensor *correction);

#endif
