/*
 * Rows of logits with their labels, the classes whole or split over a group: what
 * the loss and the rank of the label have in common. The members compute a few
 * numbers a row of their own part, and one all-gather shows them to all.
 */
#ifndef SHARD_OP_CLASS_ROWS_H
#define SHARD_OP_CLASS_ROWS_H

#include "op/op.h"

typedef struct shard_class_rows {
    const char *function;
    shard_tensor *logits;
    shard_cross_entropy_shape shape; /* smoothing is the caller's */
    shard_group *group;              /* over which the classes are split; NULL: they are whole */
    const int64_t *label;            /* [rows], on the host; NULL for a floating target */
    uint64_t options;                /* whatever else must be the same on every member */

    /* After shard_class_rows_gather: [members][rows, width], on the host. */
    int members;
    int64_t stride;
    double *part;
} shard_class_rows;

/* Fills rows for logits [rows, classes] or [classes] and labels [rows] or a
 * scalar. A floating target is left to the caller. What the host holds lives as
 * long as the innermost scope. False with the error set (NULL arguments, shapes and
 * placements that do not fit, a label that is neither a class nor ignore_index):
 * rows->group then still is set, if anything tells it. */
bool shard_class_rows_read(shard_class_rows *rows, shard_tensor *logits, shard_tensor *target, int64_t ignore_index);

/* A tensor of one number a row, shaped and placed as the rows are. */
shard_tensor *shard_class_rows_make(const shard_class_rows *rows, shard_dtype dtype);

/* Shows own [rows, width], float64, to all members. Collective over rows->group; own
 * is NULL if this rank has failed, and then all do. They fail too where their
 * labels, options or parts do not fit together. */
shard_status shard_class_rows_gather(shard_class_rows *rows, shard_tensor *own);

/* What `member` told of row i, [width]. */
static inline const double *shard_class_row(const shard_class_rows *rows, int member, int64_t i, int width)
{
    return rows->part + member * rows->stride + i * width;
}

static inline bool shard_class_row_ignored(const shard_class_rows *rows, int64_t i)
{
    return rows->label && rows->label[i] == rows->shape.ignore_index;
}

/* Host memory that lives until the end of the enclosing scope. */
void *shard_host_workspace(int64_t count, shard_dtype dtype);

#endif
