/* 1:N search: the identity of a probe is that of the gallery's nearest feature. */
#ifndef ARCFACE_SEARCH_H
#define ARCFACE_SEARCH_H

#include <shard/shard.h>

#define SEARCH_TOP 5

typedef struct search_result {
    double rank1,
        rank5; /* percent of the probes whose identity is the first one found, one of the first five; NaN without probes */
    int64_t gallery, probes;
} search_result;

/*
 * features [images, size] of norm 1, and the identity of each image, from 0 on; images of an identity follow each other. The
 * gallery has the first image of each identity, the others are probes. Identities of one image are in the gallery alone. Each
 * rank of the group searches a range of the gallery. All ranks have the same features. Errors: MEMORY, those of
 * shard_linear_top_k. Collective over the group.
 */
shard_status search_gallery(const float *features, int64_t images, int64_t size, const int64_t *identity, shard_group *group,
                            search_result *result);

#endif
