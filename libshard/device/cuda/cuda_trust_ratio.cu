/* A thread has a layer. */
#include "device/cuda/map.cuh"

using namespace shard;

static __global__ void trust_ratio(int64_t layers, shard_trust_options options, const double *squares, double *ratio)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= layers)
        return;
    double weight = sqrt(squares[2 * i]), gradient = scalar<double>(options.grad_scale) * sqrt(squares[2 * i + 1]);
    double under = gradient + options.weight_decay * weight + options.eps;
    ratio[i] = weight > 0 && gradient > 0 ? options.trust_coefficient * weight / under : 1;
}

shard_status shard_cuda_trust_ratio(shard_device *device, int64_t layers, const shard_trust_options *options,
                                    const double *squares, double *ratio)
{
    if (layers == 0)
        return SHARD_OK;
    return launch(device, trust_ratio, (unsigned)divide_up(layers, BLOCK), BLOCK, layers, *options, squares, ratio);
}
