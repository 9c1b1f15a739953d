#ifdef real

/* clang begins a reduction to the maximum at the lowest finite number. */
static real R(correct_highest)(int64_t n, const real *x, real max)
{
    for (int64_t i = 0; i < n && max <= LOWEST; i++)
        if (x[i] == max)
            return max;
    return max <= LOWEST ? -INFINITY : max;
}

static real R(highest)(int64_t n, const real *x)
{
    real max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return R(correct_highest)(n, x, max);
}

static real R(sum_exponentials)(int64_t n, const real *x, real reference, real *highest)
{
    real max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max) reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        sum += R(exp)(x[i] - reference);
    }
    *highest = R(correct_highest)(n, x, max);
    return sum;
}

static void R(add_block)(exp_sum *e, int64_t n, const real *x)
{
    real max;
    if (e->reference == -INFINITY)
        exp_sum_refer(e, (double)R(highest)(n, x));
    /* If all are -inf or NaN, their exponentials relative to 0 are 0 or NaN, as to any reference. */
    real sum = R(sum_exponentials)(n, x, e->reference == -INFINITY ? 0 : (real)e->reference, &max);
    if ((double)max > e->reference + LAG) {
        exp_sum_refer(e, (double)max);
        sum = R(sum_exponentials)(n, x, max, &max);
    }
    e->sum += (double)sum;
    if ((double)max > e->max)
        e->max = (double)max;
}

void KERNEL(R(exp_sum_add))(exp_sum *e, int64_t n, const real *x)
{
    for (int64_t i = 0; i < n; i += BLOCK)
        R(add_block)(e, n - i < BLOCK ? n - i : BLOCK, x + i);
}

#else

#include "device/cpu/kernels/exp_sum.h"

#include "device/cpu/kernels/vector_math.h"

#include <float.h>

/* Summed in x's own precision, in however few lanes; blocks are added up in double. */
#define BLOCK 256

#define LOWEST (sizeof(real) == sizeof(float) ? (real)-FLT_MAX : (real)-DBL_MAX)
#define LAG 40 /* exp(40) * SPAN is far from float's end */

#define SELF "exp_sum.c"
#include "device/cpu/kernels/real.h"

#endif
