/* Asynchronous copies to shared memory, which are made at once. */
#ifndef CUDA_EMULATION_CUDA_PIPELINE_H
#define CUDA_EMULATION_CUDA_PIPELINE_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0)
{
    assert((bytes == 4 || bytes == 8 || bytes == 16) && zeros <= bytes);
    assert(((uintptr_t)to | (uintptr_t)from) % bytes == 0);
    memcpy(to, from, bytes - zeros);
    memset((char *)to + bytes - zeros, 0, zeros);
}
static inline void __pipeline_commit()
{
}
static inline void __pipeline_wait_prior(unsigned)
{
}

#endif
