/*
 * The margins of a step: the numbers of --margin, or AdaFace's margins of each row, which follow the norms of the features.
 */
#ifndef COMMON_MARGIN_H
#define COMMON_MARGIN_H

#include "margin_options.h"

#include <shard/loss.h>

/* Adds AdaFace's running statistics of the norms, batch_mean and batch_std as in its head.py, as buffers; of other margins none. */
shard_status margin_add_buffers(shard_module *module, const margin_options *wanted);

/* Sets the options of the margins of features [n, d]. `module` has the buffers, which AdaFace updates with the norms of all ranks
 * of data_group: collective over it then. The margins of rows are tensors of the innermost scope. */
shard_status margin_make(shard_margin_logits_options *made, const margin_options *wanted, shard_module *module,
                         shard_tensor *features, shard_group *data_group);

#endif
