/*
 * Asynchronous copies to shared memory. They are made when they are waited for, so that a wait that is missing shows. Each thread
 * of a block has a queue; blocks run one after the other, as for shared memory.
 */
#ifndef CUDA_EMULATION_CUDA_PIPELINE_H
#define CUDA_EMULATION_CUDA_PIPELINE_H

#include <cuda_runtime.h>

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include <deque>

namespace emulation
{

struct PipelineCopy {
    void *to;
    const void *from;
    size_t bytes, zeros;
    unsigned group;
};
struct Pipeline {
    std::deque<PipelineCopy> copies;
    unsigned group = 0; /* that is not committed */
};

static inline Pipeline &pipeline()
{
    static Pipeline of_threads[1024];
    assert(threadIdx.y == 0 && threadIdx.z == 0 && threadIdx.x < 1024);
    return of_threads[threadIdx.x];
}

} // namespace emulation

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0)
{
    assert((bytes == 4 || bytes == 8 || bytes == 16) && zeros <= bytes);
    assert(((uintptr_t)to | (uintptr_t)from) % bytes == 0);
    emulation::Pipeline &p = emulation::pipeline();
    p.copies.push_back({to, from, bytes, zeros, p.group});
}
static inline void __pipeline_commit()
{
    emulation::pipeline().group++;
}
static inline void __pipeline_wait_prior(unsigned groups)
{
    emulation::Pipeline &p = emulation::pipeline();
    for (; !p.copies.empty() && p.copies.front().group + groups < p.group; p.copies.pop_front()) {
        const emulation::PipelineCopy &copy = p.copies.front();
        memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
        memset((char *)copy.to + copy.bytes - copy.zeros, 0, copy.zeros);
    }
}

#endif
