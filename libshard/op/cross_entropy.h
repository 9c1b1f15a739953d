/* The options of cross-entropy, common to the loss of logits and that of a linear layer. */
#ifndef SHARD_OP_CROSS_ENTROPY_H
#define SHARD_OP_CROSS_ENTROPY_H

#include "op/class_rows.h"

/* Checks the options, and sets those that are read row by row: in rows->shape, rows->row_weight, and *weight, the class
 * weights of the local classes. After shard_class_rows_read. False with the error set. */
bool shard_cross_entropy_read_options(shard_class_rows *rows, const shard_cross_entropy_options *options, shard_tensor **weight);

/* Of the options that must be identical on all ranks. */
uint64_t shard_cross_entropy_hash(const shard_class_rows *rows, const shard_cross_entropy_options *options, bool ranked);

/* Whether an option's value is finite and above 0, or at least 0; false with the error set. */
bool shard_cross_entropy_check_factor(const char *function, const char *name, double value, bool positive);

/* The numbers of logits before the labels', which follow the statistics in `part`, a rank's numbers; NULL: not counted. */
int64_t *shard_cross_entropy_ahead(const shard_class_rows *rows, bool ranked, double *part);

/* After the gather: joins the statistics of all ranks to SHARD_CE_NUMBERS of each row and their count, a workspace. *rank: the
 * labels' ranks, of the rows' shape, or NULL if they are not counted. mean: the reduction is that. NULL with the error set. */
shard_tensor *shard_cross_entropy_join(const shard_class_rows *rows, bool mean, bool ranked, shard_tensor **rank);

/* The loss of these numbers: of each row, or reduced. NULL with the error set, also if numbers is NULL. */
shard_tensor *shard_cross_entropy_result(const shard_class_rows *rows, shard_reduction reduction, shard_tensor *numbers);

/* [rows], float64, on like's device: the derivative of the result by each row's loss, `factor`, times dy. NULL with the error
 * set. */
double *shard_cross_entropy_row_scales(const shard_tensor *like, int64_t rows, const double *factor, shard_tensor *dy);

/* Of the numbers of shard_cross_entropy_join. The scale is NULL with the error set if there is no memory for it. */
shard_loss_rows shard_cross_entropy_rows(const shard_tensor *like, int64_t rows, const double *number, shard_tensor *dy);

/* shard_linear_cross_entropy, whose errors name `function`; faults: with its name. */
shard_tensor *shard_linear_cross_entropy_of(const char *function, const shard_class_faults *faults, shard_tensor *x,
                                            shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                            const shard_cross_entropy_options *options, shard_tensor **label_rank);

#endif
