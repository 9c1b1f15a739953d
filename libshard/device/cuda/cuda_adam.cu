/*
 * The steps of Adam, AdamW and LAMB, one pass: each array is read once and written once.
 *     result = keep * parameter + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps)
 * is the new parameter, or LAMB's update.
 */
#include "device/cuda/product.cuh"

using namespace shard;

enum Flag { FIRST = 1 /* the states are not read */, TO_GRADIENT = 2 /* the result goes there */ };

template <class R> struct AdamRule {
    R beta1, blend1, beta2, blend2, eps;
    R decay; /* added to the gradient */
    R root_correction, keep, rate;
    Word<sizeof(R)> flags; /* a word: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: those above */
    const double *grad_scale;

    /* The factors of this step. */
    struct Now {
        R scale, root, keep, rate;
        bool starts;
    };
    __device__ Now now() const
    {
        if (factors)
            return {scalar<R>(grad_scale), (R)factors->root_correction, (R)factors->keep, (R)factors->rate, factors->first != 0};
        return {scalar<R>(grad_scale), root_correction, keep, rate, (flags & FIRST) != 0};
    }
    /* The result; state: exp_avg, exp_avg_sq, max_exp_avg_sq become the new ones. */
    template <bool AMSGRAD> __device__ R step(const Now &now, R gradient, R old, R state[3]) const
    {
        R g = now.scale * gradient + decay * old;
        state[0] = beta1 * state[0] + blend1 * g;
        state[1] = beta2 * state[1] + blend2 * g * g;
        state[2] = AMSGRAD ? Maximum::join(state[1], state[2]) : state[1];
        return now.keep * old + now.rate * (state[0] / (sqrt(state[2]) * now.root + eps));
    }
};

/* Three states: AMSGrad. */
template <int STATES, class Arrays> struct Adam {
    using R = typename Arrays::R;
    enum { BLOCKS = Arrays::AHEAD == 1 ? 4 : 0 };
    AdamRule<R> by;
    typename AdamRule<R>::Now now;
    Arrays arrays;

    template <int N> using In = typename Arrays::template In<N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return arrays.template load<N>(i, !now.starts);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        R out[N], states[STATES][N];
        for (int k = 0; k < N; k++) {
            R state[3];
            for (int s = 0; s < STATES; s++)
                state[s] = to_real(in.state[s].value[k]);
            out[k] = by.template step<STATES == 3>(now, to_real(in.gradient.value[k]), to_real(in.value.value[k]), state);
            for (int s = 0; s < STATES; s++)
                states[s][k] = state[s];
        }
#pragma unroll
        for (int s = 0; s < STATES; s++)
            arrays.template store_state<N>(s, in.at, states[s]);
        if (by.flags & TO_GRADIENT)
            arrays.template store_gradient<N>(i, out);
        else
            arrays.template store_value<N>(in.at, out);
    }
};

/* decay: added to the gradient. */
template <class R> static AdamRule<R> rule_of(const shard_update *u, const shard_adam_arguments *o, bool lamb)
{
    shard_step_factors factors = shard_adam_factors(u, o, lamb);
    AdamRule<R> by = {};
    by.beta1 = (R)o->beta1;
    by.blend1 = (R)(1 - o->beta1);
    by.beta2 = (R)o->beta2;
    by.blend2 = (R)(1 - o->beta2);
    by.eps = (R)o->eps;
    by.decay = (R)(lamb || o->decoupled ? 0 : u->weight_decay);
    by.root_correction = (R)factors.root_correction;
    by.keep = (R)factors.keep;
    by.rate = (R)factors.rate;
    by.flags = (u->step == 1 ? FIRST : 0) | (lamb ? TO_GRADIENT : 0);
    by.factors = u->factors;
    by.grad_scale = u->grad_scale;
    return by;
}

template <int STATES>
static shard_status run(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *o,
                        bool lamb, const shard_update_types &types)
{
    return by_arrays<STATES>(count, updates, types, [&](auto arrays) {
        using Body = Adam<STATES, decltype(arrays)>;
        if (count && updates->product) {
            if constexpr (takes_product<decltype(arrays)>)
                return run_product<Body>(device, updates, types, rule_of<typename Body::R>(updates, o, lamb));
            else
                return refuse_product();
        }
        return run_updates<Body>(device, count, updates, types,
                                 [&](const shard_update *u) { return rule_of<typename Body::R>(u, o, lamb); });
    });
}

shard_status shard_cuda_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *options,
                             shard_update_types types)
{
    return options->amsgrad ? run<3>(device, count, updates, options, false, types)
                            : run<2>(device, count, updates, options, false, types);
}

shard_status shard_cuda_lamb_update(shard_device *device, int64_t count, const shard_update *updates,
                                    const shard_adam_arguments *options, shard_update_types types)
{
    return run<2>(device, count, updates, options, true, types);
}
