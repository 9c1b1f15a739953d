/*
 * An encoder of words, and a classifier over the dictionary:
 *
 *     x = sum of the table's rows of the word's n-grams                                 [words, dim]
 *     x = x + linear(max over the bytes of relu(convolution of the bytes' embeddings))  with --channels
 *     x = scale * x / norm(x)
 *     logits = classifier(x)                                                            never in memory
 *
 * The sum is that of torch.nn.EmbeddingBag. A class's row of the classifier begins with the encoder's feature of its word divided
 * by the scale, and its bias with the logarithm of its chance in the training pairs.
 */
#ifndef SPELL_NETWORK_H
#define SPELL_NETWORK_H

#include "options.h"
#include "pairs.h"

#include <shard/shard.h>

#define NETWORK_HEAD "fc." /* prefix of the classifier's parameters */

/* A network for the words. The classifier is split over group; NULL: whole. Its bias is set, and its weight is not. NULL with the
 * error set. Not collective. */
shard_module *network_make(const options *wanted, const pairs *of, shard_group *group);

/* The features of words, [count, dim], of norm 1. They depend on the word alone. NULL with the error set. Not collective. */
shard_tensor *network_encode(shard_module *network, const char *const *word, int64_t count);

/* Sets the classifier's rows to the features of the words. Collective over the world with ZeRO 3, else not. */
shard_status network_set_rows(shard_module *network, const words *dictionary);

#endif
