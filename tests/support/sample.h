/* Arrays of the tested device together with their values in double, for tests
 * that compare sums of products with what plain loops give. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include "support/kernels.h"

typedef struct sample {
    int64_t count;
    shard_dtype dtype;
    void *data;
    double *value;
    int64_t offset; /* elements before the data */
} sample;

/* The offset of samples that are made from now on; at first 0, which is aligned. */
extern int64_t sample_offset;

/* In [-1, 1), others for each seed. */
sample sample_random(int64_t count, shard_dtype, uint64_t seed);

/* NaNs: to be written. */
sample sample_unset(int64_t count, shard_dtype);

/* Takes the values from the data. */
void sample_read(sample *);

void sample_free(sample *);

/* Fails unless the data are the wanted values, each a sum of `terms` products
 * whose absolute values add up to magnitude[i], computed in float32 (float64 for
 * that type) and rounded once. */
void sample_check(sample *, const double *wanted, const double *magnitude, int64_t terms, const char *what);

#endif
