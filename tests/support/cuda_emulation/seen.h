/* How the library's work reached the emulation, counted over the process for tests. */
#ifndef CUDA_EMULATION_SEEN_H
#define CUDA_EMULATION_SEEN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulation_seen {
    int64_t products;   /* of cuBLAS and cuBLASLt */
    int64_t biased;     /* those of them that add a bias */
    int64_t unaligned;  /* those with a matrix that begins, or whose columns are apart, by no multiple of 16 bytes */
    int64_t waits;      /* of the host, for work that was not done */
    int64_t row_copies; /* two-dimensional copies from device to device */
} emulation_seen;
extern emulation_seen emulation_has_seen;

#ifdef __cplusplus
}
#endif

#endif
