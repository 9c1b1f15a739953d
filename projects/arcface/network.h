/*
 * A backbone, which makes features of images, and a classifier of identities, which is there for training alone, as are the
 * statistics of AdaFace's margin. The names of their tensors begin with "backbone.", "classifier." and "margin.".
 */
#ifndef ARCFACE_NETWORK_H
#define ARCFACE_NETWORK_H

#include "class_sample.h"
#include "options.h"

#include <shard/shard.h>

#define NETWORK_BACKBONE "backbone"
#define NETWORK_CLASSIFIER "classifier"
#define NETWORK_MARGIN "margin"

/* The classifier is split over group; NULL: whole. identities 0: there is no classifier. NULL with the error set. Not collective.
 */
shard_module *network_make(const options *wanted, int64_t identities, shard_group *group);

/* Features [n, embedding size] of images uint8 [n, side, side, 3], float32. NULL with the error set. Collective if batch norms
 * are synchronized, in training. */
shard_tensor *network_features(shard_module *network, const options *wanted, shard_tensor *images);

/* The sum of the losses of features with their labels. sample: the classes of the step. NULL with the error
 * set. Collective over the classifier's group, and with AdaFace's margin over data_group. */
shard_tensor *network_loss(shard_module *network, const options *wanted, shard_tensor *features, shard_tensor *labels,
                           const class_sample *sample, shard_group *data_group);

/* Loads the values of --pretrained. Errors: ARGUMENT, a classifier of another number of identities; those of shard_load.
 * Collective over the world. */
shard_status network_load(shard_module *network, const char *path);

#endif
