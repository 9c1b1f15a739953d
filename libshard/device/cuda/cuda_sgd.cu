/*
 * The step of SGD, one pass: gradient, parameter and momentum buffer are each read
 * once, parameter and buffer written once.
 */
#include "device/cuda/update.cuh"

using namespace shard;

template <class R> struct Rule {
    R lr, momentum, blend, decay;
    int32_t nesterov, first; /* or not: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: lr and first are those above */
    const double *grad_scale, *trust_ratio;

    /* The factors of this step. */
    struct Now {
        R scale, trust, rate;
        bool starts;
    };
    __device__ bool is_first() const
    {
        return factors ? factors->first != 0 : first;
    }
    __device__ Now now() const
    {
        return {scalar<R>(grad_scale), scalar<R>(trust_ratio), factors ? (R)factors->lr : lr, is_first()};
    }
    /* The new parameter; *buffer becomes the new momentum buffer. */
    template <bool MOMENTUM> __device__ R step(const Now &now, R gradient, R old, R *buffer) const
    {
        R direction = now.trust * (now.scale * gradient + decay * old);
        if (MOMENTUM) {
            *buffer = now.starts ? direction : momentum * *buffer + blend * direction;
            direction = nesterov ? direction + momentum * *buffer : *buffer;
        }
        return old - now.rate * direction;
    }
};

template <class T, bool MOMENTUM> struct Step {
    using R = Real<T>;
    Rule<R> by;
    const T *gradient;
    T *buffer, *parameter;

    template <int N> struct In {
        Pack<T, N> gradient, parameter, buffer;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        in.gradient = load_pack<T, N>(gradient + i);
        in.parameter = load_pack<T, N>(parameter + i);
        if (MOMENTUM && !by.is_first())
            in.buffer = load_pack<T, N>(buffer + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> new_parameter, new_buffer;
        auto now = by.now();
        for (int k = 0; k < N; k++) {
            R sum = to_real(in.buffer.value[k]);
            R result = by.template step<MOMENTUM>(now, to_real(in.gradient.value[k]), to_real(in.parameter.value[k]), &sum);
            new_parameter.value[k] = round_to<T>(result);
            new_buffer.value[k] = round_to<T>(sum);
        }
        store_pack(parameter + i, new_parameter);
        if (MOMENTUM)
            store_pack(buffer + i, new_buffer);
    }
};

template <bool MOMENTUM, class Rows> struct MixedStep {
    Rule<float> by;
    MixedUpdate<Rows> update;

    template <int N> using In = MixedIn<N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        load_typed<N>(update.gradient, i, in.gradient);
        update.template load_value<N>(i, in.value);
        if (MOMENTUM && !by.is_first())
            update.template load_state<N>(0, i, in.state[0]);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        float result[N], buffer[N];
        auto now = by.now();
        for (int k = 0; k < N; k++) {
            buffer[k] = in.state[0][k];
            result[k] = by.template step<MOMENTUM>(now, in.gradient[k], in.value[k], &buffer[k]);
        }
        update.template store_value<N>(i, result);
        if (MOMENTUM)
            update.template store_state<N>(0, i, buffer);
    }
};

template <class R> static Rule<R> rule_of(const shard_update *u, const shard_sgd_arguments *options)
{
    return {(R)u->lr,           (R)options->momentum, (R)(1 - options->dampening), (R)u->weight_decay, options->nesterov,
            u->step == 1,       u->factors,           u->grad_scale,               u->trust_ratio};
}

template <class T, bool MOMENTUM>
static shard_status run(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options)
{
    return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
        const shard_update *u = &updates[i];
        Step<T, MOMENTUM> step = {};
        step.by = rule_of<Real<T>>(u, options);
        step.gradient = (const T *)u->gradient;
        step.buffer = MOMENTUM ? (T *)u->state[0] : NULL;
        step.parameter = (T *)u->value;
        *n = u->size;
        *aligned = aligned16(step.gradient, step.buffer, step.parameter);
        return step;
    });
}

template <bool MOMENTUM, class Rows>
static shard_status run_mixed(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                              const shard_update_types &types)
{
    return run_maps<MIXED_PACK, 2>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
        const shard_update *u = &updates[i];
        MixedStep<MOMENTUM, Rows> step = {};
        step.by = rule_of<float>(u, options);
        step.update = mixed_of<Rows>(u, types);
        *n = u->size;
        *aligned = aligned_packs(step.update);
        return step;
    });
}

shard_status shard_cuda_sgd(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                            shard_update_types types)
{
    bool momentum = options->momentum != 0;
    if (is_mixed(types, count, updates))
        return by_rows(updates, [&](auto rows) {
            using Rows = decltype(rows);
            return momentum ? run_mixed<true, Rows>(device, count, updates, options, types)
                            : run_mixed<false, Rows>(device, count, updates, options, types);
        });
    return by_float(types.value, [&](auto t) {
        using T = decltype(t);
        return momentum ? run<T, true>(device, count, updates, options) : run<T, false>(device, count, updates, options);
    });
}
