/*
 * Measures of verification: pairs of images by the distance of their features, the squared Euclidean distance of vectors of norm
 * 1, from 0 to 4. A pair is accepted as of one identity if its distance is below a threshold.
 */
#ifndef ARCFACE_VERIFICATION_H
#define ARCFACE_VERIFICATION_H

#include <shard/base.h>

#define VERIFICATION_FOLDS 10
#define VERIFICATION_FARS 3
/* The rates of false acceptance, FAR, at which the rate of true acceptance, TAR, is measured. */
static const double verification_far[VERIFICATION_FARS] = {1e-3, 1e-4, 1e-5};

/* The parts of pairs that are of one identity and of two; results of an empty one are NaN. */
typedef struct verification {
    double accuracy, deviation;    /* percent; the mean of the folds' and its standard deviation */
    double tar[VERIFICATION_FARS]; /* percent; NaN where FAR is below 1 / pairs of two identities: no pair measures it */
    int64_t same, different;
} verification;

/*
 * As insightface's verification.py: pairs are divided into 10 folds, consecutive ones; for each the threshold of 0, 0.01, ...
 * 3.99 with which the most of the other folds' pairs are right (the first one of them) judges the fold's. distance and same
 * [pairs]. *deviation may be NULL. NaN for fewer than 10 pairs.
 */
double verification_accuracy(const double *distance, const uint8_t *same, int64_t pairs, double *deviation);

/*
 * TAR at a FAR of `far`, in percent, interpolated between the thresholds at which one more pair of two identities is accepted:
 * TAR_k is the part of distances `same` that are below the k-th distance `different`, counted from 0 in ascending order, and TAR
 * at FAR is the linear interpolation of TAR_k at k = far times their number. Both arrays are sorted by the call.
 */
double verification_tar(double *same, int64_t same_count, double *different, int64_t different_count, double far);

/* All measures of a list of pairs. Errors: MEMORY. */
shard_status verification_of_pairs(const double *distance, const uint8_t *same, int64_t pairs, verification *result);

/* The same of two lists, which the call sorts. The accuracy is that of equally many pairs of both, the first ones, in turn.
 * Errors: MEMORY. */
shard_status verification_of_lists(double *same, int64_t same_count, double *different, int64_t different_count,
                                   verification *result);

#endif
