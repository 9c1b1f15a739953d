/*
 * Synthetic images that can be learned: a coarse pattern of the class and noise of the sample. They are a function
 * of the sample's number, so that they need no files and are the same on every rank.
 */
#ifndef IMAGES_SYNTHETIC_H
#define IMAGES_SYNTHETIC_H

#include <shard/base.h>

typedef struct synthetic {
    int64_t samples;
    int64_t first; /* number of sample 0: another range of numbers is another split (validation) of the same classes */
    int64_t num_classes;
} synthetic;

/* In [0, num_classes), spread over all classes. */
int64_t synthetic_label(const synthetic *source, int64_t sample);

/* [size, size, 3]; normalized, of mean 0 and deviation about 1, as photographs are. */
void synthetic_image(const synthetic *source, int64_t sample, int64_t size, uint8_t *out);

#endif
