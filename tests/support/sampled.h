/* Samples of classes (shard_sample_classes) as lists and as flags. */
#ifndef TESTS_SUPPORT_SAMPLED_H
#define TESTS_SUPPORT_SAMPLED_H

#include "support/ranks.h"

#include <shard/loss.h>

shard_tensor *labels_of(const int64_t *label, int64_t count);

/* The classes of a sample, and how many; the caller frees them. */
int64_t *classes_of(shard_tensor *sample, int64_t *count);

/* The sample of a weight without a split, as flags [classes]; the caller frees them. */
bool *flags_of(shard_tensor *labels, int64_t classes, double rate, uint64_t seed, int64_t step);

#endif
