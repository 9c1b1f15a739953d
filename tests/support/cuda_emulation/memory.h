/* What memory is: between memory.cpp and copy.cpp. */
#ifndef CUDA_EMULATION_MEMORY_H
#define CUDA_EMULATION_MEMORY_H

#include "emulation.h"

namespace emulation
{

/* Whether [memory, memory + bytes) lies in one allocation, of the device or pinned, as the calls so far leave it. */
bool is_allocated(const void *memory, size_t bytes);

} // namespace emulation

#endif
