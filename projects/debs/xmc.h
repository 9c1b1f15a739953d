/*
 * Multi-label data in the text format of the Extreme Classification Repository: a line "points features labels", then for each
 * point a line "label,label feature:value feature:value". Numbers count from 0. A point without labels begins with a space.
 */
#ifndef DEBS_XMC_H
#define DEBS_XMC_H

#include <shard/base.h>

typedef struct xmc_feature {
    int32_t number;
    float value;
} xmc_feature;

typedef struct xmc_data {
    int64_t points, features, labels;
    int64_t *label_begin, *feature_begin; /* [points + 1]: where each point's begin */
    int32_t *label;                       /* of each point in ascending order */
    xmc_feature *feature;
    uint64_t hash; /* of all these numbers */
} xmc_data;

#define XMC_MOST INT32_MAX /* of features and of labels */

/* Reads a file. Labels and features of a point may be in any order. Memory grows with the file's numbers, whatever its first line
 * says. NULL with the error set: IO; MEMORY; FORMAT, with the line and the text that is wrong. Not collective. */
xmc_data *xmc_open(const char *path);
void xmc_close(xmc_data *data);

/* MISMATCH if ranks have read different data. Collective over the world. */
shard_status xmc_check_identical(const xmc_data *data, const char *path);

#endif
