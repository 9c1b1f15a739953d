/* The call of binary cross-entropy, common to the loss of logits and that of a linear layer. */
#ifndef SHARD_OP_BINARY_CROSS_ENTROPY_H
#define SHARD_OP_BINARY_CROSS_ENTROPY_H

#include "op/class_rows.h"

/* A function's error texts. */
typedef struct shard_binary_faults {
    shard_fault row, class, order;
    shard_class_faults rows;
} shard_binary_faults;
/* clang-format off */
#define SHARD_BINARY_FAULTS(function)                                                                                            \
    {                                                                                                                            \
        .row = {SHARD_ERROR_ARGUMENT, function ": row %" PRId64 " of pair %" PRId64 " is outside [0, %" PRId64 ")"},             \
        .class = {SHARD_ERROR_ARGUMENT, function ": class %" PRId64 " of pair %" PRId64 " is outside [0, %" PRId64 ")"},         \
        .order = {SHARD_ERROR_ARGUMENT, function ": row %" PRId64 " and class %" PRId64 " of pair %" PRId64                      \
                                        " do not follow the pair before it; pairs are sorted by row and class, and each is "     \
                                        "there once"},                                                                           \
        .rows = {.difference = {SHARD_ERROR_MISMATCH, function ": pairs on rank %" PRId64 " differ from those on rank %" PRId64  \
                                                      "; every rank needs the same pairs, of all classes"},                      \
                 .weight_difference = {SHARD_ERROR_MISMATCH, function ": row weights on rank %" PRId64                           \
                                                             " differ from those on rank %" PRId64                               \
                                                             "; every rank needs the same weights of all rows"}},                \
    }
/* clang-format on */

typedef struct shard_binary_call {
    const shard_binary_faults *faults;
    shard_class_rows rows;           /* the caller sets its function and faults */
    shard_tensor *dense, *pairs;     /* the target: one of them is NULL */
    shard_tensor *weight, *positive; /* of the local classes */
    shard_binary_loss_shape shape;
    shard_reduction reduction;
    bool gradient_only;
    double stash_share;
    double factor; /* of the sum, in the result */
} shard_binary_call;

/* Checks the arguments and sets the rest of the call. False with the error set. */
bool shard_binary_read(shard_binary_call *call, shard_tensor *logits, shard_tensor *target,
                       const shard_binary_cross_entropy_options *options);

/* Of the options that must be identical on all ranks. */
uint64_t shard_binary_hash(const shard_binary_call *call);

/* The factor times the sum of the ranks' numbers, one of each, after shard_class_rows_gather. NULL with the error set. */
shard_tensor *shard_binary_reduce(const shard_binary_call *call);

/* shard_linear_binary_cross_entropy with pairs, whose errors name faults' function, `function`. */
shard_tensor *shard_linear_binary_cross_entropy_of(const char *function, const shard_binary_faults *faults, shard_tensor *x,
                                                   shard_tensor *weight, shard_tensor *bias, shard_tensor *target,
                                                   const shard_binary_cross_entropy_options *options);

#endif
