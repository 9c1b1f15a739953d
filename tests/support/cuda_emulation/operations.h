/* Graphs of operations on tensors of four dimensions, computed on the host one by one, for the stand-in of cuDNN. */
#ifndef CUDA_EMULATION_OPERATIONS_H
#define CUDA_EMULATION_OPERATIONS_H

#include "cudnn.h"

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace emulation {

struct Tensor {
    int64_t size[4], stride[4];
    cudnnDataType_t type;
    bool in_memory;            /* else it is a result that another operation takes, or a number by value */
    void *data;                /* in memory */
    std::vector<float> values; /* by strides */
};

struct GraphOperation {
    enum Kind { MATMUL, POINTWISE, REDUCTION, RESHAPE } kind;
    cudnnPointwiseMode_t mode;
    cudnnReduceTensorOp_t reduction;
    int64_t axis;              /* of GEN_INDEX */
    int x, other, mask, result; /* tensors; -1: none */
};

/* Elements from the first to the last. */
int64_t extent(const Tensor &tensor);
size_t span(const Tensor &tensor); /* bytes, in memory */

/* In the order of the operations; each result is rounded to its tensor's type. */
void run_operations(std::vector<Tensor> tensors, const std::vector<GraphOperation> &operations);

} // namespace emulation

#endif
