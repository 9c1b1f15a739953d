/* Convolutions on the host, for the stand-in of cuDNN. */
#ifndef CUDA_EMULATION_CONVOLUTION_H
#define CUDA_EMULATION_CONVOLUTION_H

#include "library_types.h"

#include <stddef.h>
#include <stdint.h>

namespace emulation {

/* n, c, h, w; of weights outputs, inputs of a group, kernel. */
struct Images {
    int64_t size[4], stride[4];
    void *data;
};

struct Convolution {
    enum Kind { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT } kind;
    cudaDataType type; /* not float64 */
    Images x, weight, y;
    int64_t stride[2], pad[2], dilation[2];
    double alpha, beta;
    bool tf32;   /* float32 is rounded */
    bool coarse; /* sums are rounded to the type on the way */
    float noise; /* relative, added to the result */
};

/* The result = alpha * what is computed + beta * result. */
void convolve(const Convolution &convolution);

/* Bytes from the first element to the last. */
size_t span(const Images &images, cudaDataType type);

} // namespace emulation

#endif
