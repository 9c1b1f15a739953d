/*
 * A bag of features, hidden layers, and a classifier:
 *
 *     values = dropout(values of a point's features)
 *     x = dropout(relu(sum over the features of value * row of the table + bias))           [points, hidden]
 *     x = dropout(relu(linear(x)))                                                          --layers - 1 times
 *     logits = classifier(x)                                                                never in memory
 *
 * The sum is that of torch.nn.EmbeddingBag with per_sample_weights. It is computed as the product of the points' values, a matrix
 * [points, distinct features of the points], and these features' rows of the table.
 */
#ifndef DEBS_NETWORK_H
#define DEBS_NETWORK_H

#include "options.h"
#include "xmc.h"

#include <shard/shard.h>

#define NETWORK_HEAD "fc." /* prefix of the classifier's parameters */

/* A network for the data. The classifier is split over group; NULL: whole. Its bias begins with the log-odds of the labels'
 * frequencies. NULL with the error set. Not collective. */
shard_module *network_make(const options *wanted, const xmc_data *train, shard_group *group);

/* The input of the classifier for `count` points of the data, [count, hidden]. With a key, which is not 0, dropout depends on the
 * key, the point and the unit or feature alone. NULL with the error set. Not collective. */
shard_tensor *network_features(shard_module *network, const options *wanted, const xmc_data *data, const int64_t *points,
                               int64_t count, uint64_t dropout_key);

#endif
