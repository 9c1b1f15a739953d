/*
 * The maximum of a row and the sum of its exponentials, in one pass over it.
 *
 * Exponentials are taken relative to a reference, which is the maximum of the
 * first span and follows it later: it may lag by as much as float bears, and
 * only a span that is further ahead is done again.
 */
#ifndef SHARD_CPU_EXP_SUM_H
#define SHARD_CPU_EXP_SUM_H

#include "device/cpu/kernels/kernels.h"

#include <math.h>

typedef struct exp_sum {
    double max, reference;
    double sum; /* of exp(x - reference) */
} exp_sum;

#define EXP_SUM_NOTHING ((exp_sum){.max = -INFINITY, .reference = -INFINITY, .sum = 0})

/* Adds n values, at most SPAN. */
void KERNEL(exp_sum_add_float)(exp_sum *, int64_t n, const float *x);
void KERNEL(exp_sum_add_double)(exp_sum *, int64_t n, const double *x);

/* Takes the exponentials relative to another reference. */
static inline void exp_sum_refer(exp_sum *e, double reference)
{
    if (e->reference != -INFINITY) /* else the sum is 0, or NaN */
        e->sum *= exp(e->reference - reference);
    e->reference = reference;
}

/* Adds another sum. */
static inline void exp_sum_merge(exp_sum *e, exp_sum other)
{
    double max = other.max > e->max ? other.max : e->max;
    exp_sum_refer(e, max);
    exp_sum_refer(&other, max);
    e->max = max;
    e->sum += other.sum;
}

#endif
