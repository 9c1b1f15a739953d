/*
 * The step of SGD, one pass: gradient, parameter and momentum buffer are each read
 * once, parameter and buffer written once.
 */
#include "device/cuda/product.cuh"

using namespace shard;

template <class R> struct SgdRule {
    R lr, momentum, blend, decay;
    int32_t nesterov, first; /* or not: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: lr and first are those above */
    const double *grad_scale, *trust_ratio;

    /* The factors of this step. */
    struct Now {
        R scale, trust, rate;
        bool starts;
    };
    __device__ Now now() const
    {
        R scale = scalar<R>(grad_scale), trust = scalar<R>(trust_ratio);
        return {scale, trust, factors ? (R)factors->lr : lr, factors ? factors->first != 0 : first != 0};
    }
    /* The new parameter; with momentum, *buffer becomes the new momentum buffer. */
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

/* One state: with momentum. */
template <int STATES, class Arrays> struct Step {
    using R = typename Arrays::R;
    enum { BLOCKS = Arrays::AHEAD == 1 ? 6 : 0 };
    SgdRule<R> by;
    typename SgdRule<R>::Now now;
    Arrays arrays;

    template <int N> using In = typename Arrays::template In<N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return arrays.template load<N>(i, !now.starts);
    }
    template <int N> __device__ void store(int64_t, const In<N> &in) const
    {
        R value[N], buffer[N];
        for (int k = 0; k < N; k++) {
            buffer[k] = to_real(in.state[0].value[k]);
            value[k] = by.template step<STATES>(now, to_real(in.gradient.value[k]), to_real(in.value.value[k]), &buffer[k]);
        }
        arrays.template store_value<N>(in.at, value);
        if (STATES)
            arrays.template store_state<N>(0, in.at, buffer);
    }
};

template <class R> static SgdRule<R> rule_of(const shard_update *u, const shard_sgd_arguments *options)
{
    return {(R)u->lr,           (R)options->momentum, (R)(1 - options->dampening), (R)u->weight_decay, options->nesterov,
            u->step == 1,       u->factors,           u->grad_scale,               u->trust_ratio};
}

template <int STATES>
static shard_status run(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                        const shard_update_types &types)
{
    return by_arrays<STATES>(count, updates, types, [&](auto arrays) {
        using Body = Step<STATES, decltype(arrays)>;
        if (count && updates->product) {
            if constexpr (takes_product<decltype(arrays)>)
                return run_product<Body>(device, updates, types, rule_of<typename Body::R>(updates, options));
            else
                return refuse_product();
        }
        return run_updates<Body>(device, count, updates, types,
                                 [&](const shard_update *u) { return rule_of<typename Body::R>(u, options); });
    });
}

shard_status shard_cuda_sgd(shard_device *device, int64_t count, const shard_update *updates, const shard_sgd_arguments *options,
                            shard_update_types types)
{
    return options->momentum != 0 ? run<1>(device, count, updates, options, types)
                                  : run<0>(device, count, updates, options, types);
}

bool shard_cuda_steps_product(const shard_update_product *product)
{
    return fits_product(product);
}
