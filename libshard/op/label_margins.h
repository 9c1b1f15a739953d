/* Margins of a linear layer's loss, of which the sweeps need a few numbers a row (device/head.h). */
#ifndef SHARD_OP_LABEL_MARGINS_H
#define SHARD_OP_LABEL_MARGINS_H

#include "device/head.h"
#include "op/class_rows.h"

typedef struct shard_label_margins {
    shard_margin margin; /* its scale is that of the logits; the caller sets it */
    shard_tensor *row_m2, *row_m3;
    shard_tensor *shift;   /* shard_head.margin_shift; NULL: no margins */
    shard_tensor *numbers; /* float64 [2, rows]: margin_logit and margin_slope */
} shard_label_margins;

/* ARGUMENT in the name of the function if a number or the rule is out of range. */
bool shard_margin_check(const char *function, const shard_margin_logits_options *options);

/* shard_margin_logits of a loss, with the loss's ignore_index. After an error they are computed all the same: the loss decides
 * (shard_class_rows_go_on). */
shard_tensor *shard_margin_logits_of(shard_tensor *cosines, shard_tensor *labels, const shard_margin_logits_options *options,
                                     int64_t ignore_index);

/* Reads the options but the scale, after shard_class_rows_read. False with the error set. */
bool shard_label_margins_read(const shard_class_rows *rows, const shard_margin_logits_options *options,
                              shard_label_margins *margins);

/* Computes the numbers of x's rows for a head with all operands, and sets them in it. Tensors of the innermost scope; false
 * with the error set. */
bool shard_label_margins_compute(shard_label_margins *margins, shard_tensor *x, shard_head *h);

/* Sets the numbers in the head, from the memory of shift and numbers; NULL: no margins. */
void shard_label_margins_set(shard_head *h, const void *shift, const double *numbers);

/* Of `hash` and the settings that must be identical on all ranks. */
uint64_t shard_label_margins_hash(uint64_t hash, bool normalized, const shard_label_margins *margins);

#endif
