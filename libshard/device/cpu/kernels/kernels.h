/*
 * The CPU's kernels: declarations for every file of this folder.
 *
 * The folder is compiled once for each instruction set (meson.build), with KERNEL_SET its name. Names that several
 * files use are KERNEL(name), and a set is reached from outside by its table alone; pick.c selects the best one that
 * the machine can run.
 *
 * Invariants:
 * - Kernels are written once for `real`, which is float or double (real.h), and work on spans of at most SPAN
 *   elements. 16-bit arrays are converted span by span (span.h), so that they are computed in float and rounded
 *   once.
 * - The division of work depends on the shapes alone, and partial sums are added in order: no result depends on
 *   the number of threads.
 * - Values that count only under a condition are read into a variable before it, or by a loop of their own: else
 *   there is vector code only with masked loads, which wait for the condition.
 * - No contraction and no other order than the one written, except in loops marked `omp simd reduction`, whose
 *   lanes are those of the instruction set.
 */
#ifndef SHARD_CPU_KERNELS_H
#define SHARD_CPU_KERNELS_H

#include "base/math.h"
#include "device/device.h"

#define KERNEL__(name, set) shard_cpu_##name##_##set
#define KERNEL_(name, set) KERNEL__(name, set)
#define KERNEL(name) KERNEL_(name, KERNEL_SET)

#ifdef KERNEL_SET
#define SHARD_KERNEL_ENTRY(result, name, ...) result KERNEL(name)(__VA_ARGS__);
#include "device/entries.h"
extern const shard_device_ops KERNEL(kernels);
#endif

enum {
    SPAN = 1024,        /* a handful of them stay in the first-level cache */
    PARALLEL = 1 << 15, /* elements from which on several threads pay */
};

/* Calls name_float or name_double, for the type in which arrays of the dtype are computed. */
#define BY_TYPE(dtype, name, ...) ((dtype) == SHARD_FLOAT64 ? name##_double(__VA_ARGS__) : name##_float(__VA_ARGS__))

/* Runs the statement for i = 0 ... count - 1, on several threads if n elements pay for them. Fewer are no parallel region of one
 * thread: nested in another region, as in the runs of rows of a step, that costs more than a row does. */
#define FOR_EACH(i, count, n, statement)                      \
    do {                                                      \
        if ((n) < PARALLEL) {                                 \
            for (int64_t i = 0; i < (count); i++)             \
                statement;                                    \
        } else {                                              \
            _Pragma("omp parallel for schedule(static)")      \
            for (int64_t i = 0; i < (count); i++)             \
                statement;                                    \
        }                                                     \
    } while (0)

#ifdef KERNEL_SET
/* Elements [start, start + count) of the operand as the result has them. */
void KERNEL(gather)(const shard_expansion *, int operand, size_t size, const void *x, int64_t start, int64_t count, void *to);
#endif

#endif
