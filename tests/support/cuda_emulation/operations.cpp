#include "operations.h"

#include "emulation.h"
#include "products.h"

#include <math.h>

namespace emulation {

namespace {

cudaDataType element_type(cudnnDataType_t type)
{
    return type == CUDNN_DATA_HALF ? CUDA_R_16F : type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The place of an element, of which a dimension of size 1 has one for all. */
int64_t place(const Tensor &t, const int64_t at[4])
{
    int64_t to = 0;
    for (int d = 0; d < 4; d++)
        to += (t.size[d] == 1 ? 0 : at[d]) * t.stride[d];
    return to;
}

float get(const Tensor &t, const int64_t at[4])
{
    return t.values[(size_t)place(t, at)];
}

void put(Tensor &t, const int64_t at[4], float value)
{
    cudaDataType type = element_type(t.type);
    if (size_of(type) == 2) {
        uint16_t rounded;
        narrow(type, 1, &value, &rounded);
        widen(type, 1, &rounded, &value);
    }
    t.values[(size_t)place(t, at)] = value;
}

template <class Body> void each(const int64_t size[4], Body &&body)
{
    int64_t at[4];
    for (at[0] = 0; at[0] < size[0]; at[0]++)
        for (at[1] = 0; at[1] < size[1]; at[1]++)
            for (at[2] = 0; at[2] < size[2]; at[2]++)
                for (at[3] = 0; at[3] < size[3]; at[3]++)
                    body(at);
}

float apply(const GraphOperation &o, float x, float other, float mask, const int64_t at[4])
{
    switch (o.mode) {
    case CUDNN_POINTWISE_ADD:
        return x + other;
    case CUDNN_POINTWISE_SUB:
        return x - other;
    case CUDNN_POINTWISE_MUL:
        return x * other;
    case CUDNN_POINTWISE_DIV:
        return x / other;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= other;
    case CUDNN_POINTWISE_GEN_INDEX:
        return (float)at[o.axis];
    case CUDNN_POINTWISE_BINARY_SELECT:
        return mask != 0 ? x : other;
    }
    die("cuDNN: no function %d", (int)o.mode);
}

void multiply(const Tensor &x, const Tensor &other, Tensor &result)
{
    each(result.size, [&](const int64_t at[4]) {
        float sum = 0;
        for (int64_t k = 0; k < x.size[3]; k++) {
            const int64_t left[4] = {at[0], at[1], at[2], k}, right[4] = {at[0], at[1], k, at[3]};
            sum += get(x, left) * get(other, right);
        }
        put(result, at, sum);
    });
}

void reduce(cudnnReduceTensorOp_t op, const Tensor &x, Tensor &result)
{
    std::vector<float> sums((size_t)extent(result), op == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0);
    each(x.size, [&](const int64_t at[4]) {
        float &sum = sums[(size_t)place(result, at)];
        sum = op == CUDNN_REDUCE_TENSOR_MAX ? fmaxf(sum, get(x, at)) : sum + get(x, at);
    });
    each(result.size, [&](const int64_t at[4]) { put(result, at, sums[(size_t)place(result, at)]); });
}

/* The same places by other strides. */
void reshape(const Tensor &x, Tensor &result)
{
    each(result.size, [&](const int64_t at[4]) { put(result, at, x.values[(size_t)place(result, at)]); });
}

} // namespace

int64_t extent(const Tensor &t)
{
    int64_t last = 0;
    for (int d = 0; d < 4; d++)
        last += (t.size[d] - 1) * t.stride[d];
    return last + 1;
}

size_t span(const Tensor &t)
{
    return (size_t)extent(t) * size_of(element_type(t.type));
}

void run_operations(std::vector<Tensor> tensors, const std::vector<GraphOperation> &operations)
{
    std::vector<bool> there(tensors.size()), computed(tensors.size());
    for (size_t i = 0; i < tensors.size(); i++) {
        Tensor &t = tensors[i];
        there[i] = t.in_memory || !t.values.empty();
        t.values.resize((size_t)extent(t));
        if (t.in_memory)
            widen(element_type(t.type), extent(t), t.data, t.values.data());
    }
    for (const GraphOperation &o : operations) {
        for (int of : {o.x, o.other, o.mask})
            if (of >= 0 && !there[(size_t)of])
                die("cuDNN: an operation takes what none before it computes");
        const Tensor &x = tensors[(size_t)o.x];
        Tensor &result = tensors[(size_t)o.result];
        there[(size_t)o.result] = computed[(size_t)o.result] = true;
        if (o.kind == GraphOperation::MATMUL)
            multiply(x, tensors[(size_t)o.other], result);
        else if (o.kind == GraphOperation::REDUCTION)
            reduce(o.reduction, x, result);
        else if (o.kind == GraphOperation::RESHAPE)
            reshape(x, result);
        else
            each(result.size, [&](const int64_t at[4]) {
                put(result, at,
                    apply(o, get(x, at), o.other >= 0 ? get(tensors[(size_t)o.other], at) : 0,
                          o.mask >= 0 ? get(tensors[(size_t)o.mask], at) : 0, at));
            });
    }
    for (size_t i = 0; i < tensors.size(); i++)
        if (tensors[i].in_memory && computed[i])
            narrow(element_type(tensors[i].type), extent(tensors[i]), tensors[i].values.data(), tensors[i].data);
}

} // namespace emulation
