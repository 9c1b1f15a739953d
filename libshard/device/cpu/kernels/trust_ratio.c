#include "device/cpu/kernels/map.h"

#include <math.h>

shard_status KERNEL(trust_ratio)(shard_device *device, int64_t layers, const shard_trust_options *options, const double *squares,
                                 double *ratio)
{
    (void)device;
    double scale = scalar_double(options->grad_scale);
    for (int64_t i = 0; i < layers; i++) {
        double weight = sqrt(squares[2 * i]), gradient = scale * sqrt(squares[2 * i + 1]);
        double under = gradient + options->weight_decay * weight + options->eps;
        ratio[i] = weight > 0 && gradient > 0 ? options->trust_coefficient * weight / under : 1;
    }
    return SHARD_OK;
}
