/*
 * Rows of logits with their labels, the classes whole or split over a group: what
 * the loss and the rank of the label have in common. The members compute a few
 * numbers a row of their own part, and an all-gather shows them to all. Nothing of it
 * waits for a device that queues: what the host knows (options, which classes a member
 * has) is exchanged before it and compared by the host, labels on the device.
 */
#ifndef SHARD_OP_CLASS_ROWS_H
#define SHARD_OP_CLASS_ROWS_H

#include "op/op.h"

/* Of a function, what it says of labels; their formats take three int64_t as the entries
 * check_index and compare_digests have them. */
typedef struct shard_class_faults {
    shard_fault label, difference;
} shard_class_faults;
#define SHARD_CLASS_FAULTS(function)                                                                                             \
    {{SHARD_ERROR_ARGUMENT, function ": label %" PRId64 " at row %" PRId64 " is outside [0, %" PRId64 ")"},                      \
     {SHARD_ERROR_MISMATCH, function ": rank %" PRId64 " has other labels than rank %" PRId64                                    \
                                     "; labels must be the same whole ones on every member"}}

typedef struct shard_class_rows {
    const char *function;
    const shard_class_faults *faults;
    shard_tensor *logits, *labels;   /* labels NULL for a floating target */
    shard_cross_entropy_shape shape; /* smoothing is the caller's */
    shard_group *group;              /* over which the classes are split; NULL: they are whole */
    uint64_t options;                /* whatever else must be the same on every member */

    /* After shard_class_rows_open: on the device, [members] of `stride` doubles, each a
     * member's [rows, width]; complete after shard_class_rows_gather. */
    int members;
    int64_t stride;
    double *part, *own; /* of all members, and this one's */
    bool compared;      /* the calls and the labels, by the first gather */
} shard_class_rows;

/* Fills rows for logits [..., classes], whose leading dimensions' elements are the rows, and
 * labels [...]. A floating target is left to the caller. False with the error set (NULL
 * arguments, shapes and placements that do not fit): rows->group then still is set, if
 * anything tells it. */
bool shard_class_rows_read(shard_class_rows *rows, shard_tensor *logits, shard_tensor *target, int64_t ignore_index);

/* A tensor of one number a row, shaped and placed as the rows are. */
shard_tensor *shard_class_rows_make(const shard_class_rows *rows, shard_dtype dtype);

/* Makes room for the parts, which lives as long as the innermost scope, and has the labels
 * checked: one that is neither a class nor ignore_index is an error here or of the
 * device's. May be called anew, after a gather, for other numbers of the same rows, whose labels
 * are checked no more. False with the error set. */
bool shard_class_rows_open(shard_class_rows *rows, int64_t width);

/* Shows all members what is at rows->own. Collective over rows->group; ready is false
 * if this rank has failed, and then all do. They fail too where their options or parts do
 * not fit together; where their labels differ, here or by the device. A second gather is an
 * all-gather of the numbers alone. */
shard_status shard_class_rows_gather(shard_class_rows *rows, bool ready);

/* Opens with one number a row: the label's logit where this part has it, else 0. */
bool shard_class_rows_pick(shard_class_rows *rows);
/* After the gather of those: the labels' logits, float64, of which the first [rows] count; NULL with
 * the error set. */
shard_tensor *shard_class_rows_add_picked(const shard_class_rows *rows);

#endif
