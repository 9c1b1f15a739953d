/* Shapes [outer, size, inner] for tests of what goes along a dimension: rows and lines, short and
 * long, of nothing, and such that each of a device's ways of sharing them out is taken. */
#ifndef TESTS_SUPPORT_AXES_H
#define TESTS_SUPPORT_AXES_H

#include "device/device.h"

static const shard_axis tested_axes[] = {{3, 0, 2},    {0, 3, 2}, {2, 3, 0},     {1, 1, 1},    {5, 7, 1},    {3, 1025, 1},
                                         {2, 33000, 1}, {3, 9, 5}, {2, 40, 1030}, {1, 12000, 3}, {300, 2, 64}, {1, 70, 300}};
#define TESTED_AXES (int)(sizeof tested_axes / sizeof *tested_axes)

static inline int64_t axis_count(const shard_axis *axis)
{
    return axis->outer * axis->size * axis->inner;
}

/* The element at k of line i. */
static inline int64_t axis_at(const shard_axis *axis, int64_t i, int64_t k)
{
    return (i / axis->inner * axis->size + k) * axis->inner + i % axis->inner;
}

#endif
