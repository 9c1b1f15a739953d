/* Softmax of logits whose classes are split. */
#ifndef SHARD_OP_LOGSUMEXP_H
#define SHARD_OP_LOGSUMEXP_H

#include "op/op.h"

/* Softmax or its logarithm of an x that is split along the last dimension, as x minus the log-sum-exp of its rows. function: for
 * errors. Collective over x's group. */
shard_tensor *shard_softmax_of_split(const char *function, bool log, shard_tensor *x);

#endif
