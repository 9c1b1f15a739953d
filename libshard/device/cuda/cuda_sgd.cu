/*
 * The step of SGD, one pass: gradient, parameter and momentum buffer are each read
 * once, parameter and buffer written once.
 */
#include "device/cuda/map.cuh"

using namespace shard;

enum Momentum { NONE, FIRST /* the buffer is not read */, BLENDED };

template <class T, Momentum MOMENTUM> struct Step {
    Real<T> lr, momentum, blend, decay;
    int64_t nesterov; /* or not: no bytes between the members are left undefined */
    const double *grad_scale, *trust_ratio;
    const T *gradient;
    T *buffer, *parameter;

    template <int N> struct In {
        Pack<T, N> gradient, parameter, buffer;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in;
        in.gradient = load_pack<T, N>(gradient + i);
        in.parameter = load_pack<T, N>(parameter + i);
        if (MOMENTUM == BLENDED)
            in.buffer = load_pack<T, N>(buffer + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> new_parameter, new_buffer;
        Real<T> scale = scalar<Real<T>>(grad_scale), trust = scalar<Real<T>>(trust_ratio);
        for (int k = 0; k < N; k++) {
            Real<T> old = to_real(in.parameter.value[k]);
            Real<T> direction = trust * (scale * to_real(in.gradient.value[k]) + decay * old);
            if (MOMENTUM != NONE) {
                Real<T> sum = direction;
                if (MOMENTUM == BLENDED)
                    sum = momentum * to_real(in.buffer.value[k]) + blend * direction;
                new_buffer.value[k] = round_to<T>(sum);
                direction = nesterov ? direction + momentum * sum : sum;
            }
            new_parameter.value[k] = round_to<T>(old - lr * direction);
        }
        store_pack(parameter + i, new_parameter);
        if (MOMENTUM != NONE)
            store_pack(buffer + i, new_buffer);
    }
};

shard_status shard_cuda_sgd(shard_device *device, int64_t n, const shard_sgd_options *options, const void *gradient,
                            void *momentum_buffer, void *parameter, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        auto run = [&](auto kind) {
            decltype(kind) step = {(Real<T>)options->lr,
                                   (Real<T>)options->momentum,
                                   (Real<T>)(1 - options->dampening),
                                   (Real<T>)options->weight_decay,
                                   options->nesterov,
                                   options->grad_scale,
                                   options->trust_ratio,
                                   (const T *)gradient,
                                   (T *)momentum_buffer,
                                   (T *)parameter};
            return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(gradient, momentum_buffer, parameter), step);
        };
        if (!momentum_buffer)
            return run(Step<T, NONE>());
        return options->first ? run(Step<T, FIRST>()) : run(Step<T, BLENDED>());
    });
}
