/* The number of threads that kernels use. Without OpenMP, as in clang's builds, there is one. */
#ifndef TESTS_SUPPORT_THREADS_H
#define TESTS_SUPPORT_THREADS_H

#ifdef _OPENMP
#include <omp.h>

/* Returns the number before. */
static inline int set_threads(int threads)
{
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}
#else
static inline int set_threads(int threads)
{
    (void)threads;
    return 1;
}
#endif

#endif
