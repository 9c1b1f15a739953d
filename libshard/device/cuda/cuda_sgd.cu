/*
 * The step of SGD, one pass: gradient, parameter and momentum buffer are each read
 * once, parameter and buffer written once.
 */
#include "device/cuda/map.cuh"

using namespace shard;

template <class T, bool MOMENTUM> struct Step {
    using R = Real<T>;
    R lr, momentum, blend, decay;
    int32_t nesterov, first; /* or not: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: lr and first are those above */
    const double *grad_scale, *trust_ratio;
    const T *gradient;
    T *buffer, *parameter;

    template <int N> struct In {
        Pack<T, N> gradient, parameter, buffer;
    };
    __device__ bool is_first() const
    {
        return factors ? factors->first != 0 : first;
    }
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        in.gradient = load_pack<T, N>(gradient + i);
        in.parameter = load_pack<T, N>(parameter + i);
        if (MOMENTUM && !is_first())
            in.buffer = load_pack<T, N>(buffer + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> new_parameter, new_buffer;
        R scale = scalar<R>(grad_scale), trust = scalar<R>(trust_ratio), rate = factors ? (R)factors->lr : lr;
        bool starts = is_first();
        for (int k = 0; k < N; k++) {
            R old = to_real(in.parameter.value[k]);
            R direction = trust * (scale * to_real(in.gradient.value[k]) + decay * old);
            if (MOMENTUM) {
                R sum = starts ? direction : momentum * to_real(in.buffer.value[k]) + blend * direction;
                new_buffer.value[k] = round_to<T>(sum);
                direction = nesterov ? direction + momentum * sum : sum;
            }
            new_parameter.value[k] = round_to<T>(old - rate * direction);
        }
        store_pack(parameter + i, new_parameter);
        if (MOMENTUM)
            store_pack(buffer + i, new_buffer);
    }
};

shard_status shard_cuda_sgd(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                            shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        using R = Real<T>;
        auto run = [&](auto kind) {
            return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
                const shard_update *u = &updates[i];
                decltype(kind) step = {(R)u->lr,
                                       (R)options->momentum,
                                       (R)(1 - options->dampening),
                                       (R)u->weight_decay,
                                       options->nesterov,
                                       u->step == 1,
                                       u->factors,
                                       u->grad_scale,
                                       u->trust_ratio,
                                       (const T *)u->gradient,
                                       options->momentum == 0 ? NULL : (T *)u->state[0],
                                       (T *)u->value};
                *n = u->size;
                *aligned = aligned16(step.gradient, step.buffer, step.parameter);
                return step;
            });
        };
        return options->momentum == 0 ? run(Step<T, false>()) : run(Step<T, true>());
    });
}
