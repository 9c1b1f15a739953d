/*
 * The two shapes that most kernels have: a map, where an element of each output
 * depends on the same element of each input, and column sums. Both take a body
 * that is called span by span.
 *
 * Values that repeat every `period` elements (of a matrix's columns, of channels) are found
 * by the span's offset in the period; no span crosses its end. As short spans
 * are slow, few columns are repeated up to wide_period() and that is used.
 */
#ifndef SHARD_CPU_MAP_H
#define SHARD_CPU_MAP_H

#include "device/cpu/kernels/span.h"

#define MAP_INPUTS 5
#define MAP_OUTPUTS 4
#define COLUMN_SUMS 2

typedef struct span {
    int64_t start;  /* its first element in the arrays */
    int64_t offset; /* the same in the period */
    int64_t count;  /* 1 ... SPAN */
} span;

/* Inputs and outputs that are not there are NULL. An output may be an input. */
typedef struct map {
    shard_dtype dtype;
    int64_t n;      /* elements of each array */
    int64_t period; /* 0: none */
    const void *in[MAP_INPUTS];
    void *out[MAP_OUTPUTS];
    const void *context;
    /* If not NULL, how the first of the inputs are repeated; the others are arrays like the
     * outputs. */
    const shard_expansion *over;
    int operands;
    /* If not NULL, called before the spans of each period, by the thread that
     * then works on all of them. */
    void (*before)(const void *context, int64_t period_index);
} map;

/* sums[k][c], k < count: over the elements whose index is c modulo columns. */
typedef struct column_sums {
    shard_dtype dtype;
    int64_t n, columns;
    int64_t period; /* a multiple of columns */
    const void *in[MAP_INPUTS];
    const void *context;
    int count; /* 1 ... COLUMN_SUMS */
} column_sums;

typedef void map_body_float(const void *context, span s, const float *const *in, float *const *out);
typedef void map_body_double(const void *context, span s, const double *const *in, double *const *out);

/* Adds to sums[k][0 ... s.count - 1]. */
typedef void column_body_float(const void *context, span s, const float *const *in, double *const *sums);
typedef void column_body_double(const void *context, span s, const double *const *in, double *const *sums);

void KERNEL(map_float)(const map *, map_body_float *);
void KERNEL(map_double)(const map *, map_body_double *);
shard_status KERNEL(column_sums_float)(shard_device *, const column_sums *, column_body_float *, double *sums);
shard_status KERNEL(column_sums_double)(shard_device *, const column_sums *, column_body_double *, double *sums);

/* The headings of bodies, with the arguments named as above. */
#define UNUSED __attribute__((unused))
#define MAP_BODY(name) static void R(name)(const void *context UNUSED, span s, const real *const *in UNUSED, real *const *out)
#define COLUMN_BODY(name) static void R(name)(const void *context UNUSED, span s, const real *const *in, double *const *sums)

/* Calls the map or column sums with the body's variant for the job's dtype. */
#define MAP(job, body)                                                                                                           \
    ((job)->dtype == SHARD_FLOAT64 ? KERNEL(map_double)(job, body##_double) : KERNEL(map_float)(job, body##_float))
#define SUM_COLUMNS(device, job, body, sums)                                                                                     \
    ((job)->dtype == SHARD_FLOAT64 ? KERNEL(column_sums_double)(device, job, body##_double, sums)                                \
                                   : KERNEL(column_sums_float)(device, job, body##_float, sums))

/* A factor that is one float64 in the device's memory, or 1. */
static inline float scalar_float(const double *factor)
{
    return factor ? (float)*factor : 1;
}
static inline double scalar_double(const double *factor)
{
    return factor ? *factor : 1;
}

static inline int64_t wide_period(int64_t columns)
{
    return columns == 0 || columns >= SPAN / 2 ? columns : SPAN / 2 / columns * columns;
}

#endif
