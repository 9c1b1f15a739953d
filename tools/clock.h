/* Time, for programs that measure. */
#ifndef TOOLS_CLOCK_H
#define TOOLS_CLOCK_H

#include <stdlib.h>
#include <time.h>

/* Seconds of a clock that only goes forward. */
static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median; the upper one of an even number. Sorts the values. */
static inline double median_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

#endif
