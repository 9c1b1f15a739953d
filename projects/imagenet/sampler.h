/*
 * Which samples meet in which batch. An epoch is a permutation of all samples
 * that depends on the seed and the epoch only; step b of the whole job takes
 * positions b * batch on, dealt out to the ranks in their order. So the same
 * samples meet in the same step for any number of ranks, and any step of any
 * epoch can be asked for at once (to resume): nothing is stored.
 */
#ifndef IMAGENET_SAMPLER_H
#define IMAGENET_SAMPLER_H

#include <shard/comm.h>

typedef struct sampler {
    int64_t samples; /* of an epoch */
    int64_t batch;   /* of the whole job */
    uint64_t seed;
    bool shuffle; /* false: in order, every epoch the same (validation) */
} sampler;

/* Steps of an epoch; the last may have fewer samples. */
int64_t sampler_steps(const sampler *sampling);

/* The positions of the step's batch that belong to the rank: parts differ by
 * at most one, the larger ones first; in the last batch a part may be empty. */
shard_range sampler_part(const sampler *sampling, int64_t step, int ranks, int rank);

/* The sample at a position of the epoch. */
int64_t sampler_sample(const sampler *sampling, int64_t epoch, int64_t position);

#endif
