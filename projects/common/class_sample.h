/* --sample-rate, --sample-correction: the classes of a step's loss. */
#ifndef COMMON_CLASS_SAMPLE_H
#define COMMON_CLASS_SAMPLE_H

#include <shard/loss.h>

/* Both NULL: all classes. */
typedef struct class_sample {
    shard_tensor *classes;    /* the option .sample */
    shard_tensor *correction; /* .sample_correction; NULL: none */
} class_sample;

/* Draws the sample of a step: labels [count] are those of all its samples, the same on all ranks and for all micro-batches.
 * weight: of the last layer. Tensors of the innermost scope. Does nothing for a rate of 1. Not collective. */
shard_status class_sample_draw(class_sample *made, const int64_t *labels, int64_t count, shard_tensor *weight, double rate,
                               bool corrected, uint64_t seed, int64_t step);

#endif
